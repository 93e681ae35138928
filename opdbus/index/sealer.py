"""Has the entries of very many objects be in a file whenever enough of them have changed."""

import asyncio
import time
from contextlib import suppress
from typing import Final

import structlog

from opdbus import gc_tuning
from opdbus.errors import StoreError
from opdbus.index import sealed_entries
from opdbus.index.archive import Archive
from opdbus.index.sealed_entries import SEALED, Moment
from opdbus.index.store import Store
from opdbus.index.view import View

log = structlog.get_logger()

# Fewer objects are read from the database in a moment.
MANY: Final = 20_000
# A file is written when a twentieth of the objects, or so many, have changed.
_SHARE: Final = 20
_LEAST: Final = 1000
# To write takes at most a twentieth of the time.
_PAUSES: Final = 20


class Sealer:
    """Writes the file while `run` runs; all else goes on meanwhile."""

    def __init__(self, archive: Archive, view: View) -> None:
        self._archive = archive
        self._view = view
        # of what is not in the file
        self._changes = 0
        self._due = asyncio.Event()

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
        """Write the file, or remove that of a time with more objects; raises StoreError."""
        self._changes = 0
        if len(self._view.places) <= MANY:
            await self._archive.write(sealed_entries.remove)
            return
        await self._archive.write(_begin)
        moment = await self._archive.read_apart(sealed_entries.write)
        await self._archive.write(lambda store: _confirm(store, moment))
        await asyncio.to_thread(gc_tuning.trim)
        log.info("entries sealed", objects=len(self._view.places))


def _begin(store: Store) -> None:
    """Have changes be noted from now on."""
    if not store.fact(SEALED):
        with store.transaction():
            store.set_fact(SEALED, "no file yet")


def _confirm(store: Store, moment: Moment) -> None:
    """Take a file as the one that the next start is to read."""
    with store.transaction():
        store.set_fact(SEALED, moment.token)
        store.noted.forget(moment.changes)
