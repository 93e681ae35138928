"""CUDA on a real device: the proof, vectors, threads, and a memory that is too small."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from harness.tiny import write_tiny_model

from opdbus.api import Embedder
from opdbus.bench import texts
from opdbus.engine.proof import FP32_TOLERANCE, LEAST_COSINE, Probe, prove
from opdbus.engine.provider import Placement
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.sessions import OnnxSession
from opdbus.errors import ProviderError
from opdbus.models import build, folder, reference
from opdbus.models.dialects import DIALECTS
from opdbus.models.level_table import LEVELS
from opdbus.models.shape import FAMILIES, Shape
from opdbus.models.weights import read_weights

pytestmark = pytest.mark.gpu

Opened = tuple[OnnxSession, Shape, dict[str, np.ndarray], Probe]


@pytest.fixture(scope="module", autouse=True, params=["cuda", "tensorrt"])
def provider(request: pytest.FixtureRequest) -> str:
    """Take each provider of NVIDIA's that this machine has."""
    try:
        PROVIDERS[request.param].require(("0",))
    except ProviderError as error:
        pytest.skip(str(error))
    return str(request.param)


def opened(home: Path, provider: str, family: str, precision: str) -> Opened:
    """Build a tiny model in the provider's dialect and open it."""
    model = write_tiny_model(home / "model", family=family)
    shape = folder.read_model(model, LEVELS["medium"]).shape
    source, row = model / "model.safetensors", PROVIDERS[provider]
    build.fill(source, home, shape, DIALECTS[row.dialects[precision]])
    built = build.Built(home)
    at = Placement(precision=precision, lanes=2, cache=home, longest=shape.max_tokens)
    session = OnnxSession(built.graph, row, at)
    return session, shape, dict(read_weights(source)), Probe.read(built.proof)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_model_is_proven(tmp_path: Path, provider: str, family: str, precision: str) -> None:
    """Pass the same proof as every provider, and give the model's vectors for other batches too."""
    session, shape, weights, probe = opened(tmp_path, provider, family, precision)
    proof = prove(session, PROVIDERS[provider], precision, probe)
    assert sum(proof.nodes.values()) == proof.nodes[PROVIDERS[provider].runtime_name]
    words = len(weights["embeddings.word_embeddings.weight"])
    random = np.random.default_rng(3)
    for rows, length in ((1, 1), (3, 2), (64, 19), (5, 17), (2, shape.max_tokens)):
        ids = random.integers(0, words, (rows, length))
        found, expected = session.run(ids), reference.forward(shape, weights, ids.tolist())
        assert (found * expected).sum(axis=1).min() > LEAST_COSINE[precision]
        if precision == "fp32":
            assert np.abs(found - expected).max() < FP32_TOLERANCE


def test_runs_beside_each_other(tmp_path: Path, provider: str) -> None:
    """Give each of many threads its own vectors, whatever lengths run at once."""
    session, _, _, _ = opened(tmp_path, provider, "bert", "fp16")
    batches = [np.full((rows, length), 7) for rows in (1, 9, 40) for length in range(2, 40)]
    alone = [session.run(ids) for ids in batches]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(session.run, batches * 4))
    for number, found in enumerate(together):
        assert np.abs(found - alone[number % len(alone)]).max() < 1e-3


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedder]:
    """Open the medium model on the CPU, or skip."""
    embedder = Embedder(provider="cpu", precision="fp32", state_dir=tmp_path_factory.mktemp("cpu"))
    try:
        with embedder:
            yield embedder
    except ProviderError as error:
        pytest.skip(str(error))


@pytest.mark.model
def test_the_medium_model(on_cpu: Embedder, provider: str, tmp_path: Path) -> None:
    """Choose a precision by the gate, and give vectors as near the CPU's as that precision is."""
    some = texts.objects(150) + texts.shorts(150)
    with Embedder(provider=provider, state_dir=tmp_path) as embedder:
        assert embedder.provider == provider
        assert embedder.fallbacks == ()
        cosines = (embedder.embed(some) * on_cpu.embed(some)).sum(axis=1)
        assert cosines.min() > LEAST_COSINE[embedder.precision]


@pytest.mark.model
def test_little_memory_halves_the_batches(provider: str, tmp_path: Path) -> None:
    """Lose no text where the memory is too small for the batches that would be fastest."""
    if provider != "cuda":
        pytest.skip("only CUDA's memory can be limited")
    some = texts.objects(6000)
    limited = Embedder(
        provider="cuda", gpu_mem_limit="160M", batch_tokens=1 << 16, state_dir=tmp_path
    )
    with limited as embedder, Embedder(provider="cuda", state_dir=tmp_path) as free:
        found = embedder.embed(some)
        assert embedder.engine.scheduler.budget < 1 << 16
        assert (found * free.embed(some)).sum(axis=1).min() > 0.999


def test_a_device_that_is_not_there(provider: str) -> None:
    """Refuse a device by its number, and say how many there are."""
    with pytest.raises(ProviderError, match="numbered from 0"):
        PROVIDERS[provider].require(("99",))
