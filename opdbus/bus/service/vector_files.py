"""Files of vectors in memory, charged to a user until the user's programs close them."""

import asyncio
import fcntl
import os
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

import numpy as np
from asyncinotify import Inotify, Mask
from numpy.typing import NDArray

from opdbus.bus.admission.accounting import Quota
from opdbus.bus.admission.limits import MAX_BULK_BYTES
from opdbus.bus.service.formats import Format
from opdbus.bus.service.node import Caller
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.errors import LimitsExceeded

# No F_SEAL_SHRINK: a closed file is emptied, since a program can hold its memory by an O_PATH
# descriptor, which is not reported.
_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
# The least charge of a file, so that many small ones do not exhaust our open files.
_LEAST_BYTES: Final = 1 << 20


class VectorFile:
    """A memfd that vectors are written to, in any order, and that is then sealed."""

    def __init__(self, wanted: Format, file: Descriptor) -> None:
        self._format = wanted
        self._file = file
        self._appended = 0

    def write(self, first: int, vectors: NDArray[np.float32]) -> None:
        """Write vectors (n, d) from row `first` on; blocks."""
        self._put(first * self._format.row_bytes, self._format.encode(vectors))

    def append(self, content: bytes) -> None:
        """Write bytes after those of the previous call; blocks."""
        self._put(self._appended, content)
        self._appended += len(content)

    def _put(self, offset: int, content: bytes) -> None:
        file, data = self._file, memoryview(content)
        try:
            while data:
                written = os.pwrite(file.fileno(), data, offset)
                data, offset = data[written:], offset + written
        except OSError as error:
            raise LimitsExceeded(
                f"there is no memory for the vectors: {error}; ask for fewer"
            ) from None

    def drop(self) -> None:
        """Drop our reference: receivers of `sealed` and a thread that still writes keep theirs."""
        del self._file

    def sealed(self) -> Descriptor:
        """Seal the file and return it; blocks."""
        fcntl.fcntl(self._file.fileno(), fcntl.F_ADD_SEALS, _SEALS)
        return self._file


class _Counted(NamedTuple):
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
        self._counted: dict[int, _Counted] = {}
        self._inotify: Inotify | None = None

    @contextmanager
    def create(
        self, caller: Caller, wanted: Format, rows: int, besides: int = 0
    ) -> Iterator[VectorFile]:
        """Create a file for vectors and `besides` more bytes; drop it unless it is sealed.

        Raises LimitsExceeded.
        """
        self._forget_closed()
        size = max(rows * wanted.row_bytes + besides, _LEAST_BYTES)
        scopes = {"user": caller.uid, "total": None}
        self._require_room(scopes, size)
        try:
            descriptor, own = _created()
            watch = self._watch(f"/proc/self/fd/{descriptor.fileno()}")
        except OSError as error:
            raise LimitsExceeded(f"no file can be made for the vectors: {error}") from None
        self._counted[watch] = _Counted(size, scopes, own)
        self._bytes.add(scopes, size)
        file = VectorFile(wanted, descriptor)
        del descriptor
        try:
            yield file
        finally:
            file.drop()

    def _require_room(self, scopes: Mapping[str, Hashable], size: int) -> None:
        most = MAX_BULK_BYTES["user"]
        if size > most:
            raise LimitsExceeded(
                f"the vectors would take {size >> 20} MiB, past the limit of {most >> 20} MiB a"
                " call: ask for fewer, for a smaller dtype or for fewer dimensions"
            )
        for kind, whose in (("user", "this user"), ("total", "all users")):
            taken, most = self._bytes[scopes[kind]], MAX_BULK_BYTES[kind]
            if taken + size > most:
                raise LimitsExceeded(
                    f"bulk calls of {whose} that run, and files of vectors that are not closed yet,"
                    f" take {taken >> 20} of {most >> 20} MiB, and this call needs {size >> 20}:"
                    " close the files that you have read, or ask later"
                )

    def _watch(self, path: str) -> int:
        """Watch for the close of the file at `path`, which then runs `_forget_closed`."""
        if self._inotify is None:
            self._inotify = Inotify(sync_timeout=0)
            asyncio.get_running_loop().add_reader(self._inotify.fd, self._forget_closed)
        return self._inotify.add_watch(path, Mask.CLOSE_WRITE | Mask.ONESHOT).wd

    def _forget_closed(self) -> None:
        """Stop counting closed files, and free their remaining memory."""
        loop = asyncio.get_running_loop()
        for event in self._inotify or ():
            if event.mask & Mask.CLOSE_WRITE and event.watch:
                closed = self._counted.pop(event.watch.wd)
                self._bytes.add(closed.scopes, -closed.size)
                loop.run_in_executor(None, _empty, closed.own)
        if self._inotify and not self._counted:
            loop.remove_reader(self._inotify.fd)
            self._inotify.close()
            self._inotify = None


def _created() -> tuple[Descriptor, Descriptor]:
    """Return two descriptors of a new memfd.

    The first is opened by path for writing, so that inotify reports its close; the second is for
    us, read-only.
    """
    made = Descriptor(os.memfd_create("op-dbus-vectors", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
    os.fchmod(made.fileno(), 0o600)
    path = f"/proc/self/fd/{made.fileno()}"
    own = Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    return Descriptor(os.open(path, os.O_RDWR | os.O_CLOEXEC)), own


def _empty(file: Descriptor) -> None:
    with suppress(OSError):
        os.truncate(f"/proc/self/fd/{file.fileno()}", 0)
    file.close()
