"""Ranking: weights and order."""

import math
import os
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
from numpy.typing import NDArray

from opdbus.index.query import query_terms
from opdbus.index.ranking.scores import LEXICAL_WEIGHT, Boosts, Similarity, bm25_upper_bound, rank
from opdbus.index.search import hit_features


def _order(cosines: list[float] | None, shares: list[float]) -> list[int]:
    similarity = None if cosines is None else Similarity(np.array(cosines, np.float32))
    return [index for index, _ in rank(similarity, np.array(shares, np.float32))]


def test_hybrid_is_the_weighted_sum() -> None:
    """Rank by cosine plus the weighted share of the best lexical score."""
    cosines, shares = np.array([0.5, 0.6], np.float32), np.array([1.0, 0.0], np.float32)
    (index, best), (_, second) = rank(Similarity(cosines), shares)
    assert (index, best.total) == (0, pytest.approx(0.5 + LEXICAL_WEIGHT))
    assert (best.cosine, best.lexical) == (pytest.approx(0.5), 1.0)
    assert (second.cosine, second.lexical) == (pytest.approx(0.6), 0.0)


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


@pytest.mark.parametrize("places", [50, 5000, 70_000])
def test_equal_scores_have_the_order_of_their_ids(places: int) -> None:
    """Rank equals by their ids, wherever they are, also where few of them are among the best."""
    ids = np.random.default_rng(places).permutation(places).astype(np.int64)
    cosines = (ids % 10 == 0).astype(np.float32)
    ranked = rank(Similarity(cosines), None, None, ids)
    found = [int(ids[place]) for place, _ in islice(ranked, places // 5)]
    assert found == sorted(range(places), key=lambda one: (one % 10 > 0, one))[: places // 5]


@pytest.mark.parametrize("places", [1, 401, 5000, 70_000])
def test_the_best_of_many_are_those_of_all(places: int) -> None:
    """Rank as if all were put in order, also where many are equal and some lack a vector."""
    dice = np.random.default_rng(places)
    cosines = dice.normal(0, 0.1, places).astype(np.float32).round(3)
    cosines[dice.integers(places, size=places // 10)] = math.nan
    shares = (dice.random(places) < 0.01).astype(np.float32)
    kinds = dice.choice([-0.05, 0, 0.15], places).astype(np.float32)
    total = np.nan_to_num(cosines) + np.float32(LEXICAL_WEIGHT) * shares
    total = np.where(total > 0, np.maximum(total + kinds, np.float32(1e-6)), total)
    ranked = list(islice(rank(Similarity(cosines), shares, Boosts(None, kinds)), 5000))
    assert [place for place, _ in ranked] == np.argsort(-total, kind="stable")[:5000].tolist()
    for place, score in ranked[:500]:
        assert score.total == total[place]


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.04, 0.5])
def test_the_best_of_many_by_words_are_those_of_all(share: float) -> None:
    """Rank all that matches, and nothing else, as if all were put in order."""
    dice = np.random.default_rng(3)
    shares = np.where(dice.random(70_000) < share, 0.3 + dice.random(70_000) / 2, 0).astype(
        np.float32
    )
    kinds = dice.choice([-0.3, 0, 0.15], len(shares)).astype(np.float32)
    total = np.where(shares > 0, np.maximum(shares + kinds, np.float32(1e-6)), shares)
    wanted = np.argsort(-total, kind="stable")[: np.count_nonzero(shares)].tolist()
    assert [place for place, _ in rank(None, shares, Boosts(None, kinds))] == wanted


def test_the_best_are_compared_exactly_where_a_sample_tells_nothing_of_them() -> None:
    """Compare as many as ever where only what is looked at as a sample has high estimates."""
    estimates = np.random.default_rng(1).normal(0, 0.1, 200_000).astype(np.float32)
    estimates[::12] += 1
    compared: list[int] = []

    def exact(likely: NDArray[np.intp]) -> NDArray[np.float32]:
        compared.extend(likely.tolist())
        return estimates[likely]

    next(rank(Similarity(estimates.copy(), exact=exact)))
    assert compared == sorted(np.argsort(-estimates, kind="stable")[:400].tolist())


@pytest.mark.parametrize("objects", [0, 1, 10, 10_000])
@pytest.mark.parametrize("matches", [0, 1, 10, 10_001])
def test_the_ceiling_is_always_a_positive_number(objects: int, matches: int) -> None:
    """Give a finite ceiling above 0 for any counts, also while objects are being added."""
    assert 0 < bm25_upper_bound([matches], objects) < math.inf


def test_questions_lose_what_every_question_has() -> None:
    """Look for the words that tell objects apart, each once, and for not too many."""
    assert query_terms.terms("What is the DNS of the dns server?") == ["dns", "server"]
    assert query_terms.terms("") == []
    assert len(query_terms.terms(" ".join(f"word{n}" for n in range(999)))) == query_terms.MAX_TERMS


def test_the_words_of_a_question_that_may_be_names() -> None:
    """Punctuation around a word is no part of it, inside a name it is."""
    assert query_terms.names("is 'wg0' up, and who uses ssh-agent?") == ["wg0", "uses", "ssh-agent"]


@pytest.mark.parametrize(
    ("name", "terms", "certainty"),
    [("carol", 1, 1), ("carol", 2, 1), ("time", 4, 0.5), ("wg0", 9, 1), ("ssh-agent", 9, 1)],
)
def test_a_word_of_a_long_question_is_rarely_a_name(
    name: str, terms: int, certainty: float
) -> None:
    """A word of letters only is less surely a name the more a question says."""
    assert query_terms.certainty(name, terms) == certainty


def test_of_the_same_words_the_rare_ones_count_and_others_are_against_it() -> None:
    """Tell how much of each text a question says, in any form of its words."""
    texts = ["software package: sass compiler", "software package: sass compiler modules for pike"]
    whole, part = hit_features.overlap_shares("which software compiles sass?", texts)
    assert 0 < part < whole < 1
    assert hit_features.overlap_shares("compiling sass", ["sass compiler", "the"]) == [1.0, 0.0]
    assert hit_features.overlap_shares("sass", []) == []


def test_overlaps_are_the_same_in_each_process() -> None:
    """Give the same shares, whatever the order of the words is in memory."""
    code = """if 1:
        from opdbus.index.search import hit_features
        texts = [" ".join(f"{n:05}" for n in range(part, 60)) for part in range(40)]
        print(hit_features.overlap_shares(" ".join(f"{n:05}" for n in range(0, 60, 3)), texts))
    """
    given = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "12"
    }
    assert len(given) == 1


def test_words_with_digits_name_things_in_short_questions() -> None:
    """Take `mp3` in a long question for any word, and addresses and paths literally in each."""
    terms = ("mp3", "tcp/ip", "192.168.88.5", "etc/ssh/sshd_config", "music")
    assert [term for term in terms if query_terms.is_exact(term, 9)] == [*terms[2:4]]
    assert [term for term in terms if query_terms.is_exact(term, 4)] == [*terms[:4]]
