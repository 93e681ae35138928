"""Division of work into short parts, so that other tasks and threads run in between."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, Self, TypeVar


class _Sliceable(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Self: ...


S = TypeVar("S", bound=_Sliceable)
T = TypeVar("T")
R = TypeVar("R")

# Items handled in one turn of the event loop: about a millisecond of work.
_A_TURN: Final = 100
_TURN_SECONDS: Final = 0.005
# Elements of an array per part: intermediate results stay in the processor's cache, and the
# overhead of each part is small.
_TOGETHER: Final = 1 << 15


def slices(items: S, size: int) -> Iterator[S]:
    """Yield slices of a sequence, of `size` items each; the last may be shorter."""
    return (items[start : start + size] for start in range(0, len(items), size))


def parts(size: int) -> Iterator[slice]:
    """Yield slices of an array of `size` elements, each short enough for the processor's cache."""
    starts = range(0, size, _TOGETHER)
    return (slice(start, min(start + _TOGETHER, size)) for start in starts)


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield lists of `size` items, read on demand; the last may be shorter, none is empty."""
    rest = iter(items)
    return iter(lambda: [*islice(rest, size)], [])


async def each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results of a function for all items.

    Yields to the event loop after each 100, or earlier if they take long.
    """
    found: list[R] = []
    end = time.thread_time() + _TURN_SECONDS
    for item in items:
        if found and (len(found) % _A_TURN == 0 or time.thread_time() > end):
            await asyncio.sleep(0)
            end = time.thread_time() + _TURN_SECONDS
        found.append(work(item))
    return found
