"""Checkpoints of history in the journal, and deletion of rows past the limits."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

import structlog

from opdbus.errors import StoreError
from opdbus.history import checkpoint
from opdbus.history.hash_chain import Head
from opdbus.history.ledger import Limits
from opdbus.history.row_ages import Moment, RowAges
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.metrics import Family
from opdbus.platform.timestamps import uptime

log = structlog.get_logger()

# Seconds from the first new row to its checkpoint.
CHECKPOINT_SECONDS: Final = 600.0
# Seconds between prunings while nothing changes: rows still reach the age limit.
_DAY_SECONDS: Final = 86_400.0
# Pause between two steps of pruning, for other writes.
_REST_SECONDS: Final = 0.01


class HistoryRetention:
    """The task that writes checkpoints of history after changes and on close, and prunes.

    `journal_log` writes to the journal; None if there is none. A checkpoint follows a change after
    `seconds`. Without changes, history is pruned `idle_seconds` apart, once a day by default.
    `clock` returns seconds since 1970, `elapsed` those since the boot.
    """

    def __init__(
        self,
        store: StateStore,
        journal_log: structlog.typing.FilteringBoundLogger | None,
        origin: str,
        limits: Limits,
        seconds: float = CHECKPOINT_SECONDS,
        clock: Callable[[], float] = time.time,
        idle_seconds: float = _DAY_SECONDS,
        elapsed: Callable[[], float] = uptime,
    ) -> None:
        self._archive = store.archive
        self._boot = store.boot
        self._journal_log = journal_log
        self._origin = origin
        self._limits = limits
        self._seconds = seconds
        self._clock = clock
        self._elapsed = elapsed
        # by how many days the newest row was ahead of its time at the last look
        self._ahead = 0.0
        self._idle_seconds = idle_seconds
        # set when there are rows without a checkpoint of this run
        self._has_new_rows = asyncio.Event()
        self._has_new_rows.set()
        self._last_checkpoint = 0, 1
        # the last row of history that was noticed
        self._last = 0

    def schedule_checkpoint(self, seq: int) -> None:
        """Schedule a checkpoint: history has new rows, the last of them `seq`."""
        self._last = max(self._last, seq)
        self._has_new_rows.set()

    def metrics(self) -> Iterator[Family]:
        """Yield the last row of history, and the last that a checkpoint of this run covers."""
        yield Family("history_seq", {(): self._last})
        yield Family("history_checkpoint_seq", {(): self._last_checkpoint[0]})

    async def close(self) -> None:
        """Write a last checkpoint, if there are new rows."""
        with suppress(StoreError):
            await self._archive.write(self._advance_ages)
            await self._write_checkpoint(0)

    async def run(self) -> None:
        """Write checkpoints and prune until cancelled."""
        if not self._journal_log:
            log.warning("history has no checkpoints", reason="there is no journal for them")
        with suppress(StoreError):
            self.schedule_checkpoint(
                (await self._archive.read(lambda store: store.ledger.state())).head.seq
            )
        while True:
            # not wait_for, which loses a cancellation that comes together with the event
            with suppress(TimeoutError):
                async with asyncio.timeout(self._idle_seconds):
                    await self._has_new_rows.wait()
            await asyncio.sleep(self._seconds)
            await self.checkpoint_and_prune()

    async def checkpoint_and_prune(self) -> None:
        """Write a checkpoint if there are new rows, and prune; failures wait until it can write."""
        self._has_new_rows.clear()
        try:
            count, too_old = 0, await self._archive.write(self._advance_ages)
            last = await self._archive.read(
                lambda store: store.ledger.surplus(self._limits, too_old)
            )
            await self._write_checkpoint(last)
            # in steps, between which others can write
            while more := await self._archive.write(lambda store: store.prune_history(last)):
                count += more
                await asyncio.sleep(_REST_SECONDS)
        except StoreError:  # the archive has logged it
            if not self._archive.is_read_only:
                self._archive.when_writable(self.checkpoint_and_prune)
            return
        if count:
            # every ten minutes on a host with a full history; its checkpoint has the first row
            log.debug("history pruned", rows=count, last=last)

    def _advance_ages(self, store: Store) -> int:
        """Count the time that has passed; return the last row that is too old, 0 if none is.

        None is while the newest row is days ahead of its time: the clock was set meanwhile.
        """
        now = Moment(self._boot, self._elapsed(), self._clock())
        (last, newest), known = store.ledger.newest(), RowAges.read(store.ledger, now)
        before, self._ahead = self._ahead, known.days_ahead(now, newest)
        if self._ahead and not before:
            log.warning("clock was set: no history is old by it", row=last, days_ahead=self._ahead)
        ages = known.advance(now, last, self._limits.days)
        with store.transaction():
            ages.keep(store.ledger)
        return 0 if self._ahead else ages.last_older_than(self._limits.days)

    async def _write_checkpoint(self, pruned: int) -> None:
        """Write a checkpoint if there are new rows or more are pruned.

        The caller removes the rows up to `pruned` afterwards.
        """

        def read_end(store: Store) -> tuple[Head, int]:
            # a power cut must not lose rows that a checkpoint covers
            store.sync()
            return store.ledger.state().head, store.ledger.cut().seq

        head, cut = await self._archive.write(read_end)
        self._last = max(self._last, head.seq)
        first = max(cut, pruned) + 1
        if self._journal_log and (head.seq, first) != self._last_checkpoint:
            text = checkpoint.text_of(head, self._origin)
            self._journal_log.info(
                "history checkpoint", size=head.seq, first=first, checkpoint=text
            )
            self._last_checkpoint = head.seq, first
