"""Token ids of many texts in one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = Sequence[int] | NDArray[np.intp]


class Rows(Protocol):
    """Tokenized texts as an engine passes them; an engine accepts only its own rows."""

    @property
    def lengths(self) -> NDArray[np.intp]:
        """Number of tokens of each text, special ones included."""

    @property
    def truncated(self) -> NDArray[np.bool_]:
        """True for each text that was cut."""

    def __len__(self) -> int:
        """Count the texts."""

    def take(self, wanted: Numbers) -> Self:
        """Return the rows with these indexes."""

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of all parts, at least one, in order."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokenized texts: text `t` has `lengths[t]` ids from `first[t]` on."""

    ids: NDArray[np.int64]
    first: NDArray[np.intp]
    lengths: NDArray[np.intp]
    truncated: NDArray[np.bool_]

    def __len__(self) -> int:
        """Count the texts."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        """Yield the ids of each text."""
        for first, length in zip(self.first.tolist(), self.lengths.tolist(), strict=True):
            yield self.ids[first : first + length]

    def take(self, wanted: Numbers) -> Self:
        """Return the rows with these indexes, which share the ids."""
        at = np.asarray(wanted, np.intp)
        return type(self)(
            self.ids, self.first.take(at), self.lengths.take(at), self.truncated.take(at)
        )

    def stacked(self, wanted: Numbers) -> NDArray[np.int64]:
        """Return the ids (texts, length) of texts of one length."""
        first = self.first.take(np.asarray(wanted, np.intp))
        return self.ids.take(first[:, None] + np.arange(self.lengths[wanted[0]]))

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the texts of all parts in order."""
        if len(parts) == 1:
            return parts[0]
        before = np.cumsum([0, *(len(part.ids) for part in parts)])
        first = [part.first + offset for part, offset in zip(parts, before, strict=False)]
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate(first),
            np.concatenate([part.lengths for part in parts]),
            np.concatenate([part.truncated for part in parts]),
        )


def by_characters(texts: Sequence[str], most: int) -> Iterator[Sequence[str]]:
    """Split texts into parts of about `most` characters, at least one text each; one if none."""
    if sum(map(len, texts)) <= most:
        yield texts
        return
    first = size = 0
    for number, length in enumerate(map(len, texts)):
        if size and size + length > most:
            yield texts[first:number]
            first, size = number, 0
        size += length
    yield texts[first:]
