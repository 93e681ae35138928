"""Names of groups of texts: words that are more frequent in a group than elsewhere. Pure."""

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.language.vocabulary import stem
from opdbus.state.secret_text import REDACTED

# The most words of a name.
WORDS: Final = 3
# The most words that are read of a text; no object's first line is longer.
_MOST: Final = 64
# The least number and share of a group's texts that have a word of its name.
_LEAST: Final = 2
_LEAST_SHARE: Final = 0.08
# The least ratio of a word's frequency in the group to its expected frequency.
_MORE: Final = 1.5
# Weight of the comparison with texts of the same kinds, against that with all texts.
_KIND_WEIGHT: Final = 0.8
# Reduction of a word's score by its share of texts that a chosen word has as well.
_SAME: Final = 0.8
_CANDIDATES: Final = 12
_WORD = re.compile(r"[^\W\d_][^\W_]+(?:\+\+)?")
_DIGITS: Final = 2
_LONGEST: Final = 24
_SHORT: Final = frozenset("ip go tk gl js db io vm ad".split())
_HEX = re.compile(r"(?=.*\d)[0-9a-f]{4,}")
# Words that many texts have and that no topic is about.
_PLAIN: Final = frozenset(
    "use used uses using based via etc various new other others written run runs between side rapid"
    " quick value well org com http https www".split()
)


def name_words(text: str) -> dict[str, str]:
    """Return the words of a text that may be part of a name, in their spelling, by stem."""
    found: dict[str, str] = {}
    for word in _WORD.findall(text.replace(REDACTED, " "))[:_MOST]:
        if known := _name_stem(word.lower()):
            found.setdefault(known, word)
    return found


@lru_cache(maxsize=1 << 14)
def _name_stem(word: str) -> str:
    """Return the stem of a word that may be part of a name, "" for other words."""
    if len(word) > _LONGEST:
        return ""
    is_short = len(word) <= _LEAST and word not in _SHORT
    is_number = sum(letter.isdigit() for letter in word) > _DIGITS or _HEX.fullmatch(word)
    return "" if is_short or is_number or word in STOP_WORDS | _PLAIN else stem(word)


class Vocabulary:
    """The words of texts, as a sparse matrix."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = [name_words(text) for text in texts]
        numbers: dict[str, int] = {}
        for known in self._texts:
            for word in known:
                numbers.setdefault(word, len(numbers))
        self._words = list(numbers)
        lengths = [len(known) for known in self._texts]
        self._rows = np.repeat(np.arange(len(lengths)), lengths)
        self._columns = np.fromiter(
            (numbers[word] for word in chain.from_iterable(self._texts)), np.intp, sum(lengths)
        )

    def names(
        self, labels: NDArray[np.intp], kinds: Sequence[Hashable], count: int
    ) -> list[list[str]]:
        """Return the words that name each of `count` groups, best first; possibly none.

        `labels` (texts,) are the groups of texts, -1 for none; `kinds` are the kinds of the texts.
        The score of a word is the share of the group's texts that have it, times the log of the
        ratio of their number to the expected number.
        """
        numbers = {kind: n for n, kind in enumerate(dict.fromkeys(kinds))}
        of = np.array([numbers[kind] for kind in kinds], np.intp)
        having = np.zeros((len(numbers), count))
        named = labels >= 0
        np.add.at(having, (of[named], labels[named]), 1)
        alike = having / np.bincount(of)[:, None]
        every = having.sum(axis=0) / len(labels)
        # each text's expected count in each group (texts, count)
        expected = np.asarray(_KIND_WEIGHT * alike[of] + (1 - _KIND_WEIGHT) * every)
        return [self._name_group(labels == group, expected[:, group]) for group in range(count)]

    def _name_group(self, members: NDArray[np.bool_], expected: NDArray[np.float64]) -> list[str]:
        size = len(self._words)
        inside = members[self._rows]
        counts = np.bincount(self._columns[inside], minlength=size)
        usual = np.bincount(self._columns, expected[self._rows], minlength=size)
        most = int(members.sum())
        least = max(min(_LEAST, most), _LEAST_SHARE * most)
        with np.errstate(divide="ignore", invalid="ignore"):
            more = np.where(counts >= least, counts / usual, 0)
            scores = np.where(more >= _MORE, counts / most * np.log(more), -math.inf)
        best = np.argsort(-scores, kind="stable")[:_CANDIDATES]
        chosen = self._distinct([n for n in best if scores[n] > 0], scores, members)
        return [self._usual_spelling(word, members) for word in chosen]

    def _distinct(
        self, candidates: list[int], scores: NDArray[np.float64], members: NDArray[np.bool_]
    ) -> list[str]:
        """Choose words that occur in different texts and do not contain each other."""
        words = self._words
        texts = {n: set(self._rows[(self._columns == n) & members[self._rows]]) for n in candidates}
        chosen: list[str] = []
        while candidates and len(chosen) < WORDS:
            best = max(candidates, key=lambda n: scores[n])
            chosen.append(words[best])
            candidates = [
                n for n in candidates if words[n] not in words[best] and words[best] not in words[n]
            ]
            scores = scores.copy()
            for n in candidates:
                scores[n] *= 1 - _SAME * len(texts[n] & texts[best]) / len(texts[n])
        return chosen

    def _usual_spelling(self, word: str, members: NDArray[np.bool_]) -> str:
        """Return the most frequent spelling, in lower case unless its capitals are consistent."""
        rows = np.flatnonzero(members).tolist()
        found = Counter(self._texts[row][word] for row in rows if word in self._texts[row])
        best = found.most_common(1)[0][0]
        is_plain = best.istitle() or (best.lower() in found and not best.isupper())
        return best.lower() if is_plain else best
