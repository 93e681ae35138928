"""Ranking: weights and order."""

import math

import numpy as np
import pytest

from opdbus.index import lexical
from opdbus.index.search import LEXICAL_WEIGHT, ceiling, rank


def _order(cosines: list[float] | None, shares: list[float]) -> list[int]:
    vector = None if cosines is None else np.array(cosines, np.float32)
    return [index for index, _ in rank(vector, np.array(shares, np.float32))]


def test_hybrid_is_the_weighted_sum() -> None:
    """Rank by cosine plus the weighted share of the best lexical score."""
    cosines, shares = np.array([0.5, 0.6], np.float32), np.array([1.0, 0.0], np.float32)
    (index, best), (_, second) = rank(cosines, shares)
    assert (index, best.total) == (0, pytest.approx(0.5 + LEXICAL_WEIGHT))
    assert (best.vector, best.lexical) == (pytest.approx(0.5), 1.0)
    assert (second.vector, second.lexical) == (pytest.approx(0.6), 0.0)


def test_lexical_mode_gives_matches_only() -> None:
    """Give only what matches, best first, where there are no cosines."""
    assert _order(None, [0.2, 0.0, 0.9]) == [2, 0]
    assert _order(None, [0.0, 0.0]) == []


def test_an_entry_without_a_vector_is_still_found() -> None:
    """Count a missing vector as a cosine of 0, never as NaN."""
    assert _order([math.nan, 0.1], [1.0, 0.0]) == [0, 1]


def test_equal_scores_keep_their_order() -> None:
    """Keep the listing order among equals, so that pages never overlap."""
    assert _order([0.0] * 50, [0.0] * 50) == list(range(50))


@pytest.mark.parametrize("objects", [0, 1, 10, 10_000])
@pytest.mark.parametrize("matches", [0, 1, 10, 10_001])
def test_the_ceiling_is_always_a_positive_number(objects: int, matches: int) -> None:
    """Give a finite ceiling above 0 for any counts, also while objects are being added."""
    assert 0 < ceiling([matches], objects) < math.inf


def test_questions_lose_what_every_question_has() -> None:
    """Look for the words that tell objects apart, each once, and for not too many."""
    assert lexical.terms("What is the DNS of the dns server?") == ["dns", "server"]
    assert lexical.terms("") == []
    assert len(lexical.terms(" ".join(f"word{n}" for n in range(999)))) == lexical.MAX_TERMS


def test_the_words_of_a_question_that_may_be_names() -> None:
    """Punctuation around a word is no part of it, inside a name it is."""
    assert lexical.names("is 'wg0' up, and who uses ssh-agent?") == ["wg0", "uses", "ssh-agent"]


@pytest.mark.parametrize(
    ("name", "terms", "certainty"),
    [("carol", 1, 1), ("carol", 2, 1), ("time", 4, 0.5), ("wg0", 9, 1), ("ssh-agent", 9, 1)],
)
def test_a_word_of_a_long_question_is_rarely_a_name(
    name: str, terms: int, certainty: float
) -> None:
    """A word of letters only is less surely a name the more a question says."""
    assert lexical.certainty(name, terms) == certainty
