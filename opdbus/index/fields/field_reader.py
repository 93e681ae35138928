"""Keeps the fields of all objects in arrays: reads from the database what is not there yet."""

import asyncio
import itertools
import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from opdbus.errors import StoreError
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.database.store import Entry
from opdbus.index.fields.field_index import FieldIndex, WrittenRows
from opdbus.index.snapshot import snapshot_file
from opdbus.index.snapshot.snapshot_file import SnapshotFile
from opdbus.index.storage.archive import Archive
from opdbus.platform.slices import slices
from opdbus.state.object import Identity, Json

# Objects as they are stored, by id.
Rows: TypeAlias = Sequence[tuple[int, dict[str, Json]]]

# Objects read at a time: some milliseconds' work.
_AT_A_TIME: Final = 512
# So many changed objects are read again together; until then conditions look at each of them.
_FEW: Final = 32
# All are read anew where more than so many have changed, and an eighth of all.
_MANY: Final = 50_000
_SHARE: Final = 8
# Rows of what has changed or is gone that are left where there are few objects.
_LEFT: Final = 8192
_RETRY_SECONDS: Final = 20.0


class Unread(NamedTuple):
    """What is in no row, or in an old one: objects whose ids are in a range, and others."""

    after: int
    last: int
    ids: frozenset[int]


class FieldReader:
    """An index of all fields, and which objects are to be looked at one by one meanwhile."""

    def __init__(self, archive: Archive, catalogue: Catalogue) -> None:
        self._archive = archive
        self._catalogue = catalogue
        self.index = FieldIndex(catalogue.view)
        # which change of each object is to be read; ids up to `_after` were read at least once, and
        # of those up to `_begun` what is read may be of before a change
        self._changed: dict[int, int] = {}
        self._changes = itertools.count()
        self._after = self._begun = self._last = 0
        self._one_writer = asyncio.Lock()
        self._news = asyncio.Event()
        # set once all objects were read
        self.is_read = asyncio.Event()

    def begin(self) -> None:
        """Have all objects of the catalogue be read anew."""
        self.index = FieldIndex(self._catalogue.view)
        self._changed.clear()
        self._after = self._begun = 0
        self._last = int(self._catalogue.view.ids.max(initial=0))
        self._news.set()

    def recall(self, sealed: SnapshotFile, changed: Collection[int]) -> None:
        """Take the fields of a moment, and have what is not in it, or has changed since, be read.

        Before anything else changes.
        """
        view = self._catalogue.view
        self.index = FieldIndex.of(view, sealed.about, sealed.arrays, changed)
        places = view.taken()
        self._after = self._begun = self._last
        for number in view.ids[places[~self.index.has_row(places)]].tolist():
            self._changed[number] = next(self._changes)

    async def seal(self, path: Path, token: str) -> None:
        """Write the fields as they are now into a file; raises OSError."""
        async with self._one_writer:
            index, unread = self.index, self._unread_ids()
            about, arrays = index.about, index.arrays(unread)
            await asyncio.to_thread(snapshot_file.write, path, token, about, arrays)

    def touch(self, entries: Iterable[Entry]) -> None:
        """Have entries be read that are new or have changed."""
        for entry in entries:
            if entry.id > self._last:
                # new ones have higher ids than all before them
                self._last = entry.id
            elif entry.id <= self._begun:
                self._changed[entry.id] = next(self._changes)
        if len(self._changed) > max(_MANY, len(self._catalogue.view.places) // _SHARE):
            self.begin()
        if self._last - self._after + len(self._changed) > _FEW:
            self._news.set()

    def drop(self, entries: Iterable[Entry]) -> None:
        """Forget entries that are gone."""
        for entry in entries:
            self._changed.pop(entry.id, None)
            self.index.outside.discard(entry.id)

    def unread(self) -> Unread:
        """Return what conditions are to look at one by one."""
        return Unread(self._after, self._last, self._unread_ids())

    def _unread_ids(self) -> frozenset[int]:
        return frozenset((*self._changed, *self.index.outside))

    async def run(self) -> None:
        """Read what is new or has changed, until cancelled."""
        while True:
            await self._news.wait()
            await self._archive.calm.wait()
            self._news.clear()
            try:
                await self.catch_up()
                self.is_read.set()
            except StoreError:  # the archive has logged it
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._news.set)

    async def catch_up(self) -> None:
        """Read all that is new or has changed; raises StoreError."""
        if self.index.end > 2 * len(self._catalogue.view.places) + _LEFT:
            self.begin()
        while self._after < self._last or self._changed:
            await (self._read_new() if self._after < self._last else self._read_changed())

    async def _read_new(self) -> None:
        index, last = self.index, self._last
        self._begun = last
        rows = await self._take(index, self._after, "id <= ?", last)
        # else all is to be read anew
        if self.index is index:
            self._after = rows[-1][0] if len(rows) == _AT_A_TIME else last

    async def _read_changed(self) -> None:
        index, listed = self.index, "id IN (SELECT value FROM json_each(?))"
        # the first ones of a dictionary that lost many are far behind its beginning
        for part in slices([*self._changed], _AT_A_TIME):
            changed = {number: self._changed.get(number) for number in part}
            await self._take(index, 0, listed, json.dumps(part))
            if self.index is not index:
                return
            # what has changed again meanwhile is read again
            for number, change in changed.items():
                if self._changed.get(number) == change:
                    self._changed.pop(number, None)

    async def _take(self, index: FieldIndex, after: int, clause: str, value: str | int) -> Rows:
        """Read objects into rows of an index, and return them."""
        rows = await self._archive.read(
            lambda store: store.words.sift(after, clause, [value], _AT_A_TIME)
        )
        async with self._one_writer:
            # the thread that reads is left to searches
            index.publish(await asyncio.to_thread(self._write, index, rows))
        return rows

    def _write(self, index: FieldIndex, rows: Rows) -> WrittenRows:
        view, contents = self._catalogue.view, dict(rows)
        found = view.found(contents)
        sorts = map(view.of_number.__getitem__, view.sorts[found.places].tolist())
        named = zip(sorts, view.names.of(found.places.tolist()), strict=True)
        identities = [Identity(*sort, name) for sort, name in named]
        items = zip(found.ids.tolist(), identities, strict=True)
        return index.write((number, one, contents[number]) for number, one in items)
