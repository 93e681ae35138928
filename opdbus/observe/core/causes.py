"""Record of recent jobs, exits and package runs, which observers give as causes of changes."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from opdbus.history import jobs

_EXIT: Final = "exit"
# A port that opens or closes so long after its unit has changed follows from that.
FOLLOWS_SECONDS: Final = 60.0
_MAX_UNITS: Final = 10_000
# What the runs before these have changed was seen long ago.
_MAX_RUNS: Final = 16
# The kernel's times of files are behind the clock by less.
_COARSE_SECONDS: Final = 0.1


class _Change(NamedTuple):
    """The time of a change by the record's clock, and its cause."""

    at: float
    cause: str


_NONE: Final = _Change(-math.inf, "")


class _Run(NamedTuple):
    """A run of a package manager, with its start and end in seconds since 1970."""

    cause: str
    begun: float
    ended: float = math.inf


class Causes:
    """Recent causes of changes, shared by all observers: some note them, others look them up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._units: dict[str, _Change] = {}
        # the jobs and exits among that
        self._acts: dict[str, _Change] = {}
        # jobs of units that were heard of, before it was looked what they did
        self._jobs: dict[str, _Change] = {}
        # those that may have closed ports
        self._ends: dict[str, _Change] = {}
        # set when a unit has failed: what is looked at now and then may say why
        self.has_failed = asyncio.Event()
        # has the runs of package managers noted that began or ended just now
        self.look_for_runs: Callable[[], None] = lambda: None
        self._looked_at = -math.inf
        self._runs: deque[_Run] = deque(maxlen=_MAX_RUNS)
        self._no_run = asyncio.Event()
        self._no_run.set()

    def note(self, unit: str, cause: str) -> None:
        """Note why a unit has changed just now."""
        self._units, self._acts = self._lately(self._units), self._lately(self._acts)
        self._units[unit] = change = _Change(self._clock(), cause)
        if cause.startswith(("job:", _EXIT)):
            self._acts[unit] = change

    def note_job(self, unit: str, job: str) -> None:
        """Note a job of a unit, or an exit, before the unit is read: its ports change earlier.

        A cause that `note` has recorded for the same job is more precise and is kept.
        """
        noted = self._acts.get(unit, _NONE).cause
        if job.partition(" ")[0] == noted.partition(" ")[0] and jobs.act(job) != _EXIT:
            return
        self._jobs, self._ends = self._lately(self._jobs), self._lately(self._ends)
        self._jobs[unit] = change = _Change(self._clock(), job)
        if _may_close(job):
            self._ends[unit] = change

    def run_begins(self, cause: str, begun: float) -> None:
        """Note a package run that began at `begun`, in seconds since 1970; end the one before."""
        self.run_ended(begun)
        self._runs.append(_Run(cause, begun))
        self._no_run.clear()

    def run_ended(self, ended: float) -> None:
        """Note the end of the current package run, in seconds since 1970."""
        if self._runs and self._runs[-1].ended == math.inf:
            self._runs.append(self._runs.pop()._replace(ended=ended))
        self._no_run.set()

    def run(self, at: float) -> str:
        """Return the cause of the package run in progress at `at`; empty if there was none.

        `at` is the time of a change in seconds since 1970, which may be long past.
        """
        now = time.time()
        # what began before the last look is known: a listing asks for thousands of files
        if not at + _COARSE_SECONDS < self._looked_at <= now:
            self._looked_at = now
            self.look_for_runs()
        runs = (run.cause for run in reversed(self._runs) if run.begun <= at <= run.ended)
        return next(runs, "")

    async def run_over(self) -> None:
        """Wait until no package run is in progress."""
        self.look_for_runs()
        await self._no_run.wait()

    def of_units(self, units: Iterable[str], seconds: float = FOLLOWS_SECONDS) -> str:
        """Return the latest cause among `units` within the last `seconds`; empty if none."""
        return self._latest((self._units.get(unit, _NONE) for unit in units), seconds)

    def of_ports(
        self,
        units: Iterable[str],
        seconds: float = FOLLOWS_SECONDS,
        *,
        are_closed: bool = False,
    ) -> str:
        """Return the latest job or exit of `units` within the last `seconds`; empty if none.

        Changes of unit files are left out: they open no port. With `are_closed`, starts are left
        out too: they close none.
        """
        noted = [self._acts, self._ends if are_closed else self._jobs]
        known = (changes.get(unit, _NONE) for unit in units for changes in noted)
        fitting = (each for each in known if not are_closed or _may_close(each.cause))
        return self._latest(fitting, seconds)

    def _latest(self, changes: Iterable[_Change], seconds: float) -> str:
        last = max(changes, key=lambda change: change.at, default=_NONE)
        return last.cause if last.at > self._clock() - seconds else ""

    def _lately(self, changes: dict[str, _Change]) -> dict[str, _Change]:
        """Drop changes older than FOLLOWS_SECONDS if there are more than _MAX_UNITS."""
        if len(changes) <= _MAX_UNITS:
            return changes
        since = self._clock() - FOLLOWS_SECONDS
        return {name: last for name, last in changes.items() if last.at > since}


def _may_close(cause: str) -> bool:
    return jobs.act(cause) != "start"
