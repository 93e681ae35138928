"""Erasure of values from history, and of deleted terms from the database files, in small steps.

Other writes run between the steps. The progress of a request is stored in the database, so that the
next start continues after a kill.
"""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from opdbus.errors import StoreError
from opdbus.history.forget import Forgotten, Target, count_named, forget
from opdbus.index.database.store import RENEWED, UNCLEAN, WORD_TABLES, Store
from opdbus.index.state_store.snapshot_writer import SnapshotWriter
from opdbus.index.storage.archive import Archive
from opdbus.state.object import ObjectId

# Rows looked through in one transaction: some hundredths of a second.
_AT_A_TIME: Final = 2048
_REQUEST: Final = "forgetting"
# SQLite's WAL can be truncated only while nobody reads an older state: the number of attempts, the
# wait for readers in each, and the pause between two, in seconds.
_TRIES: Final = 40
_TRY_SECONDS: Final = 0.05
_REST_SECONDS: Final = 0.2


class Request(NamedTuple):
    """An erasure in progress: rows after `after`, up to `last`, are still to be looked through.

    `cause` names the requester in the rows that record the erasure.
    """

    target: Target
    cause: str
    after: int
    last: int

    @classmethod
    def find(cls, store: Store) -> "Request | None":
        """Return the unfinished request stored in the database, if any."""
        if not (kept := store.fact(_REQUEST)):
            return None
        (object_id, row, text, names), *rest = json.loads(kept)
        target = Target(
            ObjectId(*object_id) if object_id else None, row, text, [ObjectId(*n) for n in names]
        )
        return cls(target, *rest)

    def keep(self, store: Store) -> None:
        """Store the progress, or delete a finished request; call inside a transaction."""
        store.set_fact(UNCLEAN, "yes")
        if self.after < self.last:
            store.set_fact(_REQUEST, json.dumps(self))
        else:
            store.drop_fact(_REQUEST)


class Eraser:
    """Erasure of values from history, and of the remains of deleted terms from the files.

    `clock` returns microseconds since 1970. `on_rows` gets the number of the last row of history
    after each step that added rows.
    """

    def __init__(
        self,
        archive: Archive,
        snapshot_writer: SnapshotWriter,
        boot: str,
        clock: Callable[[], int],
        on_rows: Callable[[int], None],
    ) -> None:
        self._archive = archive
        self._snapshot_writer = snapshot_writer
        self._boot = boot
        self._clock = clock
        self._on_rows = on_rows
        self._one_at_a_time = asyncio.Lock()

    async def forget(self, target: Target, cause: str) -> tuple[Forgotten, bool]:
        """Erase values; return the erased rows, and whether no trace is left in the files."""
        async with self._one_at_a_time:
            # including rows that a migration hides until they are looked through
            last = await self._archive.read(lambda store: store.ledger.state().head.seq)
            request = Request(target, cause, 0, last)
            rows, last = await self._erase(request)
            kept = 0
            if target.text:
                kept = await self._archive.read_apart(
                    lambda store: count_named(store.ledger, target.text)
                )
            return Forgotten(rows, last, kept), await self._clean()

    async def resume(self) -> None:
        """Finish what an earlier run left; try again later if the database cannot be written."""
        try:
            async with self._one_at_a_time:
                if request := await self._archive.read(Request.find):
                    await self._erase(request)
                if await self._archive.read(lambda store: store.fact(UNCLEAN)):
                    await self._clean()
        except StoreError:
            self._archive.when_writable(self.resume)

    async def _erase(self, request: Request) -> tuple[list[int], int]:
        """Erase step by step; return the erased rows, and the last row of history then."""
        rows: list[int] = []
        while True:
            end = min(request.last, request.after + _AT_A_TIME)
            step, last = await self._archive.write(partial(self._step, request, end))
            if step:
                rows += step
                self._on_rows(last)
            if end >= request.last:
                return rows, last
            request = request._replace(after=end)

    def _step(self, request: Request, end: int, store: Store) -> tuple[list[int], int]:
        numbers = range(request.after + 1, end + 1)
        with store.transaction():
            rows = forget(
                store.ledger, request.target, numbers, request.cause, self._clock(), self._boot
            )
            request._replace(after=end).keep(store)
            return rows, store.ledger.state().head.seq

    async def _clean(self) -> bool:
        """Erase deleted content from the files; return whether nothing of it is left."""
        for table in WORD_TABLES:
            is_begun = False
            while await self._archive.write(
                partial(Store.clean_more, table=table, is_begun=is_begun)
            ):
                is_begun = True
            await self._archive.write(partial(Store.renew_terms, table=table))
            # twice, in different ranges: pages at the ends of a range are not rewritten
            for most in (RENEWED, RENEWED // 2):
                last = await self._archive.write(
                    partial(Store.renew_words, table=table, after=0, most=most)
                )
                while last:
                    last = await self._archive.write(
                        partial(Store.renew_words, table=table, after=last)
                    )
        await self._snapshot_writer.forget()
        is_clean = await self._empty_log()
        if is_clean:
            await self._archive.write(_note_clean)
        return is_clean

    async def _empty_log(self) -> bool:
        """Truncate the WAL, which has the replaced pages; others write between the attempts."""
        for _ in range(_TRIES):
            if await self._archive.write(lambda store: store.empty_log(_TRY_SECONDS)):
                return True
            await asyncio.sleep(_REST_SECONDS)
        return False


def _note_clean(store: Store) -> None:
    with store.transaction():
        store.drop_fact(UNCLEAN)
