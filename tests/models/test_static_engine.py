"""The level static: a table that is part of op-dbus, proven and served like any other level."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from harness.tiny import write_tiny_model
from harness.whole_cli import root
from test_static_encoder import made

import opdbus
from opdbus.engine import static_encoder
from opdbus.engine.static_encoder import StaticEncoder
from opdbus.errors import ModelError, ProofFailed, Truncated
from opdbus.models import folder, level_table
from opdbus.models.level_table import LEVELS
from opdbus.models.static_table import StaticTable

STATIC = LEVELS["static"]
OURS = Path(folder.__file__).parent / "static"


@pytest.fixture
def embedder() -> Iterator[opdbus.Embedder]:
    """Open the level static."""
    with opdbus.Embedder("static") as opened:
        yield opened


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Make a table of one's own, of random rows."""
    model = write_tiny_model(tmp_path / "model")
    place = made(tmp_path / "own", model / level_table.TOKENIZER).folder
    static_encoder.write_static_proof(StaticEncoder(StaticTable.read(place, STATIC.max_tokens)))
    return place


def test_the_level_serves_without_a_runtime(embedder: opdbus.Embedder) -> None:
    """The level is proven on numpy, whose vectors are those of the reference."""
    assert (embedder.provider, embedder.precision, embedder.fallbacks) == ("cpu:numpy", "fp32", ())
    assert (embedder.dimension, embedder.max_tokens) == (STATIC.dimension, STATIC.max_tokens)
    assert embedder.proof.max_deviation <= static_encoder.STATIC_TOLERANCE
    texts = ["which service answers DNS?", "", "Grüße aus der Küche", "a [SEP] b", "x" * 5000]
    reference = StaticEncoder(StaticTable.read(OURS, STATIC.max_tokens)).reference(texts)
    np.testing.assert_allclose(embedder.embed(texts), reference, atol=1e-6)


def test_what_is_alike_is_near(embedder: opdbus.Embedder) -> None:
    """The table's vectors are of meanings: other words for one thing are near each other."""
    question, *others = embedder.embed(
        ["keeps the clock right", "time synchronization daemon", "database server", "a kitten"]
    )
    near = [float(question @ other) for other in others]
    assert near[0] > max(near[1:]) + 0.1


def test_single_texts_need_no_thread(embedder: opdbus.Embedder) -> None:
    """A short text is encoded where it is asked for; long ones are encoded on threads."""
    embedder.embed(["which service answers DNS?"])
    assert not [each for each in threading.enumerate() if each.name.startswith("tokenizer")]
    embedder.embed(["which service answers DNS?"] * 100)
    assert [each for each in threading.enumerate() if each.name.startswith("tokenizer")]


def test_streams_and_batches_have_the_same_vectors(embedder: opdbus.Embedder) -> None:
    """A text has the same vector alone, among others, and in a stream."""
    texts = [f"interface eth{number} with address 10.0.0.{number}" for number in range(3000)]
    whole = embedder.embed(texts)
    np.testing.assert_allclose(np.concatenate(list(embedder.stream(texts))), whole, atol=1e-6)
    np.testing.assert_allclose(embedder.embed([texts[7]])[0], whole[7], atol=1e-6)
    assert embedder.embed([]).shape == (0, STATIC.dimension)


def test_long_texts_are_refused_where_they_may_not_be_cut(embedder: opdbus.Embedder) -> None:
    """A text past the limit is cut, or refused where `truncate` is false."""
    long = "word " * STATIC.max_tokens
    assert embedder.count_tokens([long]) == [STATIC.max_tokens + 2]
    assert embedder.embed([long]).shape == (1, STATIC.dimension)
    with pytest.raises(Truncated):
        embedder.embed([long], truncate=False)


def test_a_table_of_ones_own(own: Path) -> None:
    """OP_DBUS_MODEL names another table, whose vectors never mix with those of ours."""
    with opdbus.Embedder("static", model=own) as mine, opdbus.Embedder("static") as ours:
        assert mine.dimension == 32
        assert mine.engine.model.name == own.name
        assert ours.engine.model.name == STATIC.repository
        assert mine.engine.numerics != ours.engine.numerics


def test_a_damaged_table_is_refused(own: Path) -> None:
    """A table whose rows are not those that were proven does not serve."""
    path = own / level_table.TABLE_ROWS
    damaged = bytearray(path.read_bytes())
    damaged[-1000:] = bytes(1000)
    path.write_bytes(damaged)
    with (
        pytest.raises(ProofFailed, match="cannot be trusted"),
        opdbus.Embedder("static", model=own),
    ):
        pass


@pytest.mark.parametrize("name", level_table.TABLE.files)
def test_a_table_that_lacks_a_file_is_refused(own: Path, name: str) -> None:
    """A folder that lacks a file is an error that names it."""
    (own / name).unlink()
    with pytest.raises(ModelError, match=name), opdbus.Embedder("static", model=own):
        pass


def test_the_proof_of_another_table_is_refused(own: Path) -> None:
    """A proof of other vectors is an error that says so."""
    np.save(own / level_table.TABLE_PROOF, np.zeros((3, 32), np.float32))
    with pytest.raises(ModelError, match="another table"), opdbus.Embedder("static", model=own):
        pass


def test_our_table_is_the_one_that_its_maker_described() -> None:
    """The table that is part of op-dbus has the checksums that the catalogue knows."""
    model = folder.read_model(OURS, STATIC)
    assert model.name == STATIC.repository
    assert model.weights_sha256 == STATIC.weights_sha256
    assert model.tokenizer_sha256 == STATIC.tokenizer_sha256
    about = json.loads((OURS / "about.json").read_text(encoding="utf-8"))
    assert about["pieces"] == model.words
    assert "WordNet" in (OURS / "NOTICE").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", [["pull", "static"], ["import", str(OURS), "static"]])
def test_there_is_nothing_to_get(command: list[str]) -> None:
    """The commands that get models say that this one is here."""
    done = CliRunner().invoke(root, ["models", *command])
    assert done.exit_code
    assert "part of op-dbus" in done.output + str(done.exception)
