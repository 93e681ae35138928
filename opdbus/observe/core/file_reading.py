"""Reading of files on a thread of its own, since a file system may hang."""

import asyncio
import errno
import os
import select
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from opdbus.observe.core.report import LostSource
from opdbus.observe.core.skipped import Skipped
from opdbus.platform.regular_files import answers, open_regular

T = TypeVar("T")
# The most hanging readings of one function.
_MAX_HUNG: Final = 16
# The most of a settings file: far more than any has.
_MAX_BYTES: Final = 16 << 20
# The most of a file of /proc, which has no size: those of /proc/sys refuse reads of 4 MiB.
_MAX_BYTES_OF_KERNEL: Final = (4 << 20) - 4096


async def in_thread(read: Callable[[], T], seconds: float = 10.0, *, most: int = _MAX_HUNG) -> T:
    """Call a function that reads files on a thread, and return or raise its result.

    A file system whose server is gone hangs for ever. The thread is then left alone: it delays no
    other work, and the program can end without it. Raises LostSource then, and when `most` readings
    of the same function hang already.
    """
    function = read.func if isinstance(read, partial) else read
    hung = f"hung {getattr(function, '__qualname__', type(function).__qualname__)}"
    if sum(thread.name == hung for thread in threading.enumerate()) >= most:
        raise LostSource(f"{most} earlier readings have not ended: a file system hangs")
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def work() -> None:
        try:
            result = read()
        except Exception as error:  # noqa: BLE001 -- raised in the waiting task
            done.set_exception(error)
        else:
            done.set_result(result)

    thread = threading.Thread(target=work, name="observe", daemon=True)
    thread.start()
    finished = asyncio.wrap_future(done)
    try:
        await asyncio.wait([finished], timeout=seconds)
        # the event loop may be late
        if done.done():
            return await finished
    finally:
        finished.cancel()
    thread.name = hung
    raise LostSource(f"reading took more than {seconds:.0f} s: a file system may hang")


def text_of(path: Path, most: int = _MAX_BYTES, skipped: Skipped | None = None) -> str:
    """Return the beginning of a file as text; empty if there is none that may be read.

    A file that exists and is not read to its end is noted in `skipped`.
    """
    content, is_cut = b"", False
    try:
        content, is_cut = read_at_most(path, most)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError:
        is_cut = True
    if is_cut and skipped is not None:
        skipped.file(path)
    return content.decode(errors="replace")


def read_at_most(path: Path, most: int) -> tuple[bytes, bool]:
    """Return the first bytes of a regular file, and whether there are more; raises OSError."""
    if not answers(path):
        raise TimeoutError(errno.ETIMEDOUT, "its file system hangs", str(path))
    # devices and pipes may have no end, or wait for a writer
    with os.fdopen(open_regular(path, follow=True), "rb") as file:
        status = os.fstat(file.fileno())
        content = file.read(most if status.st_size else min(most, _MAX_BYTES_OF_KERNEL))
        return content, bool(file.read(1))


def changed_at(path: str) -> float:
    """Return the time of a file's last change, in seconds since 1970.

    For a removed file it is the time of the last change in its folder. A time that was set, such as
    that of a file from an archive, does not count.
    """
    times = []
    # a link, and its target
    for look in (os.lstat, os.stat) if answers(path) else (os.lstat,):
        with suppress(OSError, ValueError):
            times.append(look(path).st_ctime)
    above = os.path.dirname(path)  # noqa: PTH120 -- of thousands of paths, Path() takes most of the time
    return max(times) if times or above == path else changed_at(above)


def files_in(folder: Path) -> list[Path]:
    """Return the sorted entries of a folder; none if it cannot be read."""
    with suppress(OSError):
        return sorted(folder.iterdir()) if answers(folder) else []
    return []


async def changes_of_kernel(path: Path) -> AsyncGenerator[None]:
    """Yield at once, and after each change that the kernel announces of a file of /proc."""
    changed = asyncio.Event()
    loop = asyncio.get_running_loop()
    with select.epoll() as poll, path.open("rb") as file:
        # the file is always readable: epoll reports a change as an exceptional event
        with suppress(PermissionError):  # a plain file, in tests
            poll.register(file, select.EPOLLPRI | select.EPOLLERR)
        loop.add_reader(poll.fileno(), changed.set)
        try:
            while True:
                changed.clear()
                poll.poll(0)
                yield
                await changed.wait()
        finally:
            loop.remove_reader(poll.fileno())
