"""Much is worked on in parts, of which each takes a moment."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, Self, TypeVar


class _Sliceable(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Self: ...


S = TypeVar("S", bound=_Sliceable)
T = TypeVar("T")
R = TypeVar("R")

# Items that are worked on in one turn of the event loop: a millisecond's work.
_A_TURN: Final = 100
# Numbers of an array that are worked on at a time: what is between stays in the processor's cache.
# With a quarter of them, a search among a million took 1.3 ms more, to begin each part.
_TOGETHER: Final = 1 << 15


def slices(items: S, size: int) -> Iterator[S]:
    """Yield a sequence in parts of so many items, of the sequence's own type."""
    return (items[start : start + size] for start in range(0, len(items), size))


def parts(size: int) -> Iterator[slice]:
    """Yield arrays of so many numbers in parts that are small enough to be worked on quickly."""
    starts = range(0, size, _TOGETHER)
    return (slice(start, min(start + _TOGETHER, size)) for start in starts)


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield what comes in lists of so many items, each when it is asked for; none is empty."""
    rest = iter(items)
    return iter(lambda: [*islice(rest, size)], [])


async def each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return what a function makes of each item; others run meanwhile where there are many."""
    found: list[R] = []
    for start in range(0, len(items), _A_TURN):
        if start:
            await asyncio.sleep(0)
        found += map(work, items[start : start + _A_TURN])
    return found
