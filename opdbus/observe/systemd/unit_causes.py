"""Causes of unit changes: a job, the unit's processes, the kernel, or a triggering unit."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Final

from opdbus.history import jobs
from opdbus.history.change import Cause
from opdbus.observe.core.recent_causes import Causes
from opdbus.observe.core.system_bus import Signal
from opdbus.observe.systemd import pid1
from opdbus.observe.systemd.pid1 import Pid1
from opdbus.observe.systemd.unit_jobs import (
    EXIT,
    RESTART,
    START,
    TRIGGERS,
    WITH_PROCESSES,
    UnitJobs,
    Work,
)
from opdbus.observe.systemd.unit_loops import LOOP, OF_END
from opdbus.observe.systemd.unit_properties import DOWN, differ, fault_of, is_same_state, names_in
from opdbus.state.object import Json

Fields = Mapping[str, Json]
RELOAD: Final = "reload"
# PID 1 unloads a unit, and its document is read, so long after it has changed.
_AFTER_SECONDS: Final = 5.0
# PID 1 gives up a unit that ends too often: the job that it has then does not stop it.
_GAVE_UP: Final = "start-limit-hit"


class UnitCauses:
    """Causes of unit changes, derived from PID 1's signals of units and jobs."""

    def __init__(self, causes: Causes) -> None:
        self._causes = causes
        self.jobs = UnitJobs()
        # when PID 1 began to read unit files anew, or to enable one, in seconds since 1970
        self._reloaded_at = 0.0
        # the same time as PID 1 reports it, later; 0 if it is to be asked
        self._loaded_at = 0.0
        # faults that ended the processes of services
        self._faults: dict[str, str] = {}
        # automatic restarts that are reported once their jobs have ended
        self._restarts = Counter[str]()

    def on_signal(self, signal: Signal) -> None:
        """Update the state of jobs, faults and reloads from a signal of PID 1."""
        with suppress(ValueError):
            match signal.member, signal.body:
                case "PropertiesChanged", [pid1.SERVICE, properties, *_]:
                    # the service may run again before it is read
                    if (fault := fault_of(properties)) is not None:
                        self._faults[pid1.unit_at(signal.path)] = fault
                case "PropertiesChanged", [_, properties, *_]:
                    unit = pid1.unit_at(signal.path)
                    self.jobs.update(unit, properties)
                    if self.jobs.is_failed(unit):
                        self._causes.has_failed.set()
                    if cause := self.jobs.last_cause(unit):
                        self._causes.note_job(unit, cause)
                case "JobRemoved", [number, _, str(unit), *_]:
                    self.jobs.end_job(number, unit)
                case "UnitRemoved", [str(unit), *_]:
                    self.jobs.forget(unit)
                    self._faults.pop(unit, None)
                case "Reloading", [True]:
                    self._reloaded_at, self._loaded_at = signal.at, 0.0
                case "UnitFilesChanged", _:
                    self._reloaded_at = signal.at

    async def date_reload(self, manager: Pid1) -> None:
        """Ask PID 1 when it loaded unit files; the signal may come after a package run."""
        at = await manager.loaded_at()
        if at > self._loaded_at:
            self._reloaded_at = self._loaded_at = at

    def has_left(self, unit: str, before: Fields) -> bool:
        """Return whether all signals of an unloaded unit have been received."""
        is_up = before.get("active_state") not in {*DOWN, None}
        return not is_up or self.jobs.has_work(unit) or not self.jobs.is_loaded(unit)

    @property
    def reload(self) -> str:
        """Cause of changes after a reload: the package run, or `reload`."""
        return self.of_files(self._reloaded_at)

    def of_files(self, changed_at: float) -> str:
        """Return the cause of file changes at a time in seconds since 1970."""
        return self._causes.run(changed_at) or RELOAD

    def explain(
        self, unit: str, before: Fields | None, now: Fields, other: str
    ) -> tuple[Cause, Cause | None]:
        """Return the cause of a unit's change and, if any, of a separate event.

        `other` is the cause if the unit itself was neither started nor stopped. A change by unit
        files is separate from a job that left the state unchanged. For a new unit, only the cause
        of its file is returned; the job that started it is left for later.
        """
        if _is_of_run(unit, before, now) or not _is_of_files(other):
            return self._take_why(unit, before, now, other), None
        if before is None or differ(before, now):
            self._causes.note(unit, other)
        if before is None:
            return Cause(other), None
        event = self._take_why(unit, now, now, "")
        return Cause(other), event if event.is_event else None

    def explain_missed_start(self, unit: str) -> Cause:
        """Return the cause of the start of a unit that was up between two readings."""
        work = self.jobs.take_starts(unit)
        if work.cause:
            self._causes.note(unit, jobs.alone(work.cause))
        automatic = ", automatic" if work.is_automatic else ""
        return Cause(f"{work.cause}{automatic}", max(0, work.ended_jobs - 1))

    def explain_removal(self, unit: str, before: Fields, other: str, of_file: str) -> str:
        """Return the cause of a unit's removal: that of its own file, before that of a job."""
        cause = self._take_why(unit, before, {}, other).cause
        return of_file if of_file and _is_of_own_file(unit, before) else cause

    def latest(self, unit: str, fields: Fields) -> str:
        """Return the latest cause of a unit or its triggers or triggered units, within 5 s."""
        return self._causes.of_units([unit, *_triggers_and_triggered(fields)], _AFTER_SECONDS)

    def _take_why(self, unit: str, before: Fields | None, now: Fields, other: str) -> Cause:
        """Take a unit's jobs and return the cause of its change; `is_event` if any job ended."""
        # a unit that was unloaded since has no triggers
        triggers = names_in(now, "triggered_by") or names_in(before or {}, "triggered_by")
        restarts = self._count_restarts(unit, before, now)
        work = self.jobs.take(unit, triggers, has_restarted=restarts > 0)
        if restarts and before and not work.ended_jobs and not differ(before, now):
            if not work.cause:  # PID 1 said nothing in between
                return Cause(self._ended(unit), restarts - 1, is_event=True)
            self._restarts[unit] = restarts
        return self._explain_work(unit, before, now, other, work)

    def _explain_work(
        self, unit: str, before: Fields | None, now: Fields, other: str, work: Work
    ) -> Cause:
        is_other = before is None or differ(before, now)
        own = self._own_cause(unit, before, now) if before else None
        is_given_up = now.get("result") == _GAVE_UP and (own == EXIT or work.is_automatic)
        if before and LOOP in now and LOOP not in before:
            cause = EXIT
        elif is_given_up:
            cause = work.cause.replace(jobs.alone(work.cause), jobs.GAVE_UP) or jobs.GAVE_UP
            if not is_other:  # its job is heard of after the change was reported
                return Cause(cause)
        elif work.cause:
            cause = self._cause_of_work(unit, work, now, is_other=is_other)
        elif own is None:
            is_run = now.get("active_state") and _is_of_run(unit, before, now)
            cause = "" if is_run and _is_of_files(other) else other
        else:
            cause = own
        if work.cause and is_other:
            self.jobs.mark_reported(unit)
        if cause and (work.cause or is_other):
            self._causes.note(unit, jobs.alone(cause))
        if work.earlier and not is_other:  # a running job is reported when it has ended
            return Cause(work.earlier, work.ended_jobs - 1, is_event=True)
        count = work.ended_jobs if work.earlier else max(0, work.ended_jobs - 1)
        if work.earlier:
            cause = jobs.combine(work.earlier, work.ended_jobs, cause)
        return Cause(cause, count, is_event=work.ended_jobs > 0)

    def _cause_of_work(self, unit: str, work: Work, now: Fields, *, is_other: bool) -> str:
        """Return the cause for a job, with a suffix for failure or automatic restart."""
        is_failed = now.get("active_state") == "failed"
        if is_failed and work.is_automatic and is_other:
            return work.cause.replace(jobs.alone(work.cause), EXIT)
        if not is_other and is_failed and jobs.act(work.cause) in {START, RESTART}:
            return work.cause + jobs.FAILED
        if work.is_automatic and is_other and now.get("n_restarts"):
            return work.cause + ", automatic"
        if work.is_automatic and not is_other:
            return self._ended(unit)
        return work.cause

    def _ended(self, unit: str) -> str:
        fault = self._faults.get(unit, "")
        return f"{EXIT}:{fault}" if fault else EXIT

    def _count_restarts(self, unit: str, before: Fields | None, now: Fields) -> int:
        """Return the automatic restarts of a unit that were not reported; 0 in a loop."""
        earlier = self._restarts.pop(unit, 0)
        if before is None or LOOP in before or LOOP in now:
            return 0
        # no number stands for none
        was, count = (int(str(fields.get("n_restarts", 0))) for fields in (before, now))
        return earlier + max(0, count - was)

    def _own_cause(self, unit: str, before: Fields, now: Fields) -> str | None:
        """Return the cause of a change of state without a job; None if it is not known."""
        was, state = before.get("active_state"), now.get("active_state")
        if is_same_state(before, now) or (state is None and was == "inactive"):
            return None
        if unit.endswith(".device"):
            return "kernel"
        if unit.endswith(TRIGGERS):
            return self._causes.of_ports(_triggers_and_triggered(now), _AFTER_SECONDS) or None
        if LOOP in before and state == "active":
            return ""  # it runs, and has for a while
        if (was, state) == ("activating", "active"):
            # the cause of its start, which was reported before
            return self._causes.of_ports([unit], _AFTER_SECONDS)
        has_ended = unit.endswith(WITH_PROCESSES) and was and was not in DOWN
        return EXIT if has_ended and state != "reloading" else ""


def with_ended_pid(why: Cause, before: Fields | None) -> Cause:
    """Return a cause with the main process that had the unit, if its end is the cause."""
    is_end = EXIT in {jobs.act(why.cause), *jobs.others(why.cause)}
    pid = (before or {}).get("main_pid")
    return why._replace(ended_pid=pid) if is_end and isinstance(pid, int) else why


def is_with_file(unit: str, now: Fields, cause: str) -> bool:
    """Return whether a new unit came with its file."""
    return _is_of_files(cause) and _is_of_own_file(unit, now)


def _triggers_and_triggered(fields: Fields) -> list[str]:
    return [*names_in(fields, "triggers"), *names_in(fields, "triggered_by")]


def _is_of_own_file(unit: str, fields: Fields) -> bool:
    """Return whether a unit is not made by a start, as instances and transient units are."""
    file = PurePath(str(fields.get("fragment_path", "")))
    return file.name == unit and not fields.get("transient")


def _is_of_run(unit: str, before: Fields | None, now: Fields) -> bool:
    """Return whether a unit ran or ended between two states, which no file brings about."""
    if before is None:
        return not _is_of_own_file(unit, now)
    ends = (now.get(name) not in {before.get(name), None, "success", 0} for name in OF_END)
    return not is_same_state(before, now) or any(ends)


def _is_of_files(cause: str) -> bool:
    return cause == RELOAD or cause.startswith(("apt:", "dpkg:"))
