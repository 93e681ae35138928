"""Loading of numpy files, one thread at a time."""

import os
import weakref
from pathlib import Path
from threading import Lock
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.errors import ModelError
from opdbus.platform.regular_files import open_regular

# numpy parses a header as Python syntax, whose depth Python 3.11 counts for all threads together:
# when two threads parse at once, one may fail with SystemError (CPython issue 106905).
_READING: Final = Lock()


def load_array(path: Path) -> NDArray[Any]:
    """Return a file's array; raises OSError, ValueError, EOFError, BadZipFile."""
    with _READING, os.fdopen(open_regular(path, follow=True), "rb") as file:
        array: NDArray[Any] = np.load(file, allow_pickle=False)
    return array


def map_array(path: Path) -> NDArray[Any]:
    """Return a file's array as a read-only memory map; raises as `load` does."""
    with _READING:
        array: NDArray[Any] = np.load(path, "r", allow_pickle=False)
    return array


class StoredRows:
    """Rows of a file, read when they are asked for.

    The file is not memory-mapped: overwriting a mapped file would crash the process.
    """

    def __init__(self, file: IO[bytes], dtype: np.dtype[Any], count: int) -> None:
        """Keep a file open whose rows begin at its position; raises OSError, ValueError."""
        self.dtype = dtype
        self._count = count
        self._start = file.tell()
        self._file = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._file)
        if os.fstat(file.fileno()).st_size < self._start + count * dtype.itemsize:
            raise ValueError(f"the file ends before {count} rows")

    def __len__(self) -> int:
        """Count the rows."""
        return self._count

    def take(self, ids: NDArray[np.intp]) -> NDArray[Any]:
        """Return the rows with these numbers, in the shape of `ids`; raises ModelError."""
        size = self.dtype.itemsize
        places = (ids.ravel() * size + self._start).tolist()
        try:
            content = b"".join([os.pread(self._file, size, place) for place in places])
            return np.frombuffer(content, self.dtype).reshape(*ids.shape, *self.dtype.shape)
        except (OSError, ValueError) as error:
            raise ModelError(f"cannot read rows of a model any more: {error}") from None


def open_rows(path: Path) -> StoredRows:
    """Open the file of an array of one axis; raises OSError, ValueError."""
    with _READING, os.fdopen(open_regular(path, follow=True), "rb") as file:
        np.lib.format.read_magic(file)
        (count,), _, dtype = np.lib.format.read_array_header_1_0(file)
        return StoredRows(file, dtype, count)


def load_archive(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive; raises OSError, ValueError, EOFError, BadZipFile."""
    with (
        _READING,
        os.fdopen(open_regular(path, follow=True), "rb") as file,
        np.load(file, allow_pickle=False) as saved,
    ):
        return dict(saved)
