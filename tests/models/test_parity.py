"""Our vectors against the reference implementations'; make_parity.py wrote the expected ones."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness.random_weights import CONFIGS, draw_weights
from safetensors.numpy import save_file
from scripts import make_parity

from opdbus import config
from opdbus.config import Config
from opdbus.engine.embedder import Embedding
from opdbus.engine.opening import open_embedder
from opdbus.engine.proof import Probe, prove
from opdbus.engine.provider import Placement
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.sessions import OnnxSession
from opdbus.errors import ModelError
from opdbus.models import build, folder, reference
from opdbus.models.folder import Model
from opdbus.models.level_table import LEVELS
from opdbus.models.shape import PADDING, Shape

TOLERANCE = 1e-5
CPU = PROVIDERS["cpu:onnxruntime"]


@dataclass(frozen=True)
class Case:
    """A shape with random weights, and the rows that transformers embedded with them."""

    shape: Shape
    config: dict[str, Any]
    weights: Mapping[str, np.ndarray]
    rows: list[np.ndarray]
    expected: np.ndarray


def case_of(name: str) -> Case:
    """Draw a shape's weights and rows, and read its committed vectors."""
    with np.load(make_parity.OTHERS) as saved:
        expected = saved[name]
    if name == "l3":
        shape = Shape(layers=3, hidden=384, heads=12, epsilon=1e-12, max_tokens=128)
        l3 = make_parity.L3
        return Case(shape, l3, make_parity.drawn(l3), make_parity.l3_rows(), expected)
    mpnet, drawn, rows = make_parity.MPNET, make_parity.mpnet_drawn(), make_parity.mpnet_rows()
    shape = Shape(4, 192, 12, epsilon=1e-5, max_tokens=384, family="mpnet")
    return Case(shape, mpnet, drawn, rows, expected)


@pytest.fixture(scope="module", params=["l3", "mpnet"])
def case(request: pytest.FixtureRequest) -> Case:
    """Take the low level's shape, and a small one with all that the high level's has."""
    return case_of(request.param)


@pytest.fixture(scope="module")
def settings32(tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Ask for full precision, with folders of this test's own."""
    return config.load(
        {"HOME": str(tmp_path_factory.mktemp("home")), "OP_DBUS_PRECISION": "fp32"},
        {"state_dir": str(tmp_path_factory.mktemp("state"))},
    )


@pytest.fixture(scope="module")
def medium(settings32: Config) -> Model:
    """Find the medium model, or skip."""
    try:
        return folder.load_model(LEVELS["medium"], settings32)
    except ModelError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def embedding(medium: Model, settings32: Config) -> Embedding:
    """Embed the texts on our own path, as the daemon does."""

    async def embed() -> Embedding:
        async with open_embedder(medium, settings32) as embedder:
            return await embedder.embed(make_parity.texts())

    return asyncio.run(embed())


def test_the_texts_are_what_they_should_be() -> None:
    """Hold 200 different texts, the awkward ones among them, and stay small."""
    texts = make_parity.texts()
    assert len(set(texts)) == len(texts) == make_parity.COUNT
    assert texts == [make_parity.text_of(entry) for entry in make_parity.invent()]
    assert "" in texts
    assert sum(len(text) == 1 for text in texts) >= 8
    assert sum(len(text.split()) == 5000 for text in texts) >= 2
    assert make_parity.VECTORS.stat().st_size + make_parity.TEXTS.stat().st_size < 400_000
    assert make_parity.OTHERS.stat().st_size < 400_000


@pytest.mark.model
def test_medium_equals_sentence_transformers(embedding: Embedding) -> None:
    """Equal sentence-transformers' committed vectors within 1e-5 in every component."""
    with np.load(make_parity.VECTORS) as saved:
        expected = saved["medium"]
    assert embedding.vectors.shape == expected.shape == (make_parity.COUNT, 384)
    worst = np.abs(embedding.vectors - expected).max(axis=1)
    wrong = {
        make_parity.texts()[row][:60]: worst[row] for row in np.flatnonzero(~(worst <= TOLERANCE))
    }
    assert not wrong


@pytest.mark.model
def test_many_texts_are_cut(embedding: Embedding) -> None:
    """Compare many texts that are longer than the model reads."""
    assert embedding.truncated >= 25


@pytest.mark.model
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # what torch warns of is not ours
def test_medium_equals_sentence_transformers_live(medium: Model, embedding: Embedding) -> None:
    """Equal the vectors that the installed sentence-transformers gives now."""
    pytest.importorskip("sentence_transformers", reason="the extra `train` is not installed")
    texts = make_parity.texts()
    live = make_parity.official_vectors(medium.folder, texts)
    assert np.abs(embedding.vectors - live).max() <= TOLERANCE
    with np.load(make_parity.VECTORS) as saved:
        assert np.abs(saved["medium"] - live).max() <= TOLERANCE


@pytest.fixture(scope="module", params=["low", "high"])
def other(request: pytest.FixtureRequest, settings32: Config) -> tuple[Model, Embedding]:
    """Embed the texts with another level's official model, or skip where it is not here."""
    level = LEVELS[request.param]
    try:
        model = folder.load_model(level, config.load(os.environ))
    except ModelError as error:
        pytest.skip(str(error))

    async def embed() -> Embedding:
        async with open_embedder(model, settings32) as embedder:
            assert embedder.proven.proof.max_deviation <= TOLERANCE
            assert embedder.proven.proof.nodes.keys() == {embedder.proven.provider.runtime_name}
            return await embedder.embed(make_parity.texts())

    return model, asyncio.run(embed())


@pytest.mark.model
def test_other_levels_equal_sentence_transformers(other: tuple[Model, Embedding]) -> None:
    """Equal sentence-transformers' committed vectors within 1e-5 in every direction kept."""
    model, embedding = other
    with np.load(make_parity.OTHERS) as saved:
        expected = saved[model.level]
    found = make_parity.projected(embedding.vectors)
    assert found.shape == expected.shape == (make_parity.COUNT, make_parity.PROJECTED)
    assert np.abs(found - expected).max() <= TOLERANCE


@pytest.mark.model
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # what torch warns of is not ours
def test_other_levels_equal_sentence_transformers_live(other: tuple[Model, Embedding]) -> None:
    """Equal the vectors that the installed sentence-transformers gives now."""
    pytest.importorskip("sentence_transformers", reason="the extra `train` is not installed")
    model, embedding = other
    live = make_parity.official_vectors(model.folder, make_parity.texts())
    assert np.abs(embedding.vectors - live).max() <= TOLERANCE


@pytest.fixture(scope="module")
def built(case: Case, tmp_path_factory: pytest.TempPathFactory) -> build.Built:
    """Build the shape's graph."""
    home = tmp_path_factory.mktemp("shape")
    save_file(dict(case.weights), home / "model.safetensors")
    made = build.Built(home / "built")
    build.write_graph(home / "model.safetensors", made.folder, case.shape)
    return made


def opened(made: build.Built) -> OnnxSession:
    """Open a built graph, recording nothing."""
    session = OnnxSession(made.graph, CPU, Placement(threads=2))
    session.run(np.zeros((1, 2), np.int64))
    session.finish_profile()
    return session


def run_all(session: OnnxSession, rows: list[np.ndarray]) -> np.ndarray:
    """Embed each row alone."""
    return np.concatenate([session.run(row[np.newaxis]) for row in rows])


def test_random_shapes_equal_transformers(case: Case, built: build.Built) -> None:
    """Prove a shape's graph, then equal transformers' committed vectors within 1e-5."""
    session = OnnxSession(built.graph, CPU, Placement(threads=2))
    assert prove(session, CPU, "fp32", Probe.read(built.proof)).max_deviation < TOLERANCE
    found = run_all(session, case.rows)
    assert found.shape == case.expected.shape == (len(case.rows), case.shape.hidden)
    assert np.abs(found - case.expected).max() <= TOLERANCE


def test_batches_equal_transformers(case: Case, built: build.Built) -> None:
    """Give rows of one length the same vectors when they run together."""
    session = opened(built)
    for length in {len(row) for row in case.rows}:
        places = [place for place, row in enumerate(case.rows) if len(row) == length]
        found = session.run(np.stack([case.rows[place] for place in places]))
        assert np.abs(found - case.expected[places]).max() <= TOLERANCE


def test_numpy_reference_equals_transformers(case: Case) -> None:
    """Hold the plain numpy model, against which sessions are proven, to transformers' too."""
    found = reference.forward(case.shape, case.weights, [row.tolist() for row in case.rows])
    assert np.abs(found - case.expected).max() <= TOLERANCE


def test_openvino_reads_the_graphs(case: Case, built: build.Built) -> None:
    """Equal transformers' vectors in OpenVINO's own runtime, where that is installed."""
    openvino = pytest.importorskip("openvino", reason="openvino is not installed")
    core = openvino.Core()
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(built.graph), "CPU", settings)
    # A model whose first run is of one token is wrong ever after in some of its versions; texts
    # have two at least, [CLS] and [SEP].
    places = [place for place, row in enumerate(case.rows) if len(row) > 1]
    for place in places:
        found = compiled({0: case.rows[place][np.newaxis]})[0]
        assert np.abs(found - case.expected[place]).max() <= TOLERANCE


def test_the_mpnet_rows_hold_what_is_hard() -> None:
    """Go past the last bucket of distances, and hold padding tokens within texts."""
    rows = make_parity.mpnet_rows()
    assert max(map(len, rows)) == LEVELS["high"].max_tokens > 128
    assert sum(PADDING in row for row in rows) > len(rows) // 3


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # what torch warns of is not ours
def test_random_shapes_equal_transformers_live(case: Case) -> None:
    """Make the committed vectors again with the installed transformers."""
    pytest.importorskip("sentence_transformers", reason="the extra `train` is not installed")
    live = make_parity.transformers_vectors(case.config, case.weights, case.rows)
    assert np.abs(live - case.expected).max() <= TOLERANCE


@pytest.mark.torch
@pytest.mark.parametrize("name", ["low", "high"])
@pytest.mark.filterwarnings("ignore")  # what torch warns of is not ours
def test_true_shapes_equal_transformers_live(name: str, tmp_path: Path) -> None:
    """Equal the installed transformers with random weights in a level's true shape."""
    pytest.importorskip("sentence_transformers", reason="the extra `train` is not installed")
    level, config = LEVELS[name], CONFIGS[name]
    weights = draw_weights(config, np.random.default_rng(0), 0.05)
    shape = Shape(
        config["num_hidden_layers"], config["hidden_size"], 12,
        config["layer_norm_eps"], level.max_tokens, config["model_type"],
    )  # fmt: skip
    save_file(dict(weights), tmp_path / "model.safetensors")
    build.write_graph(tmp_path / "model.safetensors", tmp_path / "built", shape)
    session = opened(build.Built(tmp_path / "built"))
    rows = make_parity.rows_of((2, 19, 56, level.max_tokens), config["vocab_size"])
    live = make_parity.transformers_vectors(dict(config), weights, rows)
    assert np.abs(run_all(session, rows) - live).max() <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("l3", ("encoder.layer.2.output.LayerNorm.bias", 0.07556803524494171)),
        ("mpnet", ("encoder.relative_attention_bias.weight", 0.9121915698051453)),
    ],
)
def test_weights_are_the_same_everywhere(name: str, last: tuple[str, float]) -> None:
    """Draw the same random weights on every machine, or the vectors would compare nothing."""
    tensor, value = last  # the last number drawn
    assert list(weights := case_of(name).weights)[-1] == tensor
    assert float(weights[tensor].flat[-1]) == value
