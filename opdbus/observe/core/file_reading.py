"""Reading of files on a thread of its own, since a file system may hang."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from opdbus.observe.core.report import LostSource
from opdbus.observe.core.skipped import Skipped
from opdbus.platform.regular_files import open_regular

T = TypeVar("T")
# Readings of one function that hang.
_MAX_HUNG: Final = 16
# Of a file of settings: far more than any has.
_MAX_BYTES: Final = 16 << 20
# Files of /proc, which say no size: those of /proc/sys refuse reads of 4 MiB.
_MAX_BYTES_OF_KERNEL: Final = (4 << 20) - 4096


async def in_thread(read: Callable[[], T], seconds: float = 10.0, *, most: int = _MAX_HUNG) -> T:
    """Return what a function returns that reads files; raises what it raises.

    A file system whose server is gone hangs for ever. The thread is then left alone: it delays no
    other work, and the program can end without it. Raises LostSource then, and when `most` readings
    of the same function hang already.
    """
    hung = f"hung {_name(read)}"
    if sum(thread.name == hung for thread in threading.enumerate()) >= most:
        raise LostSource(f"{most} earlier readings have not ended: a file system hangs")
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Callable[[], T]] = loop.create_future()

    def settle(outcome: Callable[[], T]) -> None:
        if not done.done():
            done.set_result(outcome)

    def work() -> None:
        outcome = _outcome(read)
        with suppress(RuntimeError):  # the program has ended meanwhile
            loop.call_soon_threadsafe(settle, outcome)

    thread = threading.Thread(target=work, name="observe", daemon=True)
    thread.start()
    await asyncio.wait([done], timeout=seconds)
    # also where it has ended and the event loop hears of it only now
    if done.done():
        return done.result()()
    thread.name = hung
    raise LostSource(f"reading took more than {seconds:.0f} s: a file system may hang")


def text_of(path: Path, most: int = _MAX_BYTES, skipped: Skipped | None = None) -> str:
    """Return the beginning of a file as text; empty if there is none that may be read.

    One that is there and is not read to its end is noted in `skipped`.
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


def changed_at(path: str) -> float:
    """Return when a file was changed last, in seconds since 1970.

    Of one that is gone, that is when something was changed in its folder. A time that was set, such
    as that of a file from an archive, does not count.
    """
    times = []
    # a link, and what it leads to
    for look in (os.lstat, os.stat):
        with suppress(OSError, ValueError):
            times.append(look(path).st_ctime)
    above = os.path.dirname(path)  # noqa: PTH120 -- of thousands of paths, Path() takes most of the time
    return max(times) if times or above == path else changed_at(above)


def _name(read: Callable[[], T]) -> str:
    function = read.func if isinstance(read, partial) else read
    return getattr(function, "__qualname__", type(function).__qualname__)


def _outcome(read: Callable[[], T]) -> Callable[[], T]:
    """Call a function, and return another that returns or raises the same."""
    try:
        result = read()
    except Exception as error:  # noqa: BLE001 -- raised where it is waited for
        fault = error

        def fail() -> T:
            raise fault

        return fail
    return lambda: result


def files_in(folder: Path) -> list[Path]:
    """Return what is in a folder, in order; nothing where there is none that may be read."""
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def read_at_most(path: Path, most: int) -> tuple[bytes, bool]:
    """Return the first bytes of a regular file, and whether there are more; raises OSError."""
    # devices and pipes may have no end, or wait for a writer
    with os.fdopen(open_regular(path, follow=True), "rb") as file:
        status = os.fstat(file.fileno())
        content = file.read(most if status.st_size else min(most, _MAX_BYTES_OF_KERNEL))
        return content, bool(file.read(1))
