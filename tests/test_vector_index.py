"""Vectors in memory: exact, growing, forgetting."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opdbus.index.vector_index import VectorIndex


def _unit(rows: int, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def cosines(index: VectorIndex, query: np.ndarray, *digests: bytes) -> np.ndarray:
    """Give the cosines of entries with these texts."""
    entries = [SimpleNamespace(text_digest=each) for each in digests]
    return index.cosines(query, cast("Any", SimpleNamespace(version=len(digests), entries=entries)))


def test_scores_are_exact_cosines() -> None:
    """Give for each row what numpy gives for the whole matrix."""
    vectors, made = VectorIndex("", 8), _unit(300)
    for start in range(0, 300, 7):
        keys = [bytes([1, row % 256, row // 256]) for row in range(start, min(300, start + 7))]
        vectors.add(keys, made[start : start + 7])
    keys = [bytes([1, row % 256, row // 256]) for row in range(300)]
    np.testing.assert_allclose(cosines(vectors, made[3], *keys), made @ made[3], atol=1e-6)
    assert len(vectors) == 300


def test_an_empty_matrix_answers() -> None:
    """Give no scores, no row and no vector where nothing was added."""
    vectors = VectorIndex("", 8)
    assert np.isnan(cosines(vectors, _unit(1)[0], b"x")).all()
    assert (vectors.get(b"x"), b"x" in vectors) == (None, False)
    vectors.drop([b"x"])
    vectors.add([], _unit(0))
    assert len(vectors) == 0


@given(
    st.lists(
        st.tuples(st.booleans(), st.sets(st.integers(0, 40), min_size=1, max_size=20)), max_size=12
    )
)
def test_it_holds_what_a_dict_would(steps: list[tuple[bool, set[int]]]) -> None:
    """Hold after any adding and dropping what a plain dict would hold."""
    rows, vectors, expected = _unit(41), VectorIndex("", 8), {}
    for adding, numbers in steps:
        if adding:
            new = [n for n in numbers if bytes([n]) not in expected]
            vectors.add([bytes([n]) for n in new], rows[new])
            expected |= {bytes([n]): rows[n] for n in new}
        else:
            vectors.drop([bytes([n]) for n in numbers])
            expected = {k: v for k, v in expected.items() if k[0] not in numbers}
    assert len(vectors) == len(expected)
    scores = cosines(vectors, rows[0], *expected)
    for (key, vector), score in zip(expected.items(), scores, strict=True):
        np.testing.assert_array_equal(vectors.get(key), vector)
        assert abs(score - float(vector @ rows[0])) < 1e-6


def test_what_is_forgotten_takes_no_room() -> None:
    """Make the matrix smaller once half of it is forgotten."""
    vectors, made = VectorIndex("", 8), _unit(100)
    keys = [bytes([n]) for n in range(100)]
    vectors.add(keys, made)
    vectors.drop(keys[:60])
    assert len(vectors) == 40
    assert np.isnan(cosines(vectors, made[0], keys[0])).all()
    vectors.add(keys[:1], made[:1])
    np.testing.assert_array_equal(vectors.get(keys[0]), made[0])
    np.testing.assert_array_equal(vectors.get(keys[99]), made[99])
