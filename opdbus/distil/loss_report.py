"""Report on a student's loss against its teacher, with intervals, measured with the engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.distil.lesson import SEED
from opdbus.engine import check_set

if TYPE_CHECKING:
    from opdbus.api import Embedder

# The texts are embedded repeatedly for this time; the fastest time counts.
_TIMED_SECONDS: Final = 1.0
_TIMED_TEXTS: Final = 512

Interval = list[float]


@dataclass(frozen=True, slots=True)
class Questions:
    """Texts, questions, and the index of the right text for each question."""

    texts: Sequence[str]
    questions: Sequence[str]
    wanted: NDArray[np.intp]

    @classmethod
    def check_set(cls) -> Questions:
        """Return the check set of the package, which the accuracy gate uses too."""
        return cls(*check_set.read_questions())

    @classmethod
    def of_pairs(cls, pairs: Sequence[tuple[str, str]]) -> Questions:
        """Return pairs of questions and texts as a set."""
        texts = list(dict.fromkeys(text for _, text in pairs))
        wanted = [texts.index(text) for _, text in pairs]
        return cls(texts, [question for question, _ in pairs], np.array(wanted, np.intp))

    def ranks(self, engine: Embedder) -> NDArray[np.float64]:
        """Return the reciprocal rank of the right text for each question."""
        texts, questions = engine.embed(self.texts), engine.embed(self.questions)
        return check_set.reciprocal_ranks(texts, questions, self.wanted)


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Measurements of one model for the report."""

    # vectors of the texts that were held out
    vectors: NDArray[np.float32]
    # reciprocal ranks of the right texts, by the name of a set of questions
    ranks: dict[str, NDArray[np.float64]]
    texts_per_second: float
    bytes: int
    provider: str
    deviation: float


def measure(engine: Embedder, texts: Sequence[str], sets: dict[str, Questions]) -> ModelFigures:
    """Measure an open engine on the texts and questions."""
    vectors = engine.embed(texts)
    some, least, until = texts[:_TIMED_TEXTS], float("inf"), time.monotonic() + _TIMED_SECONDS
    while True:
        began = time.perf_counter()
        engine.embed(some)
        least = min(least, time.perf_counter() - began)
        if time.monotonic() > until:
            break
    return ModelFigures(
        vectors,
        {name: questions.ranks(engine) for name, questions in sets.items()},
        len(some) / least,
        engine.engine.model.weights.stat().st_size,
        engine.provider,
        engine.proof.max_deviation,
    )


def interval(values: Sequence[float] | NDArray[Any]) -> Interval:
    """Return the mean of values and the ends of its 95% bootstrap interval."""
    return [round(value, 4) for value in check_set.interval(np.asarray(values), SEED)]


def compare(
    teacher: ModelFigures, student: ModelFigures, directions: NDArray[np.float32] | None
) -> dict[str, Any]:
    """Return the figures of both models and their differences.

    A student's vectors may have the teacher's main `directions` (teacher's, student's) as
    coordinates; the truncated part counts as lost.
    """
    whole = student.vectors if directions is None else student.vectors @ directions.T
    figures: dict[str, Any] = {
        "held_out": len(whole),
        "cosine": interval((whole * teacher.vectors).sum(axis=1)),
        "ranks": {
            name: {
                "questions": len(ranks),
                "teacher": interval(ranks),
                "student": interval(student.ranks[name]),
                "lost": interval(ranks - student.ranks[name]),
            }
            for name, ranks in teacher.ranks.items()
        },
    }
    figures["served"] = {"teacher": _served(teacher), "student": _served(student)}
    return figures


def _served(model: ModelFigures) -> dict[str, Any]:
    return {
        "texts_per_second": round(model.texts_per_second, 1),
        "bytes": model.bytes,
        "provider": model.provider,
        "proven_within": float(f"{model.deviation:.1e}"),
    }
