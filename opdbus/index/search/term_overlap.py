"""Term-overlap reranking: the share of a hit's words that the question has."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from opdbus.index.database.store import Content
from opdbus.index.query.query_terms import BEGINNING, STOP_WORDS
from opdbus.index.ranking.confidence_features import Missing
from opdbus.index.search import mismatches
from opdbus.index.search.word_similarity import words_of
from opdbus.index.vectors.first_stage import STATIC
from opdbus.index.vectors.second_stage import Found
from opdbus.language import everyday

# Hits on one screen.
COMPARED: Final = 24


def order(question: str, missing: Missing, found: Found, contents: Mapping[int, Content]) -> Found:
    """Rerank the best rows by their total with term overlap; drop those without content."""
    best = [row for row in found[:COMPARED] if row[0].id in contents]
    said = shares(question, [contents[entry.id].text for entry, _ in best])
    rows = [
        (
            entry,
            score.saying(share + mismatches.agreement(question, contents[entry.id]), missing),
        )
        for (entry, score), share in zip(best, said, strict=True)
    ]
    # rows without a vector of the level come after those with one: see `second_stage`
    has_stages = bool(rows) and rows[0][1].stage != STATIC
    rows.sort(key=lambda row: (has_stages and row[1].stage == STATIC, -row[1].total))
    return [*rows, *found[COMPARED:]]


def shares(question: str, texts: Sequence[str]) -> list[float]:
    """Return the share, 0 to 1, of each text's words that a question or its synonyms have.

    Words are weighted by their rarity among the texts.
    """
    meant = chain.from_iterable(said.words for said in everyday.said(question))
    asked = _words(question).union(word[:BEGINNING] for word in meant)
    said = [_words(text) for text in texts]
    counts = Counter(word for words in said for word in words)
    weights = {word: math.log((len(said) + 1) / count) for word, count in counts.items()}

    def weight(words: set[str]) -> float:
        # fsum: the order of a set differs between processes, and rounded sums would order ties
        # differently
        return math.fsum(map(weights.__getitem__, words))

    return [weight(words & asked) / weight(words) if words else 0.0 for words in said]


def _words(text: str) -> set[str]:
    return {word[:BEGINNING] for word in words_of(text) if word not in STOP_WORDS}
