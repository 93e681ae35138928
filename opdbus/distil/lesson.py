"""Training data of a student, and the part held out to measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opdbus.distil.recipe import Request

# One in this many texts and pairs is held out, and at most this many texts.
_HELD_OUT: Final = 20
_MOST: Final = 1000


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
        count = min(_MOST, len(request.texts) // _HELD_OUT)
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
