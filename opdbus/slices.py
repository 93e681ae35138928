"""Much is worked on in parts, of which each takes a moment."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol, Self, TypeVar


class _Sliceable(Protocol):
    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> Self: ...


S = TypeVar("S", bound=_Sliceable)
T = TypeVar("T")


def slices(items: S, size: int) -> Iterator[S]:
    """Yield a sequence in parts of so many items, of the sequence's own type."""
    return (items[start : start + size] for start in range(0, len(items), size))


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield what comes in lists of so many items, each when it is asked for; none is empty."""
    rest = iter(items)
    return iter(lambda: [*islice(rest, size)], [])
