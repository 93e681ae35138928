"""Works that run side by side."""

import asyncio
import math
import sys
from pathlib import Path

import pytest

from opdbus.platform.tasks import at_most, cancel, end_child, until_first_ends


async def end_slowly(started: asyncio.Event, may_end: asyncio.Event) -> None:
    """Run until cancelled, and then a while longer."""
    try:
        started.set()
        await asyncio.Event().wait()
    finally:
        await may_end.wait()


async def test_being_cancelled_while_others_end_is_not_forgotten() -> None:
    """A task that is cancelled while it waits for cancelled works still waits for them."""
    started, may_end = asyncio.Event(), asyncio.Event()
    work = asyncio.create_task(end_slowly(started, may_end))
    await started.wait()
    waiting = asyncio.create_task(cancel([work]))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.sleep(0)
    assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert work.done()


async def test_the_first_to_fail_ends_the_others() -> None:
    """A fault of one work ends the others, and is raised."""
    started, may_end = asyncio.Event(), asyncio.Event()
    may_end.set()

    async def fail() -> None:
        await started.wait()
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        await until_first_ends(end_slowly(started, may_end), fail())


async def test_what_takes_longer_than_it_may_is_left() -> None:
    """Only what is inside ends, whether it waits or goes on; without a limit it ends by itself."""
    reached = []
    for seconds in (0.0, None, math.inf):
        async with at_most(seconds):
            await asyncio.sleep(0.01)
            reached.append(seconds)
    assert reached == [None, math.inf]


async def test_being_cancelled_inside_a_limit_is_not_forgotten() -> None:
    """Only the end of the time is no error."""

    async def wait() -> None:
        async with at_most(60):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def _open_files() -> set[Path]:
    return set(Path("/proc/self/fd").iterdir())


async def test_a_child_that_prints_more_than_is_read_leaves_no_pipe() -> None:
    """Close the pipe of a child that printed more than its reader takes, or that has ended."""
    before = _open_files()
    for code in ("while True: print('x' * 100000)", "print('x' * 100000)", ""):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, limit=100
        )
        assert child.stdout
        await child.stdout.read(1)
        if not code:
            await child.wait()
        await end_child(child)
    assert _open_files() == before
