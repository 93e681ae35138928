"""Writing of changes: a transaction of the database, and then the in-memory indexes."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from opdbus.history.change import Why
from opdbus.index.catalogue.catalogue import Change
from opdbus.index.database.records import RecentTexts, commit
from opdbus.index.database.store import Entry, Record
from opdbus.index.state_store import record_builder
from opdbus.index.state_store.in_memory_indexes import InMemoryIndexes
from opdbus.index.state_store.record_builder import BuiltRecords
from opdbus.index.storage.archive import Archive
from opdbus.state.object import Identity, ObjectId, StateObject

_MAX_MOVED: Final = 10_000


class CommittedChanges(NamedTuple):
    """The generation of a transaction, the change of each object, and the new rows of history."""

    generation: int
    changes: Mapping[ObjectId, Change]
    rows: range


class TransactionWriter:
    """Writer of changes, one after the other; the caller holds the writers' lock."""

    def __init__(self, archive: Archive, known: InMemoryIndexes, boot: str) -> None:
        self.generation = 0
        # (row, old digest, new digest) of rows of history whose distance is still to be computed
        self.moved: deque[tuple[int, bytes, bytes]] = deque(maxlen=_MAX_MOVED)
        self.recent_texts = RecentTexts()
        self._archive = archive
        self._known = known
        self._boot = boot

    async def made(
        self,
        objects: Iterable[StateObject | Record],
        owner: int,
        now: float,
        *,
        transient: bool = False,
    ) -> BuiltRecords:
        """Build records, on a thread, of the objects that differ from the stored ones."""
        known = self._known.catalogue
        make = partial(record_builder.records, known, objects, owner, now, transient=transient)
        return BuiltRecords(now, await self._archive.prepare(make))

    async def write(
        self,
        made: BuiltRecords,
        gone: Sequence[Entry],
        why: Callable[[Identity], Why],
        events: Mapping[Identity, Why],
        *,
        withdrawn: bool,
    ) -> CommittedChanges:
        """Write records and events, and remove entries; raises LimitsExceeded and StoreError."""
        now, records = made
        if not records and not events and not gone:
            return CommittedChanges(self.generation, {}, range(0))
        known = self._known.catalogue
        put = partial(record_builder.update, known, records, gone, why, events, withdrawn=withdrawn)
        update = await self._archive.prepare(put)
        generation, at = self.generation + bool(records or gone), int(now * 1e6)
        entries, rows, moved = await self._archive.write(
            lambda store: commit(store, update, generation, at, self._boot)
        )
        self.moved += moved
        self.generation = generation
        self.recent_texts.add(records)
        return CommittedChanges(generation, await self._known.take(gone, records, entries), rows)
