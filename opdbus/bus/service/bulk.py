"""Bulk calls: from a file of texts to a file of vectors, in bounded memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from opdbus.bus.admission.accounting import Quota
from opdbus.bus.admission.limits import MAX_BULK_CALLS
from opdbus.bus.service.formats import Format
from opdbus.bus.service.jobs import Job, Jobs
from opdbus.bus.service.node import Caller
from opdbus.bus.service.text_file import TextFile
from opdbus.bus.service.vector_files import VectorFile, VectorFiles
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.engine.tokenizer import Rows
from opdbus.errors import InvalidArgs, Truncated
from opdbus.platform.tasks import cancel
from opdbus.serving.lease import Lease

P = ParamSpec("P")
T = TypeVar("T")

# Calls of more texts are visible jobs.
JOB_TEXTS: Final = 10_000
# Concurrent windows of one call: the model has work while the next one is read and tokenized.
_WINDOWS: Final = 3


@dataclass(frozen=True, slots=True)
class BulkOptions:
    """The vectors' format, whether texts may be truncated, and whether the call is a job."""

    format: Format
    truncate: bool
    is_job: bool


class Vectors(NamedTuple):
    """A sealed file of row-major vectors, and the number of truncated texts."""

    file: Descriptor
    rows: int
    truncated: int


class Bulk:
    """All bulk calls, with their limits and threads of their own.

    A file system that hangs blocks bulk calls, and nothing else.
    """

    def __init__(self, jobs: Jobs, threads: Executor | None = None) -> None:
        self.jobs = jobs
        self._calls = Quota("bulk calls", MAX_BULK_CALLS)
        self.files = VectorFiles()
        most = MAX_BULK_CALLS["total"]
        self._threads = threads or ThreadPoolExecutor(most, thread_name_prefix="bulk")

    async def run(
        self, caller: Caller, engine: Lease, texts: Descriptor, options: BulkOptions
    ) -> Vectors:
        """Embed the texts of a file, with at most a few thousand of them in memory.

        Raises InvalidArgs, LimitsExceeded, Truncated, Cancelled, ShuttingDown. When cancelled, it
        removes its texts from the engine's queue.
        """
        # a copy: a thread may still read after the call and its descriptors have ended
        source = Descriptor.copy_of(texts)
        with self.admitted(caller) as threads:
            file = await threads.run(TextFile, source)
            lines = await threads.run(file.count_lines)
            with self.files.create(caller, options.format, lines) as vectors:
                is_seen = options.is_job or lines > JOB_TEXTS
                with self.jobs.begin("bulk", lines, caller, is_seen=is_seen) as job:
                    pipeline = _Pipeline(threads, engine, options, job)
                    await job.run(pipeline.run(file, vectors))
                return Vectors(await threads.run(vectors.sealed), job.done, pipeline.truncated)

    @contextmanager
    def admitted(self, caller: Caller) -> Iterator[Threads]:
        """Count a call until its last thread ends: a thread that hangs cannot be stopped."""
        scopes = {"connection": caller.sender, "user": caller.uid, "total": None}
        self._calls.require_room(scopes, 1)
        self._calls.add(scopes, 1)
        threads = Threads(self._threads)
        try:
            yield threads
        finally:
            threads.when_done(lambda: self._calls.add(scopes, -1))


class Threads:
    """The threads of one call."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._running: set[Future[Any]] = set()

    async def run(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run blocking work on a thread for bulk calls."""
        future = self._threads.submit(work, *args, **named)
        self._running.add(future)
        try:
            return await asyncio.wrap_future(future)
        finally:
            if future.done():
                self._running.remove(future)

    def when_done(self, work: Callable[[], None]) -> None:
        """Call `work` now, or as soon as the last thread ends."""
        if not self._running:
            work()
            return
        hanging = asyncio.gather(*map(asyncio.wrap_future, self._running), return_exceptions=True)
        hanging.add_done_callback(lambda _: work())


class _Pipeline:
    """Reads, embeds and writes the texts of one call, several windows at a time."""

    def __init__(self, threads: Threads, engine: Lease, options: BulkOptions, job: Job) -> None:
        self._threads = threads
        self._engine = engine
        self._options = options
        self._job = job
        self.truncated = 0

    async def run(self, source: TextFile, file: VectorFile) -> None:
        """Process all texts of a file."""
        running: deque[asyncio.Task[None]] = deque()
        row = 0
        try:
            while texts := await self._threads.run(source.window):
                self._require_counted(row + len(texts))
                if len(running) == _WINDOWS:
                    await running.popleft()
                running.append(asyncio.create_task(self._embed(texts, row, file)))
                row += len(texts)
            while running:
                await running.popleft()
        finally:
            await cancel(running)

    async def _embed(self, texts: Sequence[str], row: int, file: VectorFile) -> None:
        rows = await self._engine.tokenize(texts)
        self._count_truncated(rows, row)
        vectors = await self._engine.embed(rows)
        await self._threads.run(file.write, row, vectors)
        self._job.advance(len(rows))

    def _count_truncated(self, rows: Rows, first: int) -> None:
        cut = rows.truncated.nonzero()[0]
        if len(cut) and not self._options.truncate:
            raise Truncated(
                f"the text of line {first + cut[0] + 1} is longer than the"
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
