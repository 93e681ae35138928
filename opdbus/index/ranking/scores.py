"""Ranking by a weighted sum of cosine, BM25, field values, kinds and names."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.index.ranking.boosts import BOTH_WEIGHT, VALUE_WEIGHT, BoostPlan, Boosts
from opdbus.index.ranking.confidence_features import (
    AS_ASKED,
    NOTHING_MISSING,
    USUAL,
    ConfidenceFeatures,
    Mismatch,
    Missing,
)
from opdbus.platform.slices import parts

MODES: Final = ("hybrid", "vector", "lexical")
# Weight of the lexical share beside a cosine: fitted by benchmarks/quality.py.
LEXICAL_WEIGHT: Final = 0.5
# Weight of the term overlap: fitted by benchmarks/answers.
SAID_WEIGHT: Final = 0.2
_LEAST: Final = np.float32(1e-6)
# Best entries whose estimated cosines are made exact: this many, or a thousandth of all if more.
_LIKELY: Final = 400
# Size of the sample of sums from which the lower bound of the highest ones is estimated.
_SAMPLED: Final = 1 << 12
# Upper bound of the rounding difference between sums in another order.
_ROUNDED: Final = 1e-5
# BM25 is at most (k1 + 1) idf for each term; FTS5 fixes k1 at 1.2.
_BM25_CEILING: Final = 2.2

# returns the exact cosines of the entries at some places
Exact: TypeAlias = Callable[[NDArray[np.intp]], NDArray[np.float32]]


class CosineBaseline(NamedTuple):
    """The mean and standard deviation of a query's cosines over all objects.

    `few` is 1 on a host of few objects, where a missing term carries little information, and falls
    to 0 on a larger one.
    """

    mean: float
    spread: float
    few: float = 0.0


# The typical baseline, used where there are no vectors.
USUAL_BACKGROUND: Final = CosineBaseline(0.1, 0.1)


@dataclass(frozen=True, slots=True)
class Score:
    """The score of an entry: `total` orders hits, the parts explain it.

    `vector`, `lexical` and `values` are at most 1; `kinds` is as in `Boosts`. `stage` is the level
    whose vectors were compared, empty if none were, and `background` the baseline of that level's
    cosines for this query. `missing` has the query terms that no object has. `said` (term overlap),
    `match_features` and `mismatch` are set on the best hits only.
    """

    total: float
    vector: float
    lexical: float
    values: float = 0.0
    kinds: float = 0.0
    stage: str = ""
    background: CosineBaseline = USUAL_BACKGROUND
    said: float = 0.0
    missing: Missing = NOTHING_MISSING
    match_features: ConfidenceFeatures = USUAL
    mismatch: Mismatch = AS_ASKED

    def saying(self, share: float, missing: Missing) -> "Score":
        """Return the score with term overlap `share`, weighted into `total`, and `missing` set.

        `match_features` and `mismatch` are the defaults.
        """
        rest = self.values, self.kinds, self.stage, self.background, share, missing
        return Score(self.total + SAID_WEIGHT * share, self.vector, self.lexical, *rest)

    def by(self, cosine: float, stage: str, background: CosineBaseline | None = None) -> "Score":
        """Return the score with the cosine and baseline of another level, `stage`.

        Without a `background` the baseline stays. The fields after it are the defaults.
        """
        total = cosine + LEXICAL_WEIGHT * self.lexical + VALUE_WEIGHT * self.values
        if total > 0:
            total = max(total + self.kinds, float(_LEAST))
        # faster than `replace`; a search makes a hundred
        rest = self.lexical, self.values, self.kinds, stage, background or self.background
        return Score(total, cosine, *rest)


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """Cosine scores of entries with a query, by vectors of the level `stage`.

    `cosines` (entries,) are NaN for an entry without a vector. If they are estimates, `exact`
    computes the exact ones of given places.
    """

    cosines: NDArray[np.float32]
    stage: str = ""
    background: CosineBaseline | None = None
    exact: Exact | None = None


def ceiling(matches: Sequence[int], objects: int) -> float:
    """Return an upper bound of BM25 scores, from the number of objects that match each term.

    A term without a match has the highest idf, so an object with only the other terms of a query
    gets a low share. Source of the formula: SQLite's FTS5 documentation.
    """
    return _BM25_CEILING * sum(idf(count, objects) for count in matches)


def idf(count: int, objects: int) -> float:
    """Return the inverse document frequency of a term in `count` of the objects, as in FTS5."""
    # an object is in the database before the catalogue counts it
    return max(math.log((max(objects - count, 0) + 0.5) / (count + 0.5)), 1e-6)


def rank(
    similarity: Similarity | None,
    shares: NDArray[np.float32] | None = None,
    boost_plan: BoostPlan | None = None,
    ids: NDArray[np.int64] | None = None,
) -> Iterator[tuple[int, Score]]:
    """Yield (index, Score) from best to worst.

    `shares` (entries,) are those of `LexicalMatches`, None in vector mode. `similarity` is None in
    lexical mode, which yields matches only. Equal scores are ordered by `ids`, since places change
    at a restart, or without `ids` by index. Estimated cosines of the best entries are replaced by
    exact ones in `similarity`; these entries come before all others.
    """
    sums = _Sums(None if similarity is None else similarity.cosines, shares, boost_plan, ids)
    likely = _highest(sums, max(_LIKELY, sums.entries // 1000))
    if similarity and similarity.exact:
        similarity.cosines[likely] = similarity.exact(likely)
    yield from _scored(sums, likely, similarity)
    is_likely = np.zeros(sums.entries, np.bool_)
    is_likely[likely] = True
    counting = sums.counting()
    yield from _scored(sums, counting[~is_likely[counting]], similarity)


def _scored(
    sums: "_Sums", places: NDArray[np.intp], similarity: Similarity | None
) -> Iterator[tuple[int, Score]]:
    """Yield (index, Score) of the entries at some places, best first."""
    places = sums.in_order(places)
    total, (values, kinds) = sums.at(places)
    cosines, shares = sums.cosines, sums.shares
    for number in np.argsort(-total, kind="stable").tolist():
        index = places.item(number)
        cosine = math.nan if cosines is None else float(cosines[index])
        is_known = similarity is not None and math.isfinite(cosine)
        yield (
            index,
            Score(
                float(total[number]),
                cosine if is_known else 0.0,
                0.0 if shares is None else float(shares[index]),
                0.0 if values is None else float(values[number]),
                float(kinds[number]),
                similarity.stage if similarity and is_known else "",
                (similarity and similarity.background) or USUAL_BACKGROUND,
            ),
        )


class _Sums:
    """Weighted sums by which entries are ranked, computed for all or some places."""

    def __init__(
        self,
        cosines: NDArray[np.float32] | None,
        shares: NDArray[np.float32] | None,
        boost_plan: BoostPlan | None,
        ids: NDArray[np.int64] | None,
    ) -> None:
        self._ids = ids
        self.cosines = cosines
        self.shares = shares
        self._boost_plan = boost_plan
        # entries may have been added between the computations of these arrays
        sizes = [len(each) for each in (cosines, shares) if each is not None]
        self.entries = min(sizes + ([boost_plan.entries] if boost_plan else []))

    def in_order(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return ascending places in the order of equal scores: by id, or unchanged without ids."""
        return places if self._ids is None else places[np.argsort(self._ids[places])]

    def best(
        self, places: NDArray[np.intp], total: NDArray[np.float32], most: int
    ) -> NDArray[np.intp]:
        """Return, ascending, the `most` places with the highest totals; of equal ones the first."""
        if len(places) <= most:
            return places
        last = np.partition(total, -most)[-most]
        better, equal = places[total > last], places[total == last]
        return np.sort(np.append(better, self.in_order(equal)[: most - len(better)]))

    def at(self, places: NDArray[np.intp]) -> tuple[NDArray[np.float32], Boosts]:
        """Return the sums of the entries at some places, and their boosts."""
        total = self._said(places)
        if self._boost_plan is None:
            return total, Boosts(None, np.zeros(len(places), np.float32))
        boost = self._boost_plan.at(places)
        if boost.values is not None:
            total = total + VALUE_WEIGHT * boost.values
        # a boost does not make a match of an entry without one, and a penalty does not unmake it
        return np.where(total > 0, np.maximum(total + boost.kinds, _LEAST), total), boost

    def _said(self, where: NDArray[np.intp] | slice) -> NDArray[np.float32]:
        """Return the sums of cosines and weighted lexical shares; without either, zeros."""
        if self.cosines is None:
            shares = self.shares
            return np.zeros(self.entries, np.float32)[where] if shares is None else shares[where]
        cosines = self.cosines[where]
        # the minimum is NaN if any cosine is; usually none is, and the copy is saved
        if math.isnan(cosines.min(initial=0)):
            cosines = np.where(np.isnan(cosines), np.float32(0), cosines)
        return cosines if self.shares is None else cosines + LEXICAL_WEIGHT * self.shares[where]

    def counting(self) -> NDArray[np.intp]:
        """Return the places of all entries, or in lexical mode of those that match."""
        if self.cosines is not None:
            return np.arange(self.entries)
        # the least positive number
        return self._above(np.nextafter(np.float32(0), np.float32(1)))

    def reaching(self, least: np.float32) -> NDArray[np.intp]:
        """Return, ascending, the places of all entries whose sum may be at least `least`."""
        if least <= _LEAST:
            return self.counting()
        boost_plan = self._boost_plan
        least = least - np.float32(_ROUNDED + (boost_plan.most if boost_plan else 0.0))
        found = self._above(least)
        named = boost_plan.named[boost_plan.named < self.entries] if boost_plan else found[:0]
        # much faster than `unique`
        others = found[~np.isin(found, named)]
        return np.insert(others, np.searchsorted(others, named), named)

    def _above(self, least: np.float32) -> NDArray[np.intp]:
        """Return the places of entries whose sum, with values at their bound, reaches `least`."""
        each = [self._above_in(part, least) + part.start for part in parts(self.entries)]
        return np.concatenate(each) if each else np.empty(0, np.intp)

    def _above_in(self, part: slice, least: np.float32) -> NDArray[np.intp]:
        total = self._said(part)
        if self._boost_plan and self._boost_plan.values is not None:
            total = total + (VALUE_WEIGHT + BOTH_WEIGHT) * self._boost_plan.values[part]
        return np.flatnonzero(total >= least)


def _highest(sums: _Sums, most: int) -> NDArray[np.intp]:
    """Return, ascending, the places of the `most` highest sums; of equal ones the first.

    Computing all sums is slow where there are many. A sample gives a lower bound, and only entries
    that may reach it are summed; if fewer than `most` do, all are.
    """
    sample = np.arange(0, sums.entries, max(1, sums.entries // _SAMPLED))
    above = 4 * most * len(sample) // max(1, sums.entries)
    if len(sample) < sums.entries and above < len(sample):
        guess = np.partition(sums.at(sample)[0], -above)[-above]
        likely = sums.reaching(guess)
        total, _ = sums.at(likely)
        if np.count_nonzero(total >= guess) >= most:
            return sums.best(likely, total, most)
    every = sums.counting()
    return sums.best(every, sums.at(every)[0], most)
