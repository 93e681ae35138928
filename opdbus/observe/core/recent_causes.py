"""Record of recent jobs, exits and package runs, which observers give as causes of changes."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from opdbus.history import jobs

# A port that opens or closes so long after its unit has changed follows from that.
FOLLOWS_SECONDS: Final = 60.0
_MAX_UNITS: Final = 10_000
# Changes during earlier package runs were read long ago.
_MAX_RUNS: Final = 16
# The kernel's times of files are behind the clock by less.
_COARSE_SECONDS: Final = 0.1


class _Change(NamedTuple):
    """The time of a change by the record's clock, and its cause."""

    at: float = -math.inf
    cause: str = ""


class _UnitChanges(NamedTuple):
    """The last change of a unit, the last job or exit, and the last signals of jobs or exits.

    Signals come before the unit is read. `begin` may have opened ports, `end` may have closed some.
    """

    last: _Change = _Change()
    act: _Change = _Change()
    begin: _Change = _Change()
    end: _Change = _Change()


_NO_CHANGES: Final = _UnitChanges()


class _Run(NamedTuple):
    """A run of a package manager, with its start and end in seconds since 1970."""

    cause: str
    began: float
    ended: float = math.inf


class Causes:
    """Recent causes of changes, shared by all observers: some note them, others look them up."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._units: dict[str, _UnitChanges] = {}
        # set when a unit has failed: it may be time to look for a reason
        self.has_failed = asyncio.Event()
        # notes the runs of package managers that began or ended just now
        self.look_for_runs: Callable[[], None] = lambda: None
        self._looked_at = -math.inf
        self._runs: deque[_Run] = deque(maxlen=_MAX_RUNS)
        self._no_run = asyncio.Event()
        self._no_run.set()

    def note(self, unit: str, cause: str) -> None:
        """Note why a unit has changed just now."""
        before, change = self._units.get(unit, _NO_CHANGES), _Change(self._clock(), cause)
        is_act = cause.startswith(("job:", "exit"))
        self._keep(unit, before._replace(last=change, act=change if is_act else before.act))

    def note_job(self, unit: str, job: str) -> None:
        """Note a job of a unit, or an exit, before the unit is read: its ports change earlier.

        A cause that `note` has recorded for the same job is more precise and is kept.
        """
        before, change = self._units.get(unit, _NO_CHANGES), _Change(self._clock(), job)
        is_same = job.partition(" ")[0] == before.act.cause.partition(" ")[0]
        did = jobs.act(job)
        if not is_same or did == "exit":
            begin = before.begin if did in jobs.ENDS else change
            end = before.end if did in jobs.BEGINS else change
            self._keep(unit, before._replace(begin=begin, end=end))

    def _keep(self, unit: str, changes: _UnitChanges) -> None:
        """Store the changes of a unit; if there are too many units, drop those long unchanged."""
        if len(self._units) > _MAX_UNITS:
            since = self._clock() - FOLLOWS_SECONDS
            self._units = {name: each for name, each in self._units.items() if max(each).at > since}
        self._units[unit] = changes

    def run_begins(self, cause: str, began: float) -> None:
        """Note a package run that began at `began`, in seconds since 1970; end the one before."""
        self.end_run(began)
        self._runs.append(_Run(cause, began))
        self._no_run.clear()

    def end_run(self, ended: float) -> None:
        """Note the end of the current package run, in seconds since 1970."""
        if self._runs and self._runs[-1].ended == math.inf:
            self._runs.append(self._runs.pop()._replace(ended=ended))
        self._no_run.set()

    def run(self, at: float) -> str:
        """Return the cause of the package run in progress at `at`; empty if there was none.

        `at` is the time of a change in seconds since 1970, which may be long past.
        """
        now = time.time()
        # runs that began before the last look are known: a listing asks for thousands of files
        if not at + _COARSE_SECONDS < self._looked_at <= now:
            self._looked_at = now
            self.look_for_runs()
        runs = (run.cause for run in reversed(self._runs) if run.began <= at <= run.ended)
        return next(runs, "")

    async def run_over(self) -> None:
        """Wait until no package run is in progress."""
        self.look_for_runs()
        await self._no_run.wait()

    def of_units(self, units: Iterable[str], seconds: float = FOLLOWS_SECONDS) -> str:
        """Return the latest cause among `units` within the last `seconds`; empty if none."""
        return self._latest((self._units.get(u, _NO_CHANGES).last for u in units), seconds)

    def of_ports(
        self,
        units: Iterable[str],
        seconds: float = FOLLOWS_SECONDS,
        *,
        but: frozenset[str] = frozenset(),
    ) -> str:
        """Return the latest job or exit of `units` within the last `seconds`; empty if none.

        Changes of unit files are left out: they open no port. So are the acts in `but`: jobs.BEGINS
        for ports that were closed, jobs.ENDS for those that were opened.
        """
        known = [self._units.get(unit, _NO_CHANGES) for unit in units]
        found = (change for _, *acts in known for change in acts)
        return self._latest((each for each in found if jobs.act(each.cause) not in but), seconds)

    def _latest(self, changes: Iterable[_Change], seconds: float) -> str:
        last = max(changes, key=lambda change: change.at, default=_Change())
        return last.cause if last.at > self._clock() - seconds else ""
