"""The heap: large blocks that are freed go back to the system."""

import ctypes
from contextlib import suppress
from typing import Final

# The parameters of mallopt that malloc.h names so.
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
# Vectors of a batch and large replies are above it, most objects far below.
_LARGE_BYTES: Final = 128 << 10
# Python lets one thread at a time allocate most of what there is.
_ARENAS: Final = 2


def give_back() -> None:
    """Take each large block from the system by itself; with a C library other than glibc, nothing.

    Otherwise glibc cuts them out of its heaps once a first one has been freed, and small blocks
    that come to lie behind them keep these from ever shrinking: 15% more memory within minutes.
    """
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_ARENA_MAX, _ARENAS)
