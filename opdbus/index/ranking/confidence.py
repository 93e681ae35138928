"""Scores that mean something: the share of right answers among hits that are as good.

The score says how likely a hit is right. Whether there is an answer at all depends on another
chance, that the question has one here. Both are logistic functions, whose weights in
calibration.tsv were fitted by benchmarks/answers/fit.py on one half of the check sets;
docs/searching.md has what the other half says of them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from opdbus.index.ranking.scores import Score
from opdbus.language import tables

# What no level's vectors were compared for is judged by its words.
_WORDS: Final = "none", "lexical"
# Of hits with a smaller chance 0.3 percent of the questions would miss their answer at most.
_LEAST: Final = 0.005
# So many of the best say how much better a hit is than others.
COMPARED: Final = 10
# On a host of few objects an answer must be so many times as likely, and its best hit right at
# least so often: that it has words which all others lack means little there. Measured by few.py
# and strangers.py of benchmarks/answers.
_ODDS_OF_FEW: Final = 4.0
_LEAST_OF_FEW: Final = 0.15
# Cosines that hardly spread tell nothing.
_LEAST_SPREAD: Final = 0.02
_MOST_ODDS: Final = 30.0

Weights: TypeAlias = tuple[float, ...]


class Features(NamedTuple):
    """What the chance of a hit is computed from.

    `distinct` says by how many standard deviations its cosine is above the mean one, `highest` is
    the highest cosine of all; `unknown` and `named` are what no object has of the question, as of
    Missing; `total_margin` and `lexical_margin` say how much better it is than the best of the
    others, by each. `alike`, `lacking` and `domain` are as of Evidence, and `other_kind`,
    `other_value` and `other_name` as of Mismatch. The last ones are products: words count for more
    where the cosine says the same, and for less where a thing of another name or kind has them; a
    word that is lacking counts otherwise where the cosine is high without it.
    """

    vector: float
    lexical: float
    values: float
    boost: float
    distinct: float
    highest: float
    unknown: float
    named: float
    domain: float
    said: float
    total_margin: float
    lexical_margin: float
    mean: float
    spread: float
    alike: float
    lacking: float
    other_kind: float
    other_value: float
    other_name: float
    distinct_lexical: float
    distinct_lacking: float
    other_name_lexical: float
    other_kind_lexical: float


@dataclass(frozen=True, slots=True)
class Curve:
    """The weights of the log-odds, constant ones first; `least` as of judge."""

    there: Weights
    right: Weights
    least: float

    def chance(self, features: Features) -> float:
        """Return how likely a hit is right, from 0 to 1."""
        return logistic(self.right, features)

    def answerable(self, features: Features) -> float:
        """Return how likely the question has an answer here, from 0 to 1, by its best hit."""
        return logistic(self.there, features)

    def is_weak(self, features: Features, few: float) -> bool:
        """Return whether there is hardly an answer; `few` as of Background."""
        odds: float = self.least / (1 - self.least) * _ODDS_OF_FEW**few
        is_unlikely = self.answerable(features) < odds / (1 + odds)
        return is_unlikely or self.chance(features) < _LEAST_OF_FEW * few**2


@dataclass(frozen=True, slots=True)
class RatedHit:
    """How likely a hit is right, and whether it is too weak to be an answer, or a part of one."""

    chance: float
    is_weak: bool


# What meets conditions, where nothing else was asked.
CERTAIN: Final = RatedHit(1.0, is_weak=False)


@cache
def curves() -> Mapping[tuple[str, str], Curve]:
    """Read the weights of each level and mode."""
    found = {}
    for level, mode, least, *weights in tables.rows("calibration"):
        numbers = tuple(map(float, weights))
        cut = len(Features._fields) + 1
        found[level, mode] = Curve(numbers[:cut], numbers[cut:], float(least))
    return found


def rate(found: Sequence[Score], mode: str) -> list[RatedHit]:
    """Return how likely each of the best hits is right; none is likelier than one before it.

    `found` begins with the best. The whole answer is weak if the question is by that less likely to
    have an answer here than its curve demands, or asks for the state of what all of the best are
    called otherwise than. So is, by itself, a hit of which hardly one in so many is right.
    """
    rating: list[RatedHit] = []
    is_other = bool(found) and all(score.mismatch.name == 1 for score in found[:COMPARED])
    for score, features in zip(found, featured(found), strict=True):
        curve = curves()[(score.stage, mode) if score.stage else _WORDS]
        chance = curve.chance(features)
        is_refused = (
            rating[0].is_weak
            if rating
            else is_other or curve.is_weak(features, score.background.few)
        )
        chance = min(chance, rating[-1].chance) if rating else chance
        rating.append(RatedHit(chance, is_refused or chance < _LEAST))
    return rating


def like(found: Sequence[Score]) -> list[RatedHit]:
    """Return the cosines of things that are like another: nothing was asked that they may miss."""
    return [RatedHit(min(1.0, max(0.0, score.vector)), is_weak=False) for score in found]


def featured(found: Sequence[Score]) -> list[Features]:
    """Return the features of each of the best hits."""
    best = found[:COMPARED]
    highest = max((each.vector for each in best), default=0.0)
    totals = _two([score.total for score in best])
    words = _two([score.lexical for score in best])
    return [
        _of(score, highest, _margin(score.total, totals), _margin(score.lexical, words))
        for score in found
    ]


def logistic(weights: Sequence[float], values: Iterable[float]) -> float:
    """Return the probability that weights, the constant one first, give to values."""
    constant, *rest = weights
    odds = constant + sum(weight * value for weight, value in zip(rest, values, strict=True))
    return 1 / (1 + math.exp(-min(max(odds, -_MOST_ODDS), _MOST_ODDS)))


def _of(score: Score, highest: float, total_margin: float, lexical_margin: float) -> Features:
    mean, spread, _ = score.background
    distinct = (score.vector - mean) / max(spread, _LEAST_SPREAD)
    alike, lacking, domain = score.match_features
    return Features(
        vector=score.vector,
        lexical=score.lexical,
        values=score.values,
        boost=score.kinds,
        distinct=distinct,
        highest=highest,
        unknown=score.missing.words,
        named=score.missing.names,
        domain=domain,
        said=score.said,
        total_margin=total_margin,
        lexical_margin=lexical_margin,
        mean=mean,
        spread=spread,
        alike=alike,
        lacking=lacking,
        other_kind=score.mismatch.kind,
        other_value=score.mismatch.value,
        other_name=score.mismatch.name,
        distinct_lexical=distinct * score.lexical,
        distinct_lacking=distinct * lacking,
        other_name_lexical=score.mismatch.name * score.lexical,
        other_kind_lexical=score.mismatch.kind * score.lexical,
    )


def _two(values: Sequence[float]) -> tuple[float, float]:
    """Return the largest value and the second largest one; 0 for what is missing."""
    best, second, *_ = *sorted(values, reverse=True), 0.0, 0.0
    return best, second


def _margin(value: float, best: tuple[float, float]) -> float:
    return value - (best[0] if value < best[0] else best[1])
