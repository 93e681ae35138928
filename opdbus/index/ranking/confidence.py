"""The confidence model: the probability that a hit is right, and whether a hit is weak.

A second probability, that the query has an answer on this host, decides whether all hits are weak.
Both are logistic functions. `benchmarks/answers/run.py fit` fits their weights, calibration.tsv, on
one half of the check sets; docs/searching-reference.md has the results on the other half.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from opdbus.index.ranking.scores import Score
from opdbus.language import tables

# The model of hits that were not compared by vectors.
_WORDS: Final = "none", "lexical"
# A hit with a smaller confidence is weak: this costs at most 0.3 percent of the queries their
# answer.
_LEAST: Final = 0.005
# The best hits from which margins and the highest cosine are computed.
COMPARED: Final = 10
# On a host of few objects (`CosineBaseline.small_host`), the odds of an answer must be this many
# times as high, and the confidence of the best hit at least this: a term that all other objects
# lack means little there. Fitted on random parts of the hosts of benchmarks/answers.
_ODDS_OF_FEW: Final = 4.0
_LEAST_OF_FEW: Final = 0.15
# The least divisor of `Features.cosine_z_score`: cosines with less spread carry no information.
_LEAST_SPREAD: Final = 0.02
_MAX_LOG_ODDS: Final = 30.0

Weights: TypeAlias = tuple[float, ...]


class Features(NamedTuple):
    """The inputs of the logistic functions, in the order of the weights in calibration.tsv.

    `cosine_z_score` is the number of standard deviations of the hit's cosine above the baseline's
    mean;
    `highest` is the highest cosine of the best hits. `unknown` and `named` are the fields of
    `Missing`. `total_margin` and `lexical_margin` are the differences from the best of the other
    hits. `overlap` is that of the terms. `text_cosine`, `worst_missing` and `domain` are as in
    `WordSimilarityFeatures`, `other_kind`, `other_value` and `other_name` as in `Mismatch`.

    The last four are products. Lexical matches count more where the cosine agrees, and less in an
    object of another name or kind. A missing word has another weight where the cosine is high.
    """

    cosine: float
    lexical: float
    values: float
    boost: float
    cosine_z_score: float
    highest: float
    unknown: float
    named: float
    domain: float
    overlap: float
    total_margin: float
    lexical_margin: float
    mean: float
    spread: float
    text_cosine: float
    worst_missing: float
    other_kind: float
    other_value: float
    other_name: float
    cosine_z_lexical: float
    cosine_z_missing: float
    other_name_lexical: float
    other_kind_lexical: float


class LogisticModel(NamedTuple):
    """Weights of the log-odds, the constant one first, of one level and mode.

    `answerable` is for an answer on this host, `right` for a hit. A result is weak if the
    probability of an answer is below `least`.
    """

    answerable: Weights
    right: Weights
    least: float

    def is_weak(self, features: Features, small_host: float) -> bool:
        """Return whether an answer is improbable by the best hit; see `CosineBaseline`."""
        odds: float = self.least / (1 - self.least) * _ODDS_OF_FEW**small_host
        is_unlikely = logistic(self.answerable, features) < odds / (1 + odds)
        return is_unlikely or logistic(self.right, features) < _LEAST_OF_FEW * small_host**2


class RatedHit(NamedTuple):
    """The probability that a hit is right, and whether the hit is weak."""

    confidence: float
    is_weak: bool


# The rating of objects that meet the conditions of a query without other terms.
CERTAIN: Final = RatedHit(1.0, is_weak=False)


@cache
def logistic_models() -> Mapping[tuple[str, str], LogisticModel]:
    """Read the weights by level and mode."""
    found = {}
    for level, mode, least, *weights in tables.rows("calibration"):
        numbers = tuple(map(float, weights))
        cut = len(Features._fields) + 1
        found[level, mode] = LogisticModel(numbers[:cut], numbers[cut:], float(least))
    return found


def rate(found: Sequence[Score], mode: str) -> list[RatedHit]:
    """Return the rating of each hit, best hit first; confidences never increase from hit to hit.

    All hits are weak if an answer is improbable by the best one, or if the query asks for the state
    of a named object and the names of all of the best hits differ. A single hit is also weak if its
    confidence is below _LEAST.
    """
    rating: list[RatedHit] = []
    is_refused = bool(found) and all(score.mismatch.name == 1 for score in found[:COMPARED])
    least = 1.0
    for score, features in zip(found, compute_features(found), strict=True):
        # another level may have compared what was found by words alone
        by = "vector" if mode == "vector" else "hybrid"
        model = logistic_models()[(score.level, by) if score.level else _WORDS]
        if not rating:
            is_refused |= model.is_weak(features, score.baseline.small_host)
        least = min(least, logistic(model.right, features))
        rating.append(RatedHit(least, is_refused or least < _LEAST))
        is_refused = rating[0].is_weak
    return rating


def rate_similar(found: Sequence[Score]) -> list[RatedHit]:
    """Return the ratings of objects similar to a given one: their cosines, and none is weak."""
    return [RatedHit(min(1.0, max(0.0, score.cosine)), is_weak=False) for score in found]


def compute_features(found: Sequence[Score]) -> list[Features]:
    """Return the features of each hit; `found` begins with the best."""
    best = found[:COMPARED]
    highest = max((each.cosine for each in best), default=0.0)

    def margins(values: Sequence[float]) -> Iterator[float]:
        """Yield the difference of each value from the best of the other hits."""
        first, second, *_ = *sorted(values[:COMPARED], reverse=True), 0.0, 0.0
        return (value - (first if value < first else second) for value in values)

    rows = zip(
        found,
        margins([score.total for score in found]),
        margins([score.lexical for score in found]),
        strict=True,
    )
    features = []
    for score, total_margin, lexical_margin in rows:
        mean, spread, _ = score.baseline
        cosine_z_score = (score.cosine - mean) / max(spread, _LEAST_SPREAD)
        text_cosine, worst_missing, domain = score.match_features
        kind, value, name = score.mismatch
        features.append(
            Features(
                cosine=score.cosine,
                lexical=score.lexical,
                values=score.values,
                boost=score.boost,
                cosine_z_score=cosine_z_score,
                highest=highest,
                unknown=score.missing.words,
                named=score.missing.names,
                domain=domain,
                overlap=score.overlap,
                total_margin=total_margin,
                lexical_margin=lexical_margin,
                mean=mean,
                spread=spread,
                text_cosine=text_cosine,
                worst_missing=worst_missing,
                other_kind=kind,
                other_value=value,
                other_name=name,
                cosine_z_lexical=cosine_z_score * score.lexical,
                cosine_z_missing=cosine_z_score * worst_missing,
                other_name_lexical=name * score.lexical,
                other_kind_lexical=kind * score.lexical,
            )
        )
    return features


def logistic(weights: Sequence[float], values: Iterable[float]) -> float:
    """Return the logistic function of the weighted sum of values; the first weight is constant."""
    constant, *rest = weights
    log_odds = constant + sum(weight * value for weight, value in zip(rest, values, strict=True))
    return 1 / (1 + math.exp(-min(max(log_odds, -_MAX_LOG_ODDS), _MAX_LOG_ODDS)))
