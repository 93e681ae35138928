"""Ranking: a weighted sum of cosine, BM25, values, sorts and names."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.kinds import Asked

MODES: Final = ("hybrid", "vector", "lexical")
# Weight of a full lexical match beside a cosine: measured by benchmarks/quality.py.
LEXICAL_WEIGHT: Final = 0.5
# Weight of having all values that a question names, if they are rare: measured by questions about
# values (tests/data/value_questions.json), and so that an exact name still wins.
VALUE_WEIGHT: Final = 0.4
# What it is worth to be of the sort that a question asks for: measured by
# benchmarks/host/questions.py.
KIND_WEIGHT: Final = 0.15
# What it counts that a word of a question is the whole name of a thing.
NAME_WEIGHT: Final = 0.2
# What it counts that a question is nothing but the name of a thing: more than anything else.
ALONE_WEIGHT: Final = 1.0
# What it is worth to be both of such a sort and of the values that a question names, if few are.
BOTH_WEIGHT: Final = 0.4
_LEAST: Final = np.float32(1e-6)
# The limit of BM25 is (k1 + 1) idf for each term; FTS5 fixes k1 at 1.2.
_BM25_CEILING: Final = 2.2


@dataclass(frozen=True, slots=True)
class Score:
    """How well an entry answers: `total` ranks, its parts explain it; each part is at most 1."""

    total: float
    vector: float
    lexical: float
    values: float = 0.0


@dataclass(frozen=True, slots=True)
class Raised:
    """What counts besides what entries say (entries,).

    `values` are shares of the values that a question names, None if it names none; `kinds` is what
    the sort of each entry adds to its score, or takes from it.
    """

    values: NDArray[np.float32] | None
    kinds: NDArray[np.float32]


def ceiling(matches: Sequence[int], objects: int) -> float:
    """Return an upper bound of BM25 scores, from how many objects match each term.

    A term without a match counts most: an object that has only the other words of a question is a
    poor answer. Source of the formula: SQLite's FTS5 documentation.
    """
    # an object is in the database before it is counted
    idf = (math.log((max(objects - n, 0) + 0.5) / (n + 0.5)) for n in matches)
    return _BM25_CEILING * sum(max(weight, 1e-6) for weight in idf)


def rank(
    cosines: NDArray[np.float32] | None,
    shares: NDArray[np.float32],
    within: NDArray[np.intp] | None = None,
    raised: "Raised | None" = None,
) -> Iterator[tuple[int, Score]]:
    """Yield (index, Score) from best to worst.

    `shares` (entries,) are fractions of the BM25 ceiling; `cosines` (entries,) are NaN for an entry
    without a vector, and None in lexical mode, which yields matches only; only indexes `within`
    these are yielded. Equal scores keep the order of the entries.
    """
    vector = np.zeros_like(shares) if cosines is None else np.nan_to_num(cosines)
    total = shares.copy() if cosines is None else vector + LEXICAL_WEIGHT * shares
    values = None if raised is None else raised.values
    if values is not None:
        total += VALUE_WEIGHT * values
    if raised is not None:
        # what does not match at all is not made to
        total = np.where(total > 0, np.maximum(total + raised.kinds, _LEAST), total)
    places = np.arange(len(total)) if within is None else np.sort(within)
    for index in places[np.argsort(-total[places], kind="stable")].tolist():
        if cosines is None and total[index] <= 0:
            return
        value = 0.0 if values is None else float(values[index])
        yield index, Score(float(total[index]), float(vector[index]), float(shares[index]), value)


def named_values(having: Sequence[NDArray[np.bool_]]) -> NDArray[np.float32] | None:
    """Return how much each entry has of the values that a question names, at most 1 (entries,).

    `having` says of each value which entries have it (entries,); None if the question names none. A
    value that few entries have counts most, one that all have counts nothing.
    """
    if not having:
        return None
    total = np.zeros(len(having[0]), np.float32)
    for mask in having:
        total[mask] += _rarity(int(mask.sum()), len(mask)) / len(having)
    return total


def named_kinds(
    asked: Asked,
    kinds: NDArray[np.int64],
    less: NDArray[np.float32],
    values: NDArray[np.float32] | None,
) -> NDArray[np.float32]:
    """Return what the sorts of entries (entries,) add to their scores: see Raised."""
    more = np.where(kinds & asked.subject != 0, np.float32(KIND_WEIGHT), np.float32(0))
    if values is not None:
        more += BOTH_WEIGHT * values
    return np.where(kinds & asked.named != 0, more, -less)


def _rarity(having: int, entries: int) -> float:
    return math.log(entries / having) / math.log(entries) if 0 < having < entries else 0.0
