"""Erasure of values from history, and of deleted terms from the database files, in small steps.

Values are erased on request, and where rules of this version first call them secret.

Other writes run between the steps. The progress of a request is stored in the database, so that the
next start continues after a kill.
"""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Self

from opdbus.errors import StoreError
from opdbus.history.forget import Forgotten, Target, count_named, forget
from opdbus.index.database.store import UNCLEAN, Store
from opdbus.index.storage import migration
from opdbus.index.storage.archive import Archive
from opdbus.state.object import ObjectId

# Rows looked through in one transaction: some hundredths of a second.
_AT_A_TIME: Final = 2048
_REQUEST: Final = "forgetting"
# Value of the fact UNCLEAN while only the WAL has remains of deleted words.
_IN_LOG: Final = "log"
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
    def find(cls, store: Store) -> Self | None:
        """Return the unfinished request stored in the database, if any."""
        if not (kept := store.fact(_REQUEST)):
            return None
        (object_id, row, text, names), *rest = json.loads(kept)
        target = Target(
            ObjectId(*object_id) if object_id else None, row, text, [ObjectId(*n) for n in names]
        )
        return cls(target, *rest)


class Eraser:
    """Erasure of values from history, and of the remains of deleted terms from the files.

    `clock` returns microseconds since 1970. `on_rows` gets the number of the last row of history
    after each step that added rows. `on_progress` is called after each step that checked rows.
    """

    def __init__(
        self,
        archive: Archive,
        boot: str,
        clock: Callable[[], int],
        on_rows: Callable[[int], None],
        on_progress: Callable[[], None],
    ) -> None:
        self._archive = archive
        self._boot = boot
        self._clock = clock
        self._on_rows = on_rows
        self._on_progress = on_progress
        # number of rows of history that are hidden until they are searched for secrets
        self.unchecked = 0
        # set once none is hidden, or where the database cannot be written
        self.checked = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        # requests that are not fulfilled: the database has at most one of them
        self._requests: list[Request] = []

    async def forget(self, target: Target, cause: str) -> tuple[Forgotten, bool]:
        """Erase values; return the erased rows, and whether no trace is left in the files.

        What cannot be written or cleaned now is done as soon as it can be.
        """
        async with self._one_at_a_time:
            # including rows that are hidden until they are looked through
            last = await self._archive.read(lambda store: store.ledger.state().head.seq)
            if (request := Request(target, cause, 0, last)) not in self._requests:
                self._requests.append(request)
            try:
                rows, last = await self._erase_all()
                kept = 0
                if target.text:
                    kept = await self._archive.read_apart(
                        lambda store: count_named(store.ledger, target.text)
                    )
                return Forgotten(rows, last, kept), await self._clean()
            except StoreError as error:
                if self._archive.is_read_only:
                    raise
                self._archive.when_writable(self.resume)
                rest = "the rest is erased as soon as it can be"
                if request in self._requests and not await self._is_stored(request):
                    rest += ", unless op-dbus ends before: ask again then"
                raise StoreError(f"{error}; {rest}") from None

    async def _is_stored(self, request: Request) -> bool:
        """Return whether the next start would fulfil a request."""
        with suppress(StoreError):
            stored = await self._archive.read(Request.find)
            # as JSON: lists come back for tuples
            return stored is not None and json.dumps(stored[:2]) == json.dumps(request[:2])
        return False

    async def begin(self) -> None:
        """Find the rows that are to be checked, and begin to check and erase."""
        self.unchecked = await self._archive.read(migration.unchecked)
        if not self.unchecked or self._archive.is_read_only:
            self.checked.set()
        if not self._archive.is_read_only:
            self._archive.start(self.resume())

    def sentence(self) -> str:
        """Return a status line with the number of rows to check, "" if there is none."""
        if self.checked.is_set():
            return ""
        return f"Looking for secrets in history: {self.unchecked:,} rows are left, hidden till then"

    async def resume(self) -> None:
        """Finish what was left undone; try again later if the database cannot be written."""
        try:
            while self.unchecked:
                check = partial(migration.check_history, at=self._clock(), boot=self._boot)
                self.unchecked = await self._archive.write(check)
                self._on_progress()
            if not self.checked.is_set():
                self.checked.set()
                self._on_progress()
            async with self._one_at_a_time:
                await self._erase_all()
                if await self._archive.read(lambda store: store.fact(UNCLEAN)):
                    await self._clean()
        except StoreError:
            self._archive.when_writable(self.resume)

    async def _erase_all(self) -> tuple[list[int], int]:
        """Fulfil the request that is stored and those that failed; return as `_erase` the last."""
        rows, last = list[int](), 0
        if request := await self._archive.read(Request.find):
            await self._erase(request)
        while self._requests:
            rows, last = await self._erase(self._requests[0])
            del self._requests[0]
        return rows, last

    async def _erase(self, request: Request) -> tuple[list[int], int]:
        """Erase step by step; return the erased rows, and the last row of history then."""
        rows: list[int] = []
        while True:
            rest = request._replace(after=min(request.last, request.after + _AT_A_TIME))
            step, last = await self._archive.write(partial(self._step, request, rest))
            if step:
                rows += step
                self._on_rows(last)
            if rest.after >= rest.last:
                return rows, last
            request = rest

    def _step(self, request: Request, rest: Request, store: Store) -> tuple[list[int], int]:
        """Erase up to `rest`, what is left then; it is stored unless nothing is left."""
        numbers = range(request.after + 1, rest.after + 1)
        with store.transaction():
            rows = forget(
                store.ledger, request.target, numbers, request.cause, self._clock(), self._boot
            )
            store.set_fact(UNCLEAN, "yes")
            if rest.after < rest.last:
                store.set_fact(_REQUEST, json.dumps(rest))
            else:
                store.drop_fact(_REQUEST)
            return rows, store.ledger.state().head.seq

    async def _clean(self) -> bool:
        """Erase deleted content from the files; return whether nothing of it is left.

        Otherwise, go on later.
        """
        if await self._archive.read(lambda store: store.fact(UNCLEAN)) != _IN_LOG:
            steps = await self._archive.write(Store.clean_words)
            while await self._archive.write(lambda _: next(steps, False)):
                pass
            await self._archive.write(lambda store: store.set_fact(UNCLEAN, _IN_LOG))
        for _ in range(_TRIES):
            # the WAL has the replaced pages; others write between the attempts
            if await self._archive.write(lambda store: store.empty_log(_TRY_SECONDS)):
                await self._archive.write(lambda store: store.drop_fact(UNCLEAN))
                return True
            await asyncio.sleep(_REST_SECONDS)
        self._archive.when_writable(self.resume)
        return False
