"""What goes on on the host, for observers that only see what follows from it."""

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

# A port that opens or closes so long after its unit has changed follows from that.
FOLLOWS_SECONDS: Final = 60.0
_MAX_UNITS: Final = 10_000


class _Change(NamedTuple):
    """When a thing changed last, and why."""

    at: float
    cause: str


class Causes:
    """Made once for all observers: those that know a cause note it, others ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._units: dict[str, _Change] = {}

    def note(self, unit: str, cause: str) -> None:
        """Note why a unit has changed just now."""
        now = self._clock()
        if len(self._units) > _MAX_UNITS:
            since = now - FOLLOWS_SECONDS
            self._units = {name: last for name, last in self._units.items() if last.at > since}
        self._units[unit] = _Change(now, cause)

    def of_units(self, units: Iterable[str], seconds: float = FOLLOWS_SECONDS) -> str:
        """Return why one of some units changed within the last seconds; empty if none did."""
        found = [self._units[unit] for unit in units if unit in self._units]
        last = max(found, default=_Change(0.0, ""))
        return last.cause if last.at > self._clock() - seconds else ""
