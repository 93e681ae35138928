"""In-memory indexes, updated after each committed transaction."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from opdbus.index.catalogue import catalogue
from opdbus.index.catalogue.catalogue import Catalogue, Change
from opdbus.index.catalogue.transient_objects import TransientObjects
from opdbus.index.catalogue.volatile_values import VolatileValues
from opdbus.index.database.quota import Usage
from opdbus.index.database.store import Content, Entry, Record
from opdbus.index.fields.field_reader import FieldReader
from opdbus.index.fulltext.recent_words import Row
from opdbus.index.fulltext.word_index import WordIndex
from opdbus.index.snapshot import entry_snapshot
from opdbus.index.snapshot.entry_snapshot import LoadedEntries
from opdbus.index.state_store.snapshot_writer import SnapshotWriter
from opdbus.index.storage.archive import Archive
from opdbus.platform import gc_tuning
from opdbus.platform.slices import slices
from opdbus.state.object import FILE, Json, ObjectId

# Entries applied to the catalogue in one turn of the event loop, some milliseconds' work: one by
# one, and as columns built on a thread.
_AT_A_TIME: Final = 200
_MADE: Final = 1000
# Below this number of entries, columns built on a thread are slower than one by one.
_FEW: Final = 100


class InMemoryIndexes:
    """The catalogue of all entries, their fields and their full-text index, kept in agreement."""

    def __init__(self, archive: Archive, usage: Usage, one_writer: asyncio.Lock) -> None:
        self._archive = archive
        self.catalogue = Catalogue(usage)
        self.fields = FieldReader(archive, self.catalogue)
        self.words = WordIndex(archive, self.catalogue.view)
        self.snapshot_writer = SnapshotWriter(archive, self.catalogue.view, self.fields, one_writer)
        self.transient = TransientObjects()
        self.volatile = VolatileValues()

    async def load(self, loaded: LoadedEntries) -> None:
        """Load all entries at start, and full-text index and fields if a snapshot has them."""
        with gc_tuning.paused():
            self.catalogue.load(loaded.entries, loaded.changed, loaded.since)
        self.snapshot_writer.note(loaded.unsealed)
        self.fields.begin()
        if moment := loaded.moment:
            words = await self._archive.read(lambda store: entry_snapshot.words(store, moment))
            fields = await self._archive.read(lambda store: entry_snapshot.fields(store, moment))
            if words:
                await self.words.recall(words, loaded.changed)
            if fields:
                self.fields.recall(fields, loaded.changed)

    async def take(
        self, gone: Sequence[Entry], records: Sequence[Record], entries: Sequence[Entry]
    ) -> Mapping[ObjectId, Change]:
        """Apply a committed transaction; `entries` are those of `records`, in the same order.

        Other tasks run between the parts. Returns the change of each object.
        """
        self.snapshot_writer.note(len(records) + len(gone))
        freed: list[int] = []
        changes: dict[ObjectId, Change] = {}
        for part in slices(gone, _AT_A_TIME):
            freed += [self.catalogue.view.places[entry.id] for entry in part]
            self.transient.discard(entry.identity for entry in part)
            changes |= self.catalogue.remove(part)
            self.fields.drop(part)
            await asyncio.sleep(0)
        for part in slices(entries, _MADE):
            changes |= await self._put(part)
        if self.words.is_kept:
            rows = await self._archive.prepare(partial(self._rows, records, entries))
            await self.words.change(freed, rows)
        return changes

    async def _put(self, entries: Sequence[Entry]) -> Mapping[ObjectId, Change]:
        if len(entries) < _FEW:
            changes = self.catalogue.put(entries)
        else:
            ready = await self._archive.prepare(partial(self._made, entries))
            changes, others = self.catalogue.put_made(ready)
            said: dict[ObjectId, Change] = {}
            for part in slices(others, _AT_A_TIME):
                await asyncio.sleep(0)
                # of several changes of an object the first counts
                said = self.catalogue.put_each(part) | said
            changes |= said
        self.fields.touch(entries)
        await asyncio.sleep(0)
        return changes

    def _made(self, entries: Sequence[Entry]) -> catalogue.EntryColumns:
        """Build columns of entries, and reserve room, which may move the catalogue's arrays.

        Runs on any thread, as long as no other change is applied meanwhile.
        """
        self.catalogue.make_room(len(entries))
        return catalogue.entry_columns(entries)

    def _rows(self, records: Sequence[Record], entries: Sequence[Entry]) -> list[Row]:
        """Return the full-text rows of records, whose entries are `entries`; on any thread."""
        ids = np.fromiter((entry.id for entry in entries), np.int64, len(entries))
        places = self.catalogue.view.places.find_each(ids).tolist()
        return [
            Row(place, record.identity.name, record.text, record.words)
            for record, place in zip(records, places, strict=True)
        ]

    def joined(
        self,
        entries: Sequence[Entry],
        contents: Mapping[int, Content],
        *,
        only_stored: bool = False,
    ) -> dict[str, Json]:
        """Return the fields of an object, each from the first of its entries that has it.

        `entries` are in the catalogue's order: declared, op-dbus's observers, the latest publisher
        and so on. Declared fields count only if there is no observed entry. `only_stored` leaves
        out volatile values.
        """
        fields: dict[str, Json] = {}
        observed = [entry for entry in entries if entry.identity.source != FILE]
        for entry in reversed(observed or entries):
            if entry.id in contents:
                fields |= json.loads(contents[entry.id].properties)
                fields |= {} if only_stored else self.volatile.get(entry.identity)
        return fields
