"""Vectors in memory, one row per text, compared exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray


class Vectors:
    """A matrix of unit vectors; a row is never changed, so reading needs no lock."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._rows: dict[bytes, int] = {}
        # rows in use, dropped ones included until they are half of all
        self._end = 0
        self._buffer = np.empty((0, dimension), np.float32)
        # grows with every change of what is in which row
        self.version = 0

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._rows)

    def __contains__(self, key: object) -> bool:
        """Tell whether a key has a vector."""
        return key in self._rows

    def add(self, keys: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Append vectors (keys, dimension) under keys that are not there yet."""
        start = self._end
        end = start + len(keys)
        if end > len(self._buffer):
            grown = np.empty((max(end, 2 * start, 64), self.dimension), np.float32)
            grown[:start] = self._buffer[:start]
            self._buffer = grown
        self._buffer[start:end] = vectors
        self._end = end
        self.version += 1
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
        result: NDArray[np.float32] = self._buffer[: self._end] @ query
        return result

    def drop(self, keys: Iterable[bytes]) -> None:
        """Forget vectors, and make the matrix smaller once half of it is forgotten."""
        self.version += 1
        for key in keys:
            self._rows.pop(key, None)
        if len(self._rows) * 2 <= self._end:
            self._buffer = self._buffer[list(self._rows.values())]
            self._rows = {key: row for row, key in enumerate(self._rows)}
            self._end = len(self._rows)
