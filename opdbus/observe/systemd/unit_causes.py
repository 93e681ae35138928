"""Causes of unit changes: a job, the unit's processes, the kernel, or a triggering unit."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Final

from opdbus.history import jobs
from opdbus.history.change import Why
from opdbus.observe.core.causes import Causes
from opdbus.observe.core.report import MAX_OBJECTS
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
from opdbus.observe.systemd.unit_properties import DOWN, differ, fault_of, is_same_state
from opdbus.state.object import Json

KERNEL, RELOAD = "kernel", "reload"
# PID 1 unloads a unit, and its document is read, so long after it has changed.
_AFTER_SECONDS: Final = 5.0
# What a cause ends with where a unit that had failed was started and failed again.
FAILED_AGAIN: Final = ", failed"
# And where PID 1 itself starts a service again whose process had ended.
AUTOMATIC: Final = ", automatic"
# PID 1 gives up a unit that ends too often: the job that it has then does not stop it.
_GAVE_UP: Final = "start-limit-hit"


class UnitCauses:
    """Causes of unit changes, derived from PID 1's signals of units and jobs."""

    def __init__(self, causes: Causes) -> None:
        self._causes = causes
        self._jobs = UnitJobs()
        # when PID 1 began to read unit files anew, or to enable one, in seconds since 1970
        self._reloaded_at = 0.0
        # when it says that it did, which is heard of later; 0 if it is to be asked
        self._loaded_at = 0.0
        # how the processes of services ended that did not end well
        self._faults: dict[str, str] = {}

    def hear(self, signal: Signal) -> None:
        """Update the state of jobs, faults and reloads from a signal of PID 1."""
        with suppress(ValueError):
            match signal.member, signal.body:
                case "PropertiesChanged", [pid1.SERVICE, properties, *_]:
                    self._ended(pid1.unit_at(signal.path), properties)
                case "PropertiesChanged", [_, properties, *_]:
                    self._changed(pid1.unit_at(signal.path), properties)
                case "JobRemoved", [number, _, str(unit), *_]:
                    self._jobs.removed(number, unit)
                case "UnitRemoved", [str(unit), *_]:
                    self._jobs.forget(unit)
                    self._faults.pop(unit, None)
                case "Reloading", [True]:
                    self._reloaded_at, self._loaded_at = signal.at, 0.0
                case "UnitFilesChanged", _:
                    self._reloaded_at = signal.at

    async def ask(self, manager: Pid1, units: Collection[str]) -> None:
        """Ask PID 1 for job types that signals do not show, once for each job."""
        if self._jobs.are_unclear(units):
            self._jobs.learn(await manager.jobs())

    async def date_reload(self, manager: Pid1) -> None:
        """Ask PID 1 when it loaded unit files; the signal may come after a package run."""
        at = await manager.loaded_at()
        if at > self._loaded_at:
            self._reloaded_at = self._loaded_at = at

    def is_behind(self, unit: str, properties: Mapping[str, object], *, is_new: bool) -> bool:
        """Return whether a unit changed and the signal with the cause is still to come."""
        changed = properties.get("StateChangeTimestampMonotonic")
        return self._jobs.is_behind(unit, changed, is_new=is_new)

    def has_left(self, unit: str, before: Mapping[str, Json]) -> bool:
        """Return whether all signals of an unloaded unit have been received."""
        is_up = before.get("active_state") not in {*DOWN, None}
        return not is_up or self._jobs.has(unit) or not self._jobs.is_loaded(unit)

    def has_read(self, unit: str, properties: Mapping[str, object]) -> None:
        """Record the time of a unit's last state change in the properties just read."""
        self._jobs.has_read(unit, properties.get("StateChangeTimestampMonotonic"))

    @property
    def reload(self) -> str:
        """Cause of changes after a reload: the package run, or `reload`."""
        return self.of_files(self._reloaded_at)

    def of_files(self, changed_at: float) -> str:
        """Return the cause of file changes at a time in seconds since 1970."""
        return self._causes.run(changed_at) or RELOAD

    def whys(
        self, unit: str, before: Mapping[str, Json] | None, now: Mapping[str, Json], other: str
    ) -> tuple[Why, Why | None]:
        """Return the cause of a unit's change and, if any, of a separate event; see `why`.

        A change by unit files is separate from a job that left the state unchanged. For a new
        unit, only the cause of its file is returned; the job that started it is left for later.
        """
        if _is_of_run(unit, before, now) or not _is_of_files(other):
            return self.why(unit, before, now, other), None
        if before is None or differ(before, now):
            self._causes.note(unit, other)
        if before is None:
            return Why(other), None
        event = self.why(unit, now, now, "")
        return Why(other), event if event.is_event else None

    def was_started(self, unit: str) -> bool:
        """Return whether a job works on a unit or has ended and was not taken yet."""
        return self._jobs.has(unit)

    def why(
        self, unit: str, before: Mapping[str, Json] | None, now: Mapping[str, Json], other: str
    ) -> Why:
        """Take a unit's jobs and return the cause of its change; `is_event` if any job ended.

        `other` is the cause where the unit itself was neither started nor stopped.
        """
        is_other = before is None or differ(before, now)
        own = self._own(unit, before, now) if before else None
        # a unit that was unloaded since is triggered by nothing
        triggers = listed(now, "triggered_by") or listed(before or {}, "triggered_by")
        work = self._jobs.take(unit, triggers)
        is_given_up = now.get("result") == _GAVE_UP and (own == EXIT or work.is_automatic)
        if before and LOOP in now and LOOP not in before:
            cause = EXIT
        elif is_given_up:
            cause = work.cause.replace(jobs.alone(work.cause), jobs.GAVE_UP) or jobs.GAVE_UP
            if not is_other:  # its job is heard of after that was told
                return Why(cause)
        elif work.cause:
            cause = self._of_work(unit, work, now, is_other=is_other)
        elif own is None:
            is_run = now.get("active_state") and _is_of_run(unit, before, now)
            cause = "" if is_run and _is_of_files(other) else other
        else:
            cause = own
        if work.cause and is_other:
            self._jobs.told(unit)
        if cause and (work.cause or is_other):
            self._causes.note(unit, jobs.alone(cause))
        if work.earlier and not is_other:  # what works now is told when it has ended
            return Why(work.earlier, work.ended - 1, is_event=True)
        folded = work.ended if work.earlier else max(0, work.ended - 1)
        if work.earlier:
            cause = jobs.combine(work.earlier, work.ended, cause)
        return Why(cause, folded, is_event=work.ended > 0)

    def _of_work(self, unit: str, work: Work, now: Mapping[str, Json], *, is_other: bool) -> str:
        """Return the cause for a job, with a suffix for failure or automatic restart."""
        is_failed = now.get("active_state") == "failed"
        if is_failed and work.is_automatic and is_other:
            return work.cause.replace(jobs.alone(work.cause), EXIT)
        if not is_other and is_failed and _starts(work.cause):
            return work.cause + FAILED_AGAIN
        if work.is_automatic and is_other and now.get("n_restarts"):
            return work.cause + AUTOMATIC
        if work.is_automatic and not is_other:
            fault = self._faults.get(unit, "")
            return f"{EXIT}:{fault}" if fault else EXIT
        return work.cause

    def why_gone(self, unit: str, before: Mapping[str, Json], other: str, of_file: str) -> str:
        """Return the cause of a unit's removal: that of its own file, before that of a job."""
        cause = self.why(unit, before, {}, other).cause
        return of_file if of_file and _is_of_own_file(unit, before) else cause

    def latest(self, unit: str, properties: Mapping[str, Json]) -> str:
        """Return the latest cause of a unit or its triggers or triggered units, within 5 s."""
        return self._causes.of_units([unit, *_others(properties)], _AFTER_SECONDS)

    def order(self, unit: str) -> tuple[bool, bool]:
        """Return a sort key that puts units with jobs first and triggers last among equals."""
        return not self._jobs.has(unit), unit.endswith(TRIGGERS)

    def _changed(self, unit: str, properties: object) -> None:
        """Hear that a unit changed, and note at once which job works on it, or that it ended."""
        self._jobs.changed(unit, properties)
        if self._jobs.is_failed(unit):
            self._causes.has_failed.set()
        if job := self._jobs.of(unit):
            self._causes.note_job(unit, job)

    def _ended(self, unit: str, properties: object) -> None:
        """Note how the process of a service ended, which runs again soon."""
        if isinstance(properties, dict) and (fault := fault_of(properties)) is not None:
            if len(self._faults) > MAX_OBJECTS:
                self._faults.clear()
            self._faults[unit] = fault

    def _own(self, unit: str, before: Mapping[str, Json], now: Mapping[str, Json]) -> str | None:
        """Return why a unit went to another state by itself; None if that is not known."""
        was, state = before.get("active_state"), now.get("active_state")
        if is_same_state(before, now):
            return None
        if state is None and was == "inactive":
            return None
        if unit.endswith(".device"):
            return KERNEL
        if unit.endswith(TRIGGERS):
            return self._causes.of_ports(_others(now), _AFTER_SECONDS) or None
        if LOOP in before and state == "active":
            return ""  # it runs, and has for a while
        if (was, state) == ("activating", "active"):
            # what started it, which was told before
            return self._causes.of_ports([unit], _AFTER_SECONDS)
        has_ended = unit.endswith(WITH_PROCESSES) and was and was not in DOWN
        return EXIT if has_ended and state != "reloading" else ""


def _others(properties: Mapping[str, Json]) -> list[str]:
    """Return the units that a unit starts, and those that start it."""
    return [*listed(properties, "triggers"), *listed(properties, "triggered_by")]


def listed(properties: Mapping[str, Json], name: str) -> list[str]:
    """Return a property that is a list of texts; empty where it is none."""
    value = properties.get(name)
    return list(map(str, value)) if isinstance(value, list) else []


def is_with_file(unit: str, now: Mapping[str, Json], cause: str) -> bool:
    """Return whether a new unit came with its file."""
    return _is_of_files(cause) and _is_of_own_file(unit, now)


def _is_of_own_file(unit: str, properties: Mapping[str, Json]) -> bool:
    """Return whether a unit is not made by a start, as instances and transient units are."""
    file = PurePath(str(properties.get("fragment_path", "")))
    return file.name == unit and not properties.get("transient")


def _is_of_run(unit: str, before: Mapping[str, Json] | None, now: Mapping[str, Json]) -> bool:
    """Return whether a unit ran or ended between two states, which no file brings about."""
    if before is None:
        return not _is_of_own_file(unit, now)
    ends = (now.get(name) not in {before.get(name), None, "success", 0} for name in OF_END)
    return not is_same_state(before, now) or any(ends)


def _is_of_files(cause: str) -> bool:
    return cause == RELOAD or cause.startswith(("apt:", "dpkg:"))


def _starts(job: str) -> bool:
    return jobs.act(job) in {START, RESTART}
