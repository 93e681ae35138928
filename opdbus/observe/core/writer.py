"""Writer of an observer's reports to the state store."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

import structlog

from opdbus.errors import OpDbusError
from opdbus.history import change
from opdbus.history.change import Why
from opdbus.index.state_store.events import Listed
from opdbus.index.state_store.state_store import StateStore
from opdbus.observe.core.changes_per_hour import ChangesPerHour
from opdbus.observe.core.observation_diff import ObservationDiff
from opdbus.observe.core.pace import Allowance
from opdbus.observe.core.report import Observer, Report
from opdbus.platform.tasks import at_most, pauses
from opdbus.state.object import Identity

log = structlog.get_logger()

# What is reported within this time is written together.
_MERGE_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0)


class Writer:
    """Writes the reports of one observer."""

    def __init__(
        self,
        observer: Observer,
        report: Report,
        memory: StateStore,
        changes: ChangesPerHour,
        *,
        is_first: bool = True,
    ) -> None:
        """Write what is reported; `is_first` where nothing was observed since the program began."""
        # set when the first listing is written
        self.has_written = asyncio.Event()
        # set when all objects of a kind are written: some observers report what is at hand first
        self.has_listed = asyncio.Event()
        # why nothing can be stored now
        self.fault = ""
        self._observer = observer
        self._report = report
        self._memory = memory
        self._is_first = is_first
        # why a first listing differs from what is stored
        self._since = ""
        self._sightings = ObservationDiff(observer, changes, report.count)
        # what the memory has from before, by kind, until that kind is listed
        self._earlier: dict[str, set[Identity]] = {}
        self._listed: set[str] = set()

    @property
    def left_out(self) -> str:
        """The objects that are not stored, and the reasons; empty if there are none."""
        return self._sightings.left_out

    async def run(self) -> None:
        """Write whenever something was reported, until cancelled; a full disk is waited out."""
        for entry in await self._memory.of_source(self._observer.source):
            self._earlier.setdefault(entry.identity.kind, set()).add(entry.identity)
        if self._is_first:
            is_later = self._earlier or await self._memory.was_listed(self._observer.source)
            self._since = self._memory.since_last_run if is_later else change.FIRST
        elif not self._earlier:
            self._since = change.SOURCE
        delays = pauses(_RETRY_SECONDS)
        allowance = Allowance(time.monotonic)
        while True:
            await self._until_news()
            await asyncio.sleep(_MERGE_SECONDS)
            started = time.monotonic()
            try:
                await self.write()
            except OpDbusError as error:
                if self.fault != str(error):
                    log.warning("not stored", observer=self._observer.name, reason=str(error))
                self.fault = str(error)
                await asyncio.sleep(next(delays))
            else:
                self.fault = ""
                delays = pauses(_RETRY_SECONDS)
                await asyncio.sleep(allowance.rest(time.monotonic() - started))

    async def _until_news(self) -> None:
        """Wait until something is reported, or what was folded is to be stored."""
        async with at_most(self._sightings.seconds):
            await self._report.news.wait()

    async def write(self) -> None:
        """Write what was reported; raises StoreError, after which it is still to be written."""
        batch = self._report.take()
        # of kinds that are listed
        kinds = batch.listed.union(self._earlier if batch.is_all else ())
        earlier = [identity for kind in kinds for identity in self._earlier.get(kind, ())]
        # on a thread: 1,000 objects take a tenth of a second
        new = await asyncio.to_thread(self._sightings.prepare, batch, earlier, self._since_last)
        try:
            await self._memory.observe(
                new.objects,
                new.gone,
                new.volatile,
                lambda identity: new.whys.get(identity, Why(self._since)),
                new.events,
            )
            if batch.listed and not self._listed:
                await self._memory.note_listed(self._observer.source)
        except OpDbusError:
            self._report.put_back(batch)
            raise
        for kind in kinds:
            self._earlier.pop(kind, None)
            self._listed.add(kind)
        if batch.listed:
            self._tell_listed(self._listed)
            self.has_listed.set()
        await asyncio.to_thread(self._sightings.remember, new)
        self.has_written.set()

    async def clear(self) -> None:
        """Remove all objects: they are gone with their source."""
        self._tell_listed(())
        entries = await self._memory.of_source(self._observer.source)
        gone = {entry.identity for entry in entries}
        await self._memory.observe([], gone, {}, lambda _: Why(change.SOURCE))

    def _since_last(self, kind: str) -> str:
        """Return why objects differ from what is stored; nothing once their kind was listed."""
        return "" if kind in self._listed else self._since

    def _tell_listed(self, kinds: Iterable[str]) -> None:
        sorts = frozenset((self._observer.plugin, kind) for kind in kinds)
        self._memory.notify(Listed(self._observer.source, sorts))
