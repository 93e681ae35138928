"""Memory of a long-lived process: freed blocks go back, and garbage collection stays short."""

import ctypes
import gc
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Final

# The parameters of mallopt that malloc.h names so.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# Vectors of a batch and large replies are above it, most objects far below.
_LARGE_BYTES: Final = 128 << 10
# A search of so many objects or more makes arrays that are worth keeping, of at most these bytes.
_VERY_MANY: Final = 50_000
_LARGEST_BYTES: Final = 8 << 20
_KEPT_BYTES: Final = 64 << 20
# Python lets one thread at a time allocate most of what there is.
_ARENAS: Final = 2
# How much the number of objects shrinks before what they took is given back; few take little.
_SHRUNK: Final = 1.25
_FEW: Final = 1000
# What takes longer to search, of the processor's time, is not searched again.
_LONG_SECONDS: Final = 0.001
# So many new objects come before a search of these, so many searches before one of what they left,
# and so many of those before one of all that is not frozen: 35,000, since 75,000 take 20 ms. Much
# that is made for a state object is gone after some thousands more: 700, as usual, are too few.
_SEARCHES: Final = (5000, 1, 1)
# The oldest generation that Python searches by itself; 3.14 searches parts of the old one as 1.
_OLDEST: Final = 1 if sys.version_info >= (3, 14) else 2


def limit_fragmentation() -> None:
    """Have glibc map each large block by itself; other C libraries are left as they are.

    Otherwise it cuts large blocks out of its heaps once the first one was freed, and small blocks
    that come to lie behind them keep those heaps from shrinking: 15% more memory within minutes.
    """
    _tune({_M_MMAP_THRESHOLD: _LARGE_BYTES, _M_ARENA_MAX: _ARENAS})


def keep_arrays() -> None:
    """Have glibc keep the room of large arrays for the next ones, as limit_fragmentation does not.

    A search among a million objects makes many of 4 MB: where the kernel maps and clears each anew,
    it takes 52 ms instead of 37. That they are kept costs 75 MB there, and 10 among 100,000.
    """
    _tune({_M_MMAP_THRESHOLD: _LARGEST_BYTES, _M_TRIM_THRESHOLD: _KEPT_BYTES})


def _tune(parameters: Mapping[int, int]) -> None:
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        for parameter, value in parameters.items():
            libc.mallopt(parameter, value)


def resident_bytes() -> int:
    """Return how much memory this process has in use; 0 where there is no /proc to ask."""
    try:
        return int(os.pread(_statm(), 256, 0).split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


@cache
def _statm() -> int:
    """Open what the kernel says of this process's memory, once: it is read often."""
    return os.open("/proc/self/statm", os.O_RDONLY)


def keep_searches_short() -> None:
    """Have each search for garbage look at new objects only: nothing else runs meanwhile.

    Python would look through all objects whenever there are a quarter more: half a second with
    100,000 state objects. What was searched and is many is frozen: it is still freed when nothing
    refers to it, but not when it is part of a cycle: what is large and can be replaced must have
    none.
    """
    gc.freeze()
    # so that Python compares with nothing what has come since
    gc.collect()
    gc.set_threshold(*_SEARCHES)
    gc.callbacks.append(_freeze_many(time.thread_time))


@contextmanager
def paused() -> Iterator[None]:
    """Search for no garbage while much is made that stays."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _freeze_many(clock: Callable[[], float]) -> Callable[[str, Mapping[str, int]], None]:
    """Return what freezes all that took long to be searched.

    To count the objects would take longer than to search them.
    """
    began = 0.0

    def follow(phase: str, info: Mapping[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = clock()
        elif info["generation"] >= _OLDEST and clock() - began > _LONG_SECONDS:
            gc.freeze()

    return follow


def trim() -> None:
    """Have glibc give back the free pages of its heaps, which takes some milliseconds.

    By itself it gives back the end of a heap only: 20 MiB of 20,000 objects stay before it.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Heap:
    """Keeps room for searches among very many state objects; gives back what most of them took."""

    def __init__(self, trim: Callable[[], None] = trim) -> None:
        self._trim = trim
        self._most = 0

    def hold(self, size: int) -> None:
        """Note how many state objects there are."""
        if self._most < _VERY_MANY <= size:
            keep_arrays()
        self._most = max(self._most, size)

    def trim_if_shrunk(self, size: int) -> None:
        """Trim if far fewer are left than there were since the last time."""
        if max(size, _FEW) * _SHRUNK < self._most:
            self._most = size
            self._trim()
