"""Fits the weights by which scores are calibrated, on one half of the check sets of answers.

`OP_DBUS_MODEL_DIR=... python benchmarks/answers/fit.py` writes opdbus/tables/calibration.tsv.
Each host counts for as much as it has different things: a hundred objects of any sort more than a
thousand packages.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from asking import EXAMS, HOSTS, STATES, Answer, answers
from numpy.typing import NDArray

from opdbus.index.ranking.confidence import (
    Features,
    LogisticModel,
    Weights,
    compute_features,
    logistic,
)
from opdbus.index.ranking.scores import MODES

TABLE: Final = Path(__file__).parents[2] / "opdbus" / "tables" / "calibration.tsv"
LEVELS: Final = ("static", "low", "medium", "high")
_HOST_WEIGHTS: Final = {
    "example": 3.0, "packages": 1.0, "values": 4.0, **dict.fromkeys(EXAMS, 4.0), STATES: 1.0
}  # fmt: skip
# Each question is asked both ways; more people ask for what is there.
_TAKEN_OUT_WEIGHT: Final = 0.5
# What is told apart from questions that have an answer is above all what is about other things.
_TAKEN_OUT_THERE: Final = 0.3
# A hit behind the first one counts for so much.
_LATER_WEIGHT: Final = 0.1
_HITS: Final = 5
_RIDGE: Final = 1e-3
# So many of all answerable questions may be refused, 0.4 percent less than of those to come, and
# of those of a host on the mean.
_REFUSED: Final = 0.026
_REFUSED_OF_HOSTS: Final = 0.05
# So many about foreign topics are to be refused. By words alone the halves differ most.
_FOREIGN_REFUSED: Final = {"hybrid": 0.96, "vector": 0.95, "lexical": 0.97}
_WRITTEN_BY_HAND: Final = """\
# How likely hits are right: the weights of two log-odds, by the level whose vectors were compared
# and the mode. Level, mode, the chance that a question has an answer here, below which what was
# found is weak; the weights of the features in index/ranking/confidence.py for that chance, and
# for the chance that a hit is right, the constant ones first.
# Written by benchmarks/answers/fit.py.
"""

# A hit, its answer, whether it is right, and how much it counts.
_Row = tuple[Features, Answer, bool, float]


def fitted(found: Sequence[Answer]) -> LogisticModel:
    """Return the curve of the answers of one level and mode."""
    asked = [each for each in found if each.half == "fit" and each.kind != "typos"]
    used = [each for each in asked if each.scores]
    first = [_for_there(row) for each in used for row in _rows(each, 1)]
    there = _logistic(first, lambda row: row[1].kind == "answerable")
    rows = [row for each in used if each.kind != "foreign" for row in _rows(each, _HITS)]
    model = LogisticModel(there, _logistic(rows, lambda row: row[2]), 0.0)
    return model._replace(least=_least(model, asked))


def _for_there(row: _Row) -> _Row:
    features, answer, right, weight = row
    is_out = answer.kind == "taken out"
    return features, answer, right, weight * (_TAKEN_OUT_THERE if is_out else 1)


def _rows(answer: Answer, most: int) -> list[_Row]:
    weight = _HOST_WEIGHTS[answer.host]
    if answer.kind == "taken out":
        weight *= _TAKEN_OUT_WEIGHT
    return [
        (features, answer, right, weight * (_LATER_WEIGHT if at else 1))
        for at, (features, right) in enumerate(
            zip(compute_features(answer.scores)[:most], answer.right[:most], strict=True)
        )
    ]


def _logistic(rows: Sequence[_Row], label: Callable[[_Row], bool]) -> Weights:
    """Return the weights of a logistic regression with a small ridge, by Newton's method."""
    values = np.array([row[0] for row in rows])
    mean, spread = values.mean(axis=0), values.std(axis=0)
    # what never differs tells nothing
    spread[spread < 1e-9] = np.inf
    matrix = np.hstack([np.ones((len(rows), 1)), (values - mean) / spread])
    labels = np.array([label(row) for row in rows], float)
    counts = np.array([row[3] for row in rows])
    counts /= counts.sum()
    ridge = np.full(matrix.shape[1], _RIDGE)
    ridge[0] = 0
    weights = np.zeros(matrix.shape[1])
    for _ in range(50):
        confidences = 1 / (1 + np.exp(-np.clip(matrix @ weights, -30, 30)))
        gradient = matrix.T @ (counts * (confidences - labels)) + ridge * weights
        curvature = (matrix * (counts * confidences * (1 - confidences))[:, None]).T @ matrix
        weights -= np.linalg.solve(curvature + np.diag(ridge + 1e-9), gradient)
    weights[1:] /= spread
    weights[0] -= weights[1:] @ np.where(np.isinf(spread), 0, mean)
    return tuple(weights.tolist())


def _least(model: LogisticModel, asked: Sequence[Answer]) -> float:
    """Return the chance below which an answer is refused.

    Enough foreign questions have less, if few answerable ones do.
    """

    def confidences(kind: str, host: str) -> NDArray[np.float64]:
        scores = [each.scores for each in asked if (each.kind, each.host) == (kind, host)]
        # where nothing is found, nothing is answered
        return np.array(
            [logistic(model.answerable, compute_features(s)[0]) if s else 0.0 for s in scores]
        )

    foreign = np.concatenate([confidences("foreign", host) for host in HOSTS])
    enough = max(float(np.quantile(foreign, _FOREIGN_REFUSED[asked[0].mode])), 1e-6)
    return min(enough, _most([confidences("answerable", host) for host in HOSTS]))


def _most(by_host: Sequence[NDArray[np.float64]]) -> float:
    """Return the largest chance below which few answerable questions of the hosts have theirs."""
    every = np.concatenate(by_host)
    for least in sorted(every, reverse=True):
        of_hosts = [(confidences < least).mean() for confidences in by_host]
        if (every < least).mean() <= _REFUSED and np.mean(of_hosts) <= _REFUSED_OF_HOSTS:
            return float(least)
    return 0.0


def _line(level: str, mode: str, model: LogisticModel) -> str:
    numbers = (f"{number:.4g}" for number in (model.least, *model.answerable, *model.right))
    return "\t".join((level, mode, *numbers))


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--levels", nargs="+", default=LEVELS)
    parser.add_argument("--scratch", type=Path, help="where vectors are kept for the next time")
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    kept = [line for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    lines = {tuple(line.split("\t")[:2]): line for line in kept}
    with tempfile.TemporaryDirectory() as folder:
        for level in given.levels:
            scratch = given.scratch or Path(folder)
            found = [a for host in HOSTS for a in asyncio.run(answers(host, level, scratch))]
            for mode in MODES:
                model = fitted([each for each in found if each.mode == mode])
                key = ("none", mode) if mode == "lexical" else (level, mode)
                lines[key] = _line(*key, model)
                print(lines[key], flush=True)
    TABLE.write_text(_WRITTEN_BY_HAND + "\n".join(lines[key] for key in sorted(lines)) + "\n")


if __name__ == "__main__":
    main()
