"""Database access from the event loop, with one writing thread and two reading ones."""

import asyncio
import fcntl
import math
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from pathlib import Path
from threading import Event
from typing import Any, Final, Self, TypeVar

import structlog

from opdbus.errors import StoreError
from opdbus.index.database.database import Damaged, is_read_only, translate_errors
from opdbus.index.database.store import Store
from opdbus.index.storage import recovery
from opdbus.platform.regular_files import open_regular, set_aside
from opdbus.platform.tasks import cancel, pauses, start

T = TypeVar("T")

log = structlog.get_logger()

# Delays before attempts to write after a failed write; the last one repeats.
_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0)
# Time for a running write to end before closing interrupts it.
_CLOSE_SECONDS: Final = 1.0
# Interval between log lines of one reason why reads fail, and the reasons that are remembered.
_SAME_REASON_SECONDS: Final = 60.0
_MOST_REASONS: Final = 20
# Minimal interval between progress reports.
_PROGRESS_SECONDS: Final = 1.0
# WAL pages between checkpoints, normally and during bulk loads, which fewer checkpoints speed up.
_PAGES: Final = 1000
_BUSY_PAGES: Final = 16_000


class Archive:
    """Asynchronous access to one database: a read sees every write that ended before it began.

    On the event loop, `on_change` is called when `fault` changes, and `on_progress` repeatedly
    during long work. Enter the archive as an async context manager.
    """

    def __init__(
        self,
        path: Path,
        on_progress: Callable[[], None] = lambda: None,
        retry_seconds: Sequence[float] = _RETRY_SECONDS,
    ) -> None:
        self._path = path
        # directory of vector files, which are derived data; None if the database is read-only
        self.folder: Path | None = None
        self._retry_seconds = retry_seconds
        # why the database cannot be written, "" if it can
        self.fault = ""
        # when a reason why reads failed was logged, the last reasons first
        self._logged: dict[str, float] = {}
        # report of the recovery at this start, "" if there was none
        self.notice = ""
        self.on_change: Callable[[], None] = lambda: None
        self._on_progress = on_progress
        self._next_progress = 0.0
        # set except during bulk loads, whose derived data are computed once at the end
        self.no_bulk_load = asyncio.Event()
        self.no_bulk_load.set()
        self._busy = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        # work for when the database can be written again
        self._waiting: set[Callable[[], Awaitable[Any]]] = set()
        self._damage: asyncio.Future[Damaged] = asyncio.get_running_loop().create_future()
        self._writable = asyncio.Event()
        self._writer: Store
        self._reader: Store

    async def __aenter__(self) -> Self:
        """Open the database; recover a damaged one.

        Raises StoreError, also if another daemon has locked the database.
        """
        loop = self._loop = asyncio.get_running_loop()
        self._stopping = Event()
        self._preparing, self._writing, self._reading, self._apart = (
            ThreadPoolExecutor(1, thread_name_prefix=f"store-{name}")
            for name in ("prepare", "write", "read", "read-apart")
        )
        self._open = ExitStack()
        self.is_read_only = is_read_only(self._path)
        self.folder = None if self.is_read_only else self._path.with_name("vectors")
        try:
            if not self.is_read_only:
                self._open.callback(os.close, _lock(self._path))
            self._writer = await loop.run_in_executor(self._writing, self._open_writer)
            self._reader = await loop.run_in_executor(self._reading, self._open_reader)
        except BaseException:
            self._stopping.set()
            self._close()
            raise
        if self.is_read_only:
            self.fault = (
                f"the database {self._path} is read-only: what it holds is served, nothing new is"
                " kept; let the user that op-dbus runs as write it, and restart op-dbus"
            )
            log.warning("store is read-only", path=str(self._path))
        else:
            self._writable.set()
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Cancel unfinished work, whose transactions roll back, and close."""
        if self._stopping.is_set():
            return  # already closed by a failed `reopen`
        self._stopping.set()
        self._waiting.clear()
        await cancel(self._tasks)
        last = self._loop.run_in_executor(self._writing, lambda: None)
        await asyncio.wait([last], timeout=_CLOSE_SECONDS)
        if not last.done():
            self._writer.interrupt()
        self._close()

    async def reopen(self) -> None:
        """Close and open again, which recovers a damaged database; raises StoreError."""
        await self.__aexit__()
        self._damage = self._loop.create_future()
        await self.__aenter__()

    async def raise_when_damaged(self) -> None:
        """Wait until the database is found damaged, then raise Damaged, which must end the daemon.

        The next start recovers the database, so that no data read from the damaged one stay in use.
        """
        raise await asyncio.shield(self._damage)

    async def shield(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that continues if the caller is cancelled; only closing cancels it."""
        return await _shield(self.start(work))

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Clear `no_bulk_load` and checkpoint less often within the body. Reentrant."""
        self.no_bulk_load.clear()
        self._busy += 1
        try:
            await self._run(self._writing, self._writer, lambda store: store.keep_log(_BUSY_PAGES))
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self.no_bulk_load.set()
                await self._run(self._writing, self._writer, lambda store: store.keep_log(_PAGES))

    def when_writable(self, work: Callable[[], Awaitable[Any]]) -> None:
        """Run work once when the database can be written, unless this work is already waiting.

        If the database can be written now, a read failed: pause before running the work. Its
        StoreError is dropped.
        """

        async def wait() -> None:
            if not self.fault:
                await asyncio.sleep(self._retry_seconds[0])
            await self._writable.wait()
            self._waiting.discard(work)
            with suppress(StoreError):
                await work()

        if work not in self._waiting:
            self._waiting.add(work)
            self.start(wait())

    async def prepare(self, work: Callable[[], T]) -> T:
        """Run CPU-bound preparation of a write on its own thread, without a connection.

        One at a time, since several would only contend for the GIL with each other and the event
        loop.
        """
        return await self._loop.run_in_executor(self._preparing, work)

    async def write(self, work: Callable[[Store], T]) -> T:
        """Run work that changes the database, to its end even if the caller is cancelled.

        A failure sets `fault` and raises StoreError; probes then follow until a write succeeds.
        """
        if self.is_read_only:
            raise StoreError(self.fault)

        async def write() -> T:
            try:
                result = await self._run(self._writing, self._writer, work)
            except StoreError as error:
                if not self._stopping.is_set():
                    if not self.fault:
                        log.error("store cannot be written", reason=str(error))  # noqa: TRY400 -- a sentence, no traceback
                        self.start(self._retry())
                    if self.fault != str(error):
                        self._set_fault(str(error))
                raise
            if self.fault:
                self._set_fault("")
            return result

        return await _shield(asyncio.ensure_future(write()))

    async def read(self, work: Callable[[Store], T]) -> T:
        """Run work that only reads; raises StoreError."""
        return await self._run_reading(self._reading, work)

    async def read_apart(self, work: Callable[[Store], T]) -> T:
        """Run work that reads for seconds, on its own thread and connection; raises StoreError.

        The work must call store.require_running() repeatedly. It may write other files.
        """

        def open_and_read(_: Store) -> T:
            read_only = self.is_read_only
            with closing(Store(self._path, self._stopping, is_read_only=read_only)) as store:
                store.interrupt_when_stopping()
                return work(store)

        return await self._run_reading(self._apart, open_and_read)

    async def _run_reading(self, thread: ThreadPoolExecutor, work: Callable[[Store], T]) -> T:
        """Run work that reads, and log its failure: the same reason again after a minute."""
        try:
            return await self._run(thread, self._reader, work)
        except StoreError as error:
            reason, now = str(error), self._loop.time()
            before = self._logged.get(reason, -math.inf)
            if not self._stopping.is_set() and now - before > _SAME_REASON_SECONDS:
                self._logged = {reason: now, **dict([*self._logged.items()][:_MOST_REASONS])}
                log.error("work with the store failed", reason=reason)  # noqa: TRY400 -- a sentence, no traceback
            raise

    async def _run(self, thread: ThreadPoolExecutor, store: Store, work: Callable[[Store], T]) -> T:
        """Run work on a thread and translate its errors; damage is marked for the next start."""

        def work_guarded() -> T:
            with store.translate_errors():
                return work(store)

        try:
            return await self._loop.run_in_executor(thread, work_guarded)
        except Damaged as error:
            if not self.is_read_only:
                try:
                    recovery.mark_damaged(self._path)
                except OSError as fault:
                    # do not end the daemon: without the mark, its next start would not recover
                    log.error("store damaged", reason=str(error), mark=str(fault))  # noqa: TRY400 -- a sentence, no traceback
                else:
                    if not self._damage.done():
                        self._damage.set_result(error)
            raise

    async def _retry(self) -> None:
        """Write a probe after each delay until it or another write succeeds."""
        for delay in pauses(self._retry_seconds):
            await asyncio.sleep(delay)
            if self.fault:
                with suppress(StoreError):
                    await self.write(Store.probe)
            if not self.fault:
                log.info("store can be written again")
                return

    def _set_fault(self, fault: str) -> None:
        self.fault = fault
        if fault:
            self._writable.clear()
        else:
            self._writable.set()
        self.on_change()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start work as a task, which closing cancels."""
        return start(work, self._tasks)

    def _open_writer(self) -> Store:
        if self.is_read_only:
            return self._open_reader()

        def report_progress() -> None:
            # at most once a second; may run on any thread
            now = time.monotonic()
            if now > self._next_progress:
                self._next_progress = now + _PROGRESS_SECONDS
                self._loop.call_soon_threadsafe(self._on_progress)

        store, self.notice = recovery.open_or_recover(self._path, self._stopping, report_progress)
        self._open.callback(store.close)
        return store

    def _open_reader(self) -> Store:
        store = Store(self._path, self._stopping, is_read_only=self.is_read_only)
        self._open.callback(store.close)
        store.interrupt_when_stopping()
        return store

    def _close(self) -> None:
        for thread in (self._apart, self._reading, self._writing, self._preparing):
            thread.shutdown()
        self._open.close()


async def _shield(future: asyncio.Future[T]) -> T:
    """Wait for work that continues if the caller is cancelled; its error is then dropped."""
    future.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(future)


def _lock(database: Path) -> int:
    """Lock the database and return the descriptor that holds the lock.

    Raises StoreError if another daemon has the lock.
    """
    path = database.with_suffix(".lock")
    with translate_errors(database):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        set_aside(path)
        lock = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise StoreError(
            f"another op-dbus uses the database {database}: stop it, or set OP_DBUS_STATE_DIR to"
            " another folder"
        ) from None
    return lock
