"""Texts to vectors by a static table, with numpy alone: no model runs."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.tokenizer import Tokenizer
from opdbus.engine.word_cache import AT_ONCE, MOST_WORDS, WordCache, Words
from opdbus.models.table_files import WORDS

if TYPE_CHECKING:
    from opdbus.models.static_table import StaticTable

# Rows gathered at a time: few enough to be summed while they are in the processor's cache.
_ROWS: Final = 1024
# Past so many words, rounding in single precision would add up.
_MANY: Final = 96


@dataclass(frozen=True, slots=True)
class Encoded:
    """Vectors (texts, dimension) of length 1, their tokens, and which texts were cut."""

    vectors: NDArray[np.float32]
    tokens: NDArray[np.intp]
    truncated: NDArray[np.bool_]


class StaticEncoder:
    """Encodes texts by a table; safe to use from any thread."""

    def __init__(self, table: StaticTable, most_words: int = MOST_WORDS) -> None:
        self.table = table
        self._cache = WordCache(table, most_words)
        self._special = re.compile("|".join(map(re.escape, table.specials)), re.IGNORECASE)
        self._around = table.sums(np.array(table.around)).astype(np.float32)
        self._memory = threading.local()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The real tokenizer, for texts that are not plain; opened when the first one comes."""
        return Tokenizer(self.table.folder / WORDS, self.table.max_tokens)

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the vectors of texts; takes about 10 us a text."""
        vectors = np.empty((len(texts), self.table.dimension), np.float32)
        tokens = np.empty(len(texts), np.intp)
        truncated = np.zeros(len(texts), np.bool_)
        strange: list[int] = []
        for first, part, odd in self._parts(texts):
            words, last = self._cache.look_up(part), first + len(part)
            tokens[first:last] = words.tokens + len(self.table.around)
            is_long = tokens[first:last] > self.table.max_tokens
            strange += odd
            strange += (first + np.flatnonzero(is_long | ~words.plain)).tolist()
            _sum(words, vectors[first:last], self._buffer())
        vectors += self._around
        if strange:
            rows = self.tokenizer.encode([texts[number] for number in strange])
            vectors[strange] = [self.table.sums(row.ids) for row in rows]
            tokens[strange] = [len(row) for row in rows]
            truncated[strange] = [row.truncated for row in rows]
        vectors /= np.sqrt(np.einsum("td,td->t", vectors, vectors))[:, None]
        return Encoded(vectors, tokens, truncated)

    def _buffer(self) -> NDArray[np.float32]:
        """Return this thread's memory for rows; new memory costs more than the sums."""
        if not hasattr(self._memory, "rows"):
            self._memory.rows = np.empty((_ROWS, self.table.dimension), np.float32)
        rows: NDArray[np.float32] = self._memory.rows
        return rows

    def reference(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return vectors (texts, dimension) by the real tokenizer, in double precision."""
        sums = np.array([self.table.sums(row.ids) for row in self.tokenizer.encode(texts)])
        sums /= np.linalg.norm(sums, axis=1, keepdims=True)
        return sums

    def _parts(self, texts: Sequence[str]) -> Iterator[tuple[int, list[str], list[int]]]:
        """Yield texts to look up together: where they begin, themselves, and those left out."""
        part: list[str] = []
        odd: list[int] = []
        first = size = 0
        for number, text in enumerate(texts):
            if size + len(text) >= AT_ONCE and part:
                yield first, part, odd
                first, part, odd, size = number, [], [], 0
            if len(text) >= AT_ONCE or not text.isascii() or self._is_special(text):
                odd.append(number)
                part.append("")
                size += 1
            else:
                part.append(text)
                size += len(text) + 1
        if part:
            yield first, part, odd

    def _is_special(self, text: str) -> bool:
        return "[" in text and self._special.search(text) is not None


def _sum(words: Words, into: NDArray[np.float32], buffer: NDArray[np.float32]) -> None:
    """Sum the vectors of each text's words; texts of about as many words are summed together.

    `buffer` is memory for _ROWS rows.
    """
    # texts with more words than that are longer than any limit, and left to the tokenizer
    counts = np.diff(words.first).clip(max=_ROWS)
    order = np.argsort(counts, kind="stable")
    # behind the last word is none
    places = np.append(words.places, 0)
    end = len(order)
    while end:
        most = int(counts[order[end - 1]])
        size = min(end, max(1, _ROWS // max(1, most)))
        group = order[end - size : end]
        end -= size
        # the first words of all texts, then the second ones: whole lines of memory are added
        at = words.first[group] + np.arange(most)[:, None]
        at[np.arange(most)[:, None] >= counts[group]] = len(words.places)
        rows = buffer[: at.size]
        words.vectors.take(places.take(at.ravel()), axis=0, out=rows, mode="clip")
        kind = np.float64 if most > _MANY else np.float32
        into[group] = rows.reshape(most, size, rows.shape[1]).sum(axis=0, dtype=kind)
