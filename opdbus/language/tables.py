"""Word tables of the package (.tsv files), and the search for their phrases in a question."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_WORD: Final = re.compile(r"[a-z0-9]+")
NUMBERS: Final = {
    word: number
    for number, word in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve".split()
    )
}


def rows(name: str) -> list[list[str]]:
    """Read the columns of each row of a table."""
    lines = _file(name).read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return _WORD.findall(text.lower())


@cache
def version(name: str) -> str:
    """Return a hash of a table; data derived from the table is rebuilt when it changes."""
    return hashlib.blake2b(_file(name).read_bytes(), digest_size=4).hexdigest()


def _file(name: str) -> Traversable:
    return resources.files("opdbus") / "tables" / f"{name}.tsv"


class Phrases:
    """The phrases of a table, each with a mask of the rows that it names, one bit a row."""

    def __init__(
        self, rows: Iterable[tuple[str, int]], stem: Callable[[str], str] = lambda word: word
    ) -> None:
        """Index the phrases of each row, separated by |, with its bit; 0 if it names nothing."""
        self._stem = stem
        self._bits: dict[tuple[str, ...], int] = {}
        # stems of the phrases
        self._stems: dict[tuple[str, ...], int] = {}
        for phrases, bit in rows:
            for phrase in phrases.split("|"):
                words = tuple(phrase.split())
                stems = tuple(map(stem, words))
                self._bits[words] = self._bits.get(words, 0) | bit
                self._stems[stems] = self._stems.get(stems, 0) | bit
        self.longest = max(map(len, self._bits), default=1)

    def find(
        self, words: Sequence[str], is_form: Callable[[int], bool] = lambda _at: False
    ) -> Iterator[tuple[int, int, int]]:
        """Yield (start, number of words, bits) of the phrases in words, the longest at each place.

        Phrases of several words match by stems; a single word does only if `is_form` is true of its
        place.
        """
        stems = tuple(map(self._stem, words))
        at = 0
        while at < len(words):
            for length in range(min(self.longest, len(words) - at), 0, -1):
                bits = self._bits.get(tuple(words[at : at + length]))
                if bits is None and (length > 1 or is_form(at)):
                    bits = self._stems.get(stems[at : at + length])
                if bits is not None:
                    yield at, length, bits
                    at += length - 1
                    break
            at += 1

    def first(self, words: Sequence[str]) -> int | None:
        """Return the bits of the phrase at the start of words, None if there is none."""
        return next((bits for at, _, bits in self.find(words[: self.longest]) if at == 0), None)
