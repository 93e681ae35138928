"""The objects that insight compares: one row each, with its kind and its vector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from opdbus.index.catalogue.catalogue import representative
from opdbus.insight.clustering import Vectors, normalize
from opdbus.language.object_text import UNIT_NOUNS
from opdbus.state.object import matches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from numpy.typing import NDArray

    from opdbus.index.catalogue.catalogue import Catalogue
    from opdbus.index.database.store import Entry
    from opdbus.index.vectors.vector_index import VectorIndex
    from opdbus.state.object import ObjectId

# Vectors that are copied at a time.
_AT_A_TIME: Final = 4096
# Pseudo-count that shrinks the mean vector of small kinds towards zero.
_FEW: Final = 5


class Kind(NamedTuple):
    """The group in which objects are compared: plugin, kind, and for units the type."""

    plugin: str
    kind: str
    type: str = ""


def kind_of(object_id: ObjectId) -> Kind:
    """Return the group of an object; timers and services are in different ones."""
    suffix = object_id.name.rpartition(".")[2] if object_id.kind == "unit" else ""
    return Kind(object_id.plugin, object_id.kind, suffix if suffix in UNIT_NOUNS else "")


@dataclass(frozen=True, slots=True)
class ComparedObjects:
    """Objects in the order of their text digests: the first ones are a random sample."""

    object_ids: Sequence[ObjectId]
    entries: Sequence[Entry]

    def __len__(self) -> int:
        """Return the number of objects."""
        return len(self.object_ids)

    def keys(self) -> NDArray[np.uint64]:
        """Return a pseudorandom number for each object, from the digest of its text (rows,)."""
        return _as_numbers(entry.text_digest[-8:] for entry in self.entries)

    def kinds(self) -> list[Kind]:
        """Return the group of each object."""
        return [kind_of(object_id) for object_id in self.object_ids]


def gather(
    catalogue: Catalogue,
    wanted: Mapping[str, str],
    within: AbstractSet[ObjectId] | None,
    index: VectorIndex,
    renamed: AbstractSet[ObjectId] = frozenset(),
) -> ComparedObjects:
    """Return the objects that match and have vectors; for any thread.

    Objects in `renamed` are left out: they are included under another name.
    """
    object_ids, entries = [], []
    for object_id in catalogue.all_object_ids():
        is_left_out = within is not None and object_id not in within
        if not matches(object_id, wanted) or is_left_out or object_id in renamed:
            continue
        # none if it was removed meanwhile
        if of_object := catalogue.entries(object_id):
            entry = representative(of_object)
            if entry.text_digest in index:
                object_ids.append(object_id)
                entries.append(entry)
    # numpy releases the GIL; sorting a list would stop all other threads
    keys = _as_numbers(entry.text_digest[:8] for entry in entries)
    order = np.argsort(keys, kind="stable").tolist()
    return ComparedObjects([object_ids[n] for n in order], [entries[n] for n in order])


def _as_numbers(parts: Iterable[bytes]) -> NDArray[np.uint64]:
    """Return byte strings of eight bytes each as little-endian numbers."""
    return np.frombuffer(b"".join(parts), "<u8").copy()


def vectors_of(index: VectorIndex, digests: Sequence[bytes]) -> Vectors:
    """Return copies of the vectors of texts; a vector that was dropped meanwhile is zero."""
    nothing = np.zeros(index.dimension, np.float32)
    found = map(index.get_on_thread, digests)
    return np.stack([nothing if vector is None else vector for vector in found])


class Residuals:
    """Vectors minus the mean vector of their kind, which leaves what is specific to each.

    The means are computed from the first `sample` rows.
    """

    def __init__(self, rows: ComparedObjects, index: VectorIndex, sample: int) -> None:
        self._rows = rows
        self._index = index
        self._kinds = rows.kinds()
        self._numbers = {kind: n for n, kind in enumerate(dict.fromkeys(self._kinds[:sample]))}
        sums = np.zeros((len(self._numbers) + 1, index.dimension), np.float32)
        counts = np.zeros(len(sums), np.float32)
        for at in range(0, min(sample, len(rows)), _AT_A_TIME):
            part = slice(at, min(at + _AT_A_TIME, sample, len(rows)))
            numbers = self._number(part)
            np.add.at(sums, numbers, self._take(part))
            np.add.at(counts, numbers, 1)
        self._common = sums / (counts + _FEW)[:, None]

    def part(self, wanted: slice) -> Vectors:
        """Return the residuals of a slice of rows (rows, dimension), of length 1."""
        return normalize(self._take(wanted) - self._common[self._number(wanted)])

    def parts(self) -> Iterator[Vectors]:
        """Yield the residuals of all rows in parts."""
        for at in range(0, len(self._rows), _AT_A_TIME):
            yield self.part(slice(at, at + _AT_A_TIME))

    def _take(self, wanted: slice) -> Vectors:
        return vectors_of(self._index, [e.text_digest for e in self._rows.entries[wanted]])

    def _number(self, wanted: slice) -> NDArray[np.intp]:
        """Return the numbers of kinds; the last number is that of unknown kinds."""
        last = len(self._numbers)
        return np.array([self._numbers.get(kind, last) for kind in self._kinds[wanted]], np.intp)
