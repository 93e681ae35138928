"""Bulk calls: files in, sealed files out, in bounded memory, and nothing left open."""

import asyncio
import fcntl
import mmap
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from harness.bulky import DIMENSION, Engine, in_memory, lines, open_files, vector_of
from harness.health import settled_files
from harness.running import PATIENCE_SECONDS, work_of

from opdbus.bus.admission.limits import MAX_BULK_CALLS
from opdbus.bus.service.bulk import JOB_TEXTS, Bulk, BulkOptions, Vectors
from opdbus.bus.service.bulk_files import WINDOW_TEXTS, Format
from opdbus.bus.service.contract import Caller
from opdbus.bus.service.job1 import Jobs
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.errors import Cancelled, InvalidArgs, LimitsExceeded, Truncated

CALLER = Caller(":1.5", 1000)
FLOATS = BulkOptions(Format("float32", DIMENSION), truncate=True, is_job=False)


def run(work: Callable[[Bulk], Awaitable[Any]]) -> Any:
    """Do work as a caller, with bulk calls that run nowhere else."""

    async def both() -> Any:
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await work(Bulk(Jobs(lambda *_: None)))

    return asyncio.run(both())


def embedded(texts: list[str], order: BulkOptions = FLOATS) -> tuple[bytes, Vectors]:
    """Embed texts, and give what is in the file."""

    async def work(bulk: Bulk) -> tuple[bytes, Vectors]:
        found = await bulk.run(CALLER, Engine(), in_memory(lines(texts)), order)
        return os.pread(found.file.fileno(), 1 << 30, 0), found

    answer: tuple[bytes, Vectors] = run(work)
    return answer


@pytest.mark.parametrize("count", [0, 1, WINDOW_TEXTS, WINDOW_TEXTS * 5 + 7])
def test_each_text_has_its_row(count: int) -> None:
    """Write the vectors in the order of the lines, however many windows they take."""
    texts = [f"text {number % 500}" for number in range(count)]
    data, found = embedded(texts)
    rows = np.frombuffer(data, "<f4").reshape(found.rows, DIMENSION)
    assert found.rows == count
    known = {text: vector_of(text) for text in set(texts)}
    assert all((row == known[text]).all() for row, text in zip(rows, texts, strict=True))


@pytest.mark.parametrize("dtype", ["float16", "int8", "ubinary"])
def test_rows_are_in_the_format_that_is_asked_for(dtype: str) -> None:
    """Write what the format makes of the vectors, cut to the dimensions."""
    texts = [f"text {number}" for number in range(3000)]
    wanted = Format(dtype, 5)
    data, _ = embedded(texts, BulkOptions(wanted, truncate=True, is_job=False))
    assert data == wanted.encode(np.array([vector_of(text) for text in texts]))


def test_nobody_can_change_the_answer() -> None:
    """Seal the file: no writing, growing, nor mapping to write, nor unsealing."""
    _, found = embedded(["a", "b"])
    number = found.file.fileno()
    assert (
        fcntl.fcntl(number, fcntl.F_GET_SEALS)
        == fcntl.F_SEAL_SEAL | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    )
    assert os.get_inheritable(number) is False
    assert os.lseek(number, 0, os.SEEK_CUR) == 0
    changes: tuple[Callable[[], Any], ...] = (
        lambda: os.pwrite(number, b"x", 0),
        lambda: os.ftruncate(number, 1 << 20),
        lambda: mmap.mmap(number, 0),
    )
    for change in changes:
        with pytest.raises(PermissionError):
            change()


@work_of(run)
async def test_few_texts_are_held_at_a_time(bulk: Bulk) -> None:
    """Keep three windows on their way: the model always has work, and never all of it."""
    engine = Engine(pace=0.05)
    await bulk.run(CALLER, engine, in_memory(lines(["x"] * WINDOW_TEXTS * 12)), FLOATS)
    assert engine.calls == 12
    assert engine.most == 3 * WINDOW_TEXTS


def test_what_is_cut_is_counted_or_refused() -> None:
    """Count texts that were cut, and where that is not allowed name the first one's line."""
    texts = ["short", "x" * 200, "short", "x" * 200]
    assert embedded(texts)[1].truncated == 2
    with pytest.raises(Truncated, match="line 2 is longer than the 100 tokens"):
        embedded(texts, BulkOptions(Format("float32", DIMENSION), truncate=False, is_job=False))


def test_a_fault_in_any_line_ends_the_call() -> None:
    """Raise InvalidArgs for the first line that is no JSON string, late as it may come."""

    async def work(bulk: Bulk) -> None:
        content = lines(["x"] * 9000) + b"oops\n"
        await bulk.run(CALLER, Engine(), in_memory(content), FLOATS)

    with pytest.raises(InvalidArgs, match="line 9001, column 1 "):
        run(work)


@work_of(run)
async def test_a_fault_of_the_engine_ends_the_call(bulk: Bulk) -> None:
    """Let the engine's own error out, and leave none of the windows behind."""

    class Failing(Engine):
        async def embed(self, rows: Any) -> Any:
            if self.calls == 3:
                raise LimitsExceeded("the engine is out of order")
            return await super().embed(rows)

    engine = Failing()
    with pytest.raises(LimitsExceeded, match="out of order"):
        await bulk.run(CALLER, engine, in_memory(lines(["x"] * WINDOW_TEXTS * 20)), FLOATS)
    assert len(asyncio.all_tasks()) == 1
    assert engine.held == 0


@work_of(run, handed=0)
async def test_a_file_that_gets_more_lines_is_refused() -> None:
    """Write no more vectors than room was reserved for."""
    file = in_memory(b'"' + b"x" * 399_997 + b'"\n')
    # the job begins when the lines are counted
    jobs = Jobs(lambda *_: os.pwrite(file.fileno(), b'"x"\n' * 100_000, 0))
    order = BulkOptions(FLOATS.format, truncate=True, is_job=True)
    with pytest.raises(InvalidArgs, match="held 1 lines and now holds more"):
        await Bulk(jobs).run(CALLER, Engine(), file, order)


@work_of(run)
async def test_what_would_not_fit_is_refused_before_it_is_computed(bulk: Bulk) -> None:
    """Raise LimitsExceeded at once for vectors past 512 MiB, and take fewer dimensions."""
    texts = in_memory(b'"x"\n' * 600_000)
    engine = Engine()
    wide = BulkOptions(Format("float32", 384), truncate=True, is_job=False)
    with pytest.raises(LimitsExceeded, match="878 MiB, past the limit of 512 MiB"):
        await bulk.run(CALLER, engine, texts, wide)
    assert engine.calls == 0


@work_of(run)
async def test_memory_is_reserved_for_all_calls_together(bulk: Bulk) -> None:
    """Refuse the call that would take the running ones past 1 GiB, and take it afterwards."""
    texts = in_memory(b'"x"\n' * 330_000)
    order = BulkOptions(Format("float32", 384), truncate=True, is_job=False)
    calls = []
    for number in range(2):
        caller = Caller(f":1.{number}", 1000 + number)
        engine = Engine(asyncio.Event())
        calls.append(asyncio.create_task(bulk.run(caller, engine, texts, order)))
        await engine.begun.wait()
    with pytest.raises(LimitsExceeded, match="take 966 of 1024 MiB, and this call needs 483"):
        await bulk.run(Caller(":1.9", 1002), engine, texts, order)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    small = in_memory(lines(["x"]))
    assert (await bulk.run(CALLER, Engine(), small, FLOATS)).rows == 1


@work_of(run)
async def test_bulk_calls_are_counted_for_connection_user_and_all(bulk: Bulk) -> None:
    """Refuse one more than the limit of any of the three at once, and count those that ended."""
    engine = Engine(asyncio.Event())
    file = in_memory(lines(["x"]))
    calls = []

    async def refused(sender: str, uid: int, words: str) -> None:
        with pytest.raises(LimitsExceeded, match=words):
            await bulk.run(Caller(sender, uid), engine, file, FLOATS)

    for number in range(MAX_BULK_CALLS["total"]):
        caller = Caller(f":1.{number // 2}", 1000 + number // 4)
        calls.append(asyncio.create_task(bulk.run(caller, engine, file, FLOATS)))
        await asyncio.sleep(0)
        if number == 1:
            await refused(":1.0", 1000, "2 bulk calls of this connection")
        if number == 3:
            await refused(":1.9", 1000, "4 bulk calls of this user")
    await refused(":1.9", 1009, "8 bulk calls of all users")
    assert engine.hold
    engine.hold.set()
    assert [found.rows for found in await asyncio.gather(*calls)] == [1] * 8
    assert (await bulk.run(CALLER, engine, file, FLOATS)).rows == 1


class Hanging(ThreadPoolExecutor):
    """Threads that hang, while `hangs`, in whatever they do, until that is let go on."""

    def __init__(self) -> None:
        super().__init__(MAX_BULK_CALLS["total"])
        self.hangs = True
        self.begun = asyncio.Event()
        self.go_on = threading.Event()

    def submit(self, work: Any, *args: Any, **_: Any) -> Future[Any]:
        """Have the work done, or hang."""
        if not self.hangs:
            return super().submit(work, *args)
        loop = asyncio.get_running_loop()

        def hang() -> Any:
            loop.call_soon_threadsafe(self.begun.set)
            self.go_on.wait()
            return work(*args)

        return super().submit(hang)


@work_of(run, handed=0)
async def test_a_thread_that_hangs_counts_for_its_user() -> None:
    """Count a call whose caller left until its thread is free: others have threads then, too."""
    file = in_memory(lines(["x"]))

    async def leave(bulk: Bulk, threads: Hanging, sender: str) -> None:
        threads.begun.clear()
        call = asyncio.create_task(bulk.run(Caller(sender, 1000), Engine(), file, FLOATS))
        await threads.begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    async def ask(bulk: Bulk, sender: str, uid: int) -> int:
        return (await bulk.run(Caller(sender, uid), Engine(), file, FLOATS)).rows

    threads = Hanging()
    bulk = Bulk(Jobs(lambda *_: None), threads)
    try:
        for number in range(MAX_BULK_CALLS["user"]):
            await leave(bulk, threads, f":1.{number}")
        threads.hangs = False
        with pytest.raises(LimitsExceeded, match="4 bulk calls of this user"):
            await ask(bulk, ":1.8", 1000)
        assert await ask(bulk, ":1.9", 1001) == 1
    finally:
        threads.go_on.set()
    await _until_idle(threads)
    assert await ask(bulk, ":1.8", 1000) == 1


async def _until_idle(threads: ThreadPoolExecutor) -> None:
    """Wait until no thread works for bulk calls."""
    all_free = threading.Barrier(MAX_BULK_CALLS["total"])
    loop = asyncio.get_running_loop()
    waits = (loop.run_in_executor(threads, all_free.wait) for _ in range(MAX_BULK_CALLS["total"]))
    await asyncio.gather(*waits)


def test_a_caller_that_leaves_stops_the_work() -> None:
    """Take every window back from the engine, close every file, and free the caller's place."""
    before = open_files(settled=True)

    async def work(_bulk: Bulk) -> None:
        threads = ThreadPoolExecutor(MAX_BULK_CALLS["total"])
        bulk = Bulk(Jobs(lambda *_: None), threads)
        engine = Engine(asyncio.Event())
        file = in_memory(lines(["x"] * WINDOW_TEXTS * 20))
        for _ in range(MAX_BULK_CALLS["connection"] + 1):
            engine.begun.clear()
            call = asyncio.create_task(bulk.run(CALLER, engine, file, FLOATS))
            await engine.begun.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert engine.held == 0
            assert len(asyncio.all_tasks()) == 1
        file.close()
        await _until_idle(threads)
        assert engine.computed == 0

    run(work)
    assert settled_files(os.getpid(), before) == before


@work_of(run)
async def test_many_texts_are_a_job(bulk: Bulk) -> None:
    """Show a call past 10,000 texts as a job, a smaller one only if that is asked for."""
    for count, is_job in ((JOB_TEXTS, False), (JOB_TEXTS + 1, False), (5, True)):
        order = BulkOptions(FLOATS.format, truncate=True, is_job=is_job)
        await bulk.run(CALLER, Engine(), in_memory(lines(["x"] * count)), order)
    nodes = [bulk.jobs.find(path) for path in bulk.jobs.paths()]
    values = [await node.interfaces[0].properties() for node in nodes if node]
    assert [(v["Done"], v["State"]) for v in values] == [(JOB_TEXTS + 1, "done"), (5, "done")]


@work_of(run)
async def test_a_job_can_be_cancelled(bulk: Bulk) -> None:
    """Answer Cancelled to the caller of a job that is cancelled, and take the work back."""
    engine = Engine(asyncio.Event())
    order = BulkOptions(FLOATS.format, truncate=True, is_job=True)
    call = asyncio.create_task(bulk.run(CALLER, engine, in_memory(lines(["x"] * 5000)), order))
    await engine.begun.wait()
    node = bulk.jobs.find(bulk.jobs.paths()[0])
    assert node
    await node.interfaces[0].cancel(CALLER)  # type: ignore[attr-defined] -- it is a Job
    with pytest.raises(Cancelled):
        await call
    assert (engine.held, engine.computed) == (0, 0)


def test_the_callers_file_may_be_closed_while_a_thread_reads() -> None:
    """Read from a copy: closing what the call brought neither hurts nor leaks."""
    before = open_files(settled=True)

    async def work(bulk: Bulk) -> int:
        file = in_memory(lines(["x"] * 10_000))
        call = asyncio.create_task(bulk.run(CALLER, Engine(), file, FLOATS))
        await asyncio.sleep(0)
        file.close()
        return (await call).rows

    assert run(work) == 10_000
    assert settled_files(os.getpid(), before) == before


def test_a_descriptor_is_closed_with_its_holder() -> None:
    """Close a file when it is told to, and when nobody holds it any more."""
    before = open_files(settled=True)
    file = in_memory(b"")
    copy = Descriptor.copy_of(file)
    assert open_files() == before + 2
    file.close()
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        file.fileno()
    del copy
    assert open_files() == before
    with pytest.raises(ValueError, match="is not an open file"):
        Descriptor.copy_of(987654)
