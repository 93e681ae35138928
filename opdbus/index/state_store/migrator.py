"""Migration of a database while it serves: first the objects in batches, then history."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from opdbus.errors import StoreError
from opdbus.index.state_store.erasure import Eraser
from opdbus.index.state_store.transaction_writer import TransactionWriter
from opdbus.index.storage import migration
from opdbus.index.storage.archive import Archive
from opdbus.index.storage.migration import Migration

log = structlog.get_logger()


class Migrator:
    """The task that migrates objects and history; `on_progress` is called after each step.

    `on_rendered` is called before it if the step rendered objects. `clock` returns microseconds
    since 1970.
    """

    def __init__(
        self,
        archive: Archive,
        writer: TransactionWriter,
        eraser: Eraser,
        clock: Callable[[], int],
        boot: str,
        on_progress: Callable[[], None],
        on_rendered: Callable[[], None],
    ) -> None:
        self._archive = archive
        self._writer = writer
        self._eraser = eraser
        self._clock = clock
        self._boot = boot
        self._on_progress = on_progress
        self._on_rendered = on_rendered
        # number of objects that are still to be rendered anew
        self.objects = 0
        # number of rows of history that are hidden until they are searched for secrets
        self.rows = 0
        # set once no object is left, although rows of history may be
        self.rendered = asyncio.Event()
        # set once nothing is left
        self.done = asyncio.Event()

    def sentence(self) -> str:
        """Return a status line with the current step and what is left; "" if nothing is."""
        if self.objects:
            return f"Bringing objects up to this version: {self.objects:,} are left"
        if self.rows:
            return f"Looking for secrets in history: {self.rows:,} rows are left, hidden till then"
        return ""

    async def run(self) -> None:
        """Finish a migration and unfinished erasure, once the database can be written."""
        try:
            if not self.done.is_set():
                if left := await self._archive.read(Migration.find):
                    await self._migrate(left)
                self.finish()
                self._on_progress()
            await self._eraser.resume()
        except StoreError:
            self._archive.when_writable(self.run)

    def finish(self) -> None:
        """Record that nothing is left."""
        self.rendered.set()
        self.done.set()

    async def _migrate(self, left: Migration) -> None:
        self.objects = await self._archive.read(lambda store: store.count_of(left.unrendered))
        self.rows = left.unchecked
        log.info("migrating", objects=self.objects, history=self.rows)
        if left.unrendered:
            async with self._archive.busy():
                while left.unrendered:
                    left = await self._render(left)
                    self._on_rendered()
                    self._on_progress()
        self.rendered.set()
        while left.unchecked:
            check = partial(migration.check_history, at=self._clock(), boot=self._boot)
            left = await self._archive.write(partial(check, left=left))
            self.rows = left.unchecked
            self._on_progress()
        await self._archive.write(migration.finish)
        log.info("migrated")

    async def _render(self, left: Migration) -> Migration:
        """Render a batch of objects anew, and apply it to the indexes; other changes wait."""
        async with self._writer.one_writer:
            rows = await self._archive.read(partial(migration.read_batch, left=left))
            records = await self._archive.prepare(partial(migration.render, rows))
            known = self._writer.catalogue.existing([record.identity for record in records])
            is_last = len(rows) < migration.AT_A_TIME
            left = left._replace(rendered=left.last if is_last else rows[-1][0].id)
            put = partial(migration.put_rendered, records=records, known=known, left=left)
            entries = await self._archive.write(put)
            await self._writer.apply([], records, entries)
        self.objects = 0 if is_last else max(0, self.objects - len(rows))
        return left
