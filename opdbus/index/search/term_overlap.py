"""How much of what an object says a question says, too, which puts the best hits in order."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final

from opdbus.index.database.store import Content
from opdbus.index.query.query_terms import STOP_WORDS
from opdbus.index.ranking.confidence_features import Missing
from opdbus.index.search import mismatches
from opdbus.index.search.word_similarity import BEGINNING, words_of
from opdbus.index.vectors.first_stage import STATIC
from opdbus.index.vectors.second_stage import Found
from opdbus.language import everyday

# As many hits as people look at.
COMPARED: Final = 24


def order(question: str, missing: Missing, found: Found, contents: Mapping[int, Content]) -> Found:
    """Put the best of what was found in order, without what has gone, which has no content."""
    best = [row for row in found[:COMPARED] if row[0].id in contents]
    said = shares(question, [contents[entry.id].text for entry, _ in best])
    rows = [
        (
            entry,
            score.saying(share + mismatches.agreement(question, contents[entry.id]), missing),
        )
        for (entry, score), share in zip(best, said, strict=True)
    ]
    # what lacks its vector of the level comes after what has it: see SecondStage
    has_stages = bool(rows) and rows[0][1].stage != STATIC
    rows.sort(key=lambda row: (has_stages and row[1].stage == STATIC, -row[1].total))
    return [*rows, *found[COMPARED:]]


def shares(question: str, texts: Sequence[str]) -> list[float]:
    """Return how much of each text a question has, or has other words for, from 0 to 1.

    A word counts the more, the fewer of the texts have it.
    """
    meant = chain.from_iterable(said.words for said in everyday.said(question))
    asked = _words(question).union(word[:BEGINNING] for word in meant)
    said = [_words(text) for text in texts]
    counts = Counter(word for words in said for word in words)
    weights = {word: math.log((len(said) + 1) / count) for word, count in counts.items()}

    def weight(words: set[str]) -> float:
        # a set's order is another in each process: rounded sums would put equals in another order
        return math.fsum(map(weights.__getitem__, words))

    return [weight(words & asked) / weight(words) if words else 0.0 for words in said]


def _words(text: str) -> set[str]:
    return {word[:BEGINNING] for word in words_of(text) if word not in STOP_WORDS}
