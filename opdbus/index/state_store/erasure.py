"""Values are erased from history on request, and deleted words from the files, in small steps.

Others write between the steps. What a request has still to erase is noted in the database, so that
the next start goes on where a kill ended it.
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

# Numbers of rows that are looked through in one transaction: some hundredths of a second.
_AT_A_TIME: Final = 2048
_REQUEST: Final = "forgetting"
# The log is emptied once nobody reads of a time before; how often, and how long that is tried.
_TRIES: Final = 40
_TRY_SECONDS: Final = 0.05
_REST_SECONDS: Final = 0.2


class Request(NamedTuple):
    """What is to be forgotten of the rows after one, up to the last that there was, and by whom."""

    target: Target
    cause: str
    after: int
    last: int

    @classmethod
    def find(cls, store: Store) -> "Request | None":
        """Return the request that was left halfway, if any."""
        if not (kept := store.fact(_REQUEST)):
            return None
        (object_id, row, text, names), *rest = json.loads(kept)
        target = Target(
            ObjectId(*object_id) if object_id else None, row, text, [ObjectId(*n) for n in names]
        )
        return cls(target, *rest)

    def keep(self, store: Store) -> None:
        """Note how far it came; call inside a transaction."""
        store.set_fact(UNCLEAN, "yes")
        if self.after < self.last:
            store.set_fact(_REQUEST, json.dumps(self))
        else:
            store.drop_fact(_REQUEST)


class Eraser:
    """Erases values of history, and what is left of deleted words; `clock` gives microseconds.

    `on_rows` gets the number of each last row that is added.
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
        """Erase values; return what, and whether no trace of it is left in the files."""
        async with self._one_at_a_time:
            # also of rows that are hidden until they were looked through
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
        """Do what a run before this one left halfway; what cannot be written is done later."""
        try:
            async with self._one_at_a_time:
                if request := await self._archive.read(Request.find):
                    await self._erase(request)
                if await self._archive.read(lambda store: store.fact(UNCLEAN)):
                    await self._clean()
        except StoreError:
            self._archive.when_writable(self.resume)

    async def _erase(self, request: Request) -> tuple[list[int], int]:
        """Erase step by step; return which rows, and the last row of history then."""
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
        """Erase deleted content from the files; return whether nothing is left of it."""
        for table in WORD_TABLES:
            is_begun = False
            while await self._archive.write(
                partial(Store.clean_more, table=table, is_begun=is_begun)
            ):
                is_begun = True
            await self._archive.write(partial(Store.renew_terms, table=table))
            # twice, in other ranges: what is at the end of one is inside another
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
        """Empty the log, which has what was replaced; others write between the attempts."""
        for _ in range(_TRIES):
            if await self._archive.write(lambda store: store.empty_log(_TRY_SECONDS)):
                return True
            await asyncio.sleep(_REST_SECONDS)
        return False


def _note_clean(store: Store) -> None:
    with store.transaction():
        store.drop_fact(UNCLEAN)
