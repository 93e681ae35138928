"""Files of bulk calls: texts that callers send, vectors that they get, and the formats of those."""

import asyncio
import fcntl
import json
import os
import stat
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from asyncinotify import Inotify, Mask
from numpy.typing import NDArray

from opdbus.bus.admission.accounting import Quota
from opdbus.bus.admission.limits import (
    MAX_BULK_BYTES,
    MAX_BULK_FILE,
    MAX_BULK_TEXTS,
    MAX_TEXT_BYTES,
)
from opdbus.bus.service.call_options import Options, one_of
from opdbus.bus.service.contract import Caller
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.errors import InvalidArgs, LimitsExceeded

FLOAT32: Final = "float32"
UBINARY: Final = "ubinary"
# Bits of a component.
BITS: Final = {FLOAT32: 32, "float16": 16, "int8": 8, UBINARY: 1}
# Components of a vector of length 1 are within -1..1.
_INT8_SCALE: Final = 127

# Limits of a window: texts that are read, tokenized and embedded together, and their bytes.
WINDOW_TEXTS: Final = 2048
WINDOW_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 1 << 18
_JSON: Final = json.JSONDecoder()
_KINDS_OF_FILES: Final = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a symbolic link",
}
# No F_SEAL_SHRINK: a closed file is emptied, since a program can hold its memory by an O_PATH
# descriptor, which is not reported.
_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
# The least charge of a file, so that many small ones do not exhaust our open files.
_LEAST_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Format:
    """A format of vectors: `dimensions` components of the type `dtype`."""

    dtype: str
    dimensions: int

    @property
    def row_bytes(self) -> int:
        """The bytes of a vector; unused bits of its last byte are 0."""
        return (self.dimensions * BITS[self.dtype] + 7) // 8

    def shorten(self, vectors: NDArray[np.float32]) -> NDArray[np.float32]:
        """Cut vectors (n, d) of length 1 to (n, dimensions), and scale them to length 1."""
        if vectors.shape[1] == self.dimensions:
            return vectors
        cut = vectors[:, : self.dimensions]
        lengths = np.linalg.norm(cut, axis=1, keepdims=True).astype(np.float32)
        # a vector that is zero in these dimensions stays zero
        lengths[lengths == 0] = 1
        shortened: NDArray[np.float32] = cut / lengths
        return shortened

    def encode(self, vectors: NDArray[np.float32]) -> bytes:
        """Return vectors (n, d) of length 1 as row-major bytes, little-endian."""
        cut = self.shorten(vectors)
        if self.dtype == UBINARY:
            return np.packbits(cut > 0, axis=1).tobytes()
        if self.dtype == "int8":
            scaled = np.rint(cut * _INT8_SCALE)
            return np.clip(scaled, -_INT8_SCALE, _INT8_SCALE).astype(np.int8).tobytes()
        return cut.astype("<f2" if self.dtype == "float16" else "<f4").tobytes()


def choose_format(options: Options, dimension: int) -> Format:
    """Return the format of the options `dtype` and `dimensions`; raise InvalidArgs.

    `dimension` is that of the model's vectors.
    """
    dtype = one_of("dtype", options.get("dtype", FLOAT32), BITS)
    dimensions = options.get("dimensions", dimension)
    if not 1 <= dimensions <= dimension:
        raise InvalidArgs(
            f"dimensions must be from 1 to {dimension}, which this model's vectors have, not"
            f" {dimensions}"
        )
    return Format(dtype, dimensions)


# Of files that have no vectors, only appended bytes.
_NO_VECTORS: Final = Format(FLOAT32, 0)


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
        # before it is read: a sparse file may be of any size
        _require_room(os.fstat(self._file.fileno()).st_size, lines)
        while block := self._read(_BLOCK_BYTES, size):
            size += len(block)
            lines += block.count(b"\n")
            last = block[-1:]
            _require_room(size, lines)
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
            texts.append(parse_text_line(line, self._number))
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
        block = self._read(min(_BLOCK_BYTES, self._size - self._offset), self._offset)
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


def parse_text_line(line: bytes, number: int) -> str:
    """Parse one line, a JSON string; raise InvalidArgs, whose message never quotes it."""
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        column = len(line[: error.start].decode()) + 1
        raise _line_error(number, column, "this is not UTF-8") from None
    content = text.lstrip(" \t\r")
    if not content.startswith('"'):
        column = len(text) - len(content) + 1
        raise _line_error(number, column, "a JSON string must begin here")
    try:
        value: str
        value, end = _JSON.raw_decode(content)
        # faster than `loads` alone by a factor of three
        value = value if end == len(content) else json.loads(content)
    except ValueError as error:
        column = getattr(error, "colno", 1) + len(text) - len(content)
        raise _line_error(number, column, getattr(error, "msg", "it is not JSON")) from None
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _line_error(number, 1, "an escape is half of a surrogate pair") from None
    return value


def _line_error(number: int, column: int, reason: str) -> InvalidArgs:
    return InvalidArgs(
        f"line {number}, column {column} of the texts: {reason}; each line is one JSON string"
    )


def _require_room(size: int, lines: int) -> None:
    if size > MAX_BULK_FILE or lines > MAX_BULK_TEXTS:
        raise LimitsExceeded(
            f"the file is past the limit of {MAX_BULK_TEXTS} texts or"
            f" {MAX_BULK_FILE >> 20} MiB: split it"
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
        what = _KINDS_OF_FILES.get(stat.S_IFMT(mode), "no file at all")
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


class VectorFile:
    """A memfd that vectors are written to, in any order, or bytes, and that is then sealed.

    `number` identifies it while it is counted; `end` is the end of the appended bytes.
    """

    def __init__(self, wanted: Format, file: Descriptor, number: int) -> None:
        self._format = wanted
        self._file = file
        self.number = number
        self.end = 0

    def write(self, first: int, vectors: NDArray[np.float32]) -> None:
        """Write vectors (n, d) from row `first` on; blocks."""
        self._put(first * self._format.row_bytes, self._format.encode(vectors))

    def append(self, content: bytes) -> None:
        """Write bytes after those of the previous call; blocks."""
        self._put(self.end, content)
        self.end += len(content)

    def _put(self, offset: int, content: bytes) -> None:
        file, data = self._file, memoryview(content)
        try:
            while data:
                written = os.pwrite(file.fileno(), data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise LimitsExceeded(
                f"there is no memory for the file: {error}; ask for fewer at a time"
            ) from None

    def drop(self) -> None:
        """Drop our reference: receivers of `seal` and a thread that still writes keep theirs."""
        del self._file

    def seal(self) -> Descriptor:
        """Seal the file and return it; blocks."""
        fcntl.fcntl(self._file.fileno(), fcntl.F_ADD_SEALS, _SEALS)
        return self._file


class _FileCharge(NamedTuple):
    """The charge of an open file, its scopes, and a descriptor of ours to empty it with."""

    size: int
    scopes: Mapping[str, Hashable]
    own: Descriptor


class VectorFiles:
    """Creates these files, and counts their memory for each user and in total.

    The memory belongs to us for as long as anybody has the file open or mapped, so it counts until
    then. inotify reports the end: the file is closed that was open for writing, and no other user
    may open it again.
    """

    def __init__(self) -> None:
        self._bytes = Quota("bytes of files of vectors", MAX_BULK_BYTES)
        self._counted: dict[int, _FileCharge] = {}
        self._inotify: Inotify | None = None

    @contextmanager
    def create(
        self, caller: Caller, wanted: Format = _NO_VECTORS, rows: int = 0, besides: int = 0
    ) -> Iterator[VectorFile]:
        """Create a file for vectors and `besides` more bytes; drop it unless it is sealed.

        For more bytes, call `make_room` before. Raises LimitsExceeded.
        """
        self._forget_closed()
        size = max(rows * wanted.row_bytes + besides, _LEAST_BYTES)
        scopes = {"user": caller.uid, "total": None}
        self._require_room(scopes, size, size)
        try:
            descriptor, own = _create_memfd()
            if self._inotify is None:
                self._inotify = Inotify(sync_timeout=0)
                asyncio.get_running_loop().add_reader(self._inotify.fd, self._forget_closed)
            # a close runs `_forget_closed`
            path = f"/proc/self/fd/{descriptor.fileno()}"
            watch = self._inotify.add_watch(path, Mask.CLOSE_WRITE | Mask.ONESHOT).wd
        except OSError as error:
            raise LimitsExceeded(f"no file can be made: {error}") from None
        self._counted[watch] = _FileCharge(size, scopes, own)
        self._bytes.add(scopes, size)
        file = VectorFile(wanted, descriptor, watch)
        del descriptor
        try:
            yield file
        finally:
            file.drop()

    def make_room(self, file: VectorFile, size: int) -> None:
        """Count bytes that are about to be appended to a file; raise LimitsExceeded."""
        charge = self._counted[file.number]
        whole = file.end + size
        if (more := whole - charge.size) > 0:
            self._require_room(charge.scopes, more, whole)
            self._counted[file.number] = charge._replace(size=whole)
            self._bytes.add(charge.scopes, more)

    def _require_room(self, scopes: Mapping[str, Hashable], size: int, whole: int) -> None:
        """Raise LimitsExceeded unless a file of the size `whole` may take `size` more bytes."""
        most = MAX_BULK_BYTES["user"]
        if whole > most:
            raise LimitsExceeded(
                f"the file would take {whole >> 20} MiB, past the limit of {most >> 20} MiB a"
                " call: ask for fewer rows, or for vectors of a smaller dtype or fewer dimensions"
            )
        for kind, whose in (("user", "this user"), ("total", "all users")):
            taken, most = self._bytes[scopes[kind]], MAX_BULK_BYTES[kind]
            if taken + size > most:
                raise LimitsExceeded(
                    f"bulk calls of {whose} that run, and their files that are not closed yet,"
                    f" take {taken >> 20} of {most >> 20} MiB, and this call needs {size >> 20}:"
                    " close the files that you have read, or ask later"
                )

    def _forget_closed(self) -> None:
        """Stop counting closed files, and free their remaining memory."""
        loop = asyncio.get_running_loop()
        for event in self._inotify or ():
            if event.mask & Mask.CLOSE_WRITE and event.watch:
                closed = self._counted.pop(event.watch.wd)
                self._bytes.add(closed.scopes, -closed.size)
                loop.run_in_executor(None, _empty_file, closed.own)
        if self._inotify and not self._counted:
            loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None


def _create_memfd() -> tuple[Descriptor, Descriptor]:
    """Return two descriptors of a new memfd.

    The first is opened by path for writing, so that inotify reports its close; the second is for
    us, read-only.
    """
    made = Descriptor(os.memfd_create("op-dbus-vectors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.fchmod(made.fileno(), 0o600)
    path = f"/proc/self/fd/{made.fileno()}"
    own = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    return Descriptor(os.open(path, os.O_RDWR | os.O_CLOEXEC)), own


def _empty_file(file: Descriptor) -> None:
    with suppress(OSError):
        os.truncate(f"/proc/self/fd/{file.fileno()}", 0)
    file.close()
