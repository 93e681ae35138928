"""Access to regular files that is safe if a FIFO, a device or a link is in their place."""

import errno
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

# Without O_NONBLOCK, opening a FIFO waits for its other end. Windows lacks the first two flags.
_SAFE: Final = (
    getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_ASIDE: Final = ".not-a-file"
_MOST_ASIDE: Final = 100
_LOOK_SECONDS: Final = 1.0
# So long to wait for a look that another thread has begun.
_OTHER_LOOK_SECONDS: Final = 0.1
_MAX_LOOKS: Final = 16


def answers(path: str | Path, seconds: float = _LOOK_SECONDS) -> bool:
    """Return whether a path can be looked at: a link may lead to a file system that hangs.

    A link is tried on a thread of its own, which is left alone if it hangs; until it ends, the path
    is not tried again. At most _MAX_LOOKS hang at a time.
    """
    if not os.path.islink(path):  # noqa: PTH114 -- of thousands of paths
        return True
    name, prefix = f"look at {path}", "look at "
    looks = [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]
    look = next((thread for thread in looks if thread.name == name), None)
    if look is None and len(looks) >= _MAX_LOOKS:
        return False
    if look is None:
        look = threading.Thread(target=os.path.exists, args=(path,), name=name, daemon=True)
        look.start()
        look.join(seconds)
    else:
        look.join(_OTHER_LOOK_SECONDS)
    return not look.is_alive()


def open_regular(
    path: Path, flags: int = os.O_RDONLY, mode: int = 0o600, *, follow: bool = False
) -> int:
    """Open a regular file without waiting and return its descriptor; `follow` permits links.

    Raises OSError, also if the path is not a regular file. The caller closes the descriptor.
    """
    file = os.open(path, flags | _SAFE | (0 if follow else _NOFOLLOW), mode)
    if not stat.S_ISREG(kind := os.fstat(file).st_mode):
        os.close(file)
        number = errno.EISDIR if stat.S_ISDIR(kind) else errno.EINVAL
        reason = os.strerror(number) if stat.S_ISDIR(kind) else "it is not a regular file"
        raise OSError(number, reason, str(path))
    return file


def read_regular(path: Path, *, follow: bool = False) -> bytes:
    """Return the content of a regular file; raises OSError as `open_regular` does."""
    with os.fdopen(open_regular(path, follow=follow), "rb") as file:
        return file.read()


def replace_file(
    path: Path, text: str, *, mode: int = 0o600, like: os.stat_result | None = None
) -> None:
    """Replace a file at once, so that it survives a crash of the host; raises OSError.

    It gets the owner and mode of `like`, or else `mode`. The group of `like` is required, through
    which a service may read the file.
    """
    # a name of another ending, which nothing that reads a folder by endings takes
    part = path.with_name(f".{path.name}.{os.getpid()}.new")
    part.unlink(missing_ok=True)
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFE, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            if like:
                os.fchown(file.fileno(), -1, like.st_gid)
                # a user who may write here may not own what belongs to another
                with suppress(PermissionError):
                    os.fchown(file.fileno(), like.st_uid, -1)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(like.st_mode & 0o7777 if like else mode)
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # not on Windows
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def set_aside(path: Path) -> None:
    """Rename what is at `path` unless it is a regular file, so that one can be created there.

    The new name is the first free one of a hundred; if none is free, the first is replaced. Raises
    OSError.
    """
    try:
        is_regular = stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_regular:
        numbers = ("", *(f".{number}" for number in range(2, _MOST_ASIDE + 1)))
        names = [path.with_name(f"{path.name}{_ASIDE}{number}") for number in numbers]
        path.rename(next((name for name in names if not os.path.lexists(name)), names[0]))
