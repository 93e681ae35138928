"""Numbers and use counts of the distinct texts of all entries, and their rows in vector indexes."""

from collections.abc import Iterable, Sequence
from typing import Final
from weakref import ref

import numpy as np
from numpy.typing import NDArray

# The number of an unknown text, and the row of a text without one.
NO_TEXT: Final = 0
NO_ROW: Final = -1
# The use count of a number that no text has.
_FREE: Final = -1
_FIRST_SIZE: Final = 64
_LAST_KEY: Final = (1 << 64) - 1


class Layer:
    """Rows of one vector index by text number."""

    def __init__(self, size: int) -> None:
        self.rows = np.full(size, NO_ROW, np.int32)
        # increases with every change of `rows`
        self.version = 0

    @property
    def filled(self) -> int:
        """The number of texts with a row."""
        return int(np.count_nonzero(self.rows >= 0))

    def put(self, numbers: NDArray[np.signedinteger], rows: NDArray[np.int32] | int) -> None:
        """Set the rows of texts, or NO_ROW for all of them."""
        self.rows[numbers] = rows
        self.version += 1


class TextTable:
    """Table of distinct texts with their numbers, and counts of the entries that use them.

    A text that no entry uses keeps its number and its rows until it is forgotten.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        # by number: digest, and entries with the text
        self._digests = [b""]
        self._uses = np.full(_FIRST_SIZE, _FREE, np.int32)
        self._free: list[int] = []
        self._layers: list[ref[Layer]] = []

    def __len__(self) -> int:
        """Return the number of texts, with unused ones."""
        return len(self._numbers)

    def layer(self) -> Layer:
        """Return a new layer without rows; the table holds it weakly and keeps it up to date."""
        made = Layer(len(self._uses))
        self._layers = [*(one for one in self._layers if one()), ref(made)]
        return made

    def find(self, digest: bytes) -> int:
        """Return the number of a text by digest, NO_TEXT if it is unknown."""
        return self._numbers.get(digest, NO_TEXT)

    def find_each(self, digests: Iterable[bytes]) -> NDArray[np.int32]:
        """Return the numbers of texts by digest, NO_TEXT for unknown ones."""
        return np.array([self._numbers.get(digest, NO_TEXT) for digest in digests], np.int32)

    def number(self, digest: bytes) -> int:
        """Return the number of a text by digest, added as unused if it is unknown."""
        return self._numbers.get(digest) or self._add(digest)

    def _add(self, digest: bytes) -> int:
        if not self._free:
            self._free.append(len(self._digests))
            self._digests.append(b"")
        number = self._free.pop()
        if number >= len(self._uses):
            self._grow(len(self._uses) // 4)
        self._numbers[digest], self._digests[number] = number, digest
        self._uses[number] = 0
        return number

    def sample(self, numbers: NDArray[np.intp], count: int) -> NDArray[np.intp]:
        """Return about `count` of the texts, chosen by digest and so independent of their order."""
        first = np.frombuffer(b"".join(self.digests(numbers)), np.uint64)[::2]
        return numbers[first <= np.uint64(_LAST_KEY * min(count, len(numbers)) // len(numbers))]

    def digests(self, numbers: NDArray[np.intp]) -> list[bytes]:
        """Return the digests of texts."""
        return [*map(self._digests.__getitem__, numbers.tolist())]

    def are_used(self, numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return a mask of the texts, given by number, that an entry uses."""
        return self._uses[numbers] > 0

    def hold(self, digests: Iterable[bytes]) -> NDArray[np.intp]:
        """Count the texts of new entries, and return the numbers of the texts."""
        numbers = np.array([*map(self.number, digests)], np.intp)
        np.add.at(self._uses, numbers, 1)
        return numbers

    def release(self, digests: Iterable[bytes]) -> None:
        """Count the texts of removed entries, and forget all unused ones if there is no layer."""
        numbers = self.find_each(digests)
        np.subtract.at(self._uses, numbers, 1)
        if not self._uses[numbers].all() and not self._alive():
            self._forget(self._unused())

    def count_missing(self, layer: Layer) -> int:
        """Return the number of used texts without a row."""
        return int(np.count_nonzero((layer.rows < 0) & (self._uses > 0)))

    def missing_texts(self, layer: Layer, most: int) -> list[bytes]:
        """Return at most `most` used texts without a row, by ascending number."""
        return self.digests(np.flatnonzero((layer.rows < 0) & (self._uses > 0))[:most])

    def count_unused(self) -> int:
        """Count the texts that no entry uses."""
        return len(self._unused())

    def unused(self, most: int | None = None) -> list[bytes]:
        """Return texts that no entry uses, at most `most`."""
        return self.digests(self._unused()[:most])

    def _unused(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._uses == 0)

    def forget(self, digests: Sequence[bytes]) -> None:
        """Forget those of these texts that no entry uses, with their rows."""
        numbers = self.find_each(digests)
        self._forget(numbers[self._uses[numbers] == 0].astype(np.intp))

    def _forget(self, numbers: NDArray[np.intp]) -> None:
        for digest in self.digests(numbers):
            del self._numbers[digest]
        self._uses[numbers] = _FREE
        self._free += numbers.tolist()
        for layer in self._alive():
            layer.put(numbers, NO_ROW)

    def _grow(self, more: int) -> None:
        """Make room for more numbers in all arrays."""
        self._uses = np.pad(self._uses, (0, more), constant_values=_FREE)
        for layer in self._alive():
            layer.rows = np.pad(layer.rows, (0, more), constant_values=NO_ROW)

    def _alive(self) -> list[Layer]:
        return [layer for one in self._layers if (layer := one())]
