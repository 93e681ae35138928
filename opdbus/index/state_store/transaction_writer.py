"""Writing of changes: a transaction of the database, and then the in-memory indexes."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from opdbus.history.change import Cause, ChangeType
from opdbus.index.catalogue.catalogue import Catalogue, ChangeKind
from opdbus.index.database.quota import Usage
from opdbus.index.database.records import (
    Committed,
    Draft,
    Recorder,
    Update,
    commit,
    draft,
)
from opdbus.index.database.store import Entry, Record, Store
from opdbus.index.fields.field_reader import FieldReader
from opdbus.index.fulltext.recent_words import Row
from opdbus.index.fulltext.word_index import WordIndex
from opdbus.index.storage.archive import Archive
from opdbus.platform.slices import slices
from opdbus.state.object import Identity, ObjectId, StateObject

_MAX_MOVED: Final = 10_000
# Entries applied to the catalogue in one turn of the event loop: some milliseconds' work.
_AT_A_TIME: Final = 50


class BuiltRecords(NamedTuple):
    """Records of some objects, and the time of the change, in seconds since 1970."""

    now: float
    records: Sequence[Record]


class CommittedChanges(NamedTuple):
    """The generation of a transaction, the change of each object, and the new rows of history."""

    generation: int
    changes: Mapping[ObjectId, ChangeKind]
    rows: range


class TransactionWriter:
    """Writer of changes to the database, and then to the in-memory indexes, one after the other.

    The caller holds `one_writer` from its first to its last use of the catalogue, so that database
    and indexes agree.
    """

    def __init__(self, archive: Archive, usage: Usage, boot: str) -> None:
        self.one_writer = asyncio.Lock()
        self.catalogue = Catalogue(usage)
        self.fields = FieldReader(archive, self.catalogue)
        self.words = WordIndex(archive, self.catalogue.view)
        # number of transactions that changed objects
        self.generation = 0
        # (row, old digest, new digest) of rows of history whose distance is still to be computed
        self.moved: deque[tuple[int, bytes, bytes]] = deque(maxlen=_MAX_MOVED)
        # number of changes since the start, by what happened and the kind of its cause
        self.counts: Counter[tuple[ChangeType, str]] = Counter()
        self._archive = archive
        self._boot = boot

    def load(self, entries: Sequence[Entry]) -> None:
        """Load all entries at the start."""
        # of the published entries of an object, the latest comes first
        self.catalogue.put(sorted(entries, key=lambda entry: entry.updated_at))
        self.fields.begin()

    async def build(
        self,
        objects: Iterable[StateObject | Record],
        owner: int,
        now: float,
        *,
        transient: bool = False,
    ) -> BuiltRecords:
        """Build records, on a thread, of the objects that differ from the stored ones.

        Of several objects with one identity, the last counts. A stored object keeps its owner, and
        a permanent one stays so. An item that is a `Record` already keeps its content; its owner,
        time and transience are set.
        """

        def work() -> list[Record]:
            latest = {item.identity: item for item in objects}
            known = self.catalogue.existing(latest)
            wanted: list[tuple[Draft | Record, int, bool]] = []
            for identity, item in latest.items():
                entry, new = known.get(identity), item if isinstance(item, Record) else draft(item)
                passes = transient and (entry is None or entry.transient)
                is_stored = entry and entry.fingerprint == new.fingerprint
                if entry is None or entry.transient is not passes or not is_stored:
                    wanted.append((new, entry.owner if entry else owner, passes))
            drafts = [new for new, *_ in wanted if isinstance(new, Draft)]
            rendered = iter(Recorder().records(drafts))
            seconds = max(0, int(now))
            made = (new if isinstance(new, Record) else next(rendered) for new, *_ in wanted)
            # positional arguments: twice as fast as `_replace`
            return [
                Record(one.identity, of, *one[2:7], seconds, passes, one.traits)
                for one, (_, of, passes) in zip(made, wanted, strict=True)
            ]

        return BuiltRecords(now, await self._archive.prepare(work))

    async def write(
        self,
        built: BuiltRecords,
        gone: Sequence[Entry],
        why: Callable[[Identity], Cause],
        events: Mapping[Identity, Cause],
        *,
        withdrawn: bool,
    ) -> CommittedChanges:
        """Write records and events, and remove entries; raises LimitsExceeded and StoreError."""
        now, records = built
        if not records and not events and not gone:
            return CommittedChanges(self.generation, {}, range(0))

        generation = self.generation + bool(records or gone)

        def work(store: Store) -> Committed:
            known = self.catalogue.existing([*(record.identity for record in records), *events])
            self.catalogue.usage.require_room(records, known.get)
            update = Update(records, gone, known, why, events, withdrawn=withdrawn)
            return commit(store, update, generation, int(now * 1e6), self._boot)

        entries, rows, moved, counts = await self._archive.write(work)
        self.moved += moved
        self.counts += counts
        self.generation = generation
        return CommittedChanges(generation, await self.apply(gone, records, entries), rows)

    async def apply(
        self, gone: Sequence[Entry], records: Sequence[Record], entries: Sequence[Entry]
    ) -> Mapping[ObjectId, ChangeKind]:
        """Apply a committed transaction; `entries` are those of `records`, in the same order.

        Other tasks run between the parts. Returns the change of each object.
        """
        freed: list[int] = []
        changes: dict[ObjectId, ChangeKind] = {}
        for part in slices(gone, _AT_A_TIME):
            freed += [self.catalogue.view.places[entry.id] for entry in part]
            changes |= self.catalogue.remove(part)
            self.fields.drop(part)
            await asyncio.sleep(0)
        for part in slices(entries, _AT_A_TIME):
            # of several changes of an object the first counts
            changes = self.catalogue.put(part) | changes
            self.fields.touch(part)
            await asyncio.sleep(0)
        if self.words.is_kept:

            def rows() -> list[Row]:
                places = self.catalogue.view.places
                return [
                    Row(places[entry.id], record.identity.name, record.text, record.words)
                    for record, entry in zip(records, entries, strict=True)
                ]

            await self.words.change(freed, await self._archive.prepare(rows))
        return changes
