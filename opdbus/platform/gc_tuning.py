"""Settings of glibc and Python's garbage collector for a long-lived process with many objects."""

import ctypes
import gc
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final

# Parameters of mallopt, as numbered in malloc.h.
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# Vectors of a batch and large replies are larger than this, most objects much smaller.
_LARGE_BYTES: Final = 128 << 10
# Under Python's lock one thread at a time allocates, so that two arenas are enough.
_ARENAS: Final = 2
# Memory is trimmed when the number of objects falls by this factor; fewer than _FEW count as _FEW.
_SHRUNK: Final = 1.25
_FEW: Final = 1000
# Thresholds of the generations: new objects before a collection of the youngest, then collections
# before one of the next. Python's default of 700 is too low, since most objects that are made for a
# state object are freed some thousand objects later.
_SEARCHES: Final = (5000, 10, 10)


def limit_fragmentation() -> None:
    """Have glibc allocate each large block with mmap; other C libraries are left as they are.

    By default glibc raises its mmap threshold once a large block is freed. Small blocks behind
    large ones then keep its heaps from shrinking.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if there is no /proc."""
    try:
        return int(os.pread(_statm(), 256, 0).split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


@cache
def _statm() -> int:
    """Return a descriptor of /proc/self/statm, opened once: it is read often."""
    return os.open("/proc/self/statm", os.O_RDONLY)


def keep_searches_short() -> None:
    """Have no garbage collection examine the present objects: modules, and all stored entries.

    Later objects are examined, since what is frozen is not freed as part of a cycle: requests are.
    """
    gc.freeze()
    # resets the total by which Python defers collections of the oldest generation
    gc.collect()
    gc.set_threshold(*_SEARCHES)


@contextmanager
def pause() -> Iterator[None]:
    """Disable garbage collection while many lasting objects are made."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def trim() -> None:
    """Have glibc return the free pages of its heaps, which takes some milliseconds.

    By itself glibc returns only free memory at the end of a heap.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Heap:
    """Trimming of glibc's heaps after the number of state objects has fallen."""

    def __init__(self, trim: Callable[[], None] = trim) -> None:
        self._trim = trim
        self._most = 0

    def hold(self, size: int) -> None:
        """Record the number of state objects."""
        self._most = max(self._most, size)

    def trim_if_shrunk(self, size: int) -> None:
        """Trim if the number has fallen far below the maximum since the last trim."""
        if max(size, _FEW) * _SHRUNK < self._most:
            self._most = size
            self._trim()
