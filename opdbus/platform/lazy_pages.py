"""Large arrays of which few rows are used."""

import mmap

import numpy as np
from numpy.typing import NDArray


def zeros_by_page(rows: int, columns: int) -> NDArray[np.float32]:
    """Return zeros (rows, columns) whose memory is allocated by the page, on first use.

    The kernel may give numpy's own large arrays in pages of 2 MiB.
    """
    size = rows * columns * np.dtype(np.float32).itemsize
    return np.frombuffer(mmap.mmap(-1, size), np.float32).reshape(rows, columns)
