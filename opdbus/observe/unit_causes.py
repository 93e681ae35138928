"""Why units changed: a job, their own processes, the kernel, or what started them."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Final

from opdbus.history.change import Why
from opdbus.observe import pid1
from opdbus.observe.causes import Causes
from opdbus.observe.pid1 import Pid1
from opdbus.observe.system_bus import Signal
from opdbus.observe.unit_jobs import RESTART, START, UnitJobs
from opdbus.observe.unit_properties import DOWN, differ, is_same_state
from opdbus.state.object import Json

EXIT, KERNEL, RELOAD = "exit", "kernel", "reload"
# Units that have processes of their own, and units that are there to start others.
_WITH_PROCESSES: Final = (".service", ".scope")
_TRIGGERS: Final = (".timer", ".socket", ".path", ".automount")
# PID 1 unloads a unit, and its document is read, so long after it has changed.
_AFTER_SECONDS: Final = 5.0
# What a cause ends with where a unit that had failed was started and failed again.
FAILED_AGAIN: Final = ", failed"
# PID 1 gives up a unit that ends too often: the job that it has then does not stop it.
_GAVE_UP: Final = "start-limit-hit"


class UnitCauses:
    """Hears the signals of units and jobs, and says why a unit is other than before."""

    def __init__(self, causes: Causes) -> None:
        self._causes = causes
        self._jobs = UnitJobs()

    def hear(self, signal: Signal) -> None:
        """Take a signal of PID 1."""
        with suppress(ValueError):
            match signal.member, signal.body:
                case "PropertiesChanged", [_, properties, *_]:
                    self._jobs.changed(pid1.unit_at(signal.path), properties)
                case "JobRemoved", [number, _, str(unit), *_]:
                    self._jobs.removed(number, unit)
                case "UnitRemoved", [str(unit), *_]:
                    self._jobs.forget(unit)

    async def ask(self, manager: Pid1, units: Collection[str]) -> None:
        """Ask PID 1 for the jobs of units that are not clear: once for each job."""
        if self._jobs.are_unclear(units):
            self._jobs.learn(await manager.jobs())

    def is_behind(self, unit: str, properties: Mapping[str, object], *, is_new: bool) -> bool:
        """Return whether a unit changed and the signal of it, which says why, is still to come."""
        changed = properties.get("StateChangeTimestampMonotonic")
        return self._jobs.is_behind(unit, changed, is_new=is_new)

    def has_left(self, unit: str, before: Mapping[str, Json]) -> bool:
        """Return whether all signals have come of a unit that is not loaded any more."""
        is_up = before.get("active_state") not in {*DOWN, None}
        return not is_up or self._jobs.has(unit) or not self._jobs.is_loaded(unit)

    def has_read(self, unit: str, properties: Mapping[str, object]) -> None:
        """Note how new what was read of a unit is."""
        self._jobs.has_read(unit, properties.get("StateChangeTimestampMonotonic"))

    @property
    def reload(self) -> str:
        """Why units differ after a reload: a package run makes several."""
        return self._causes.run or RELOAD

    def whys(
        self, unit: str, before: Mapping[str, Json] | None, now: Mapping[str, Json], other: str
    ) -> tuple[Why, Why | None]:
        """Return why a unit is as it is now, and what happened to it besides; see `why`.

        What its files changed is told apart from a job that left it as it was.
        """
        if not before or other != self.reload or not is_same_state(before, now):
            return self.why(unit, before, now, other), None
        if differ(before, now):
            self._causes.note(unit, other)
        event = self.why(unit, now, now, "")
        return Why(other), event if event.is_event else None

    def why(
        self, unit: str, before: Mapping[str, Json] | None, now: Mapping[str, Json], other: str
    ) -> Why:
        """Return why a unit is as it is now, and whether something happened to it in any case.

        `other` is the cause where the unit itself was neither started nor stopped.
        """
        is_other = before is None or differ(before, now)
        own = self._own(unit, before, now) if before else None
        work = self._jobs.take(unit)
        cause = work.cause or (other if own is None else own)
        if own == EXIT and now.get("result") == _GAVE_UP:
            cause = EXIT
        elif not is_other and now.get("active_state") == "failed" and _starts(work.cause):
            cause += FAILED_AGAIN
        if work.cause and is_other:
            self._jobs.told(unit)
        if cause and (work.cause or is_other):
            self._causes.note(unit, cause)
        return Why(cause, max(0, work.ended - 1), is_event=work.ended > 0)

    def latest(self, unit: str, properties: Mapping[str, Json]) -> str:
        """Return why a unit changed just now, or one that starts it or is started by it."""
        return self._causes.of_units([unit, *_others(properties)], _AFTER_SECONDS)

    def order(self, unit: str) -> tuple[bool, bool]:
        """Return by what to sort units: jobs of some are the cause that others change."""
        return not self._jobs.has(unit), unit.endswith(_TRIGGERS)

    def _own(self, unit: str, before: Mapping[str, Json], now: Mapping[str, Json]) -> str | None:
        """Return why a unit went to another state by itself; None if that is not known."""
        was, state = before.get("active_state"), now.get("active_state")
        if is_same_state(before, now):
            return None
        if state is None and was == "inactive":
            return None
        if unit.endswith(".device"):
            return KERNEL
        if unit.endswith(_TRIGGERS):
            return self._causes.of_units(_others(now), _AFTER_SECONDS) or None
        has_ended = unit.endswith(_WITH_PROCESSES) and was and was not in DOWN
        return EXIT if has_ended and state != "reloading" else ""


def _others(properties: Mapping[str, Json]) -> list[str]:
    """Return the units that a unit starts, and those that start it."""
    values = (properties.get(name) for name in ("triggers", "triggered_by"))
    return [str(name) for value in values if isinstance(value, list) for name in value]


def _starts(job: str) -> bool:
    return not {START, RESTART}.isdisjoint(job.split())
