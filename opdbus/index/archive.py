"""The store on threads of its own: one that writes, one that reads while the other writes."""

from __future__ import annotations

import asyncio
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

from opdbus.errors import StoreError
from opdbus.index.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path
    from types import TracebackType
    from typing import Any, Self

T = TypeVar("T")


class Archive:
    """Two connections to one database; what is written is seen by reads that begin later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="store-read")
        self._open = ExitStack()
        self._unfinished: set[asyncio.Task[Any]] = set()
        self._writer: Store
        self._reader: Store

    async def __aenter__(self) -> Self:
        """Open the database; raises StoreError, also where another op-dbus has it open."""
        loop = asyncio.get_running_loop()
        try:
            self._open.callback(os.close, _lock(self._path))
            self._writer = await loop.run_in_executor(self._writing, self._store)
            self._reader = await loop.run_in_executor(self._reading, self._store)
        except BaseException:
            self._close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Give up what is unfinished, keep what is committed, and close."""
        for task in self._unfinished:
            task.cancel()
        self._writer.stopping = True
        await asyncio.gather(*self._unfinished, return_exceptions=True)
        self._close()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that must not stop halfway: only closing stops it, no caller who leaves."""
        task = asyncio.ensure_future(work)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return await _shielded(task)

    async def write(self, work: Callable[[Store], T]) -> T:
        """Run work that changes the database. It is finished even if the caller is cancelled."""
        return await _shielded(self._run(self._writing, work, self._writer))

    async def read(self, work: Callable[[Store], T]) -> T:
        """Run work that only reads."""
        return await self._run(self._reading, work, self._reader)

    @staticmethod
    def _run(
        thread: ThreadPoolExecutor, work: Callable[[Store], T], store: Store
    ) -> asyncio.Future[T]:
        def guarded() -> T:
            with store.guarded():
                return work(store)

        return asyncio.get_running_loop().run_in_executor(thread, guarded)

    def _store(self) -> Store:
        store = Store(self._path)
        self._open.callback(store.close)
        return store

    def _close(self) -> None:
        self._reading.shutdown()
        self._writing.shutdown()
        self._open.close()


async def _shielded(future: asyncio.Future[T]) -> T:
    """Wait for what goes on if the caller is cancelled; its failure is then nobody's news."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(future)


def _lock(database: Path) -> int:
    """Take the lock that a database has one daemon at a time by; raises StoreError."""
    path = database.with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreError(f"cannot open the database {database}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreError(
            f"another op-dbus uses the database {database}: stop it, or set OP_DBUS_STATE_DIR to"
            " another folder"
        ) from None
    return lock
