"""What goes on on the host, for observers that only see what follows from it."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

# A port that opens or closes so long after its unit has changed follows from that.
FOLLOWS_SECONDS: Final = 60.0
# What a package run changed is seen at most so long after its end.
_AFTER_RUN_SECONDS: Final = 2.0
_MAX_UNITS: Final = 10_000


class _Change(NamedTuple):
    """When something happened, and why."""

    at: float
    cause: str


class Causes:
    """Made once for all observers: those that know a cause note it, others ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._units: dict[str, _Change] = {}
        # the run of a package manager, and until when what changes may follow from it
        self._run = _Change(0.0, "")
        self._no_run = asyncio.Event()
        self._no_run.set()

    def note(self, unit: str, cause: str) -> None:
        """Note why a unit has changed just now."""
        now = self._clock()
        if len(self._units) > _MAX_UNITS:
            since = now - FOLLOWS_SECONDS
            self._units = {name: last for name, last in self._units.items() if last.at > since}
        self._units[unit] = _Change(now, cause)

    def run_goes_on(self, cause: str) -> None:
        """Note that packages are being installed or removed."""
        self._run = _Change(math.inf, cause)
        self._no_run.clear()

    def run_ended(self) -> None:
        """Note that it is over."""
        self._run = _Change(self._clock() + _AFTER_RUN_SECONDS, self._run.cause)
        self._no_run.set()

    @property
    def run(self) -> str:
        """The package run that goes on, or has just ended; empty if there is none."""
        return self._run.cause if self._run.at > self._clock() else ""

    async def run_over(self) -> None:
        """Wait until no package run goes on."""
        await self._no_run.wait()

    def of_units(self, units: Iterable[str], seconds: float = FOLLOWS_SECONDS) -> str:
        """Return why one of some units changed within the last seconds; empty if none did."""
        found = [self._units[unit] for unit in units if unit in self._units]
        last = max(found, default=_Change(0.0, ""))
        return last.cause if last.at > self._clock() - seconds else ""
