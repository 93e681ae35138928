"""Rows of vectors in memory, in the order in which they came: exact ones, and rounded ones."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Rounded rows that are multiplied at a time: half a megabyte of the processor's cache.
_TOGETHER: Final = 512

# gives the products (rows,) of some rows with a query (dimension,)
Products: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class Rows(Protocol):
    """Vectors of length 1 by row; a row never changes, so reading needs no lock."""

    # rows, also of what is forgotten until they are half of all
    end: int
    # whether products are those of the vectors, and no estimates
    is_exact: bool

    def append(self, digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Add vectors (digests, dimension) of texts; raises OSError, and adds none."""

    def take(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) of some rows."""

    def products(self, at: NDArray[np.intp] | None = None) -> Products:
        """Return what gives the products of all rows that there are now, or of few; for a thread.

        What is numbered anew later is not seen by it.
        """

    def some(self, rows: NDArray[np.intp]) -> Any:  # noqa: ANN401 -- of the same kind
        """Return a copy of some rows, which `become` takes; nothing is added before that.

        May be called on a thread while others read. Raises OSError.
        """

    def become(self, some: Any) -> None:  # noqa: ANN401 -- of the same kind
        """Forget all rows but these, which are numbered anew; raises OSError.

        The rows before go to `some`, and are freed with it.
        """


class PlainRows:
    """The vectors themselves, in float32."""

    is_exact = True

    def __init__(self, dimension: int) -> None:
        self.end = 0
        self._buffer = np.empty((0, dimension), np.float32)

    def append(self, _digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Add vectors."""
        self._buffer = extended(self._buffer, self.end, vectors)
        self.end += len(vectors)

    def take(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the vectors of some rows."""
        return self._buffer[rows]

    def products(self, at: NDArray[np.intp] | None = None) -> Products:
        """Return what gives the products of all rows that there are now, or of few."""
        # of so many as the processor's cache does not hold, `matmul` takes twice as long
        return partial(np.vecdot, self._buffer[: self.end] if at is None else self._buffer[at])

    def some(self, rows: NDArray[np.intp]) -> Self:
        """Return a copy of some rows."""
        found = copy(self)
        found._buffer, found.end = self._buffer[rows], len(rows)
        return found

    def become(self, some: Self) -> None:
        """Forget all rows but these."""
        self._buffer, some._buffer = some._buffer, self._buffer
        self.end = some.end


class RoundedRows:
    """The same in a quarter of the memory: 8-bit integers, and a scale for each row.

    Products are about 0.002 off.
    """

    is_exact = True

    def __init__(self, dimension: int) -> None:
        self.end = 0
        kind = np.dtype([("scale", np.float32), ("row", np.int8, (dimension,))])
        self._buffer: NDArray[Any] = np.empty(0, kind)

    def append(self, _digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Add vectors."""
        self._buffer = with_room(self._buffer, self.end, len(vectors))
        rows = self._buffer[self.end : self.end + len(vectors)]
        rows["scale"] = np.abs(vectors).max(axis=1, initial=0) / 127
        rows["row"] = np.rint(vectors / rows["scale"][:, None])
        self.end += len(vectors)

    def take(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the vectors of some rows."""
        found = self._buffer[rows]
        vectors: NDArray[np.float32] = found["row"] * found["scale"][:, None]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def products(self, at: NDArray[np.intp] | None = None) -> Products:
        """Return what gives the products of all rows that there are now, or of few."""
        return partial(_rounded, self._buffer[: self.end] if at is None else self._buffer[at])

    def some(self, rows: NDArray[np.intp]) -> Self:
        """Return a copy of some rows."""
        found = copy(self)
        found._buffer, found.end = self._buffer[rows], len(rows)
        return found

    def become(self, some: Self) -> None:
        """Forget all rows but these."""
        self._buffer, some._buffer = some._buffer, self._buffer
        self.end = some.end


def _rounded(buffer: NDArray[Any], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the products of rounded rows with a query."""
    products = np.empty(len(buffer), np.float32)
    rows = np.empty((_TOGETHER, len(query)), np.float32)
    for start in range(0, len(buffer), _TOGETHER):
        part = buffer["row"][start : start + _TOGETHER]
        rows[: len(part)] = part
        products[start : start + len(part)] = rows[: len(part)] @ query
    products *= buffer["scale"]
    return products


def extended(buffer: NDArray[Any], end: int, more: Any) -> NDArray[Any]:  # noqa: ANN401 -- an array or a list
    """Return a buffer with more rows after its first ones, a larger one if needed.

    Without more rows it is the same one, which nobody has to be able to write.
    """
    if len(more):
        buffer = with_room(buffer, end, len(more))
        buffer[end : end + len(more)] = more
    return buffer


def with_room(buffer: NDArray[Any], end: int, more: int) -> NDArray[Any]:
    """Return a buffer with room for more rows after its first ones, a larger one if needed."""
    if end + more <= len(buffer):
        return buffer
    grown = np.empty((max(end + more, 2 * end, 64), *buffer.shape[1:]), buffer.dtype)
    grown[:end] = buffer[:end]
    return grown
