"""Scores of entries: the weighted sum of cosine, BM25, field values, kinds and names.

Each weight names the benchmark or questions that it was chosen with.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.language.kinds import RequestedKinds

MODES: Final = ("hybrid", "vector", "lexical")
# Weight of the lexical score beside a cosine: chosen with the check set of state.example.json.
LEXICAL_WEIGHT: Final = 0.5
# Weight of the term overlap: chosen with `benchmarks/answers/run.py measure`.
OVERLAP_WEIGHT: Final = 0.2
# Weight of the share of named values: chosen on tests/data/value_questions.json, and small enough
# that an exact name still wins.
VALUE_WEIGHT: Final = 0.4
# Extra weight of the named-value share for entries of a named kind, on top of VALUE_WEIGHT.
VALUE_OF_KIND_WEIGHT: Final = 0.4
# Boost of an entry of a kind that the query asks for: chosen on questions about a booted host.
KIND_BOOST: Final = 0.15
# Boost of an entry whose whole name is a word of the query.
NAME_BOOST: Final = 0.2
# Boost of an entry whose name is the whole query: larger than any other.
WHOLE_QUERY_NAME_BOOST: Final = 1.0
_MIN_POSITIVE_SCORE: Final = np.float32(1e-6)
# Best entries that are ordered first, by exact cosines: this many, or a thousandth of all if more.
_LIKELY: Final = 400
# BM25 is at most (k1 + 1) idf for each term; FTS5 fixes k1 at 1.2.
_BM25_CEILING: Final = 2.2

# returns the exact cosines of the entries at some places
Exact: TypeAlias = Callable[[NDArray[np.intp]], NDArray[np.float32]]


class CosineBaseline(NamedTuple):
    """The mean and standard deviation of a query's cosines over all objects.

    `small_host` is 1 on a host of few objects, where a missing term carries little information, and
    falls to 0 on a larger one.
    """

    mean: float
    spread: float
    small_host: float = 0.0


# The typical baseline, used where there are no vectors.
TYPICAL_BASELINE: Final = CosineBaseline(0.1, 0.1)


class Missing(NamedTuple):
    """Query terms that no object has, as shares of all terms times a factor for the host's size.

    `names` has those terms that the glossary explains, such as `nginx`: names of objects that this
    host does not have.
    """

    words: float = 0.0
    names: float = 0.0


class WordSimilarityFeatures(NamedTuple):
    """Word similarity of a query and an entry, by the static table.

    `text_cosine` is that of the query and the entry's text. `worst_missing` is the maximum over the
    query's words of rarity times (1 - cosine with the nearest word of the entry). `domain` is the
    standard deviation of the query's cosines with the meanings in the glossary: a query that is not
    about a host is about equally far from all.
    """

    text_cosine: float = 0.4
    worst_missing: float = 0.4
    domain: float = 0.1


class Mismatch(NamedTuple):
    """Mismatches of a query and an entry, each from 0 to 1: see `hit_features.find_mismatches`.

    `kind`: the entry is of no requested kind (1 if no entry is). `value`: the share of the
    requested values that it lacks. `name`: the entry's name differs from the name in a question
    about an object's state, or no hit has a number of the question.
    """

    kind: float = 0.0
    value: float = 0.0
    name: float = 0.0


class Score(NamedTuple):
    """The score of an entry: `total` orders hits, the parts explain it.

    `cosine`, `lexical` and `values` are at most 1; `boost` is that of `Boosts.additive`. `level` is
    the one whose vectors were compared, empty if none were, and `baseline` that of its cosines for
    this query. `missing` has the query terms that no object has. `overlap` (of terms),
    `match_features` and `mismatch` are set on the best hits only.
    """

    total: float
    cosine: float
    lexical: float
    values: float = 0.0
    boost: float = 0.0
    level: str = ""
    baseline: CosineBaseline = TYPICAL_BASELINE
    overlap: float = 0.0
    missing: Missing = Missing()
    match_features: WordSimilarityFeatures = WordSimilarityFeatures()
    mismatch: Mismatch = Mismatch()

    def with_cosine(
        self, cosine: float, level: str, baseline: CosineBaseline | None = None
    ) -> "Score":
        """Return the score with the cosine and baseline of another level.

        Without a `baseline` the own one stays.
        """
        total = cosine + LEXICAL_WEIGHT * self.lexical + VALUE_WEIGHT * self.values
        if total > 0:
            total = max(total + self.boost, float(_MIN_POSITIVE_SCORE))
        baseline = baseline or self.baseline
        return self._replace(total=total, cosine=cosine, level=level, baseline=baseline)


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """Cosine scores of entries with a query, by vectors of `level`.

    `cosines` (entries,) are NaN for an entry without a vector. If they are estimates, `exact`
    computes the exact ones of given places.
    """

    cosines: NDArray[np.float32]
    level: str = ""
    baseline: CosineBaseline | None = None
    exact: Exact | None = None


class Boosts(NamedTuple):
    """Boosts of entries (entries,).

    `value_shares` are shares of the values that the query names, from 0 to 1, or None if it names
    none; VALUE_WEIGHT is still to be applied. `additive` is added to the score for the entry's kind
    and name, and may be negative.
    """

    value_shares: NDArray[np.float32] | None
    additive: NDArray[np.float32]

    def at(self, places: NDArray[np.intp] | None) -> "Boosts":
        """Return the boosts of the entries at some places; all if None."""
        if places is None:
            return self
        return Boosts(
            None if self.value_shares is None else self.value_shares[places], self.additive[places]
        )


def value_shares(having: Sequence[NDArray[np.bool_]], objects: int) -> NDArray[np.float32] | None:
    """Return the share of the named values that each entry has, from 0 to 1; None without values.

    `having` has for each value a mask of the entries that have it. The share is the summed
    rarity of the values that the entry has, log(objects / count) / log(objects), divided by the
    number of named values. An entry with all values
    gets at least the rarity of that combination.
    """
    if not having:
        return None

    def rarity(mask: NDArray[np.bool_]) -> float:
        count = int(np.count_nonzero(mask))
        return math.log(objects / count) / math.log(objects) if 0 < count < objects else 0.0

    one_by_one = np.zeros(len(having[0]), np.float32)
    for mask in having:
        one_by_one += mask * np.float32(rarity(mask) / len(having))
    if len(having) == 1:
        return one_by_one
    has_all = reduce(np.logical_and, having)
    return np.maximum(one_by_one, has_all * np.float32(rarity(has_all)))


def kind_boosts(
    asked: RequestedKinds,
    kinds: NDArray[np.int64],
    penalties: NDArray[np.float32],
    values: NDArray[np.float32] | None,
) -> NDArray[np.float32]:
    """Return the boosts for the kinds of entries (entries,): see `Boosts.additive`.

    `kinds` are bit masks, `penalties` those of kinds that the query does not name.
    """
    if not asked.named:
        return -penalties
    bonuses: NDArray[np.float32] = (kinds & asked.subject != 0) * np.float32(KIND_BOOST)
    if values is not None:
        bonuses += VALUE_OF_KIND_WEIGHT * values
    return np.where(kinds & asked.named != 0, bonuses, -penalties)


def bm25_upper_bound(matches: Sequence[int], objects: int) -> float:
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
    lexical_scores: NDArray[np.float32] | None = None,
    boosts: Boosts | None = None,
    ids: NDArray[np.int64] | None = None,
) -> Iterator[tuple[int, Score]]:
    """Yield (index, Score) from best to worst.

    `lexical_scores` (entries,) are None in vector mode. `similarity` is None in lexical mode: then
    only entries with a lexical match are yielded. Equal scores are ordered by `ids`, since places
    change at a restart, or without `ids` by index. The best entries by estimated cosines are
    ordered by their exact ones, and come before all others.
    """
    cosines = None if similarity is None else similarity.cosines
    additive = None if boosts is None else boosts.additive
    # entries may have been added between the computations of these arrays
    entries = min(
        (len(each) for each in (cosines, lexical_scores, additive) if each is not None), default=0
    )
    total = _totals(cosines, lexical_scores, boosts, entries)
    candidates = np.arange(entries) if cosines is not None else np.flatnonzero(total > 0)
    likely = _highest(total, candidates, max(_LIKELY, entries // 1000), ids)
    if similarity and similarity.exact:
        cosines = similarity.cosines.copy()
        cosines[likely] = similarity.exact(likely)
        total = _totals(cosines, lexical_scores, boosts, entries)

    def scored(places: NDArray[np.intp]) -> Iterator[tuple[int, Score]]:
        places = _by_id(places, ids)
        for index in places[np.argsort(-total[places], kind="stable")].tolist():
            cosine = math.nan if cosines is None else float(cosines[index])
            is_known = similarity is not None and math.isfinite(cosine)
            yield (
                index,
                Score(
                    float(total[index]),
                    cosine if is_known else 0.0,
                    0.0 if lexical_scores is None else float(lexical_scores[index]),
                    0.0
                    if boosts is None or boosts.value_shares is None
                    else float(boosts.value_shares[index]),
                    0.0 if boosts is None else float(boosts.additive[index]),
                    similarity.level if similarity and is_known else "",
                    (similarity and similarity.baseline) or TYPICAL_BASELINE,
                ),
            )

    yield from scored(likely)
    is_likely = np.zeros(entries, np.bool_)
    is_likely[likely] = True
    yield from scored(candidates[~is_likely[candidates]])


def _totals(
    cosines: NDArray[np.float32] | None,
    lexical_scores: NDArray[np.float32] | None,
    boosts: Boosts | None,
    entries: int,
) -> NDArray[np.float32]:
    """Return the weighted sums (entries,)."""
    if cosines is None:
        total = (
            np.zeros(entries, np.float32) if lexical_scores is None else lexical_scores[:entries]
        )
    else:
        total = np.where(np.isnan(cosines[:entries]), np.float32(0), cosines[:entries])
        if lexical_scores is not None:
            total = total + LEXICAL_WEIGHT * lexical_scores[:entries]
    if boosts is None:
        return total
    if boosts.value_shares is not None:
        total = total + VALUE_WEIGHT * boosts.value_shares[:entries]
    # A boost cannot turn a non-match into a match, nor a penalty the reverse.
    # (np.where is five times slower.)
    boosted: NDArray[np.float32] = np.maximum(
        total + boosts.additive[:entries], _MIN_POSITIVE_SCORE
    )
    boosted *= total > 0
    boosted += np.minimum(total, 0)
    return boosted


def _highest(
    total: NDArray[np.float32], places: NDArray[np.intp], most: int, ids: NDArray[np.int64] | None
) -> NDArray[np.intp]:
    """Return, ascending, the `most` places with the highest totals; of equal ones the first."""
    if len(places) <= most:
        return places
    totals = total[places]
    last = np.partition(totals, -most)[-most]
    better, equal = places[totals > last], places[totals == last]
    return np.sort(np.append(better, _by_id(equal, ids)[: most - len(better)]))


def _by_id(places: NDArray[np.intp], ids: NDArray[np.int64] | None) -> NDArray[np.intp]:
    """Return ascending places in the order of equal scores: by id, or unchanged without ids."""
    return places if ids is None else places[np.argsort(ids[places])]
