"""The vectors of one model and precision in memory, one row per text, compared exactly."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue import View
from opdbus.index.store import Entry, Store
from opdbus.state.object import digest


class VectorIndex:
    """A matrix of unit vectors by digest of their text, all of the same `numerics`.

    A row never changes, so reading needs no lock.
    """

    def __init__(self, numerics: str, dimension: int) -> None:
        self.numerics = numerics
        self.dimension = dimension
        # digests of texts whose vectors could not be stored yet
        self.unsaved: set[bytes] = set()
        # grows with every change of what is in which row
        self.version = 0
        # what vectors of these numerics are kept under
        self.engine = digest(numerics.encode())
        self._rows: dict[bytes, int] = {}
        # rows in use, dropped ones included until they are half of all
        self._end = 0
        self._buffer = np.empty((0, dimension), np.float32)
        self._places: tuple[tuple[int, int], NDArray[np.intp]] | None = None

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._rows)

    def __contains__(self, text_digest: object) -> bool:
        """Return whether a text has a vector."""
        return text_digest in self._rows

    def lacking(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries whose texts have no vector."""
        rows = self._rows
        return [entry for entry in entries if entry.text_digest not in rows]

    def key(self, text_digest: bytes) -> bytes:
        """Return the vector key of a text: hash(numerics, text)."""
        return digest(text_digest, key=self.engine)

    def get(self, text_digest: bytes) -> NDArray[np.float32] | None:
        """Return the vector (dimension,) of a text."""
        row = self._rows.get(text_digest)
        return None if row is None else self._buffer[row]

    def cosines(self, query: NDArray[np.float32], view: View) -> NDArray[np.float32]:
        """Return the cosine of `query` (dimension,) of length 1 with each entry of a view.

        NaN where an entry has no vector.
        """
        # row -1, of an entry without a vector, is the NaN at the end
        scores = np.append(self._buffer[: self._end] @ query, np.float32("nan"))
        cosines: NDArray[np.float32] = scores[self._rows_of(view)]
        return cosines

    def _rows_of(self, view: View) -> NDArray[np.intp]:
        versions = view.version, self.version
        if self._places is None or self._places[0] != versions:
            row = self._rows.get
            rows = [row(entry.text_digest, -1) if entry else -1 for entry in view.entries]
            self._places = versions, np.array(rows, np.intp)
        return self._places[1]

    def add(self, digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Append vectors (digests, dimension) of texts that have none yet."""
        start = self._end
        end = start + len(digests)
        if end > len(self._buffer):
            grown = np.empty((max(end, 2 * start, 64), self.dimension), np.float32)
            grown[:start] = self._buffer[:start]
            self._buffer = grown
        self._buffer[start:end] = vectors
        self._end = end
        self.version += 1
        self._rows.update(zip(digests, range(start, end), strict=True))

    def drop(self, digests: Iterable[bytes]) -> None:
        """Forget vectors, and make the matrix smaller once half of it is forgotten."""
        self.version += 1
        for text_digest in digests:
            self._rows.pop(text_digest, None)
        if len(self._rows) * 2 <= self._end:
            self._buffer = self._buffer[list(self._rows.values())]
            self._rows = {text_digest: row for row, text_digest in enumerate(self._rows)}
            self._end = len(self._rows)

    def recall(self, store: Store, wanted: set[bytes]) -> None:
        """Add the kept vectors of wanted texts; one of another size is damaged, and left out."""
        size = 4 * self.dimension
        rows = [
            (text_digest, data)
            for key, text_digest, data in store.vectors()
            if text_digest in wanted and key == self.key(text_digest) and len(data) == size
        ]
        matrix = np.frombuffer(b"".join(data for _, data in rows), "<f4")
        self.add([row[0] for row in rows], matrix.reshape(len(rows), self.dimension))
