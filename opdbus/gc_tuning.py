"""The heap: freed blocks go back to the system, and no search for garbage stops the event loop."""

import ctypes
import gc
from contextlib import suppress
from typing import Final

# The parameters of mallopt that malloc.h names so.
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# Vectors of a batch and large replies are above it, most objects far below.
_LARGE_BYTES: Final = 128 << 10
# Python lets one thread at a time allocate most of what there is.
_ARENAS: Final = 2
# Growth of what is kept at which it is set apart again.
_GROWTH: Final = 1.25


def give_back() -> None:
    """Take each large block from the system by itself; with a C library other than glibc, nothing.

    Otherwise glibc cuts them out of its heaps once a first one has been freed, and small blocks
    that come to lie behind them keep these from ever shrinking: 15% more memory within minutes.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)


class Kept:
    """What a long-lived program keeps, set apart from the search for garbage in cycles.

    That looks at all there is, again and again: at thousands of objects for 60 ms. What is set
    apart is still freed when nobody holds it, but never if it has become part of a cycle: what is
    large and can be replaced must have none.
    """

    def __init__(self) -> None:
        self._size = 0.0

    def grown_to(self, size: int) -> None:
        """Set apart all there is, if it has grown enough since the last time."""
        if size >= self._size * _GROWTH:
            self._size = max(size, 1000)
            self.set_apart()

    def set_apart(self) -> None:
        """Set apart all there is but garbage, which is looked for among what has come since."""
        gc.collect()
        gc.freeze()
