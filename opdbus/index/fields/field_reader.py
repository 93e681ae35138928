"""Background reader that keeps the column index of fields in agreement with the database."""

import asyncio
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from opdbus.errors import StoreError
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.database.store import Entry
from opdbus.index.fields.field_index import FieldIndex, WrittenRows
from opdbus.index.storage.archive import Archive
from opdbus.platform.slices import slices
from opdbus.state.object import Json

# (id, properties) of stored objects.
Rows: TypeAlias = Sequence[tuple[int, dict[str, Json]]]

# Objects read at a time: some milliseconds.
_AT_A_TIME: Final = 512
# More changed objects than this are read again; until then conditions check each one.
_FEW: Final = 32
# All objects are read anew if more than _MANY and more than 1 / _SHARE of all have changed.
_MANY: Final = 50_000
_SHARE: Final = 8
# Outdated rows allowed besides one for each object, before all are read anew.
_LEFT: Final = 8192
_RETRY_SECONDS: Final = 20.0


class Unread(NamedTuple):
    """Objects without an up-to-date row: ids from `after` + 1 to `last`, and `ids`."""

    after: int
    last: int
    ids: frozenset[int]


class FieldReader:
    """Column index of all fields, and the objects that it does not yet reflect.

    Use it on the event loop.
    """

    def __init__(self, archive: Archive, catalogue: Catalogue) -> None:
        self._archive = archive
        self._catalogue = catalogue
        self.index = FieldIndex(catalogue.view)
        # number of the last unread change by id; ids up to `_after` were read at least once, and a
        # running read of ids up to `_begun` may return values from before a change
        self._changed: dict[int, int] = {}
        self._changes = itertools.count()
        self._after = self._begun = self._last = 0
        self._one_writer = asyncio.Lock()
        self._news = asyncio.Event()
        # set once all objects were read
        self.is_read = asyncio.Event()

    def begin(self) -> None:
        """Reset the index, and schedule all objects of the catalogue for reading."""
        self.index = FieldIndex(self._catalogue.view)
        self._changed.clear()
        self._after = self._begun = 0
        self._last = int(self._catalogue.view.ids.max(initial=0))
        self._news.set()

    def touch(self, entries: Iterable[Entry]) -> None:
        """Schedule new or changed entries for reading."""
        for entry in entries:
            if entry.id > self._last:
                # new entries have ids above all earlier ones
                self._last = entry.id
            elif entry.id <= self._begun:
                self._changed[entry.id] = next(self._changes)
        if len(self._changed) > max(_MANY, len(self._catalogue.view.places) // _SHARE):
            self.begin()
        if self._last - self._after + len(self._changed) > _FEW:
            self._news.set()

    def drop(self, entries: Iterable[Entry]) -> None:
        """Forget removed entries."""
        for entry in entries:
            self._changed.pop(entry.id, None)
            self.index.outside.discard(entry.id)

    def unread(self) -> Unread:
        """Return the objects on which conditions must be checked one by one."""
        return Unread(self._after, self._last, self._unread_ids())

    def _unread_ids(self) -> frozenset[int]:
        return frozenset((*self._changed, *self.index.outside))

    async def run(self) -> None:
        """Read scheduled objects whenever there are enough, until cancelled."""
        while True:
            await self._news.wait()
            await self._archive.no_bulk_load.wait()
            self._news.clear()
            try:
                await self.catch_up()
                self.is_read.set()
            except StoreError:  # the archive has logged it
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._news.set)

    async def catch_up(self) -> None:
        """Read all scheduled objects; raises StoreError."""
        if self.index.end > 2 * len(self._catalogue.view.places) + _LEFT:
            self.begin()
        while self._after < self._last or self._changed:
            await (self._read_new() if self._after < self._last else self._read_changed())

    async def _read_new(self) -> None:
        index, last = self.index, self._last
        self._begun = last
        rows = await self._take(index, self._after, "id <= ?", last)
        # else `begin` has replaced the index meanwhile
        if self.index is index:
            self._after = rows[-1][0] if len(rows) == _AT_A_TIME else last

    async def _read_changed(self) -> None:
        index, listed = self.index, "id IN (SELECT value FROM json_each(?))"
        # copy once: iterating from the start of a dict with many deleted keys is slow
        for part in slices([*self._changed], _AT_A_TIME):
            changed = {number: self._changed.get(number) for number in part}
            await self._take(index, 0, listed, json.dumps(part))
            if self.index is not index:
                return
            # keep objects that have changed again meanwhile
            for number, change in changed.items():
                if self._changed.get(number) == change:
                    self._changed.pop(number, None)

    async def _take(self, index: FieldIndex, after: int, clause: str, value: str | int) -> Rows:
        """Read objects into rows of an index, and return those read."""
        rows = await self._archive.read(
            lambda store: store.words.sift(after, clause, [value], _AT_A_TIME)
        )
        async with self._one_writer:
            # not on the reading thread, which searches use
            index.publish(await asyncio.to_thread(self._write, index, rows))
        return rows

    def _write(self, index: FieldIndex, rows: Rows) -> WrittenRows:
        entries = ((self._catalogue.view.entry(number), properties) for number, properties in rows)
        return index.write((one.id, one.identity, properties) for one, properties in entries if one)
