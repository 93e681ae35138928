"""Ranking: a weighted sum of cosine, BM25, values, sorts and names."""

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
# Weight of a full lexical match beside a cosine: measured by benchmarks/quality.py.
LEXICAL_WEIGHT: Final = 0.5
# Weight of being said as a whole by the question, words only: measured by benchmarks/answers.
SAID_WEIGHT: Final = 0.2
_LEAST: Final = np.float32(1e-6)
# So many are compared exactly where cosines are estimates, or one of a thousand: of 60,000 texts
# whose vectors' signs were compared, these had 99.3% of the ten most similar ones.
_LIKELY: Final = 400
# Sums that tell about where the highest begin: each is far from the next one in memory.
_SAMPLED: Final = 1 << 12
# Sums of the same numbers in another order differ by less.
_ROUNDED: Final = 1e-5
# The limit of BM25 is (k1 + 1) idf for each term; FTS5 fixes k1 at 1.2.
_BM25_CEILING: Final = 2.2

# gives exact cosines of some entries
Exact: TypeAlias = Callable[[NDArray[np.intp]], NDArray[np.float32]]


class CosineBaseline(NamedTuple):
    """What a question's cosines with any objects are: their mean, and how far they spread.

    `few` says from 0 to 1 how little it tells that a host of so few objects lacks a word.
    """

    mean: float
    spread: float
    few: float = 0.0


# What is usual, where no vectors are there.
USUAL_BACKGROUND: Final = CosineBaseline(0.1, 0.1)


@dataclass(frozen=True, slots=True)
class Score:
    """How well an entry answers: `total` ranks, its parts explain it.

    `vector`, `lexical` and `values` are at most 1; `kinds` is what its sort adds, as of Raised;
    `said`, of the best only, is how much of the entry the question says, as of common_words, and
    `missing` what no entry has of the question.
    `stage` is the level whose vectors were compared, empty where none were, and `background` what
    the cosines of that level are for this question. `match_features` and `mismatch` are of the best
    only.
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
        """Return the score of an entry of which the question says so much, and not these words."""
        rest = self.values, self.kinds, self.stage, self.background, share, missing
        return Score(self.total + SAID_WEIGHT * share, self.vector, self.lexical, *rest)

    def by(self, cosine: float, stage: str, background: CosineBaseline | None = None) -> "Score":
        """Return the score that another level's vector gives."""
        total = cosine + LEXICAL_WEIGHT * self.lexical + VALUE_WEIGHT * self.values
        if total > 0:
            total = max(total + self.kinds, float(_LEAST))
        # a hundred of them a search: `replace` takes three times as long
        rest = self.lexical, self.values, self.kinds, stage, background or self.background
        return Score(total, cosine, *rest)


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """How like a question entries are, by vectors of a level, the `stage`.

    `cosines` (entries,) are NaN for an entry without a vector. Where they are estimates, `exact`
    gives those of some of the entries.
    """

    cosines: NDArray[np.float32]
    stage: str = ""
    background: CosineBaseline | None = None
    exact: Exact | None = None


def ceiling(matches: Sequence[int], objects: int) -> float:
    """Return an upper bound of BM25 scores, from how many objects match each term.

    A term without a match counts most: an object that has only the other words of a question is a
    poor answer. Source of the formula: SQLite's FTS5 documentation.
    """
    return _BM25_CEILING * sum(idf(count, objects) for count in matches)


def idf(count: int, objects: int) -> float:
    """Return the weight of a term that so many of the objects have, as FTS5 has it."""
    # an object is in the database before it is counted
    return max(math.log((max(objects - count, 0) + 0.5) / (count + 0.5)), 1e-6)


def rank(
    similarity: Similarity | None,
    shares: NDArray[np.float32] | None = None,
    boost_plan: BoostPlan | None = None,
    ids: NDArray[np.int64] | None = None,
) -> Iterator[tuple[int, Score]]:
    """Yield (index, Score) from best to worst.

    `shares` (entries,) are those of words, as of `LexicalMatches`, None where words do not count;
    `similarity` is None in lexical mode, which yields matches only. Equal scores keep the order of
    the entries, or of their `ids`: the places of entries are others after a start. Where cosines
    are estimates, those of the most likely entries are made exact.
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
    """Yield the entries at some places, best first."""
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
    """What ranks entries: the sum of all that counts."""

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
        # more may have come while one of them was made
        sizes = [len(each) for each in (cosines, shares) if each is not None]
        self.entries = min(sizes + ([boost_plan.entries] if boost_plan else []))

    def in_order(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return some places, which are in order, in that of equals."""
        return places if self._ids is None else places[np.argsort(self._ids[places])]

    def best(
        self, places: NDArray[np.intp], total: NDArray[np.float32], most: int
    ) -> NDArray[np.intp]:
        """Return those of the highest of some sums, so many, in order; of equal ones the first."""
        if len(places) <= most:
            return places
        last = np.partition(total, -most)[-most]
        better, equal = places[total > last], places[total == last]
        return np.sort(np.append(better, self.in_order(equal)[: most - len(better)]))

    def at(self, places: NDArray[np.intp]) -> tuple[NDArray[np.float32], Boosts]:
        """Return what ranks the entries at some places, and what of it raises them."""
        total = self._said(places)
        if self._boost_plan is None:
            return total, Boosts(None, np.zeros(len(places), np.float32))
        boost = self._boost_plan.at(places)
        if boost.values is not None:
            total = total + VALUE_WEIGHT * boost.values
        # what does not match at all is not made to
        return np.where(total > 0, np.maximum(total + boost.kinds, _LEAST), total), boost

    def _said(self, where: NDArray[np.intp] | slice) -> NDArray[np.float32]:
        """Return what the cosines and the words give some entries, zero without either."""
        if self.cosines is None:
            shares = self.shares
            return np.zeros(self.entries, np.float32)[where] if shares is None else shares[where]
        cosines = self.cosines[where]
        # the least is NaN if any is, and mostly none is
        if math.isnan(cosines.min(initial=0)):
            cosines = np.where(np.isnan(cosines), np.float32(0), cosines)
        return cosines if self.shares is None else cosines + LEXICAL_WEIGHT * self.shares[where]

    def counting(self) -> NDArray[np.intp]:
        """Return the places of all entries, or of those that match where only words count."""
        if self.cosines is not None:
            return np.arange(self.entries)
        # the least that is more than nothing
        return self._above(np.nextafter(np.float32(0), np.float32(1)))

    def reaching(self, least: np.float32) -> NDArray[np.intp]:
        """Return the places of all entries that may have such a sum, or more, in order."""
        if least <= _LEAST:
            return self.counting()
        boost_plan = self._boost_plan
        least = least - np.float32(_ROUNDED + (boost_plan.most if boost_plan else 0.0))
        found = self._above(least)
        named = boost_plan.named[boost_plan.named < self.entries] if boost_plan else found[:0]
        # `unique` would take twenty times as long as all the rest
        others = found[~np.isin(found, named)]
        return np.insert(others, np.searchsorted(others, named), named)

    def _above(self, least: np.float32) -> NDArray[np.intp]:
        """Return the places of what has at least such a sum without its sort and name."""
        each = [self._above_in(part, least) + part.start for part in parts(self.entries)]
        return np.concatenate(each) if each else np.empty(0, np.intp)

    def _above_in(self, part: slice, least: np.float32) -> NDArray[np.intp]:
        total = self._said(part)
        if self._boost_plan and self._boost_plan.values is not None:
            total = total + (VALUE_WEIGHT + BOTH_WEIGHT) * self._boost_plan.values[part]
        return np.flatnonzero(total >= least)


def _highest(sums: _Sums, most: int) -> NDArray[np.intp]:
    """Return the places of the highest sums, so many, in order; of equal ones the first.

    To make all sums takes several times as long where there are many, and to put them in order a
    hundred times: a sample tells which sum hardly fewer have.
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
