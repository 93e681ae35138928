"""Check set for comparing precisions: questions about an example host, and pairs of wordings."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.tokenizer import Tokenizer, Tokens
from opdbus.language import tables

FILE: Final = Path(__file__).parent / "check_set.json"
# Bootstrap resamples: the ends of a 95% interval move by at most 3% of its width.
_RESAMPLES: Final = 2000


@dataclass(frozen=True, slots=True)
class CheckSet:
    """Tokenized texts, questions about them, and pairs of wordings.

    `wanted` has the index of the right text for each question. The first wordings of all pairs come
    before all second wordings.
    """

    rows: Tokens
    texts: int
    wanted: NDArray[np.intp]

    @classmethod
    def read(cls, tokenizer: Tokenizer) -> CheckSet:
        """Tokenize the check set that comes with the package."""
        texts, questions, wanted = read_questions()
        ones, others = zip(*wording_pairs(), strict=True)
        return cls(tokenizer.encode([*texts, *questions, *ones, *others]), len(texts), wanted)

    @property
    def sample(self) -> int:
        """Number of rows, from the first, that hold the texts and questions without the pairs."""
        return self.texts + len(self.wanted)

    def ranks(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the reciprocal rank of each right answer, by vectors of the sample or of all rows.

        A pair is queried in both directions and counts once, with the mean.
        """
        texts, questions = vectors[: self.texts], vectors[self.texts : self.sample]
        ones, others = np.split(vectors[self.sample :], 2)
        own = np.arange(len(ones))
        both = (reciprocal_ranks(ones, others, own) + reciprocal_ranks(others, ones, own)) / 2
        return np.concatenate([reciprocal_ranks(texts, questions, self.wanted), both])


def read_questions() -> tuple[list[str], list[str], NDArray[np.intp]]:
    """Return the texts, the questions, and the index of the right text for each question."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    questions, wanted = zip(*content["questions"], strict=True)
    return content["texts"], list(questions), np.array(wanted, np.intp)


def wording_pairs() -> list[tuple[str, str]]:
    """Return each glossary meaning with several wordings: the first wording, and the rest."""
    parted = (meaning.partition(", ") for _, meaning in tables.rows("glossary"))
    return list(dict.fromkeys((one, others) for one, _, others in parted if others))


def reciprocal_ranks(
    texts: NDArray[np.float32], questions: NDArray[np.float32], wanted: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Return 1 / rank of the right text for each question, by dot products."""
    scores = questions @ texts.T
    right = scores[np.arange(len(scores)), wanted]
    return np.array(1.0 / ((scores > right[:, None]).sum(axis=1) + 1))


def interval(values: NDArray[Any], seed: int = 0) -> tuple[float, float, float]:
    """Return the mean of values and the ends of its 95% interval, by resampling questions.

    To compare two models, pass the differences of their ranks, so that each question is compared
    with itself (paired percentile bootstrap, Efron and Tibshirani 1993, chapter 13).
    """
    drawn = np.random.default_rng(seed).integers(0, len(values), (_RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(axis=1), (0.025, 0.975))
    return float(values.mean()), float(low), float(high)
