"""Many texts at once: from a file of the caller's to a file of vectors, in bounded memory."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.bus.admission.accounting import Quota
from opdbus.bus.admission.limits import MAX_BULK_CALLS
from opdbus.bus.service.text_file import TextFile
from opdbus.bus.service.vector_files import VectorFiles
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.errors import InvalidArgs, Truncated

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence
    from concurrent.futures import Executor, Future
    from typing import Any, ParamSpec, TypeVar

    from opdbus.bus.service.formats import Format
    from opdbus.bus.service.jobs import Job, Jobs
    from opdbus.bus.service.node import Caller
    from opdbus.bus.service.vector_files import VectorFile
    from opdbus.engine.tokenizer import Tokens
    from opdbus.serving.lease import Lease

    P = ParamSpec("P")
    T = TypeVar("T")

# A call of more texts is a job that others see.
JOB_TEXTS: Final = 10_000
# Windows of one call on their way: the model has work while the next one is read and tokenized.
_WINDOWS: Final = 3
# Few, so that a person's text never waits long for a thread of the tokenizer's.
_TOKENIZED_AT_ONCE: Final = 128


@dataclass(frozen=True, slots=True)
class Order:
    """What a caller wants: vectors in which format, texts cut or not, a job to be seen or not."""

    format: Format
    truncate: bool
    is_job: bool


class Vectors(NamedTuple):
    """A sealed file of row-major vectors, and how many of the texts were cut."""

    file: Descriptor
    rows: int
    truncated: int


class Bulk:
    """All bulk calls: their limits, and threads of their own.

    A file system that hangs stops bulk calls, and nothing else.
    """

    def __init__(self, jobs: Jobs, threads: Executor | None = None) -> None:
        self.jobs = jobs
        self._calls = Quota("bulk calls", MAX_BULK_CALLS)
        self._files = VectorFiles()
        most = MAX_BULK_CALLS["total"]
        self._threads = threads or ThreadPoolExecutor(most, thread_name_prefix="bulk")

    async def run(self, caller: Caller, engine: Lease, texts: Descriptor, order: Order) -> Vectors:
        """Embed the texts of a file, of which no more is held than a few thousand texts.

        Raises InvalidArgs, LimitsExceeded, Truncated, Cancelled, ShuttingDown. A caller who is
        cancelled takes all work back.
        """
        # a thread may still read when the call, and with it the caller's own, has ended
        file = Descriptor.copy_of(texts)
        with self._counted(caller) as place:
            source = await place.on_thread(TextFile, file)
            lines = (await place.on_thread(source.measure)).lines
            with self._files.create(caller, order.format, lines) as vectors:
                is_seen = order.is_job or lines > JOB_TEXTS
                with self.jobs.begin("bulk", lines, caller, is_seen=is_seen) as job:
                    work = _Work(place, engine, order, job)
                    await job.run(work.stream(source, vectors))
                return Vectors(await place.on_thread(vectors.sealed), job.done, work.truncated)

    @contextmanager
    def _counted(self, caller: Caller) -> Iterator[_Place]:
        scopes: dict[str, Hashable] = {
            "connection": caller.sender,
            "user": caller.uid,
            "total": None,
        }
        self._calls.require_room(scopes, 1)
        self._calls.add(scopes, 1)
        place = _Place(self._threads)
        try:
            yield place
        finally:
            place.once_free(lambda: self._calls.add(scopes, -1))


class _Place:
    """A call's place among those that run, which it has for as long as a thread works for it.

    A thread that hangs in a file cannot be taken back: it counts for its caller, who may have left.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._running: set[Future[Any]] = set()

    async def on_thread(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Do what blocks on a thread of bulk calls."""
        future = self._threads.submit(work, *args, **named)
        self._running.add(future)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.done():
                self._running.remove(future)

    def once_free(self, leave: Callable[[], None]) -> None:
        """Leave at once, or as soon as the last thread is done."""
        hanging = [asyncio.wrap_future(future) for future in self._running]
        if hanging:
            done = asyncio.gather(*hanging, return_exceptions=True)
            done.add_done_callback(lambda _: leave())
        else:
            leave()


class _Work:
    """One call's texts on their way, window by window."""

    def __init__(self, place: _Place, engine: Lease, order: Order, job: Job) -> None:
        self._place = place
        self._engine = engine
        self._order = order
        self._job = job
        self.truncated = 0

    async def stream(self, source: TextFile, file: VectorFile) -> None:
        """Read, compute and write until the file ends, several windows at a time."""
        flying: deque[asyncio.Task[None]] = deque()
        row = 0
        try:
            while texts := await self._place.on_thread(source.window):
                self._require_counted(row + len(texts))
                if len(flying) == _WINDOWS:
                    await flying.popleft()
                flying.append(asyncio.create_task(self._embed(texts, row, file)))
                row += len(texts)
            while flying:
                await flying.popleft()
        finally:
            for task in flying:
                task.cancel()
            await asyncio.gather(*flying, return_exceptions=True)

    async def _embed(self, texts: Sequence[str], row: int, file: VectorFile) -> None:
        rows: list[Tokens] = []
        for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
            rows += await self._engine.tokenize(texts[start : start + _TOKENIZED_AT_ONCE])
        self._note_truncated(rows, row)
        vectors = await self._engine.embed(rows)
        await self._place.on_thread(file.write, row, vectors)
        self._job.advance(len(rows))

    def _note_truncated(self, rows: Sequence[Tokens], first: int) -> None:
        cut = [number for number, row in enumerate(rows, first + 1) if row.truncated]
        if cut and not self._order.truncate:
            raise Truncated(
                f"the text of line {cut[0]} is longer than the"
                f" {self._engine.max_tokens} tokens that the model reads: shorten it,"
                " or allow `truncate`"
            )
        self.truncated += len(cut)

    def _require_counted(self, rows: int) -> None:
        if rows > self._job.total:
            raise InvalidArgs(
                f"the file held {self._job.total} lines and now holds more: leave it alone until"
                " its vectors are there"
            )
