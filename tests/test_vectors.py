"""Vectors in memory: exact, growing, forgetting."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opdbus.index.vectors import Vectors


def _unit(rows: int, seed: int = 0) -> np.ndarray:
    made = np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def test_scores_are_exact_cosines() -> None:
    """Give for each row what numpy gives for the whole matrix."""
    vectors, made = Vectors(8), _unit(300)
    for start in range(0, 300, 7):
        keys = [bytes([1, row % 256, row // 256]) for row in range(start, min(300, start + 7))]
        vectors.add(keys, made[start : start + 7])
    np.testing.assert_allclose(vectors.scores(made[3]), made @ made[3], atol=1e-6)
    assert len(vectors) == 300


def test_an_empty_matrix_answers() -> None:
    """Give no scores, no row and no vector where nothing was added."""
    vectors = Vectors(8)
    assert len(vectors.scores(_unit(1)[0])) == 0
    assert (vectors.row(b"x"), vectors.get(b"x"), b"x" in vectors) == (-1, None, False)
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
    rows, vectors, expected = _unit(41), Vectors(8), {}
    for adding, numbers in steps:
        if adding:
            new = [n for n in numbers if bytes([n]) not in expected]
            vectors.add([bytes([n]) for n in new], rows[new])
            expected |= {bytes([n]): rows[n] for n in new}
        else:
            vectors.drop([bytes([n]) for n in numbers])
            expected = {k: v for k, v in expected.items() if k[0] not in numbers}
    assert len(vectors) == len(expected)
    scores = vectors.scores(rows[0])
    for key, vector in expected.items():
        np.testing.assert_array_equal(vectors.get(key), vector)
        assert abs(scores[vectors.row(key)] - float(vector @ rows[0])) < 1e-6


def test_what_is_forgotten_takes_no_room() -> None:
    """Make the matrix smaller once half of it is forgotten."""
    vectors, made = Vectors(8), _unit(100)
    keys = [bytes([n]) for n in range(100)]
    vectors.add(keys, made)
    vectors.drop(keys[:60])
    assert len(vectors.scores(made[0])) == 40
    vectors.add(keys[:1], made[:1])
    np.testing.assert_array_equal(vectors.get(keys[0]), made[0])
    np.testing.assert_array_equal(vectors.get(keys[99]), made[99])
