"""Word similarity of a question and its best hits, by the static table.

The table is part of op-dbus, so these features exist at every level and without a model.
"""

import math
import re
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.index.database.store import Content
from opdbus.index.query.query_terms import BEGINNING, STOP_WORDS
from opdbus.index.ranking.confidence_features import ConfidenceFeatures
from opdbus.language import glossary
from opdbus.models.folder import OURS
from opdbus.models.static_table import StaticTable

# Characters read of a text, and of a word.
_CHARACTERS: Final = 1000
_LETTERS: Final = 24
# Cached word vectors (16 MB); one search needs fewer.
_KEPT: Final = 1 << 14
_WORD: Final = re.compile(r"[^\W_]+")
# Capitalized words are names, except at the start of a question.
_NAME: Final = re.compile(r"(?<=[\w,(] )[A-Z][^\W_]*|(?<![^\W_])[^\W_]+[A-Z][^\W_]*")
# Word pieces are sorted by frequency; the first ones are in most texts.
_COMMON: Final = 2000
_LEAST_LENGTH: Final = 1e-9


def words_of(text: str) -> list[str]:
    """Return the words of the first `_CHARACTERS` of a text, in order and in lower case."""
    return _WORD.findall(text[:_CHARACTERS].lower())


@cache
def ours() -> "WordSimilarity":
    """Read the static table, which takes about 50 ms; raises ModelError."""
    return WordSimilarity(StaticTable.read(OURS, max_tokens=512))


class WordSimilarity:
    """Cache of word vectors; for one thread at a time."""

    def __init__(self, table: StaticTable) -> None:
        self._table = table
        self._numbers: dict[str, int] = {}
        # unit vectors, and their lengths in the table, by which words are weighted in a text
        self._rows = np.empty((_KEPT, table.dimension), np.float32)
        self._lengths = np.empty(_KEPT, np.float32)
        # many names share a meaning
        meanings = dict.fromkeys(glossary.entries().values())
        vectors = np.stack([self._whole(*self._vectors(words_of(each))) for each in meanings])
        vectors -= vectors.mean(axis=0)
        # the covariance gives the spread of a text's cosines with the meanings
        self._spread = vectors.T @ vectors / len(vectors)

    def match_features(
        self, question: str, contents: Sequence[Content]
    ) -> list[ConfidenceFeatures]:
        """Return the confidence features of each content for a question."""
        asked, said = words_of(question), [words_of(content.text) for content in contents]
        whole = self._whole(*self._vectors(asked))
        domain = math.sqrt(max(0.0, float(whole @ self._spread @ whole)))
        telling = [word for word in dict.fromkeys(asked) if word not in STOP_WORDS]
        weights = self._weights(question, telling)
        rows, lengths = self._vectors([word for words in said for word in words])
        similarity = self._vectors(telling)[0] @ rows.T
        ends = [*accumulate(map(len, said), initial=0)]
        found = []
        for content, words, (start, end) in zip(contents, said, pairwise(ends), strict=True):
            nearest = similarity[:, start:end].max(axis=1, initial=0.0)
            nearest[_having(telling, words, content.properties)] = 1.0
            lacking = float((weights * (1 - nearest)).max(initial=0.0))
            alike = float(whole @ self._whole(rows[start:end], lengths[start:end]))
            found.append(ConfidenceFeatures(alike, lacking, domain))
        return found

    def _weights(self, question: str, words: Sequence[str]) -> NDArray[np.float32]:
        """Return the weight of each word, 0 to 1; rare words and names weigh most."""
        names = {name.lower() for name in _NAME.findall(question[:_CHARACTERS])}
        return np.array([1.0 if w in names else self._rarity(w) for w in words], np.float32)

    def _rarity(self, word: str) -> float:
        first, *rest = self._table.words.split(word[:_LETTERS])
        rank = len(self._table.rows) if rest else max(first, _COMMON)
        return math.log(rank / _COMMON) / math.log(len(self._table.rows) / _COMMON)

    @staticmethod
    def _whole(rows: NDArray[np.float32], lengths: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the unit vector (dimension,) of a text from its words'; zeros without words."""
        total = lengths @ rows
        return total / np.float32(max(math.sqrt(total @ total), _LEAST_LENGTH))

    def _vectors(self, words: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the unit vectors (words, dimension) of words and their lengths in the table."""
        if len(self._numbers) + len(words) > _KEPT:
            self._numbers.clear()
        numbers = np.array([self._number(word) for word in words], np.intp)
        return self._rows.take(numbers, axis=0), self._lengths.take(numbers)

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is None:
            number = self._numbers[word] = len(self._numbers)
            total = self._table.sums(np.array(self._table.words.split(word[:_LETTERS])))
            self._lengths[number] = length = max(float(np.linalg.norm(total)), _LEAST_LENGTH)
            self._rows[number] = total / length
        return number


def _having(asked: Sequence[str], said: Sequence[str], properties: str) -> list[bool]:
    """Return for each word whether a text or properties have it, in any form."""
    beginnings, properties = {word[:BEGINNING] for word in said}, properties.lower()
    return [(w := word[:BEGINNING]) in beginnings or w in properties for word in asked]
