"""Has what is known of very many objects be in files whenever enough of them have changed."""

import asyncio
import time
from contextlib import suppress
from typing import Final

import structlog

from opdbus.errors import StoreError
from opdbus.index.catalogue.entry_view import EntryView
from opdbus.index.database.store import Store
from opdbus.index.fields.field_reader import FieldReader
from opdbus.index.snapshot import entry_snapshot, postings
from opdbus.index.snapshot.entry_snapshot import SEALED, SnapshotId
from opdbus.index.storage.archive import Archive
from opdbus.platform import gc_tuning

log = structlog.get_logger()

# Fewer objects are read from the database in a moment.
MANY: Final = 20_000
# A file is written when a twentieth of the objects, or so many, have changed.
_SHARE: Final = 20
_LEAST: Final = 1000
# To write takes at most a twentieth of the time.
_PAUSES: Final = 20


class SnapshotWriter:
    """Writes the files while `run` runs; all else goes on meanwhile."""

    def __init__(
        self, archive: Archive, view: EntryView, fields: FieldReader, one_writer: asyncio.Lock
    ) -> None:
        self._archive = archive
        self._view = view
        self._fields = fields
        # whoever has it knows that all that is in the database is known in memory
        self._one_writer = one_writer
        # of what is not in the files
        self._changes = 0
        self._due = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    def note(self, changes: int) -> None:
        """Count what has changed."""
        self._changes += changes
        if self._changes > max(len(self._view.places) // _SHARE, _LEAST):
            self._due.set()

    @property
    def is_due(self) -> bool:
        """Whether so much has changed that the file is to be written."""
        return self._due.is_set()

    async def run(self) -> None:
        """Write the file whenever it is due, until cancelled."""
        while True:
            await self._due.wait()
            await self._archive.calm.wait()
            self._due.clear()
            began = time.monotonic()
            with suppress(StoreError):  # the archive has logged it; a start takes longer
                await self.seal()
            await asyncio.sleep(_PAUSES * (time.monotonic() - began))

    async def seal(self) -> None:
        """Write the files, or remove those of a time with more objects; raises StoreError."""
        async with self._one_at_a_time:
            await self._seal()

    async def forget(self) -> None:
        """Remove what may have values of before, and have it be written anew; raises StoreError."""
        async with self._one_at_a_time:
            self._fields.begin()
            await self._archive.write(entry_snapshot.remove_values)
        self._due.set()

    async def _seal(self) -> None:
        self._changes = 0
        if len(self._view.places) <= MANY:
            await self._archive.write(entry_snapshot.remove)
            return
        async with self._one_writer:
            changes = await self._archive.write(_begin)
        moment = await self._archive.read_apart(lambda store: entry_snapshot.write(store, changes))
        path = await self._archive.read(lambda store: entry_snapshot.path_of(store, "fields"))
        try:
            await self._fields.seal(path, moment.token)
        except OSError as error:  # the next start reads them from the database
            log.warning("fields not sealed", reason=str(error))
        await self._archive.write(lambda store: _confirm(store, moment))
        await asyncio.to_thread(gc_tuning.trim)
        log.info("entries sealed", objects=len(self._view.places))


def _begin(store: Store) -> int:
    """Have changes be noted from now on, keep today's mean length, and count what was noted."""
    with store.transaction():
        if not store.fact(SEALED):
            store.set_fact(SEALED, "no file yet")
        store.set_fact(postings.MEAN_LENGTH, str(postings.mean_length(store)))
    return store.noted.count()


def _confirm(store: Store, moment: SnapshotId) -> None:
    """Take a file as the one that the next start is to read."""
    with store.transaction():
        store.set_fact(SEALED, moment.token)
        store.noted.forget(moment.changes)
