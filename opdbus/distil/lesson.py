"""Request for a student, its training parameters and data, and the part held out to measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Final

# Default seed of all random choices.
SEED: Final = 14


@dataclass(frozen=True, slots=True)
class Recipe:
    """Training parameters of a student."""

    # `static`: a table; `layers`: some of the teacher's own layers
    to: str
    epochs: float
    batch: int
    rate: float
    # share of the steps in which the learning rate rises
    warm_up: float = 0.0
    # for a table: the length of a row, and the share of a text's pieces that is dropped at random
    dimension: int = 256
    dropped: float = 0.2
    # number of the teacher's layers that stay
    layers: int = 3
    seed: int = SEED


RECIPES: Final = {
    "static": Recipe("static", epochs=12, batch=1024, rate=0.01),
    "layers": Recipe("layers", epochs=2, batch=64, rate=5e-4, warm_up=0.05),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A teacher's folder, the folder to write, and the training data."""

    teacher: Path
    into: Path
    recipe: Recipe
    texts: tuple[str, ...]
    # questions, and the texts that answer them
    pairs: tuple[tuple[str, str], ...] = ()
    # folder of vectors and checkpoints, to be reused by another run
    work: Path | None = None
    # interval of checkpoints, the most work that is lost when training is stopped
    keep_seconds: float = 60.0


# One in this many texts and pairs is held out, and at most this many texts.
_HELD_OUT: Final = 20
_MOST_HELD_OUT: Final = 1000


@dataclass(frozen=True)
class Lesson:
    """Texts and pairs of questions and answers; `held_out` and `asked` are not learned.

    `extra` are single words, from which a table's rows are initialized.
    """

    texts: Sequence[str]
    extra: Sequence[str]
    # indexes of texts
    held_out: Sequence[int]
    pairs: Sequence[tuple[str, str]]
    asked: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, request: Request, extra: Sequence[str]) -> Lesson:
        """Split the request's data; the held-out part depends on the seed only."""
        random, known = Random(request.recipe.seed), frozenset(request.texts)  # noqa: S311 -- no secret
        count = min(_MOST_HELD_OUT, len(request.texts) // _HELD_OUT)
        pairs = random.sample(request.pairs, len(request.pairs))
        asked = len(pairs) // _HELD_OUT
        return cls(
            request.texts,
            [text for text in extra if text not in known],
            sorted(random.sample(range(len(request.texts)), count)),
            pairs[asked:],
            pairs[:asked],
        )

    @cached_property
    def every(self) -> list[str]:
        """All texts that the teacher embeds, the extra ones last."""
        return [*self.texts, *self.extra]

    @cached_property
    def learned(self) -> list[int]:
        """Indexes of the texts to train on."""
        held_out = frozenset(self.held_out)
        return [number for number in range(len(self.every)) if number not in held_out]

    @property
    def measured(self) -> list[str]:
        """The texts that are held out."""
        return [self.texts[number] for number in self.held_out]
