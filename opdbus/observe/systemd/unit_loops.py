"""Restart loops of services, reported as one lasting state instead of one per restart."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from opdbus.observe.systemd.unit_properties import DOWN
from opdbus.state.object import Json

# What a unit is shown with while it is in a loop.
LOOP: Final = "restart_loop"
# So many restarts within so long a time are a loop, which ends when none came for as long.
_MANY: Final = 4
_SECONDS: Final = 600.0
_WAITS: Final = {"active_state": "activating", "sub_state": "auto-restart"}
OF_END: Final = ("result", "exit_status", "exit_signal")


class UnitLoops:
    """Detector of restart loops, from the property NRestarts of services."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        # when the last restarts were seen
        self._seen: dict[str, deque[float]] = {}
        # the states that services in a loop are shown with
        self._shown: dict[str, dict[str, Json]] = {}
        # how the process of a service ended last
        self._ends: dict[str, dict[str, Json]] = {}

    def resume(self, unit: str, stored: Mapping[str, Json]) -> None:
        """Restore a restart loop from the properties that an earlier run stored."""
        if stored.get(LOOP):
            self._seen[unit] = deque([self._clock()] * _MANY, _MANY)
            self._shown[unit] = _states(stored)

    def lasting(self, unit: str, told: dict[str, Json]) -> tuple[dict[str, Json], float]:
        """Return properties with a steady state, and seconds until the next read (0: none).

        A service in a loop is shown as waiting for a restart. The loop ends when the service is
        down for good or was started by a job.
        """
        # no number stands for none
        count, before = int(str(told.get("n_restarts", 0))), self._counts.get(unit)
        if not unit.endswith(".service"):
            return told, 0.0
        seen = self._seen.setdefault(unit, deque(maxlen=_MANY))
        is_waiting = "auto-restart" in str(told.get("sub_state"))
        if count < (before or 1) or (told.get("active_state") in DOWN and not is_waiting):
            self.forget(unit)
        elif before is not None:
            seen.extend([self._clock()] * min(count - before, _MANY))
        self._counts[unit] = count
        if "result" in told:
            self._ends[unit] = _states(told, OF_END)
        return self._as_shown(unit, told)

    def forget(self, unit: str) -> None:
        """Drop the counts and states of a unit."""
        for known in (self._counts, self._seen, self._shown, self._ends):
            known.pop(unit, None)

    def _as_shown(self, unit: str, told: dict[str, Json]) -> tuple[dict[str, Json], float]:
        seen, now = self._seen.get(unit, deque[float]()), self._clock()
        since = seen[-1 if unit in self._shown else 0] if len(seen) == _MANY else -_SECONDS
        wait = since + _SECONDS - now
        if wait <= 0:
            self._shown.pop(unit, None)
            return told, 0.0
        shown = self._shown.setdefault(unit, _WAITS | self._ends.get(unit, {}))
        steady = {name: value for name, value in told.items() if name not in OF_END}
        return steady | shown | {LOOP: True}, wait


def _states(
    told: Mapping[str, Json], names: tuple[str, ...] = (*_WAITS, *OF_END)
) -> dict[str, Json]:
    return {name: told[name] for name in names if name in told}
