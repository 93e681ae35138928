"""Restart loops of services, reported as one lasting state instead of one per restart."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from opdbus.observe.systemd.unit_properties import DOWN, STATE_NOW
from opdbus.state.object import Json

# The field of a unit in a loop.
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
        # times of the last restarts
        self._restarts: dict[str, deque[float]] = {}
        # the steady states of services in a loop
        self._steady: dict[str, dict[str, Json]] = {}
        # how the process of a service ended last
        self._ends: dict[str, dict[str, Json]] = {}

    def resume(self, unit: str, stored: Mapping[str, Json]) -> None:
        """Restore a restart loop from the properties that an earlier run stored."""
        if stored.get(LOOP):
            self._restarts[unit] = deque([self._clock()] * _MANY, _MANY)
            self._steady[unit] = _pick(stored, (*_WAITS, *OF_END))

    def steady(self, unit: str, fields: dict[str, Json]) -> tuple[dict[str, Json], float]:
        """Return fields with a steady state, and seconds until the next read (0: none).

        A service in a loop is shown as waiting for a restart, and in `state_now` as it is. The loop
        ends when the service is down for good or was started by a job.
        """
        # no number stands for none
        count, before = int(str(fields.get("n_restarts", 0))), self._counts.get(unit)
        if not unit.endswith(".service"):
            return fields, 0.0
        now = self._clock()
        is_waiting = "auto-restart" in str(fields.get("sub_state"))
        restarts = self._restarts.setdefault(unit, deque(maxlen=_MANY))
        if count < (before or 1) or (fields.get("active_state") in DOWN and not is_waiting):
            self.forget(unit)
            restarts.clear()
        elif before is not None:
            restarts.extend([now] * min(count - before, _MANY))
        self._counts[unit] = count
        if "result" in fields:
            self._ends[unit] = _pick(fields, OF_END)
        # a loop goes on since its last restart, and begins with the first of four
        since = -_SECONDS
        if len(restarts) == _MANY:
            since = restarts[-1 if unit in self._steady else 0]
        wait = since + _SECONDS - now
        if wait <= 0:
            self._steady.pop(unit, None)
            return fields, 0.0
        shown = self._steady.setdefault(unit, _WAITS | self._ends.get(unit, {}))
        others = {name: value for name, value in fields.items() if name not in OF_END}
        state_now = f"{fields.get('active_state')} ({fields.get('sub_state')})"
        return others | shown | {LOOP: True, STATE_NOW: state_now}, wait

    def forget(self, unit: str) -> None:
        """Drop the counts and states of a unit."""
        for by_unit in (self._counts, self._restarts, self._steady, self._ends):
            by_unit.pop(unit, None)


def _pick(fields: Mapping[str, Json], names: Iterable[str]) -> dict[str, Json]:
    return {name: fields[name] for name in names if name in fields}
