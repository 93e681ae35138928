"""History is vouched for: checkpoints go to the journal, where op-dbus cannot change them."""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from opdbus.errors import StoreError
from opdbus.history import checkpoint
from opdbus.history.chain import Head
from opdbus.index.memory import Memory
from opdbus.index.store import Store

log = structlog.get_logger()

# From the first new row to the checkpoint after it.
CHECKPOINT_SECONDS: Final = 600.0


class Keeper:
    """Writes a checkpoint some minutes after a change, and when it is closed.

    `journal_log` is where they go, None where there is no journal. While nothing changes, nothing
    runs.
    """

    def __init__(
        self,
        memory: Memory,
        journal_log: structlog.typing.FilteringBoundLogger | None,
        origin: str,
        seconds: float = CHECKPOINT_SECONDS,
    ) -> None:
        self._memory = memory
        self._journal_log = journal_log
        self._origin = origin
        self._seconds = seconds
        # set when there are rows that no checkpoint of this run vouches for
        self._news = asyncio.Event()
        self._news.set()
        self._vouched = 0

    def recorded(self) -> None:
        """Note that history has new rows."""
        self._news.set()

    async def run(self) -> None:
        """Write checkpoints until cancelled."""
        if not self._journal_log:
            log.warning("history not vouched for", reason="there is no journal for checkpoints")
        while True:
            await self._news.wait()
            await asyncio.sleep(self._seconds)
            await self.keep()

    async def keep(self) -> None:
        """Write a checkpoint if there are new rows; what cannot be written now is written later."""
        self._news.clear()
        if self._memory.archive.is_read_only:
            return
        with suppress(StoreError):  # the archive has logged it
            await self._vouch()

    async def _vouch(self) -> None:
        head, first = await self._memory.archive.write(_end)
        if self._journal_log and head.seq != self._vouched:
            text = checkpoint.text_of(head, self._origin)
            self._journal_log.info(
                "history checkpoint", size=head.seq, first=first, checkpoint=text
            )
            self._vouched = head.seq


def _end(store: Store) -> tuple[Head, int]:
    """Return where history ends, once that is on the disk, and its first row."""
    # a power cut must not take what a checkpoint vouches for
    store.sync()
    return store.ledger.state().head, store.ledger.cut().seq + 1
