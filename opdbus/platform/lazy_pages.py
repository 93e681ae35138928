"""Large arrays of which few rows are used."""

import mmap
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from opdbus.platform.lean_imports import distinct


def zeros_by_page(rows: int, columns: int) -> NDArray[np.float32]:
    """Return zeros (rows, columns) whose memory is allocated by the page, on first use.

    The kernel may give numpy's own large arrays in pages of 2 MiB.
    """
    size = rows * columns * np.dtype(np.float32).itemsize
    return np.frombuffer(mmap.mmap(-1, size), np.float32).reshape(rows, columns)


class LazyRows:
    """Rows in single precision, read on first use; those that are not read are zeros.

    `read` returns the rows with the given numbers. Threads that read the same rows write equal
    values.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        read: Callable[[NDArray[np.int64]], NDArray[np.float32]],
    ) -> None:
        self.values = zeros_by_page(*shape)
        self._read = read
        self._is_read = np.zeros(len(self.values), np.bool_)

    def require(self, ids: NDArray[np.int64]) -> None:
        """Read the rows with these numbers, unless that is done."""
        missing = ids.compress(~self._is_read.take(ids))
        if len(missing):
            new = distinct(missing)
            self.values[new] = self._read(new)
            self._is_read[new] = True
