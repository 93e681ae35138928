"""Settings of glibc and Python's garbage collector for a long-lived process with many objects."""

import ctypes
import gc
import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final

# Parameters of mallopt, as numbered in malloc.h.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# Vectors of a batch and large replies are larger than this, most objects much smaller.
_LARGE_BYTES: Final = 128 << 10
# From this number of state objects on, search arrays of up to _LARGEST_BYTES are kept.
_VERY_MANY: Final = 50_000
_LARGEST_BYTES: Final = 8 << 20
_KEPT_BYTES: Final = 64 << 20
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
    _tune({_M_MMAP_THRESHOLD: _LARGE_BYTES, _M_ARENA_MAX: _ARENAS})


def keep_arrays() -> None:
    """Have glibc keep the memory of large arrays for reuse, unlike limit_fragmentation.

    Each search among a million objects allocates many arrays of 4 MB; mapping and clearing them
    anew takes longer than reuse. The price is idle memory, about 75 MB.
    """
    _tune({_M_MMAP_THRESHOLD: _LARGEST_BYTES, _M_TRIM_THRESHOLD: _KEPT_BYTES})


def _tune(parameters: Mapping[int, int]) -> None:
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in parameters.items():
            libc.mallopt(parameter, value)


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
    """Have no garbage collection examine what is there now: modules, classes and functions.

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
    """Tuner of glibc by the number of state objects: keeps arrays if many, trims after a fall."""

    def __init__(self, trim: Callable[[], None] = trim) -> None:
        self._trim = trim
        self._most = 0

    def hold(self, size: int) -> None:
        """Record the number of state objects."""
        if self._most < _VERY_MANY <= size:
            keep_arrays()
        self._most = max(self._most, size)

    def trim_if_shrunk(self, size: int) -> None:
        """Trim if the number has fallen far below the maximum since the last trim."""
        if max(size, _FEW) * _SHRUNK < self._most:
            self._most = size
            self._trim()
