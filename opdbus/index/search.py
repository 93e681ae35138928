"""Ranking: cosine and BM25 joined by weight, exact top-k. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

MODES: Final = ("hybrid", "vector", "lexical")
# What a full lexical match weighs beside a cosine; benchmarks/quality.py measures it.
LEXICAL_WEIGHT: Final = 0.3
# The BM25 score at which a match counts half: scores have no upper end, this gives them one.
_HALF: Final = 8.0


@dataclass(frozen=True, slots=True)
class Score:
    """How well one entry answers: `total` ranks, the parts explain. Parts are 0 where absent."""

    total: float
    vector: float
    lexical: float


def saturate(bm25: float) -> float:
    """Bring a BM25 score into 0..1: half at 8, near 1 for rare words in a name."""
    return bm25 / (bm25 + _HALF) if bm25 > 0 else 0.0


def rank(
    ids: Sequence[int],
    cosines: NDArray[np.float32] | None,
    lexical: Mapping[int, float],
) -> Iterator[tuple[int, Score]]:
    """Yield (index, Score) from best to worst.

    `ids` name the entries, `cosines` (entries,) are NaN where an entry has no vector and None in
    lexical mode, `lexical` holds BM25 scores by id. Without cosines only matches are given.
    Equal scores keep the order of the entries.
    """
    matched = np.array([saturate(lexical.get(entry, 0.0)) for entry in ids], np.float32)
    vector = np.zeros(len(ids), np.float32) if cosines is None else np.nan_to_num(cosines)
    weight = 1.0 if cosines is None else LEXICAL_WEIGHT
    total = vector + weight * matched
    for index in np.argsort(-total, kind="stable"):
        if cosines is None and matched[index] <= 0:
            return
        yield (
            int(index),
            Score(float(total[index]), float(vector[index]), float(matched[index])),
        )
