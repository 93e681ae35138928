"""Memory of a long-lived process: freed blocks go back, and garbage collection stays short."""

import ctypes
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Final

# The parameters of mallopt that malloc.h names so.
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# Vectors of a batch and large replies are above it, most objects far below.
_LARGE_BYTES: Final = 128 << 10
# Python lets one thread at a time allocate most of what there is.
_ARENAS: Final = 2
# By how much the number of objects grows before they are frozen again, or shrinks before what they
# took is given back; fewer than so many take little.
_GROWTH: Final = 1.25
_FEW: Final = 1000
# So many collections of younger objects come before one of all objects; Python's default is 10.
_YOUNGER: Final = 50


def limit_fragmentation() -> None:
    """Have glibc map each large block by itself; other C libraries are left as they are.

    Otherwise it cuts large blocks out of its heaps once the first one was freed, and small blocks
    that come to lie behind them keep those heaps from shrinking: 15% more memory within minutes.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)


def collect_all_rarely() -> None:
    """Look through all objects for garbage a fifth as often as Python does.

    Nothing else runs meanwhile: 40 ms several times while a file with 20,000 objects is taken in.
    """
    gc.set_threshold(*gc.get_threshold()[:2], _YOUNGER)


class FrozenObjects:
    """Objects that the garbage collector no longer looks at.

    It visits every object again and again, which takes 60 ms for thousands of state objects. Frozen
    ones are still freed when nothing refers to them, but not when they are part of a cycle: what is
    large and can be replaced must have none.
    """

    def __init__(self) -> None:
        self._size = 0.0

    def freeze_if_grown(self, size: int) -> None:
        """Freeze if the number of state objects has grown enough since the last time."""
        if size >= self._size * _GROWTH:
            self._size = max(size, _FEW)
            self.freeze()

    def freeze(self) -> None:
        """Collect garbage once, and freeze everything that is left."""
        gc.collect()
        gc.freeze()


def trim() -> None:
    """Have glibc give back the free pages of its heaps, which takes some milliseconds.

    By itself it gives back the end of a heap only: 20 MiB of 20,000 objects stay before it.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Heap:
    """Gives back what many state objects took, once most of them are gone."""

    def __init__(self, trim: Callable[[], None] = trim) -> None:
        self._trim = trim
        self._most = 0

    def hold(self, size: int) -> None:
        """Note how many state objects there are."""
        self._most = max(self._most, size)

    def trim_if_shrunk(self, size: int) -> None:
        """Trim if far fewer are left than there were since the last time."""
        if max(size, _FEW) * _GROWTH < self._most:
            self._most = size
            self._trim()
