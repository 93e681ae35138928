"""Matching of unit changes to jobs, from PID 1's unit states and signals of ended jobs."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

from opdbus.bus.transport.values import Plain
from opdbus.history import jobs
from opdbus.observe.core.report import MAX_OBJECTS
from opdbus.observe.systemd.unit_files import is_unit
from opdbus.observe.systemd.unit_properties import DOWN, ODD
from opdbus.observe.systemd.unit_values import as_text

START, STOP, RESTART, RELOAD = "start", "stop", "restart", "reload"
# Units that are there to start others.
TRIGGERS: Final = (".timer", ".socket", ".path", ".automount")
_WAITS: Final = "auto-restart"
_TYPES: Final = frozenset({START, STOP, RESTART, RELOAD})
# That a process ended by itself is no job, but one that starts the unit again may follow.
EXIT: Final = "exit"
WITH_PROCESSES: Final = (".service", ".scope")
# More that ended between two looks are told together, whenever each ended.
_MAX_ENDED: Final = 8


class _State(NamedTuple):
    """A unit's state, with PID 1's monotonic times of changes in microseconds."""

    active: str
    began: int
    ended: tuple[int, int]
    changed: int
    sub_state: str

    @property
    def is_up(self) -> bool:
        return self.active not in DOWN


@dataclass(slots=True)
class _Job:
    """A running job of a unit, with the unit's states before and after it."""

    number: int
    before: _State
    after: _State
    asked: str | None = None
    is_told: bool = False

    @property
    def type(self) -> str:
        """The type of the job: PID 1 calls a restart a start once its unit has stopped."""
        seen = _did(self.before, self.after)
        return RESTART if RESTART in {seen, self.asked} else self.asked or seen

    @property
    def cause(self) -> str:
        """The job as the cause of a change."""
        return " ".join(filter(None, [f"job:{self.number}", self.type]))

    @property
    def is_automatic(self) -> bool:
        """True if the unit was waiting for its automatic restart."""
        return self.before.sub_state.startswith(_WAITS)

    @property
    def span(self) -> "_Span":
        """The times of the changes that the job made so far."""
        return _Span(self.before.changed, self.after.began, self.after.changed)


class Work(NamedTuple):
    """The last job that worked on a unit, and how many jobs ended that nothing was told of yet.

    It is `is_automatic` where PID 1 restarts a unit whose process ended. Where it still works,
    `earlier` is the cause of those that ended.
    """

    cause: str = ""
    ended: int = 0
    is_automatic: bool = False
    earlier: str = ""


class _Span(NamedTuple):
    """When a unit had changed before a job, when it came up by it and changed last."""

    since: int = 0
    began: int = 0
    changed: int = 0


class _Ended(NamedTuple):
    """Ended work and its times."""

    work: Work
    span: _Span = _Span()


class UnitJobs:
    """Jobs of each unit, kept while they run and until `take` returns them."""

    def __init__(self) -> None:
        self._known: dict[str, _State] = {}
        # when units had changed last, as they were read
        self._read: dict[str, int] = {}
        self._working: dict[str, _Job] = {}
        self._ended: dict[str, list[_Ended]] = {}
        # when timers, sockets and paths began to wait for what they had started
        self._triggered: dict[str, int] = {}

    def changed(self, unit: str, properties: Plain) -> None:
        """Update a unit's state and job from a PropertiesChanged signal of PID 1.

        The signal has all properties that `_state` reads.
        """
        with suppress(*ODD):
            after, number = _state(properties), int(properties["Job"][0])
            job = self._working.get(unit)
            if number and (job is None or job.number != number):
                # the first signal of a job comes before it does anything
                job = _Job(number, self._known.get(unit, after), after)
                self._working[unit] = job
            if number and job:
                job.after = after
            if len(self._known) > MAX_OBJECTS:
                self._known.clear()
            known, self._known[unit] = self._known.get(unit), after
            if known and not number and unit.endswith(WITH_PROCESSES):
                self._changed_itself(unit, known, after)
            # a socket says so again once its service is up
            waits = after.sub_state == "running" and (not known or known.sub_state != "running")
            if waits and unit.endswith(TRIGGERS):
                if len(self._triggered) > MAX_OBJECTS:
                    self._triggered.clear()
                self._triggered[unit] = after.changed

    def _changed_itself(self, unit: str, known: _State, after: _State) -> None:
        """Record the exit of a process; drop it when PID 1 schedules a restart."""
        if after.sub_state.startswith(_WAITS) and _are_exit(self._ended.get(unit, ())):
            del self._ended[unit]
        elif known.is_up and not after.is_up and not self.has(unit):
            self._end(unit, Work(EXIT, 1), _Span(known.changed, after.began, after.changed))

    def removed(self, number: Plain, unit: str) -> None:
        """Move a unit's job to the ended ones, whatever its result."""
        if not isinstance(number, int) or not is_unit(unit):
            return
        job = self._working.pop(unit, None)
        if job is None or job.number != number:
            self._end(unit, Work(f"job:{number}"), _Span())
        else:
            ended = int(job.type in _TYPES and not job.is_told)
            self._end(unit, Work(job.cause, ended, job.is_automatic), job.span)

    def forget(self, unit: str) -> None:
        """Drop the states of an unloaded unit; its jobs are kept."""
        self._known.pop(unit, None)
        self._read.pop(unit, None)

    def is_behind(self, unit: str, changed: Plain, *, is_new: bool) -> bool:
        """Return whether a unit changed, at a time by PID 1's clock, and no signal said so yet.

        It has changed at no time where it was unloaded and is loaded again.
        """
        known = self._known.get(unit)
        told = known.changed if known else self._read.get(unit, 0)
        return isinstance(changed, int) and changed != told and (is_new or self.is_loaded(unit))

    def is_loaded(self, unit: str) -> bool:
        """Return whether a unit had a signal or was read, and was not unloaded since."""
        return unit in self._known or unit in self._read

    def is_failed(self, unit: str) -> bool:
        """Return whether a unit's last signal shows failure or a wait for automatic restart."""
        known = self._known.get(unit)
        return known is not None and (
            known.active == "failed" or known.sub_state.startswith(_WAITS)
        )

    def has_read(self, unit: str, changed: Plain) -> None:
        """Record the last change, by PID 1's monotonic clock, in the properties just read."""
        self._read.pop(unit, None)
        if isinstance(changed, int):
            if len(self._read) > MAX_OBJECTS:
                self._read.clear()
            self._read[unit] = changed

    def are_unclear(self, units: Collection[str]) -> bool:
        """Return whether any of the units has a running job of unknown type."""
        jobs = (self._working.get(unit) for unit in units)
        return any(job and job.asked is None and job.type != RESTART for job in jobs)

    def learn(self, types: Mapping[int, str]) -> None:
        """Set the types of running jobs from PID 1's list, by job number."""
        for job in self._working.values():
            name = types.get(job.number, job.asked or "")
            job.asked = name if name in _TYPES else ""

    def take(self, unit: str, triggers: Collection[str] = ()) -> Work:
        """Return and remove a unit's jobs, with the trigger that started the last one.

        Jobs that changed the unit after it was read are left for the next call.
        """
        job = self._working.get(unit)
        works = job is not None and bool(job.type) and not self._is_later(unit, job.span)
        work, span = self._take_ended(unit, is_followed=works)
        if job and works:
            earlier = work.cause if work.ended else ""
            work, span = Work(job.cause, work.ended, job.is_automatic, earlier), job.span
        by = next((name for name in triggers if self._has_started(name, unit, span)), "")
        return work._replace(cause=f"{work.cause} by {by}") if by and work.cause else work

    def _take_ended(self, unit: str, *, is_followed: bool) -> _Ended:
        """Return all that ended before a unit was read; an exit alone is seen by its state.

        One that is followed by a job is told with that when it has ended.
        """
        ended = self._ended.pop(unit, [])
        left = [each for each in ended if self._is_later(unit, each.span)]
        taken = [each for each in ended if each not in left]
        if _are_exit(taken):
            left, taken = left or (taken if is_followed else []), []
        if left:
            self._ended[unit] = left
        return reduce(_joined, taken, _Ended(Work()))

    def _is_later(self, unit: str, span: _Span) -> bool:
        """Return whether what was read of a unit is from before something changed it.

        One that was unloaded and is loaded again has changed at no time: what was before is past.
        """
        read = self._read.get(unit, span.changed)
        return read <= span.since < span.changed and (read != 0 or not span.since)

    def of(self, unit: str) -> str:
        """Return the cause of a unit's running or last ended job; empty if none."""
        job = self._working.get(unit)
        if job and job.type:
            return job.cause
        return self._ended[unit][-1].work.cause if unit in self._ended else ""

    def has(self, unit: str) -> bool:
        """Return whether a unit has a running job or ended ones that were not taken."""
        return unit in self._ended or unit in self._working

    def told(self, unit: str) -> None:
        """Mark a unit's running job as reported, so that its end does not count again."""
        if job := self._working.get(unit):
            job.is_told = True

    def _has_started(self, trigger: str, unit: str, span: _Span) -> bool:
        """Return whether a unit came up since a trigger wanted it to.

        One that only follows what somebody else has started waits for it later. A socket that has
        a service for each connection waits for none of them.
        """
        socket, _, kind = trigger.rpartition(".")
        is_connection = kind == "socket" and unit.startswith(f"{socket}@")
        return is_connection or span.since <= self._triggered.get(trigger, -1) <= span.began

    def _end(self, unit: str, work: Work, span: _Span) -> None:
        if len(self._ended) > MAX_OBJECTS:
            self._ended.clear()
        ended = self._ended.setdefault(unit, [])
        ended.append(_Ended(work, span))
        if len(ended) > _MAX_ENDED:
            ended[:2] = [_joined(*ended[:2])]


def _are_exit(ended: Collection[_Ended]) -> bool:
    return [each.work.cause for each in ended] == [EXIT]


def _joined(before: _Ended, after: _Ended) -> _Ended:
    """Return what stands for work and what followed it."""
    work, count = after.work, before.work.ended
    cause = jobs.combine(before.work.cause, count, work.cause) if count else work.cause
    return _Ended(work._replace(cause=cause, ended=count + work.ended), after.span)


def _state(properties: Plain) -> _State:
    """Parse a signal's properties; raise one of ODD if they are malformed."""
    began, left, ended, changed = (
        int(properties[f"{name}TimestampMonotonic"])
        for name in ("InactiveExit", "ActiveExit", "InactiveEnter", "StateChange")
    )
    sub_state = str(properties.get("SubState", ""))
    return _State(as_text(properties["ActiveState"]), began, (left, ended), changed, sub_state)


def _did(before: _State, after: _State) -> str:
    """Return the job type that explains two states; empty if nothing changed."""
    if after.began != before.began:
        return RESTART if before.is_up else START
    if after.ended != before.ended:
        return STOP
    if after.changed == before.changed:
        return ""
    # what does not run is not reloaded: PID 1 refused to start it
    return RELOAD if after.is_up else START
