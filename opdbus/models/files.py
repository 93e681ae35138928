"""Files and folders readable by all users, file locks, and atomic writes."""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from opdbus.platform.regular_files import open_regular, replace_file, set_aside


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold the lock of a file; call `on_wait` before waiting for another process.

    The system releases the lock when the process ends. Raises OSError.
    """
    set_aside(path)
    with os.fdopen(open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666), "ab") as file:
        if on_wait is None or not _lock(file, wait=False):
            if on_wait:
                on_wait()
            _lock(file, wait=True)
        yield


def _lock(file: BinaryIO, *, wait: bool) -> bool:
    """Take the lock of a file, or return False if another process holds it and `wait` is false."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if wait:
            raise
        return False
    return True


def write_whole(path: Path, text: str) -> None:
    """Write a file that every user may read, atomically; raises OSError."""
    set_aside(path)
    replace_file(path, text, mode=0o644)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, with mode 0755; raises OSError.

    The mode does not depend on the umask: root's command makes the folder for the daemon's user.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        path.chmod(0o755)


def settle(folder: Path) -> None:
    """Let every user read a new folder, and flush it to disk; raises OSError.

    Call it before renaming the folder, in case power fails in between.
    """
    for path in [folder, *folder.rglob("*")]:
        path.chmod(_mode(path))
        if path.is_file():
            with path.open("r+b") as file:
                os.fsync(file.fileno())


def open_to_all(folder: Path, names: Iterable[str]) -> None:
    """Let every user read the named files of an existing folder; raises OSError."""
    paths = {folder / name for name in names}
    for path in {folder, *paths, *(path.parent for path in paths)}:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode | _mode(path) != mode:
            path.chmod(mode | _mode(path))


def _mode(path: Path) -> int:
    return 0o755 if path.is_dir() else 0o644
