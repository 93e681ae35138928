"""Matching of unit changes to jobs, from PID 1's unit states and signals of ended jobs."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple, TypeVar

from opdbus.bus.transport.values import Plain
from opdbus.history import jobs
from opdbus.observe.core.report import MAX_OBJECTS
from opdbus.observe.systemd.unit_files import is_unit
from opdbus.observe.systemd.unit_properties import CONVERSION_ERRORS, DOWN, Values, as_text

T = TypeVar("T")
START, STOP, RESTART, RELOAD = "start", "stop", "restart", "reload"
# Units that are there to start others.
TRIGGERS: Final = (".timer", ".socket", ".path", ".automount")
_WAITS: Final = "auto-restart"
_ENDING: Final = frozenset((*DOWN, "deactivating"))
_TYPES: Final = frozenset({START, STOP, RESTART, RELOAD})
_CHANGED: Final = "StateChangeTimestampMonotonic"
# The end of a process by itself is no job, but one that starts the unit again may follow.
EXIT: Final = "exit"
WITH_PROCESSES: Final = (".service", ".scope")
# Beyond this many ended steps, the two oldest are merged.
_MAX_ENDED: Final = 8


class _State(NamedTuple):
    """A unit's state, with PID 1's monotonic times of changes in microseconds."""

    active: str
    began: int
    stopped_at: tuple[int, int]
    changed: int
    sub_state: str

    @property
    def is_up(self) -> bool:
        return self.active not in DOWN

    @property
    def is_auto_restarting(self) -> bool:
        return self.sub_state.startswith(_WAITS)


class Work(NamedTuple):
    """The last job of a unit, and the number of jobs that ended since the last report.

    It is `is_automatic` if PID 1 restarts a unit whose process ended. If the last job still runs,
    `earlier` is the cause of the ended ones.
    """

    cause: str = ""
    ended_jobs: int = 0
    is_automatic: bool = False
    earlier: str = ""


class _Step(NamedTuple):
    """Work on a unit; the times of its change before, of its start, and of its last change."""

    work: Work
    since: int = 0
    began: int = 0
    changed: int = 0


@dataclass(slots=True)
class _Job:
    """A running job of a unit, with the unit's states before and after it."""

    number: int
    before: _State
    after: _State
    # as PID 1 lists it; None until PID 1 was asked
    listed_type: str | None = None
    is_reported: bool = False
    # PID 1 may have waited to restart the unit only after another unit wanted to start it
    is_automatic: bool = False

    @property
    def type(self) -> str:
        """The type of the job: PID 1 calls a restart a start once its unit has stopped."""
        seen = _type_of(self.before, self.after)
        return RESTART if RESTART in {seen, self.listed_type} else self.listed_type or seen

    @property
    def has_begun(self) -> bool:
        """True if the job has changed the unit: one to be stopped may still be up."""
        return self.type not in {STOP, RESTART} or self.after != self.before

    def step(self, *, has_ended: bool = False) -> _Step:
        """Return the work of the job so far, or all of it."""
        count = int(has_ended and self.type in _TYPES and not self.is_reported)
        cause = f"job:{self.number} {self.type}".rstrip(" ")
        work = Work(cause, count, self.is_automatic or self.before.is_auto_restarting)
        return _Step(work, self.before.changed, self.after.began, self.after.changed)


class UnitJobs:
    """Jobs of each unit, kept while they run and until `take` returns them."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}
        # the last states that were no end
        self._last_up: dict[str, str] = {}
        # times of the last changes in the properties that were read: of loaded units, and of those
        # that were unloaded since but are not reported yet
        self._read: dict[str, int] = {}
        self._unreported: dict[str, int] = {}
        self._running: dict[str, _Job] = {}
        self._ended_steps: dict[str, list[_Step]] = {}
        # when timers, sockets and paths began to wait for the units that they had started
        self._triggered: dict[str, int] = {}

    def update(self, unit: str, properties: Plain) -> None:
        """Update a unit's state and job from a PropertiesChanged signal of PID 1.

        The signal has all properties that are read here.
        """
        with suppress(*CONVERSION_ERRORS):
            began, left, ended, changed = (
                int(properties[f"{name}TimestampMonotonic"])
                for name in ("InactiveExit", "ActiveExit", "InactiveEnter", "StateChange")
            )
            sub_state = str(properties.get("SubState", ""))
            active = as_text(properties["ActiveState"])
            after = _State(active, began, (left, ended), changed, sub_state)
            before, number = self._states.get(unit), int(properties["Job"][0])
            job = self._running.get(unit)
            if number and (job is None or job.number != number):
                # the first signal of a job comes before it does anything
                self._running[unit] = job = _Job(number, before or after, after)
            if number and job:
                job.after = after
                job.is_automatic |= after.is_auto_restarting
            _set_bounded(self._states, unit, after)
            if active not in _ENDING:
                _set_bounded(self._last_up, unit, active)
            if before and not number and unit.endswith(WITH_PROCESSES):
                exits = [step.work.cause for step in self._ended_steps.get(unit, ())]
                if after.is_auto_restarting and exits == [EXIT]:
                    # PID 1 starts the service again
                    del self._ended_steps[unit]
                elif before.is_up and not after.is_up and not self.has_work(unit):
                    self._end(unit, _Step(Work(EXIT, 1), before.changed, began, changed))
            # a socket sends its state again once its service is up
            is_triggered = sub_state == "running" and (not before or before.sub_state != "running")
            if is_triggered and unit.endswith(TRIGGERS):
                _set_bounded(self._triggered, unit, changed)

    def end_job(self, number: Plain, unit: str) -> None:
        """Move a unit's job to the ended ones, whatever its result."""
        if not isinstance(number, int) or not is_unit(unit):
            return
        job = self._running.pop(unit, None)
        if job and job.number == number:
            self._end(unit, job.step(has_ended=True))
        else:
            self._end(unit, _Step(Work(f"job:{number}")))

    def forget(self, unit: str) -> None:
        """Drop the states of an unloaded unit; its jobs are kept."""
        self._states.pop(unit, None)
        if unit in self._read:
            _set_bounded(self._unreported, unit, self._read.pop(unit))

    def is_behind(self, unit: str, properties: Values, *, is_new: bool) -> bool:
        """Return whether properties are newer, by PID 1's clock, than the last signal of a unit.

        A unit loaded anew reports change time 0.
        """
        changed, state = properties.get(_CHANGED), self._states.get(unit)
        last = state.changed if state else self._read.get(unit, 0)
        return isinstance(changed, int) and changed != last and (is_new or self.is_loaded(unit))

    def was_active(self, unit: str) -> bool:
        """Return whether a unit was active, by its signals, before it went down or stops."""
        return self._last_up.get(unit) == "active"

    def is_loaded(self, unit: str) -> bool:
        """Return whether a unit had a signal or was read, and was not unloaded since."""
        return unit in self._states or unit in self._read

    def is_failed(self, unit: str) -> bool:
        """Return whether a unit's last signal shows failure or a wait for automatic restart."""
        state = self._states.get(unit)
        return state is not None and (state.active == "failed" or state.is_auto_restarting)

    def set_read(self, unit: str, properties: Values) -> None:
        """Record the last change, by PID 1's monotonic clock, in the properties just read."""
        self._read.pop(unit, None)
        self._unreported.pop(unit, None)
        changed = properties.get(_CHANGED)
        if isinstance(changed, int):
            _set_bounded(self._read, unit, changed)

    def are_unclear(self, units: Collection[str]) -> bool:
        """Return whether any of the units has a running job of unknown type."""
        running = (self._running.get(unit) for unit in units)
        return any(job and job.listed_type is None and job.type != RESTART for job in running)

    def set_types(self, types: Mapping[int, str]) -> None:
        """Set the types of running jobs from PID 1's list, by job number."""
        for job in self._running.values():
            name = types.get(job.number, job.listed_type or "")
            job.listed_type = name if name in _TYPES else ""

    def take(
        self, unit: str, triggers: Collection[str] = (), *, has_restarted: bool = False
    ) -> Work:
        """Return and remove a unit's jobs, with the trigger that started the last one.

        PID 1 started the unit itself, which no trigger did, if it `has_restarted` by its count.

        Jobs that changed the unit after it was read are left for the next call. An exit
        without a job is not reported; one followed by a job is reported once the job ends.
        """
        job = self._running.get(unit)
        step = job.step() if job and job.type and job.has_begun else None
        if step and self._is_later(unit, step):
            step = None
        ended = self._ended_steps.pop(unit, [])
        # what ended before a job that changed the unit earlier changed it earlier, too
        past = (n for n, each in enumerate(ended, 1) if not self._is_later(unit, each))
        count = max(past, default=0)
        taken, left = ended[:count], ended[count:]
        if [each.work.cause for each in taken] == [EXIT]:
            left, taken = left or (taken if step else []), []
        if left:
            self._ended_steps[unit] = left
        last = reduce(_join, taken, _Step(Work()))
        if step:
            earlier, count = last.work.cause if last.work.ended_jobs else "", last.work.ended_jobs
            last = step._replace(work=step.work._replace(ended_jobs=count, earlier=earlier))
        work = last.work
        if work.is_automatic or (has_restarted and jobs.act(work.cause) in {START, RESTART}):
            return work._replace(is_automatic=True)
        by = next((name for name in triggers if self._has_started(name, unit, last)), "")
        return work._replace(cause=f"{work.cause} by {by}") if by and work.cause else work

    def take_starts(self, unit: str) -> Work:
        """Return and remove the ended jobs of a unit, up to the last that started it."""
        ended = self._ended_steps.pop(unit, [])
        starts = (
            n for n, each in enumerate(ended) if jobs.act(each.work.cause) in {START, RESTART}
        )
        count = max(starts, default=-1) + 1
        if ended[count:]:
            self._ended_steps[unit] = ended[count:]
        return reduce(_join, ended[:count], _Step(Work())).work

    def _is_later(self, unit: str, step: _Step) -> bool:
        """Return whether a unit was read before a step changed it.

        A unit loaded anew reports change time 0: earlier steps are past.
        """
        read = self._read.get(unit, self._unreported.get(unit, step.changed))
        return read <= step.since < step.changed and (read != 0 or not step.since)

    def last_cause(self, unit: str) -> str:
        """Return the cause of a unit's running or last ended job; empty if none."""
        job = self._running.get(unit)
        if job and job.type:
            return job.step().work.cause
        return self._ended_steps[unit][-1].work.cause if unit in self._ended_steps else ""

    def has_work(self, unit: str) -> bool:
        """Return whether a unit has a running job or ended ones that were not taken."""
        return unit in self._ended_steps or unit in self._running

    def mark_reported(self, unit: str) -> None:
        """Mark a unit's running job as reported, so that its end does not count again."""
        if job := self._running.get(unit):
            job.is_reported = True

    def _has_started(self, trigger: str, unit: str, step: _Step) -> bool:
        """Return whether a unit came up since a trigger wanted it to.

        A trigger that only follows a start by another waits for the unit later. A socket that has a
        service for each connection waits for none of them.
        """
        socket, _, kind = trigger.rpartition(".")
        is_connection = kind == "socket" and unit.startswith(f"{socket}@")
        return is_connection or step.since <= self._triggered.get(trigger, -1) <= step.began

    def _end(self, unit: str, step: _Step) -> None:
        ended = self._ended_steps.get(unit, [])
        _set_bounded(self._ended_steps, unit, ended)
        ended.append(step)
        if len(ended) > _MAX_ENDED:
            ended[:2] = [_join(*ended[:2])]


def _set_bounded(values: dict[str, T], unit: str, value: T) -> None:
    """Set the value of a unit; drop all others first if there are too many."""
    if len(values) > MAX_OBJECTS:
        values.clear()
    values[unit] = value


def _join(before: _Step, after: _Step) -> _Step:
    """Combine a step and the one that followed it."""
    work, count = after.work, before.work.ended_jobs
    cause = jobs.combine(before.work.cause, count, work.cause) if count else work.cause
    return after._replace(work=work._replace(cause=cause, ended_jobs=count + work.ended_jobs))


def _type_of(before: _State, after: _State) -> str:
    """Return the job type that explains two states; empty if nothing changed."""
    if after.began != before.began:
        return RESTART if before.is_up else START
    if after.stopped_at != before.stopped_at:
        return STOP
    if after.changed == before.changed:
        return ""
    # a unit that does not run is not reloaded: PID 1 refused to start it
    return RELOAD if after.is_up else START
