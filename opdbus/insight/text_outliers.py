"""Objects whose text differs from all others of their kind, by the nearest vector."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.catalogue import Catalogue, representative
from opdbus.index.vectors.vector_index import VectorIndex
from opdbus.insight.clustering import Vectors
from opdbus.insight.gathering import vectors_of
from opdbus.state.object import ObjectId

Take: TypeAlias = Callable[[NDArray[np.intp]], Vectors]

# The most objects that represent a kind; candidates are then compared with all objects.
_SAMPLE: Final = 1024
_AT_A_TIME: Final = 4096
_CHECKED: Final = 64
# Bits for each interquartile range (at least _LEAST_RANGE) by which the cosine to the nearest
# object is below the median cosine of two objects; _MOST_BITS at most.
_BITS: Final = 6.0
_LEAST_RANGE: Final = 0.1
_MOST_BITS: Final = 6.0


class Lonely(NamedTuple):
    """Distance and row of the nearest other object, median distance of two, and score in bits."""

    distance: float
    nearest: int
    usual: float
    bits: float


def far_from_all(
    object_ids: Sequence[ObjectId], catalogue: Catalogue, index: VectorIndex | None
) -> Mapping[int, Lonely]:
    """Return the objects of a kind that differ from all others, if all have vectors."""
    about = [catalogue.entries(object_id) for object_id in object_ids]
    digests = [representative(entries).text_digest for entries in about if entries]
    if index is None or len(digests) < len(object_ids) or not all(d in index for d in digests):
        return {}
    return lonely(len(digests), lambda rows: vectors_of(index, [digests[n] for n in rows]))


def lonely(count: int, take: Take) -> dict[int, Lonely]:
    """Return the rows of `count` objects that differ from all others.

    Such an object is further from the nearest other one than the median distance of two objects.
    `take` returns the vectors (rows, dimension) of rows.
    """
    if count == 1:
        return {}
    sample = np.sort(np.random.default_rng(0).permutation(count)[:_SAMPLE])
    vectors = take(sample)
    pairs = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    low, middle, high = np.quantile(pairs, (0.25, 0.5, 0.75)).tolist()
    cosines, nearest = _nearest(np.arange(count), take, sample)
    far = np.flatnonzero(cosines < middle)
    far = far[np.argsort(cosines[far], kind="stable")][:_CHECKED]
    if count > _SAMPLE:
        # objects outside the sample may be nearer: compare with all, in bounded memory
        cosines[far] = -np.inf
        for at in range(0, count, _AT_A_TIME):
            others = np.arange(at, min(at + _AT_A_TIME, count))
            best, places = _nearest(far, take, others)
            is_nearer = best > cosines[far]
            rows = far[is_nearer]
            cosines[rows], nearest[rows] = best[is_nearer], places[is_nearer]
    found = {}
    for row in far[cosines[far] < middle].tolist():
        further = (middle - float(cosines[row])) / max(_LEAST_RANGE, high - low)
        bits = min(_MOST_BITS, _BITS * further)
        found[row] = Lonely(1 - float(cosines[row]), int(nearest[row]), 1 - middle, bits)
    return found


def _nearest(
    rows: NDArray[np.intp], take: Take, others: NDArray[np.intp]
) -> tuple[Vectors, NDArray[np.intp]]:
    """Return the cosine of each row to the nearest other row of `others`, and that row."""
    known = take(others)
    cosines, nearest = np.empty(len(rows), np.float32), np.empty(len(rows), np.intp)
    for at in range(0, len(rows), _AT_A_TIME):
        part = rows[at : at + _AT_A_TIME]
        found = take(part) @ known.T
        found[part[:, None] == others[None, :]] = -1
        best = found.argmax(axis=1)
        cosines[at : at + len(part)] = found[np.arange(len(part)), best]
        nearest[at : at + len(part)] = others[best]
    return cosines, nearest
