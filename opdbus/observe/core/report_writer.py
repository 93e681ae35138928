"""Writer of an observer's reports to the state store."""

import asyncio
import time
from collections.abc import Iterable
from typing import Final

import structlog

from opdbus.errors import OpDbusError
from opdbus.history import change
from opdbus.history.change import Cause
from opdbus.index.state_store.events import Listed
from opdbus.index.state_store.state_store import StateStore
from opdbus.observe.core.changes_per_hour import ChangesPerHour
from opdbus.observe.core.observation_diff import ReportTracker
from opdbus.observe.core.pace import Allowance
from opdbus.observe.core.report import Observer, Report
from opdbus.platform.tasks import at_most, pauses
from opdbus.state.object import Identity

log = structlog.get_logger()

# Reports within this time are written together.
_MERGE_SECONDS: Final = 0.05
_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0)


class Writer:
    """Writes the reports of one observer."""

    def __init__(
        self,
        observer: Observer,
        report: Report,
        store: StateStore,
        changes: ChangesPerHour,
        *,
        is_first: bool = True,
    ) -> None:
        """Take a report; `is_first` if nothing was observed since the program began."""
        # set when the first listing is written
        self.has_written = asyncio.Event()
        # set when all objects of a kind are written: some observers report others first
        self.has_listed = asyncio.Event()
        # the reason why nothing can be stored now
        self.fault = ""
        self.tracker = ReportTracker(observer, changes, report.count)
        self._observer = observer
        self._report = report
        self._store = store
        self._is_first = is_first
        # why a first listing differs from the stored objects
        self._since = ""
        # objects stored before, by kind, until that kind is listed
        self._earlier: dict[str, set[Identity]] = {}
        self._listed: set[str] = set()

    async def run(self) -> None:
        """Write whenever there are reports, until cancelled; retry while the disk is full."""
        for entry in await self._store.of_source(self._observer.source):
            self._earlier.setdefault(entry.identity.kind, set()).add(entry.identity)
        if self._is_first:
            is_later = self._earlier or await self._store.was_listed(self._observer.source)
            self._since = self._store.since_last_run if is_later else change.FIRST
        elif not self._earlier:
            self._since = change.SOURCE
        delays = pauses(_RETRY_SECONDS)
        allowance = Allowance(time.monotonic)
        while True:
            async with at_most(self.tracker.seconds_until_due):
                await self._report.news.wait()
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

    async def write(self) -> None:
        """Write the reports; after StoreError they still wait to be written."""
        batch = self._report.take()
        # of kinds that are listed
        kinds = batch.listed.union(self._earlier if batch.is_all else ())
        earlier = [identity for kind in kinds for identity in self._earlier.get(kind, ())]
        # on a thread: 1,000 objects take a tenth of a second
        new = await asyncio.to_thread(self.tracker.prepare, batch, earlier, self._first_cause)
        try:
            if new.earlier_runs:
                await self._store.observe([], set(), {}, events=new.earlier_runs)
                await asyncio.to_thread(self.tracker.remember_runs, new)
            await self._store.observe(
                new.objects,
                new.removed_identities,
                new.volatile,
                lambda one: new.whys.get(one, Cause(self._first_cause(one.kind))),
                new.events,
            )
            if batch.listed and not self._listed:
                await self._store.note_listed(self._observer.source)
        except OpDbusError:
            self._report.put_back(batch)
            raise
        for kind in kinds:
            self._earlier.pop(kind, None)
            self._listed.add(kind)
        if batch.listed:
            self._notify_listed(self._listed)
            self.has_listed.set()
        await asyncio.to_thread(self.tracker.remember, new)
        self.has_written.set()

    async def clear(self) -> None:
        """Remove all objects: they are gone with their source."""
        self._notify_listed(())
        entries = await self._store.of_source(self._observer.source)
        gone = {entry.identity for entry in entries}
        await self._store.observe([], gone, {}, lambda _: Cause(change.SOURCE))

    def _first_cause(self, kind: str) -> str:
        """Return why new objects differ from the stored ones; empty once a kind was listed."""
        if kind in self._listed:
            return ""
        # the last reading before the stop may have been a while before it
        is_older = kind in self._observer.polled and self._since in {change.START, change.BOOT}
        return f"{self._since}:{change.UNREAD}" if is_older else self._since

    def _notify_listed(self, kinds: Iterable[str]) -> None:
        kind_ids = frozenset((self._observer.plugin, kind) for kind in kinds)
        self._store.notify(Listed(self._observer.source, kind_ids))
