"""Writing of index snapshots once enough objects have changed."""

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
from opdbus.index.snapshot.entry_snapshot import SNAPSHOT_TOKEN, SnapshotId
from opdbus.index.storage.archive import Archive
from opdbus.platform import gc_tuning

log = structlog.get_logger()

# Up to this number of objects a start reads the database fast enough without a snapshot.
MANY: Final = 20_000
# A snapshot is due after changes of a twentieth of the objects, and of at least this many.
_SHARE: Final = 20
_LEAST: Final = 1000
# The pause after a snapshot, in durations of writing it.
_PAUSES: Final = 20
# The least pause after one that could not be written: the disk may be full.
_RETRY_SECONDS: Final = 600.0


class SnapshotWriter:
    """The task that writes snapshots of entries, full-text index and fields."""

    def __init__(
        self, archive: Archive, view: EntryView, fields: FieldReader, one_writer: asyncio.Lock
    ) -> None:
        self._archive = archive
        self._view = view
        self._fields = fields
        # while it is held, database and in-memory indexes agree
        self._one_writer = one_writer
        # number of changes that are not in the files
        self._changes = 0
        self._due = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()

    def note(self, changes: int) -> None:
        """Count changes, and make a snapshot due once there are enough."""
        self._changes += changes
        if self._changes > max(len(self._view.places) // _SHARE, _LEAST):
            self._due.set()

    async def run(self) -> None:
        """Write a snapshot whenever it is due, until cancelled."""
        while True:
            await self._due.wait()
            await self._archive.no_bulk_load.wait()
            self._due.clear()
            began = time.monotonic()
            is_written = False
            with suppress(StoreError):  # the archive has logged it; the next start is slower
                is_written = await self.write_snapshot()
            pause = _PAUSES * (time.monotonic() - began)
            if not is_written:
                self._due.set()
                pause = max(pause, _RETRY_SECONDS)
            await asyncio.sleep(pause)

    async def write_snapshot(self) -> bool:
        """Write a snapshot, or remove it if there are few objects; raises StoreError.

        Return whether the fields were written, too.
        """
        async with self._one_at_a_time:
            self._changes = 0
            if len(self._view.places) <= MANY:
                await self._archive.write(entry_snapshot.remove)
                return True
            async with self._one_writer:
                changes = await self._archive.write(_begin_log)
            moment = await self._archive.read_apart(
                lambda store: entry_snapshot.write(store, changes)
            )
            path = await self._archive.read(lambda store: entry_snapshot.path_of(store, "fields"))
            are_fields_written = False
            try:
                await self._fields.write_snapshot(path, moment.token)
                are_fields_written = True
            except OSError as error:  # the next start reads the fields from the database
                log.warning("fields not sealed", path=str(path), reason=error.strerror)
            await self._archive.write(lambda store: _confirm(store, moment))
            await asyncio.to_thread(gc_tuning.trim)
            log.info("entries sealed", objects=len(self._view.places))
            return are_fields_written

    async def forget(self) -> None:
        """Remove the files that may have erased values, and make a new snapshot due.

        The fields are read anew. Raises StoreError.
        """
        async with self._one_at_a_time:
            self._fields.begin()
            await self._archive.write(entry_snapshot.remove_values)
        self._due.set()


def _begin_log(store: Store) -> int:
    """Start the change log, store the mean length, and return the number of logged changes."""
    with store.transaction():
        if not store.fact(SNAPSHOT_TOKEN):
            store.set_fact(SNAPSHOT_TOKEN, "no file yet")
        store.set_fact(postings.MEAN_LENGTH, str(postings.mean_length(store)))
    return store.count_changes()


def _confirm(store: Store, moment: SnapshotId) -> None:
    """Make a snapshot the one that the next start reads, and drop the changes that it has."""
    with store.transaction():
        store.set_fact(SNAPSHOT_TOKEN, moment.token)
        store.forget_changes(moment.changes)
