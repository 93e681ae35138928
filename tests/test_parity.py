"""Our vectors against the reference implementations'; make_parity.py wrote the expected ones."""

import asyncio

import make_parity
import numpy as np
import pytest
from safetensors.numpy import save_file

from opdbus import config
from opdbus.config import Config
from opdbus.engine.embedder import Embedding, open_embedder
from opdbus.engine.proof import Probe, prove
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.session import OnnxSession
from opdbus.errors import ModelError
from opdbus.models import build, folder, reference
from opdbus.models.catalogue import LEVELS
from opdbus.models.folder import Model, Shape

TOLERANCE = 1e-5
L3 = Shape(layers=3, hidden=384, heads=12, epsilon=1e-12, max_tokens=128)


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
        return folder.load(LEVELS["medium"], settings32)
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
    live = make_parity.medium_vectors(medium.folder, texts)
    assert np.abs(embedding.vectors - live).max() <= TOLERANCE
    with np.load(make_parity.VECTORS) as saved:
        assert np.abs(saved["medium"] - live).max() <= TOLERANCE


@pytest.fixture(scope="module")
def low(tmp_path_factory: pytest.TempPathFactory) -> build.Built:
    """Build the low level's shape with random weights."""
    home = tmp_path_factory.mktemp("low")
    save_file(make_parity.l3_weights(), home / "model.safetensors")
    built = build.Built(home / "built")
    build.write(home / "model.safetensors", built.folder, L3)
    return built


def l3_expected() -> np.ndarray:
    """Read the vectors that transformers gave."""
    with np.load(make_parity.VECTORS) as saved:
        return saved["l3"]


def test_low_shape_equals_transformers(low: build.Built) -> None:
    """Prove the L3 shape, then equal transformers' committed vectors within 1e-5."""
    session = OnnxSession(low.graph, PROVIDERS["cpu:onnxruntime"], threads=2, device=0)
    assert prove(session, "CPUExecutionProvider", Probe.read(low.proof)).max_deviation < TOLERANCE
    found = np.concatenate([session.run(row[np.newaxis]) for row in make_parity.l3_rows()])
    assert found.shape == l3_expected().shape == (len(make_parity.L3_LENGTHS), 384)
    assert np.abs(found - l3_expected()).max() <= TOLERANCE


def test_numpy_reference_equals_transformers() -> None:
    """Hold the plain numpy model, against which sessions are proven, to transformers' too."""
    rows = [row.tolist() for row in make_parity.l3_rows()]
    found = reference.forward(L3, make_parity.l3_weights(), rows)
    assert np.abs(found - l3_expected()).max() <= TOLERANCE


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")  # what torch warns of is not ours
def test_low_shape_equals_transformers_live() -> None:
    """Make the committed L3 vectors again with the installed transformers."""
    pytest.importorskip("sentence_transformers", reason="the extra `train` is not installed")
    assert np.abs(make_parity.l3_vectors() - l3_expected()).max() <= TOLERANCE


def test_weights_are_the_same_everywhere() -> None:
    """Draw the same random weights on every machine, or the vectors would compare nothing."""
    # the last number drawn
    last = make_parity.l3_weights()["encoder.layer.2.output.LayerNorm.bias"][-1]
    assert float(last) == 0.07556803524494171
