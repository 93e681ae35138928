"""Texts to vectors by a static table: the real tokenizer's pieces, summed in double precision."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from harness.tiny import write_tiny_model
from hypothesis import given
from hypothesis import strategies as st

from opdbus.bench.texts import objects, shorts
from opdbus.engine.static_encoder import StaticEncoder
from opdbus.errors import ModelError
from opdbus.models import level_table, static_table
from opdbus.models.static_table import StaticTable

LIMIT = 64
Vandalize = Callable[[Path], object]

# Pieces of texts: words of the vocabulary and not, characters that are not plain, special tokens.
PIECES = st.one_of(
    st.sampled_from(["network", "Server ", " ", "\t\r\n", "[SEP]", "[", "[mask]", "-", "x" * 101]),
    st.sampled_from(["中", "é", "\u200b", "\x00", "\x7f", "\x1b", "\u2028", "İ", "\ud7ff", "ﬀ"]),
    st.text("abcdexyz0123_./:", min_size=1, max_size=12),
    st.text(max_size=4),
)
TEXTS = st.lists(st.lists(PIECES, max_size=30).map("".join), min_size=1, max_size=5)


def made(place: Path, words: Path) -> StaticTable:
    """Make a table of random rows for a tokenizer: other pieces give other vectors."""
    vocabulary = json.loads(words.read_bytes())
    count = max(vocabulary["model"]["vocab"].values()) + 1
    vectors = np.random.default_rng(0).standard_normal((count, 32))
    static_table.write_table(place, vectors, vocabulary)
    return StaticTable.read(place, LIMIT)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> StaticTable:
    """Make a table of a few words."""
    place = tmp_path_factory.mktemp("table")
    model = write_tiny_model(place / "model")
    return made(place / "static", model / level_table.TOKENIZER)


@pytest.fixture(scope="module")
def encoder(table: StaticTable) -> StaticEncoder:
    """Make an encoder whose cache lasts for the module."""
    return StaticEncoder(table)


def deviation(encoder: StaticEncoder, texts: list[str]) -> float:
    """Return the largest difference of any component from the reference."""
    return float(np.abs(encoder.encode(texts).vectors - encoder.reference(texts)).max())


@given(texts=TEXTS)
def test_vectors_are_those_of_the_tokenizers_pieces(
    encoder: StaticEncoder, texts: list[str]
) -> None:
    """Every text has the vector that the real tokenizer's pieces sum to."""
    # the tokenizer's library itself is asked for a few characters
    assert deviation(encoder, [*texts, "x " * 200]) < 1e-6


def test_texts_of_hosts_have_the_vectors_of_the_tokenizers_pieces(encoder: StaticEncoder) -> None:
    """Objects' texts have the right vectors too, also those that are cut, many at a time."""
    assert deviation(encoder, objects(500) + shorts(500)) < 1e-6


def test_texts_are_cut_at_the_limit(encoder: StaticEncoder) -> None:
    """A text of more tokens than the limit is cut there, and said to be."""
    room = LIMIT - len(encoder.table.words.special_ids)
    texts = ["a " * room, "a " * (room + 1), "a " * 100_000, "é " * (room + 1), ""]
    found = encoder.encode(texts)
    assert found.truncated.tolist() == [False, True, True, True, False]
    np.testing.assert_allclose(found.vectors[1], found.vectors[0], atol=1e-6)
    np.testing.assert_allclose(found.vectors, encoder.reference(texts), atol=1e-6)


def test_vectors_have_length_1(encoder: StaticEncoder) -> None:
    """Every vector is 1 long, also that of an empty text; no texts have no vectors."""
    lengths = np.linalg.norm(encoder.encode(["", " ", "network", "é"]).vectors, axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)
    assert encoder.encode([]).vectors.shape == (0, 32)


def test_more_words_than_the_cache_holds(table: StaticTable) -> None:
    """A cache that is full begins anew, and vectors stay right."""
    encoder = StaticEncoder(table, most_words=64)
    for start in range(0, 2000, 50):
        texts = [f"{number:x} and {number * 7:x}" for number in range(start, start + 20)]
        assert deviation(encoder, texts) < 1e-6


def test_threads_share_the_words(table: StaticTable) -> None:
    """Threads that meet new words at once, in a cache that is too small, get the right vectors."""
    encoder = StaticEncoder(table, most_words=1000)
    texts = [[f"{n:x} {n * k:x}" for n in range(400)] for k in range(1, 9)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(encoder.encode, texts * 4))
    for part, each in zip(texts * 4, found, strict=True):
        np.testing.assert_allclose(each.vectors, encoder.reference(part), atol=1e-6)


@pytest.mark.parametrize(
    ("vandalize", "complaint"),
    [
        (lambda place: (place / "table.npy").unlink(), "table.npy"),
        (lambda place: (place / "table.npy").write_bytes(b"\x93NUMPY"), "cannot read"),
        (lambda place: np.save(place / "table.npy", np.zeros((4, 32))), "cannot read"),
        (lambda place: (place / "tokenizer.json").write_text("{}"), "cannot read"),
        (
            lambda place: np.save(place / "table.npy", np.load(place / "table.npy")[:4]),
            "more pieces",
        ),
    ],
)
def test_broken_tables_are_refused(
    table: StaticTable, tmp_path: Path, vandalize: Vandalize, complaint: str
) -> None:
    """What is no whole table is an error that names the folder."""
    for name in (level_table.TABLE_ROWS, level_table.TOKENIZER):
        (tmp_path / name).write_bytes((table.folder / name).read_bytes())
    vandalize(tmp_path)
    with pytest.raises(ModelError, match=complaint) as caught:
        StaticTable.read(tmp_path, LIMIT)
    assert str(tmp_path) in str(caught.value)
