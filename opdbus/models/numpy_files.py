"""Loading of numpy files, one thread at a time."""

import os
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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


def load_archive(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of an archive; raises OSError, ValueError, EOFError, BadZipFile."""
    with (
        _READING,
        os.fdopen(open_regular(path, follow=True), "rb") as file,
        np.load(file, allow_pickle=False) as saved,
    ):
        return dict(saved)
