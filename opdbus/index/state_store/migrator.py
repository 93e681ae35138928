"""Migrates a database while it serves: objects batch by batch, and then the rows of history."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from opdbus.errors import StoreError
from opdbus.index.state_store.erasure import Eraser
from opdbus.index.state_store.in_memory_indexes import InMemoryIndexes
from opdbus.index.storage import migration
from opdbus.index.storage.archive import Archive
from opdbus.index.storage.migration import Migration

log = structlog.get_logger()


class Migrator:
    """Brings what is stored up to this version; `on_progress` is called after each step.

    `one_writer` is held while a batch is written and taken into memory. `clock` gives microseconds.
    """

    def __init__(
        self,
        archive: Archive,
        known: InMemoryIndexes,
        cleaner: Eraser,
        one_writer: asyncio.Lock,
        clock: Callable[[], int],
        boot: str,
        on_progress: Callable[[], None],
    ) -> None:
        self._archive = archive
        self._known = known
        self._cleaner = cleaner
        self._one_writer = one_writer
        self._clock = clock
        self._boot = boot
        self._on_progress = on_progress
        # how many objects are still as another version wrote them
        self.objects = 0
        # how many rows of history nobody sees until they were looked through
        self.rows = 0
        # set once all of it is as this version writes it
        self.done = asyncio.Event()

    def sentence(self) -> str:
        """Say what goes on, and how much is left; nothing once it is done."""
        if self.objects:
            return f"Bringing objects up to this version: {self.objects:,} are left"
        if self.rows:
            return f"Looking for secrets in history: {self.rows:,} rows are left, hidden till then"
        return ""

    async def run(self, left: Migration | None) -> None:
        """Do what is left; what cannot be written is done once it can be."""
        try:
            if left:
                await self._migrate(left)
            self.done.set()
            if left:
                self._on_progress()
            await self._cleaner.resume()
        except StoreError:
            self._archive.when_writable(self._run_again)

    async def _run_again(self) -> None:
        try:
            left = await self._archive.read(Migration.find)
        except StoreError:
            self._archive.when_writable(self._run_again)
        else:
            await self.run(left)

    async def _migrate(self, left: Migration) -> None:
        self.objects = await self._archive.read(lambda store: store.count_of(left.unrendered))
        self.rows = left.unchecked
        log.info("migrating", objects=self.objects, history=self.rows)
        async with self._archive.busy():
            while not left.is_done:
                left = await (self._render(left) if left.unrendered else self._look_through(left))
                self._on_progress()
        await self._archive.write(migration.finish)
        log.info("migrated")

    async def _render(self, left: Migration) -> Migration:
        """Render a batch of objects anew, and take it into memory; other changes wait for it."""
        async with self._one_writer:
            rows = await self._archive.read(partial(migration.read, left=left))
            records = await self._archive.prepare(partial(migration.render, rows))
            known = self._known.catalogue.known_of([record.identity for record in records])
            is_last = len(rows) < migration.AT_A_TIME
            left = left._replace(rendered=left.last if is_last else rows[-1][0].id)
            put = partial(migration.put_rendered, records=records, known=known, left=left)
            entries = await self._archive.write(put)
            await self._known.take([], records, entries)
        self.objects = 0 if is_last else max(0, self.objects - len(rows))
        return left

    async def _look_through(self, left: Migration) -> Migration:
        """Erase what is secret in some rows of history."""
        look = partial(migration.look_through_more, left=left, at=self._clock(), boot=self._boot)
        left = await self._archive.write(look)
        self.rows = left.unchecked
        return left
