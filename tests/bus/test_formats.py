"""Vectors as bytes: cut, made of length 1 again, and in each dtype."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdbus.bus.service.bulk_files import BITS, Format, choose_format
from opdbus.bus.service.call_options import Options
from opdbus.errors import InvalidArgs


def unit(rows: int, dimension: int, seed: int = 0) -> np.ndarray:
    """Make vectors of length 1."""
    vectors = np.random.default_rng(seed).normal(size=(rows, dimension)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@given(st.integers(1, 40), st.integers(0, 5), st.sampled_from(sorted(BITS)), st.data())
def test_rows_have_their_bytes(dimension: int, rows: int, dtype: str, data: st.DataObject) -> None:
    """Give exactly `row_bytes` for each vector, whatever is asked for."""
    wanted = Format(dtype, data.draw(st.integers(1, dimension)))
    assert len(wanted.encode(unit(rows, dimension))) == rows * wanted.row_bytes


def test_fewer_dimensions_have_length_1() -> None:
    """Keep the first numbers, in proportion, and make the vector of length 1 again."""
    vectors = unit(4, 10)
    cut = Format("float32", 4).shorten(vectors)
    assert cut.shape == (4, 4)
    assert cut.dtype == np.float32
    assert np.allclose(np.linalg.norm(cut, axis=1), 1)
    assert np.allclose(cut[1] / cut[1][0], vectors[1, :4] / vectors[1, 0], rtol=1e-5)


def test_nothing_stays_nothing() -> None:
    """Give zeros, not NaN, for a vector that is 0 in the dimensions that are kept."""
    assert not Format("float32", 2).shorten(np.array([[0, 0, 1]], np.float32)).any()


def test_float16_and_int8_are_near() -> None:
    """Keep the direction of a vector in 16 and in 8 bits."""
    vectors = unit(5, 384)
    half = np.frombuffer(Format("float16", 384).encode(vectors), "<f2").reshape(5, 384)
    assert np.abs(half - vectors).max() < 1e-4
    small = np.frombuffer(Format("int8", 384).encode(vectors), np.int8).reshape(5, 384)
    assert (small == np.rint(vectors * 127)).all()


@pytest.mark.parametrize(
    ("dtype", "vector", "row"),
    [
        ("float32", [0.5, -0.25], np.array([0.5, -0.25], "<f4").tobytes()),
        # also where rounding has made them a little more than 1
        ("int8", [1.01, -1.01], bytes([127, 129])),
        # the first number is the highest bit, and 0 fills the last byte
        ("ubinary", [0.5, -0.5, 0, 0.1, -1, -1, -1, 0.2, 0.3], bytes([0b10010001, 0b10000000])),
    ],
)
def test_numbers_have_these_bytes(dtype: str, vector: list[float], row: bytes) -> None:
    """Give float32 as it is, the extremes of int8 apart, and a bit for each number above 0."""
    assert Format(dtype, len(vector)).encode(np.array([vector], np.float32)) == row


def test_what_is_not_asked_for_is_the_whole_vector() -> None:
    """Choose float32 and all dimensions by default."""
    assert choose_format(Options({}, {}), 384) == Format("float32", 384)


@pytest.mark.parametrize(
    "given", [{"dtype": "float64"}, {"dtype": ""}, {"dimensions": 0}, {"dimensions": 385},
              {"dimensions": -1}],
)  # fmt: skip
def test_what_no_model_has_is_refused(given: dict[str, object]) -> None:
    """Raise InvalidArgs for an unknown dtype and for dimensions that the model has not."""
    with pytest.raises(InvalidArgs, match=r"one of float32|from 1 to 384"):
        choose_format(Options(given, {"dtype": str, "dimensions": int}), 384)
