"""Vectors in memory, one row per text, compared exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from numpy.typing import NDArray


class Vectors:
    """An append-only matrix of unit vectors; rows are never changed, so reading needs no lock."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._rows: dict[bytes, int] = {}
        self._buffer = np.empty((0, dimension), np.float32)

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        """Tell whether a key has a vector."""
        return key in self._rows

    def add(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Append vectors (keys, dimension) under keys that are not there yet."""
        start = len(self._rows)
        end = start + len(keys)
        if end > len(self._buffer):
            grown = np.empty((max(end, 2 * start, 64), self.dimension), np.float32)
            grown[:start] = self._buffer[:start]
            self._buffer = grown
        self._buffer[start:end] = vectors
        self._rows.update(zip(keys, range(start, end), strict=True))

    def row(self, key: bytes) -> int:
        """Give the row of a key, -1 if it has none."""
        return self._rows.get(key, -1)

    def get(self, key: bytes) -> NDArray[np.float32] | None:
        """Give the vector (dimension,) of a key."""
        row = self._rows.get(key)
        return None if row is None else self._buffer[row]

    def scores(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Give the cosine of `query` (dimension,) of length 1 with every row."""
        result: NDArray[np.float32] = self._buffer[: len(self._rows)] @ query
        return result

    def retain(self, keys: Container[bytes]) -> None:
        """Drop all other rows, once they are at least half of the matrix."""
        kept = [key for key in self._rows if key in keys]
        if len(kept) * 2 > len(self._rows):
            return
        self._buffer = self._buffer[[self._rows[key] for key in kept]]
        self._rows = {key: row for row, key in enumerate(kept)}
