"""Helpers for asyncio: groups of coroutines, signals, timeouts, retry delays, child processes."""

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat
from typing import Any, TypeVar

T = TypeVar("T")


def pauses(seconds: Sequence[float]) -> Iterator[float]:
    """Yield the delays between attempts; the last one repeats for ever."""
    return chain(seconds, repeat(seconds[-1]))


@asynccontextmanager
async def at_most(seconds: float | None) -> AsyncIterator[None]:
    """Run the body for at most `seconds`, then go on without an error; None, infinity: no limit."""
    with suppress(TimeoutError):
        async with asyncio.timeout(None if seconds == math.inf else seconds):
            yield


async def end_child(process: asyncio.subprocess.Process) -> None:
    """Kill a child process unless it has ended, and wait until its pipes are closed.

    The rest of its output is read and dropped: asyncio keeps a pipe open, and `wait` waits for it,
    while more of it is unread than its reader takes.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.communicate()


@asynccontextmanager
async def signals(hung_up: asyncio.Event) -> AsyncIterator[asyncio.Event]:
    """Set `hung_up` on SIGHUP, and the yielded event on SIGTERM and SIGINT."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    handlers = {signal.SIGTERM: stopped, signal.SIGINT: stopped, signal.SIGHUP: hung_up}
    for number, event in handlers.items():
        loop.add_signal_handler(number, event.set)
    try:
        yield stopped
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)


def start(work: Coroutine[Any, Any, T], tasks: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Start a background task; `tasks` keeps a reference to it until it ends."""
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; their exceptions are dropped."""
    waited = list(tasks)
    for task in waited:
        task.cancel()
    await asyncio.gather(*waited, return_exceptions=True)


async def until_first_ends(*works: Coroutine[Any, Any, Any]) -> None:
    """Run coroutines concurrently until one ends or fails; the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel(tasks)
