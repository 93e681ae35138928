"""An engine with the vectors that it made: what vector search and similarity need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from opdbus.index.vectors import Vectors
from opdbus.state.object import digest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opdbus.engine.embedder import Embedder
    from opdbus.index.catalogue import View
    from opdbus.index.store import Entry, Store


class Engine:
    """The embedder and the vectors that it made, by digest of their text."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.vectors = Vectors(embedder.dimension)
        # digests of texts whose vectors could not be stored yet
        self.unsaved: set[bytes] = set()
        self._salt = digest(embedder.numerics.encode())
        self._rows: tuple[tuple[int, int], NDArray[np.intp]] | None = None

    def key(self, text_digest: bytes) -> bytes:
        """Give the vector key of a text: hash(numerics, text)."""
        return digest(text_digest, key=self._salt)

    def rows(self, view: View) -> NDArray[np.intp]:
        """Give the row of each place of a view in `vectors`, -1 where it has none."""
        versions = view.version, self.vectors.version
        if self._rows is None or self._rows[0] != versions:
            row = self.vectors.row
            rows = [row(entry.text_digest) if entry else -1 for entry in view.entries]
            self._rows = versions, np.array(rows, np.intp)
        return self._rows[1]

    def vector(self, entry: Entry) -> NDArray[np.float32] | None:
        """Give the vector of an entry, if it is computed."""
        return self.vectors.get(entry.text_digest)


def stored_vectors(
    store: Store, wanted: set[bytes], engine: Engine
) -> tuple[list[bytes], NDArray[np.float32]]:
    """Read the digests and vectors (digests, dimension) of wanted texts that this engine made.

    One of another size is damaged, and left to be computed again.
    """
    size = 4 * engine.vectors.dimension
    rows = [
        (text_digest, data)
        for key, text_digest, data in store.vectors()
        if text_digest in wanted and key == engine.key(text_digest) and len(data) == size
    ]
    matrix = np.frombuffer(b"".join(data for _, data in rows), "<f4")
    return [row[0] for row in rows], matrix.reshape(len(rows), engine.vectors.dimension)
