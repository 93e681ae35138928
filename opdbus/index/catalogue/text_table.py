"""Numbers and use counts of the distinct texts of all entries, and their rows in vector indexes."""

from collections.abc import Iterable, Sequence
from typing import Final
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.hash_table import HashTable
from opdbus.state.object import DIGEST_BYTES, ObjectId

# The number of an unknown text, and the row of a text without one.
NO_TEXT: Final = 0
NO_ROW: Final = -1
_FIRST_SIZE: Final = 64
_LAST_KEY: Final = (1 << 64) - 1


class Layer:
    """Rows of one vector index by text number.

    `missing_object_count` is the number of objects of which a text has no row.
    """

    def __init__(self, size: int, missing_object_count: int) -> None:
        self.rows = np.full(size, NO_ROW, np.int32)
        self.missing_object_count = missing_object_count
        # number of texts with a row
        self.filled = 0
        # increases with every change of `rows`
        self.version = 0

    def lacks(self, numbers: Iterable[int]) -> bool:
        """Return whether at least one of these texts has no row."""
        rows = self.rows
        return any(rows[number] < 0 for number in numbers)


class TextTable:
    """Table of distinct texts with their numbers, and counts of the objects that use them.

    Counts are updated with each change, not recomputed. A text that no object uses keeps its number
    and its rows until it is forgotten.
    """

    def __init__(self) -> None:
        # number of objects
        self.object_ids = 0
        self._numbers = HashTable()
        # the next number that was never used
        self._end = 1
        # by number: objects with the text, objects with only this text, digest, and whether the
        # text is in the table although no object uses it
        self._held, self._alone = np.zeros(_FIRST_SIZE, np.int32), np.zeros(_FIRST_SIZE, np.int32)
        self._digests = np.zeros((_FIRST_SIZE, DIGEST_BYTES), np.uint8)
        self._unused = np.zeros(_FIRST_SIZE, np.bool_)
        # texts of each object with several texts, and the reverse
        self._several: dict[ObjectId, frozenset[int]] = {}
        self._together: dict[int, set[ObjectId]] = {}
        self._free: list[int] = []
        self._layers: list[ref[Layer]] = []

    def __len__(self) -> int:
        """Return the number of texts, with unused ones."""
        return len(self._numbers)

    def layer(self) -> Layer:
        """Return a new layer without rows; the table holds it weakly and keeps it up to date."""
        made = Layer(len(self._held), self.object_ids)
        self._layers = [*(one for one in self._layers if one()), ref(made)]
        return made

    def find(self, digest: bytes) -> int:
        """Return the number of a text by digest, NO_TEXT if it is unknown."""
        found = self._numbers.find(int.from_bytes(digest[:8], "little"))
        return next((one for one in found if self.digest(one) == digest), NO_TEXT)

    def find_each(self, digests: Sequence[bytes]) -> NDArray[np.int32]:
        """Return the numbers of texts by digest, NO_TEXT for unknown ones."""
        rows = as_rows(digests)
        found = np.maximum(self._numbers.find_each(_keys(rows)), NO_TEXT)
        for at in np.flatnonzero((self._digests[found] != rows).any(axis=1)).tolist():
            # another digest has the same first half, or the text is unknown
            found[at] = self.find(digests[at]) if found[at] else NO_TEXT
        return found

    def number(self, digest: bytes) -> int:
        """Return the number of a text by digest, added as unused if it is unknown."""
        number = self.find(digest)
        if not number:
            number = self._new(digest)
            self._unused[number] = True
        return number

    def digest(self, number: int) -> bytes:
        """Return the digest of a text."""
        digest: bytes = self._digests[number].tobytes()
        return digest

    def sample(self, numbers: NDArray[np.intp], count: int) -> NDArray[np.intp]:
        """Return about `count` of the texts, chosen by digest and so independent of their order."""
        first = self._digests.view(np.uint64)[:, 0][numbers]
        return numbers[first <= np.uint64(_LAST_KEY * min(count, len(numbers)) // len(numbers))]

    def digests(self, numbers: Iterable[int] | NDArray[np.intp]) -> list[bytes]:
        """Return the digests of texts."""
        which = numbers if isinstance(numbers, np.ndarray) else np.array([*numbers], np.intp)
        return split(self._digests[which].tobytes())

    def add_many(self, digests: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Count new objects with one text each (objects, 16), and return the text numbers."""
        found = self._number_each(digests)
        self._count_each(found)
        self.object_ids += len(found)
        return found

    def _count_each(self, numbers: NDArray[np.int32]) -> None:
        """Add objects with one text each to the counts."""
        np.add.at(self._held, numbers, 1)
        np.add.at(self._alone, numbers, 1)
        self._unused[numbers] = False
        for layer in self._alive():
            layer.missing_object_count += int(np.count_nonzero(layer.rows[numbers] < 0))

    def _number_each(self, digests: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the numbers of texts (texts, 16), and add new texts."""
        found = self._found_each(digests)
        for at in np.flatnonzero((self._digests[found] != digests).any(axis=1)).tolist():
            found[at] = self.number(digests[at].tobytes())
        return found

    def _found_each(self, digests: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Return the numbers of texts by the first half of their digests, and add new texts."""
        keys = _keys(digests)
        found = np.maximum(self._numbers.find_each(keys), NO_TEXT)
        new = np.flatnonzero(found == NO_TEXT)
        _, first, which = np.unique(keys[new], return_index=True, return_inverse=True)
        # number new texts in the order of `digests`
        order = np.argsort(first)
        firsts, given = new[first[order]], self._room(len(first))
        numbers = np.empty(len(first), np.int32)
        numbers[order] = given
        self._digests[given] = digests[firsts]
        self._numbers.add_each(keys[firsts], given)
        found[new] = numbers[which]
        return found

    def _room(self, count: int) -> NDArray[np.intp]:
        """Return `count` numbers for new texts, free ones first."""
        free = [self._free.pop() for _ in range(min(count, len(self._free)))]
        new = range(self._end, self._end + count - len(free))
        self._end = new.stop
        if (more := self._end - len(self._held)) > 0:
            self._grow(max(more, len(self._held) // 4))
        return np.array([*free, *new], np.intp)

    def is_used(self, digest: bytes) -> bool:
        """Return whether an object uses a text."""
        return bool(self._held[self.find(digest)])

    def are_used(self, numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return a mask of the texts, given by number, that an object uses."""
        return self._held[numbers] > 0

    def change(self, object_id: ObjectId, before: Sequence[bytes], after: Sequence[bytes]) -> None:
        """Update the counts for an object whose texts change from `before` to `after`.

        An empty `before` means a new object, an empty `after` a removed one.
        """
        if not before and len(after) == 1:
            self._add_one(self.number(after[0]))
            return
        old, new = frozenset(map(self.find, before)), frozenset(map(self.number, after))
        if old == new:
            return
        self.object_ids += bool(new) - bool(old)
        layers = self._alive()
        self._count(layers, new, 1)
        self._count(layers, old, -1)
        if len(old) > 1 or len(new) > 1:
            self._tie(object_id, old, new)
        self._unused[[*new]] = False
        self._leave([number for number in old if not self._held[number]])

    def _add_one(self, number: int) -> None:
        """Count a new object with one text: the fast path of `change`."""
        self.object_ids += 1
        self._held[number] += 1
        self._alone[number] += 1
        self._unused[number] = False
        for layer in self._alive():
            layer.missing_object_count += int(layer.rows[number] < 0)

    def _leave(self, numbers: list[int]) -> None:
        """Mark texts as unused, and forget all unused texts if there is no layer."""
        self._unused[numbers] = True
        if numbers and not self._alive():
            self._forget(self._all_unused().tolist())

    def _count(self, layers: Sequence[Layer], numbers: frozenset[int], sign: int) -> None:
        for layer in layers:
            layer.missing_object_count += sign * layer.lacks(numbers)
        for number in numbers:
            self._held[number] += sign
            self._alone[number] += sign * (len(numbers) == 1)

    def _tie(self, object_id: ObjectId, old: frozenset[int], new: frozenset[int]) -> None:
        """Update the maps of objects with several texts."""
        for number in old if len(old) > 1 else ():
            self._together[number].discard(object_id)
            if not self._together[number]:
                del self._together[number]
        self._several.pop(object_id, None)
        if len(new) > 1:
            self._several[object_id] = new
            for number in new:
                self._together.setdefault(number, set()).add(object_id)

    def put(self, layer: Layer, places: NDArray[np.intp], rows: NDArray[np.int32]) -> None:
        """Set the rows of distinct texts; `places` are their numbers."""
        new = places[layer.rows[places] < 0]
        layer.rows[places] = rows
        layer.filled += len(new)
        layer.version += 1
        layer.missing_object_count -= int(self._alone[new].sum())
        if self._together:
            met = set[ObjectId]().union(*(self._together.get(n, ()) for n in new.tolist()))
            layer.missing_object_count -= sum(
                not layer.lacks(self._several[object_id]) for object_id in met
            )

    def drop(self, layer: Layer, digests: Iterable[bytes]) -> None:
        """Remove the rows of texts, and recompute the counts of the layer."""
        numbers = [self.find(digest) for digest in digests]
        if not numbers:
            return
        layer.rows[numbers] = NO_ROW
        layer.filled = int((layer.rows >= 0).sum())
        layer.version += 1
        several = sum(map(layer.lacks, self._several.values()))
        layer.missing_object_count = int(self._alone[layer.rows < 0].sum()) + several

    def missing_texts(self, layer: Layer, most: int) -> list[bytes]:
        """Return at most `most` used texts without a row, by ascending number."""
        if not layer.missing_object_count:
            return []
        return self.digests(np.flatnonzero((layer.rows < 0) & (self._held > 0))[:most])

    def count_unused(self) -> int:
        """Count the texts that no object uses."""
        return int(np.count_nonzero(self._unused))

    def unused(self, most: int | None = None) -> list[bytes]:
        """Return texts that no object uses, at most `most`."""
        return self.digests(self._all_unused()[:most])

    def _all_unused(self) -> NDArray[np.intp]:
        return np.flatnonzero(self._unused)

    def forget(self, digests: Sequence[bytes]) -> None:
        """Forget those of these texts that no object uses, with their rows."""
        numbers = self.find_each(digests)
        self._forget(numbers[self._unused[numbers]].tolist())

    def _forget(self, numbers: list[int]) -> None:
        for number in numbers:
            self._numbers.remove(number)
        self._unused[numbers] = False
        self._free += numbers
        for layer in self._alive():
            layer.filled -= int((layer.rows[numbers] >= 0).sum())
            layer.rows[numbers] = NO_ROW
            layer.version += 1

    def _new(self, digest: bytes) -> int:
        number = int(self._room(1)[0])
        self._digests[number] = np.frombuffer(digest, np.uint8)
        self._numbers.add(int.from_bytes(digest[:8], "little"), number)
        return number

    def _grow(self, more: int) -> None:
        """Make room for more numbers in all arrays."""
        self._held, self._alone = np.pad(self._held, (0, more)), np.pad(self._alone, (0, more))
        self._digests = np.pad(self._digests, ((0, more), (0, 0)))
        self._unused = np.pad(self._unused, (0, more))
        for layer in self._alive():
            layer.rows = np.pad(layer.rows, (0, more), constant_values=NO_ROW)

    def _alive(self) -> list[Layer]:
        return [layer for one in self._layers if (layer := one())]


def as_rows(digests: Sequence[bytes]) -> NDArray[np.uint8]:
    """Return digests as rows, (digests, 16)."""
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), DIGEST_BYTES)


def split(data: bytes) -> list[bytes]:
    """Split concatenated digests."""
    return [data[n : n + DIGEST_BYTES] for n in range(0, len(data), DIGEST_BYTES)]


def _keys(digests: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the first 8 bytes of each digest (digests, 16) as hash keys."""
    return np.ascontiguousarray(digests[:, :8]).view("<u8")[:, 0].astype(np.uint64)
