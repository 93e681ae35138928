"""Reads JSON strings, one a line, from a file that its owner may change meanwhile.

The file is neither mapped nor trusted to keep its size: it is read into a buffer of our own.
"""

import fcntl
import json
import os
import stat
from typing import Final

from opdbus.bus.admission.limits import MAX_BULK_FILE, MAX_BULK_TEXTS, MAX_TEXT_BYTES
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.errors import InvalidArgs, LimitsExceeded

# Limits of a window: texts that are read, tokenized and embedded together, and their bytes.
WINDOW_TEXTS: Final = 2048
WINDOW_BYTES: Final = 1 << 20
_BLOCK: Final = 1 << 18
_JSON: Final = json.JSONDecoder()

_KINDS: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a symbolic link",
}


class TextFile:
    """The lines of a regular file or memfd, from its beginning; each method blocks.

    Raises InvalidArgs for any other kind of file.
    """

    def __init__(self, file: Descriptor) -> None:
        _require_readable(file.fileno())
        self._file = file
        self._buffer = bytearray()
        self._offset = self._start = self._number = 0
        self._size = MAX_BULK_FILE

    def count_lines(self) -> int:
        """Count the lines; content that is appended later is not read.

        Raises LimitsExceeded.
        """
        size = lines = 0
        last = b"\n"
        while block := self._read(_BLOCK, size):
            size += len(block)
            lines += block.count(b"\n")
            last = block[-1:]
            _require_bounded(size, lines)
        self._size = size
        return lines + (last != b"\n")

    def window(self) -> list[str]:
        """Return the next texts, none at the end; raise InvalidArgs or LimitsExceeded."""
        texts: list[str] = []
        size = 0
        while len(texts) < WINDOW_TEXTS and size < WINDOW_BYTES:
            line = self._line()
            if line is None:
                break
            self._number += 1
            texts.append(parse(line, self._number))
            size += len(line)
        return texts

    def _line(self) -> bytes | None:
        """Return the next line without its end; None at the end of the file."""
        while (end := self._buffer.find(b"\n", self._start)) < 0:
            if len(self._buffer) - self._start > MAX_TEXT_BYTES or not self._fill():
                end = len(self._buffer)
                break
        if end - self._start > MAX_TEXT_BYTES:
            raise LimitsExceeded(
                f"line {self._number + 1} of the texts is longer than {MAX_TEXT_BYTES} bytes:"
                " shorten it"
            )
        line = bytes(self._buffer[self._start : end])
        is_over = end == len(self._buffer)
        self._start = min(end + 1, len(self._buffer))
        return None if is_over and not line else line

    def _fill(self) -> bool:
        """Read the next block, and drop returned lines; return False at the end."""
        block = self._read(min(_BLOCK, self._size - self._offset), self._offset)
        self._offset += len(block)
        del self._buffer[: self._start]
        self._start = 0
        self._buffer += block
        return bool(block)

    def _read(self, count: int, offset: int) -> bytes:
        try:
            return os.pread(self._file.fileno(), count, offset)
        except OSError as error:
            raise InvalidArgs(f"the file of texts cannot be read: {error}") from None


def parse(line: bytes, number: int) -> str:
    """Parse one line, a JSON string; raise InvalidArgs, whose message never quotes it."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode()) + 1
        raise _wrong(number, column, "this is not UTF-8") from None
    content = text.lstrip(" \t\r")
    if not content.startswith('"'):
        column = len(text) - len(content) + 1
        raise _wrong(number, column, "a JSON string must begin here")
    try:
        value = _string(content)
    except ValueError as error:
        column = getattr(error, "colno", 1) + len(text) - len(content)
        raise _wrong(number, column, getattr(error, "msg", "it is not JSON")) from None
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _wrong(number, 1, "an escape is half of a surrogate pair") from None
    return value


def _string(content: str) -> str:
    """Parse a JSON string with trailing spaces; raise ValueError."""
    value: str
    value, end = _JSON.raw_decode(content)
    # faster than `loads` alone by a factor of three
    return value if end == len(content) else str(json.loads(content))


def _wrong(number: int, column: int, reason: str) -> InvalidArgs:
    return InvalidArgs(
        f"line {number}, column {column} of the texts: {reason}; each line is one JSON string"
    )


def _require_bounded(size: int, lines: int) -> None:
    if size > MAX_BULK_FILE or lines > MAX_BULK_TEXTS:
        raise LimitsExceeded(
            f"the file is past the limit of {MAX_BULK_TEXTS} texts or {MAX_BULK_FILE >> 20} MiB:"
            " split it"
        )


def _require_readable(number: int) -> None:
    """Raise InvalidArgs, with the kind of the file, unless it can be read at an offset."""
    try:
        mode = os.fstat(number).st_mode
        flags = fcntl.fcntl(number, fcntl.F_GETFL)
    except OSError as error:
        raise InvalidArgs(f"the file of texts cannot be examined: {error}") from None
    what = ""
    if not stat.S_ISREG(mode):
        what = _KINDS.get(stat.S_IFMT(mode), "no file at all")
        if stat.S_ISCHR(mode):
            what = "a terminal" if os.isatty(number) else "a character device"
    elif flags & os.O_PATH:
        what = "a file that is not open (O_PATH)"
    elif flags & os.O_ACCMODE == os.O_WRONLY:
        what = "a file that is open for writing only"
    if what:
        raise InvalidArgs(
            f"the texts must come in a regular file or a memfd that can be read; this is {what}"
        )
