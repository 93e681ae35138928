"""Append-only rows of unit vectors in memory, as float32 or as scaled int8."""

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from typing import Any, Final, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

# Int8 rows converted to float32 and multiplied at a time, so that they stay in the CPU cache.
_TOGETHER: Final = 512

# Computes the dot products (rows,) of chosen rows with a query (dimension,).
Products: TypeAlias = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class VectorStorage(Protocol):
    """Storage of unit vectors by row; a row never changes, so reading needs no lock."""

    # number of rows; rows of forgotten texts count until they are half of all
    end: int
    # False if `products` returns estimates
    is_exact: bool

    def append(self, digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Append the vectors (digests, dimension) of texts; on OSError, append none."""

    def take(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) of rows."""

    def products(self, at: NDArray[np.intp] | None = None) -> Products:
        """Return a function that computes dot products with all current rows, or with rows `at`.

        It may be called on any thread and keeps its rows when `replace_with` renumbers them.
        """

    def copy_subset(self, rows: NDArray[np.intp]) -> Any:  # noqa: ANN401 -- of the same kind
        """Return a copy of rows for `replace_with`; append nothing between the two calls.

        May run on any thread while others read. Raises OSError.
        """

    def replace_with(self, subset: Any) -> None:  # noqa: ANN401 -- of the same kind
        """Replace all rows with those of `subset`, numbered from 0; raises OSError.

        `subset` receives the old rows, which are freed with it.
        """


class PlainRows:
    """Exact vectors in float32."""

    is_exact = True

    def __init__(self, dimension: int) -> None:
        self.end = 0
        self._buffer = np.empty((0, dimension), np.float32)

    def append(self, _digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Append vectors (rows, dimension)."""
        self._buffer = append_rows(self._buffer, self.end, vectors)
        self.end += len(vectors)

    def take(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) of rows."""
        return self._buffer[rows]

    def products(self, at: NDArray[np.intp] | None = None) -> Products:
        """Return a function that computes dot products with all current rows, or rows `at`."""
        # `matmul` is slower once the rows exceed the CPU cache
        return partial(np.vecdot, self._buffer[: self.end] if at is None else self._buffer[at])

    def copy_subset(self, rows: NDArray[np.intp]) -> Self:
        """Return a copy of rows."""
        found = copy(self)
        found._buffer, found.end = self._buffer[rows], len(rows)
        return found

    def replace_with(self, subset: Self) -> None:
        """Replace all rows with those of `subset`, which receives the old ones."""
        self._buffer, subset._buffer = subset._buffer, self._buffer
        self.end = subset.end


class RoundedRows:
    """Vectors quantized to int8 with one scale per row: a quarter of the memory of float32.

    Products differ by about 0.002 from the exact ones.
    """

    is_exact = True

    def __init__(self, dimension: int) -> None:
        self.end = 0
        kind = np.dtype([("scale", np.float32), ("row", np.int8, (dimension,))])
        self._buffer: NDArray[Any] = np.empty(0, kind)

    def append(self, _digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Append vectors (rows, dimension)."""
        self._buffer = with_room(self._buffer, self.end, len(vectors))
        rows = self._buffer[self.end : self.end + len(vectors)]
        rows["scale"] = np.abs(vectors).max(axis=1, initial=0) / 127
        rows["row"] = np.rint(vectors / rows["scale"][:, None])
        self.end += len(vectors)

    def take(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) of rows."""
        found = self._buffer[rows]
        vectors: NDArray[np.float32] = found["row"] * found["scale"][:, None]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def products(self, at: NDArray[np.intp] | None = None) -> Products:
        """Return a function that computes dot products with all current rows, or rows `at`."""
        return partial(_int8_products, self._buffer[: self.end] if at is None else self._buffer[at])

    def copy_subset(self, rows: NDArray[np.intp]) -> Self:
        """Return a copy of rows."""
        found = copy(self)
        found._buffer, found.end = self._buffer[rows], len(rows)
        return found

    def replace_with(self, subset: Self) -> None:
        """Replace all rows with those of `subset`, which receives the old ones."""
        self._buffer, subset._buffer = subset._buffer, self._buffer
        self.end = subset.end


def _int8_products(buffer: NDArray[Any], query: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the dot products (rows,) of int8 rows with a query (dimension,)."""
    products = np.empty(len(buffer), np.float32)
    rows = np.empty((_TOGETHER, len(query)), np.float32)
    for start in range(0, len(buffer), _TOGETHER):
        part = buffer["row"][start : start + _TOGETHER]
        rows[: len(part)] = part
        products[start : start + len(part)] = rows[: len(part)] @ query
    products *= buffer["scale"]
    return products


def append_rows(buffer: NDArray[Any], end: int, more: Any) -> NDArray[Any]:  # noqa: ANN401 -- an array or a list
    """Return a buffer with `more` written from row `end` on, reallocated if it is too small.

    If `more` is empty, return `buffer` itself, which may be read-only.
    """
    if len(more):
        buffer = with_room(buffer, end, len(more))
        buffer[end : end + len(more)] = more
    return buffer


def with_room(buffer: NDArray[Any], end: int, more: int) -> NDArray[Any]:
    """Return a buffer with room for `more` rows after row `end`, reallocated if too small."""
    if end + more <= len(buffer):
        return buffer
    grown = np.empty((max(end + more, end + end // 2, 64), *buffer.shape[1:]), buffer.dtype)
    grown[:end] = buffer[:end]
    return grown
