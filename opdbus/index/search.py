"""Ranking: a weighted sum of cosine, BM25, values, sorts and names."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.index.evidence import NOTHING_MISSING, USUAL, Evidence, Missing
from opdbus.kinds import Asked
from opdbus.slices import parts

MODES: Final = ("hybrid", "vector", "lexical")
# Weight of a full lexical match beside a cosine: measured by benchmarks/quality.py.
LEXICAL_WEIGHT: Final = 0.5
# Weight of having all values that a question names, if they are rare: measured by questions about
# values (tests/data/value_questions.json), and so that an exact name still wins.
VALUE_WEIGHT: Final = 0.4
# Weight of being said as a whole by the question, words only: measured by benchmarks/answers.
SAID_WEIGHT: Final = 0.2
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
# So many are compared exactly where cosines are estimates, or one of a thousand: of 60,000 texts
# whose vectors' signs were compared, these had 99.3% of the ten most similar ones.
_LIKELY: Final = 400
# Sums that tell about where the highest begin.
_SAMPLED: Final = 1 << 14
# Sums of the same numbers in another order differ by less.
_ROUNDED: Final = 1e-5
# The limit of BM25 is (k1 + 1) idf for each term; FTS5 fixes k1 at 1.2.
_BM25_CEILING: Final = 2.2

EVERY: Final = slice(None)
# gives exact cosines of some entries
Exact: TypeAlias = Callable[[NDArray[np.intp]], NDArray[np.float32]]


class Background(NamedTuple):
    """What a question's cosines with any objects are: their mean, and how far they spread."""

    mean: float
    spread: float


# What is usual, where too few vectors are there.
_USUAL: Final = Background(0.1, 0.1)


@dataclass(frozen=True, slots=True)
class Score:
    """How well an entry answers: `total` ranks, its parts explain it.

    `vector`, `lexical` and `values` are at most 1; `kinds` is what its sort adds, as of Raised;
    `said`, of the best only, is how much of the entry the question says, as of common_words, and
    `missing` what no entry has of the question.
    `stage` is the level whose vectors were compared, empty where none were, and `background` what
    the cosines of that level are for this question. `evidence` is of the best only.
    """

    total: float
    vector: float
    lexical: float
    values: float = 0.0
    kinds: float = 0.0
    stage: str = ""
    background: Background = _USUAL
    said: float = 0.0
    missing: Missing = NOTHING_MISSING
    evidence: Evidence = USUAL

    def saying(self, share: float, missing: Missing) -> "Score":
        """Return the score of an entry of which the question says so much, and not these words."""
        rest = self.values, self.kinds, self.stage, self.background, share, missing
        return Score(self.total + SAID_WEIGHT * share, self.vector, self.lexical, *rest)

    def by(self, cosine: float, stage: str, background: Background | None = None) -> "Score":
        """Return the score that another level's vector gives."""
        total = cosine + LEXICAL_WEIGHT * self.lexical + VALUE_WEIGHT * self.values
        if total > 0:
            total = max(total + self.kinds, float(_LEAST))
        # a hundred of them a search: `replace` takes three times as long
        rest = self.lexical, self.values, self.kinds, stage, background or self.background
        return Score(total, cosine, *rest)


@dataclass(frozen=True, slots=True, eq=False)
class Likeness:
    """How like a question entries are, by vectors of a level, the `stage`.

    `cosines` (entries,) are NaN for an entry without a vector. Where they are estimates, `exact`
    gives those of some of the entries.
    """

    cosines: NDArray[np.float32]
    stage: str = ""
    background: Background | None = None
    exact: Exact | None = None


class Raised(NamedTuple):
    """What counts besides what entries say (entries,).

    `values` are shares of the values that a question names, None if it names none; `kinds` is what
    the sort of each entry adds to its score, or takes from it.
    """

    values: NDArray[np.float32] | None
    kinds: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Raising:
    """What raises so many entries; `at` tells it of those at some places.

    Sorts add at most so much, but for those entries that are `named`, and values no more than
    `values` say: few entries have a chance to be among the best, and the others are not looked at.
    """

    entries: int
    at: Callable[[NDArray[np.intp]], Raised]
    most: float
    named: NDArray[np.intp]
    values: NDArray[np.float32] | None


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
    likeness: Likeness | None,
    shares: NDArray[np.float32] | None = None,
    raising: Raising | None = None,
) -> Iterator[tuple[int, Score]]:
    """Yield (index, Score) from best to worst.

    `shares` (entries,) are those of words, as of Matches, None where words do not count; `likeness`
    is None in lexical mode, which yields matches only. Equal scores keep the order of the entries.
    Where cosines are estimates, those of the most likely entries are made exact.
    """
    sums = _Sums(None if likeness is None else likeness.cosines, shares, raising)
    likely = _highest(sums, max(_LIKELY, sums.entries // 1000))
    if likeness and likeness.exact:
        likeness.cosines[likely] = likeness.exact(likely)
    yield from _scored(sums, likely, likeness)
    is_likely = np.zeros(sums.entries, np.bool_)
    is_likely[likely] = True
    counting = sums.counting()
    yield from _scored(sums, counting[~is_likely[counting]], likeness)


def _scored(
    sums: "_Sums", places: NDArray[np.intp], likeness: Likeness | None
) -> Iterator[tuple[int, Score]]:
    """Yield the entries at some places, best first."""
    total, (values, kinds) = sums.at(places)
    cosines, shares = sums.cosines, sums.shares
    for number in np.argsort(-total, kind="stable").tolist():
        index = places.item(number)
        cosine = math.nan if cosines is None else float(cosines[index])
        is_known = likeness is not None and math.isfinite(cosine)
        yield (
            index,
            Score(
                float(total[number]),
                cosine if is_known else 0.0,
                0.0 if shares is None else float(shares[index]),
                0.0 if values is None else float(values[number]),
                float(kinds[number]),
                likeness.stage if likeness and is_known else "",
                (likeness and likeness.background) or _USUAL,
            ),
        )


class _Sums:
    """What ranks entries: the sum of all that counts."""

    def __init__(
        self,
        cosines: NDArray[np.float32] | None,
        shares: NDArray[np.float32] | None,
        raising: Raising | None,
    ) -> None:
        self.cosines = cosines
        self.shares = shares
        self._raising = raising
        # more may have come while one of them was made
        sizes = [len(each) for each in (cosines, shares) if each is not None]
        self.entries = min(sizes + ([raising.entries] if raising else []))

    def at(self, places: NDArray[np.intp]) -> tuple[NDArray[np.float32], Raised]:
        """Return what ranks the entries at some places, and what of it raises them."""
        total = np.zeros(len(places), np.float32) if self.shares is None else self.shares[places]
        if self.cosines is not None:
            known = self.cosines[places]
            total = LEXICAL_WEIGHT * total + np.where(np.isnan(known), np.float32(0), known)
        if self._raising is None:
            return total, Raised(None, np.zeros(len(places), np.float32))
        raised = self._raising.at(places)
        if raised.values is not None:
            total = total + VALUE_WEIGHT * raised.values
        # what does not match at all is not made to
        return np.where(total > 0, np.maximum(total + raised.kinds, _LEAST), total), raised

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
        raising = self._raising
        least = least - np.float32(_ROUNDED + (raising.most if raising else 0.0))
        found = self._above(least)
        named = raising.named[raising.named < self.entries] if raising else found[:0]
        # `unique` would take twenty times as long as all the rest
        others = found[~np.isin(found, named)]
        return np.insert(others, np.searchsorted(others, named), named)

    def _above(self, least: np.float32) -> NDArray[np.intp]:
        """Return the places of what has at least such a sum without its sort and name."""
        each = [self._above_in(part, least) + part.start for part in parts(self.entries)]
        return np.concatenate(each) if each else np.empty(0, np.intp)

    def _above_in(self, part: slice, least: np.float32) -> NDArray[np.intp]:
        total = np.zeros(1, np.float32) if self.shares is None else self.shares[part]
        if self.cosines is not None:
            known = self.cosines[part]
            total = LEXICAL_WEIGHT * total + np.where(np.isnan(known), np.float32(0), known)
        if self._raising and self._raising.values is not None:
            total = total + (VALUE_WEIGHT + BOTH_WEIGHT) * self._raising.values[part]
        return np.flatnonzero(total >= least)


def _highest(sums: _Sums, most: int) -> NDArray[np.intp]:
    """Return the places of the highest sums, so many, in order; of equal ones the first.

    To make all sums takes several times as long where there are many, and to put them in order a
    hundred times: a sample tells which sum hardly fewer have.
    """
    sample = np.arange(0, sums.entries, max(1, sums.entries // _SAMPLED))
    above = 4 * most * len(sample) // max(1, sums.entries)
    guess, likely = np.float32(-np.inf), np.empty(0, np.intp)
    if len(sample) < sums.entries and above < len(sample):
        guess = np.partition(sums.at(sample)[0], -above)[-above]
        likely = sums.reaching(guess)
    total, _ = sums.at(likely)
    if np.count_nonzero(total >= guess) < most:
        likely = sums.counting()
        total, _ = sums.at(likely)
    if len(likely) <= most:
        return likely
    last = np.partition(total, -most)[-most]
    better, equal = likely[total > last], likely[total == last]
    return np.sort(np.append(better, equal[: most - len(better)]))


def named_values(
    having: Sequence[NDArray[np.bool_]], at: NDArray[np.intp] | slice = EVERY
) -> NDArray[np.float32] | None:
    """Return how much some entries have of the values that a question names, at most 1 (entries,).

    `having` says of each value which of all entries have it; None if the question names none. A
    value that few entries have counts most, one that all have counts nothing; to have all of
    several counts as a value does that so few have.
    """
    if not having:
        return None
    one_by_one = np.zeros(len(having[0][at]), np.float32)
    for mask in having:
        weight = _rarity(int(np.count_nonzero(mask)), len(mask)) / len(having)
        some = mask[at]
        for part in parts(len(one_by_one)):
            one_by_one[part] += some[part] * np.float32(weight)
    if len(having) == 1:
        return one_by_one
    every = reduce(np.logical_and, having)
    together = np.float32(_rarity(int(np.count_nonzero(every)), len(every)))
    return np.maximum(one_by_one, every[at] * together)


def named_kinds(
    asked: Asked,
    kinds: NDArray[np.int64],
    less: NDArray[np.float32],
    values: NDArray[np.float32] | None,
) -> NDArray[np.float32]:
    """Return what the sorts of entries (entries,) add to their scores: see Raised."""
    if not asked.named:
        return -less
    more: NDArray[np.float32] = (kinds & asked.subject != 0) * np.float32(KIND_WEIGHT)
    if values is not None:
        more += BOTH_WEIGHT * values
    return np.where(kinds & asked.named != 0, more, -less)


def _rarity(having: int, entries: int) -> float:
    return math.log(entries / having) / math.log(entries) if 0 < having < entries else 0.0
