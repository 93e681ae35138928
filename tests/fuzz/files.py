"""Open files of every kind that a caller may hand over, good and bad."""

import json
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from fcntl import F_ADD_SEALS, F_SEAL_SEAL, F_SEAL_WRITE, fcntl

LINES = b'"mail server"\n"disk"\n"network unit"\n'
_HUGE = 1 << 40


def _memory(content: bytes) -> int:
    number = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(number, content)
    return number


def _sealed() -> int:
    number = _memory(LINES)
    fcntl(number, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL)
    return number


def _sparse() -> int:
    number = _memory(LINES)
    os.truncate(number, _HUGE)
    return number


def _pipe(content: bytes, *, closed: bool) -> int:
    reading, writing = os.pipe()
    os.write(writing, content)
    # the kernel keeps the other end of an open one for as long as the daemon has this one
    if closed:
        os.close(writing)
    else:
        _kept.append(writing)
    return reading


def _socket() -> int:
    ours, theirs = socket.socketpair()
    _kept.append(ours.detach())
    return theirs.detach()


def _file(flags: int) -> int:
    with tempfile.NamedTemporaryFile(prefix="op-dbus-fuzz-") as file:
        file.write(LINES)
        file.flush()
        return os.open(file.name, flags | os.O_CLOEXEC)


_kept: list[int] = []
KINDS: dict[str, Callable[[], int]] = {
    "memfd": lambda: _memory(LINES),
    "sealed memfd": _sealed,
    "regular file": lambda: _file(os.O_RDONLY),
    "many lines": lambda: _memory(LINES * 500),
    "no last end of line": lambda: _memory(LINES[:-1]),
    "empty memfd": lambda: _memory(b""),
    "blank lines": lambda: _memory(b"\n\n\n"),
    "bad UTF-8": lambda: _memory(b'"mail"\n"\xff\xfe"\n'),
    "bad JSON": lambda: _memory(b'"mail"\n{"a": 1}\n'),
    "half a string": lambda: _memory(b'"mail"\n"di'),
    "half a pair": lambda: _memory(b'"\\ud800"\n'),
    "NUL bytes": lambda: _memory(bytes(5000)),
    "NUL escaped": lambda: _memory(b'"a\\u0000b"\n'),
    "deep JSON": lambda: _memory(b"[" * 100_000),
    "long line": lambda: _memory(json.dumps("mail " * 300_000).encode() + b"\n"),
    "many empty texts": lambda: _memory(b'""\n' * 3000),
    "huge and sparse": _sparse,
    "closed pipe": lambda: _pipe(b"", closed=True),
    "empty pipe": lambda: _pipe(b"", closed=False),
    "full pipe": lambda: _pipe(LINES, closed=False),
    "directory": lambda: os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC),
    "/dev/zero": lambda: os.open("/dev/zero", os.O_RDONLY | os.O_CLOEXEC),
    "/dev/null": lambda: os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC),
    "/proc file": lambda: os.open("/proc/self/environ", os.O_RDONLY | os.O_CLOEXEC),
    "socket": _socket,
    "eventfd": lambda: os.eventfd(1, os.EFD_CLOEXEC),
    "O_PATH": lambda: _file(os.O_PATH),
    "O_WRONLY": lambda: _file(os.O_WRONLY),
}
GOOD = ["memfd", "sealed memfd", "regular file", "many lines"]
# Files that change while they are read: what is done to them right after the call is sent.
CHANGES: dict[str, Callable[[int], object]] = {
    "emptied": lambda number: os.ftruncate(number, 0),
    "cut in a line": lambda number: os.ftruncate(number, 20),
    "grown": lambda number: os.pwrite(number, LINES * 50, os.fstat(number).st_size),
    "overwritten": lambda number: os.pwrite(number, b"\xff" * 3000, 0),
}
CHANGED = "many lines"


@contextmanager
def opened(kinds: list[str]) -> Iterator[list[int]]:
    """Open a file of each kind, and close them at the end."""
    with ExitStack() as stack:
        numbers = []
        for kind in kinds:
            number = KINDS[CHANGED if kind in CHANGES else kind]()
            stack.callback(os.close, number)
            numbers.append(number)
        try:
            yield numbers
        finally:
            while _kept:
                os.close(_kept.pop())
