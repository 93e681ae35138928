"""The package's tables of words (.tsv files), and the phrases of one in a question."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


def rows(name: str) -> list[list[str]]:
    """Read the columns of each row of a table."""
    lines = _file(name).read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


@cache
def version(name: str) -> str:
    """Return a hash of a table: what was made with it is made again when it changes."""
    return hashlib.blake2b(_file(name).read_bytes(), digest_size=4).hexdigest()


def _file(name: str) -> Traversable:
    return resources.files("opdbus") / f"{name}.tsv"


class Phrases:
    """The phrases of a table: which of its rows each names, one bit a row."""

    def __init__(self, rows: Iterable[tuple[str, int]]) -> None:
        """Take the phrases of each row, separated by |, and its bit: 0 if it names nothing."""
        self._bits: dict[tuple[str, ...], int] = {}
        for phrases, bit in rows:
            for phrase in phrases.split("|"):
                words = tuple(phrase.split())
                self._bits[words] = self._bits.get(words, 0) | bit
        self._longest = max(map(len, self._bits), default=1)

    def find(self, words: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield where phrases begin in a question, and their bits: the longest at each place."""
        at = 0
        while at < len(words):
            for length in range(min(self._longest, len(words) - at), 0, -1):
                bits = self._bits.get(tuple(words[at : at + length]))
                if bits is not None:
                    yield at, bits
                    at += length - 1
                    break
            at += 1
