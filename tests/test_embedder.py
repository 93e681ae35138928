"""Opening an engine on the first provider that can be proven, and embedding with it."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from opdbus.config import ProviderRequest
from opdbus.engine.embedder import Embedder, choose, open_embedder, open_onnx
from opdbus.errors import (
    LimitsExceeded,
    ModelError,
    ProofFailed,
    ProviderError,
    ShuttingDown,
    Truncated,
)
from opdbus.models import build, folder, reference, weights
from opdbus.models.catalogue import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from opdbus.config import Config
    from opdbus.engine.embedder import Open
    from opdbus.engine.providers import Provider
    from opdbus.engine.session import Session
    from opdbus.models.folder import Model

STRICT = ProviderRequest(("cpu",), strict=True)
CHAIN = ProviderRequest(("cuda", "cpu"), strict=False)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    """Read the tiny model."""
    return folder.read(tiny_model, LEVELS["medium"])


@pytest.fixture(scope="module")
def built(model: Model, tmp_path_factory: pytest.TempPathFactory) -> build.Built:
    """Build the tiny model's graph."""
    made = build.Built(tmp_path_factory.mktemp("graphs") / "tiny")
    build.write(model.weights, made.folder, model.shape)
    return made


@pytest.fixture
def without_cuda() -> None:
    """Skip on a machine with an NVIDIA driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    pytest.skip("this machine has an NVIDIA driver")


class Altered:
    """A real session whose vectors are altered."""

    def __init__(self, session: Session, alter: Callable[[np.ndarray], np.ndarray]) -> None:
        self.session = session
        self.alter = alter

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Embed, and alter."""
        return self.alter(self.session.run(ids))

    def finish_profile(self) -> dict[str, int]:
        """Count nodes truly."""
        return self.session.finish_profile()


def altering(alter: Callable[[np.ndarray], np.ndarray]) -> Open:
    """Make an opener of altered sessions."""

    def opener(graph: Path, provider: Provider, threads: int, device: int) -> Session:
        return Altered(open_onnx(graph, provider, threads, device), alter)

    return opener


def test_strict_cpu(built: build.Built, settings: Config) -> None:
    """Give the proven session, its provider and hardware, and no fallbacks."""
    proven = choose(STRICT, built, settings)
    assert proven.provider.name == "cpu:onnxruntime"
    assert proven.hardware
    assert proven.fallbacks == ()
    assert proven.proof.max_deviation < 1e-5


@pytest.mark.usefixtures("without_cuda")
def test_strict_cuda(built: build.Built, settings: Config) -> None:
    """Refuse CUDA without a driver, saying what is missing and what to do."""
    with pytest.raises(ProviderError, match=r"no NVIDIA driver here .*; install the driver"):
        choose(ProviderRequest(("cuda",), strict=True), built, settings)


@pytest.mark.usefixtures("without_cuda")
def test_a_chain_moves_on(built: build.Built, settings: Config) -> None:
    """Fall back along a chain, and record why."""
    proven = choose(CHAIN, built, settings)
    assert proven.provider.name == "cpu:onnxruntime"
    (fallback,) = proven.fallbacks
    assert fallback.provider == "cuda"
    assert "no NVIDIA driver here" in fallback.reason


@pytest.mark.usefixtures("without_cuda")
def test_a_chain_that_ends(built: build.Built, settings: Config) -> None:
    """Give every reason when no provider of a chain can be had."""

    def opener(_graph: Path, provider: Provider, _threads: int, _device: int) -> Session:
        raise ProviderError(f"{provider.name} has no memory")

    with pytest.raises(ProviderError, match=r"no NVIDIA driver.*; cpu:onnxruntime has no memory"):
        choose(CHAIN, built, settings, opener)


@pytest.mark.parametrize(
    "alter", [lambda vectors: vectors + np.float32(1e-4), lambda vectors: vectors * np.nan]
)
def test_a_lying_session_is_never_served(
    built: build.Built, settings: Config, alter: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Refuse a provider whose vectors are not the model's."""
    with pytest.raises(ProviderError, match="its results cannot be trusted"):
        choose(STRICT, built, settings, altering(alter))


def test_a_provider_that_raises_what_it_likes(built: build.Built, settings: Config) -> None:
    """Move on from a session whose run fails with an error of its own."""

    def fail(_vectors: np.ndarray) -> np.ndarray:
        raise RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")

    with pytest.raises(ProviderError, match="cannot run it: CUBLAS_STATUS_ALLOC_FAILED"):
        choose(STRICT, built, settings, altering(fail))


def test_threads_and_device_reach_the_session(built: build.Built, settings: Config) -> None:
    """Open the session with the threads and the device of the settings."""
    seen = []

    def opener(graph: Path, provider: Provider, threads: int, device: int) -> Session:
        seen.append((threads, device))
        return open_onnx(graph, provider, threads, device)

    choose(STRICT, built, replace(settings, threads=3, gpu_device=1), opener)
    choose(STRICT, built, settings, opener)
    assert seen[0] == (3, 1)
    assert seen[1][0] >= 1


def test_texts_to_vectors(model: Model, settings: Config) -> None:
    """Give the model's own vectors of texts, in order, and count the texts that were cut."""
    texts = ["network name server", "", "mail", "disk " * 60, "mail", "a b c d"]

    async def main() -> None:
        async with open_embedder(model, settings) as embedder:
            found = await embedder.embed(texts)
            rows = [row.ids.tolist() for row in await embedder.tokenize(texts)]
            expected = reference.forward(model.shape, weights.read(model.weights), rows)
            assert np.abs(found.vectors - expected).max() < 1e-6
            assert found.vectors.dtype == np.float32
            assert found.truncated == 1
            assert (found.vectors[2] == found.vectors[4]).all()
            assert await embedder.count_tokens(texts) == [5, 2, 3, 62, 3, 6]
            assert embedder.dimension == 32
            assert embedder.numerics == model.numerics("float")
            assert (await embedder.embed([])).vectors.shape == (0, 32)

    asyncio.run(main())


def test_many_callers(model: Model, settings: Config) -> None:
    """Give many callers at once what each of them gets alone."""
    texts = ["network", "mail server", "disk user login", "a b c", "timer socket mount"]

    async def main() -> None:
        async with open_embedder(model, settings) as embedder:
            alone = [(await embedder.embed([text])).vectors[0] for text in texts]
            together = await asyncio.gather(*(embedder.embed([text] * 3) for text in texts * 10))
            for number, embedding in enumerate(together):
                expected = alone[number % len(texts)]
                assert np.abs(embedding.vectors - expected).max() < 1e-6

    asyncio.run(main())


def test_limits_come_from_the_settings(model: Model, settings: Config) -> None:
    """Use the batch and queue limits of the settings."""

    async def main() -> None:
        limited = replace(settings, batch_tokens=16, queue_limit=2)
        async with open_embedder(model, limited) as embedder:
            assert embedder.scheduler.budget == 16
            await embedder.embed(["a", "b"])
            with pytest.raises(LimitsExceeded, match="at most 2 texts"):
                await embedder.embed(["a", "b", "c"])

    asyncio.run(main())


def test_cutting_can_be_refused(model: Model, settings: Config) -> None:
    """Say which text is too long where the caller does not allow it to be cut."""

    async def main() -> None:
        async with open_embedder(model, settings) as embedder:
            assert (await embedder.embed(["mail"], truncate=False)).truncated == 0
            with pytest.raises(Truncated, match=r"1 of 2 texts .* 48 tokens .* number 1, counted"):
                await embedder.embed(["mail", "disk " * 60], truncate=False)

    asyncio.run(main())


def test_what_cannot_run_builds_nothing(model: Model, settings: Config) -> None:
    """Refuse before the graph is built where no provider of the request can run here."""

    async def main() -> None:
        asked = replace(settings, execution_provider=ProviderRequest(("cuda",), strict=True))
        with pytest.raises(ProviderError, match="cuda cannot run"):
            async with open_embedder(model, replace(asked, gpu_device=999)):
                raise AssertionError("opened")
        assert not (settings.state_dir / "graphs").exists()

    asyncio.run(main())


class Slow:
    """A tokenizer that counts at a gate."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)

    def count(self, texts: list[str]) -> list[int]:
        """Count, when the gate is open."""
        self.entered.release()
        assert self.gate.wait(10.0)
        return [len(text) for text in texts]


def test_tokenizing_keeps_to_its_own_threads() -> None:
    """Leave asyncio's threads free, drop what waits on closing, and refuse after that."""

    async def main() -> None:
        slow, unused = Slow(), cast("Any", None)
        embedder = Embedder(unused, unused, cast("Any", slow), unused)
        calls = [asyncio.ensure_future(embedder.count_tokens(["abc"])) for _ in range(40)]
        for _ in range(2):
            assert await asyncio.to_thread(slow.entered.acquire, timeout=10.0)
        assert not slow.entered.acquire(blocking=False)
        embedder.close()
        with pytest.raises(ShuttingDown):
            await embedder.count_tokens(["abc"])
        slow.gate.set()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert answers[:2] == [[3], [3]]
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[2:])

    asyncio.run(main())


def test_closing(model: Model, settings: Config) -> None:
    """End the model thread on leaving, and refuse texts after that."""

    async def main() -> None:
        async with open_embedder(model, settings) as embedder:
            assert "model" in {thread.name for thread in threading.enumerate()}
        assert "model" not in {thread.name for thread in threading.enumerate()}
        with pytest.raises(ShuttingDown):
            await embedder.embed(["a"])

    asyncio.run(main())


def test_a_refused_provider_leaves_no_thread(model: Model, settings: Config) -> None:
    """Start nothing when no provider can be proven."""

    async def main() -> None:
        opener = altering(lambda vectors: vectors + 1)
        with pytest.raises(ProviderError):
            async with open_embedder(model, settings, opener):
                raise AssertionError("opened")

    asyncio.run(main())
    assert "model" not in {thread.name for thread in threading.enumerate()}


def test_a_broken_tokenizer(model: Model, settings: Config, tmp_path: Path) -> None:
    """Refuse to open with a tokenizer that cannot be read."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (broken / name).write_bytes((model.folder / name).read_bytes())
    (broken / "tokenizer.json").write_text("{}")

    async def main() -> None:
        with pytest.raises(ModelError, match="cannot read the tokenizer"):
            async with open_embedder(replace(model, folder=broken), settings):
                raise AssertionError("opened")

    asyncio.run(main())


def test_a_proof_failure_is_a_provider_error() -> None:
    """Let a failed proof move a chain on, as any other reason does."""
    assert issubclass(ProofFailed, ProviderError)
