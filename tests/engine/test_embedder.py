"""Opening an engine on the first provider that can be proven, and embedding with it."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest
from harness.sessions import Wrapped
from tokenizers import Tokenizer

from opdbus.engine.embedder import Embedder
from opdbus.engine.opening import open_embedder
from opdbus.engine.sessions import open_session
from opdbus.errors import LimitsExceeded, ModelError, ProviderError, ShuttingDown, Truncated
from opdbus.models import folder, reference, weights
from opdbus.models.level_table import LEVELS
from opdbus.settings.parsing import ProviderRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from opdbus.config import Config
    from opdbus.engine.provider import Placement, Provider, Session
    from opdbus.models.folder import Model


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    """Read the tiny model."""
    return folder.read_model(tiny_model, LEVELS["medium"])


class Altered(Wrapped):
    """A real session whose vectors are one off."""

    def run(self, ids: np.ndarray) -> np.ndarray:
        """Embed, and alter."""
        return super().run(ids) + 1


def altered(graph: Path, provider: Provider, placement: Placement) -> Session:
    """Open an altered session."""
    return Altered(open_session(graph, provider, placement))


def model_threads() -> list[threading.Thread]:
    """List the model's threads."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("model")]


async def test_texts_to_vectors(model: Model, settings: Config) -> None:
    """Give the model's own vectors of texts, in order, and count the texts that were cut."""
    texts = ["network name server", "", "mail", "disk " * 60, "mail", "a b c d"]

    async with open_embedder(model, settings) as embedder:
        found = await embedder.embed(texts)
        rows = [ids.tolist() for ids in await embedder.tokenize(texts)]
        expected = reference.forward(model.shape, weights.read_weights(model.weights), rows)
        assert np.abs(found.vectors - expected).max() < 1e-6
        assert found.vectors.dtype == np.float32
        assert found.truncated == 1
        assert np.abs(found.vectors[2] - found.vectors[4]).max() < 1e-6
        assert await embedder.count_tokens(texts) == [5, 2, 3, 62, 3, 6]
        assert embedder.dimension == 32
        assert embedder.numerics == model.numerics("float")
        assert (await embedder.embed([])).vectors.shape == (0, 32)


async def test_many_callers(model: Model, settings: Config) -> None:
    """Give many callers at once what each of them gets alone."""
    texts = ["network", "mail server", "disk user login", "a b c", "timer socket mount"]

    async with open_embedder(model, settings) as embedder:
        alone = [(await embedder.embed([text])).vectors[0] for text in texts]
        together = await asyncio.gather(*(embedder.embed([text] * 3) for text in texts * 10))
        for number, embedding in enumerate(together):
            expected = alone[number % len(texts)]
            assert np.abs(embedding.vectors - expected).max() < 1e-6


async def test_int8_alone_and_with_others(model: Model, settings: Config) -> None:
    """Give a text its vector in ONNX Runtime's int8 whatever else is asked for with it."""
    texts = ["network", "mail server", "disk login", "a b", "timer mount", "0 1", "rule user"]
    onnxruntime = ProviderRequest(("cpu:onnxruntime",))

    # as many lanes as there would be on a larger machine
    int8 = replace(settings, precision="int8", execution_provider=onnxruntime, threads=4)
    async with open_embedder(model, int8) as embedder:
        assert embedder.proven.proof.products == {"int8": 8}
        alone = np.concatenate([(await embedder.embed([text])).vectors for text in texts])
        together = (await embedder.embed(texts)).vectors
        assert np.abs(together - alone).max() < 1e-6
        rows = await embedder.tokenize(texts * 20)
        bulk = await embedder.run(rows)
        assert np.abs(bulk - np.tile(alone, (20, 1))).max() < 1e-6
        expected = reference.forward(
            model.shape,
            weights.read_weights(model.weights),
            [ids.tolist() for ids in rows.take(range(7))],
        )
        assert 1e-6 < 1 - (alone * expected).sum(axis=1).min() < 0.05


async def test_limits_come_from_the_settings(model: Model, settings: Config) -> None:
    """Use the batch and queue limits of the settings."""
    limited = replace(settings, batch_tokens=16, queue_limit=2)
    async with open_embedder(model, limited) as embedder:
        assert embedder.scheduler.budget == 16
        await embedder.embed(["a", "b"])
        with pytest.raises(LimitsExceeded, match="at most 2 texts"):
            await embedder.embed(["a", "b", "c"])


async def test_cutting_can_be_refused(model: Model, settings: Config) -> None:
    """Say which text is too long where the caller does not allow it to be cut."""
    async with open_embedder(model, settings) as embedder:
        assert (await embedder.embed(["mail"], truncate=False)).truncated == 0
        with pytest.raises(Truncated, match=r"1 of 2 texts .* 48 tokens .* number 1, counted"):
            await embedder.embed(["mail", "disk " * 60], truncate=False)


async def test_what_cannot_run_builds_nothing(model: Model, settings: Config) -> None:
    """Refuse before the graph is built where no provider of the request can run here."""
    asked = replace(settings, execution_provider=ProviderRequest(("cuda",)))
    with pytest.raises(ProviderError, match="cuda cannot run"):
        async with open_embedder(model, replace(asked, gpu_device=("999",))):
            raise AssertionError("opened")
    assert not (settings.state_dir / "graphs").exists()


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


async def test_tokenizing_keeps_to_its_own_threads() -> None:
    """Leave asyncio's threads free, drop what waits on closing, and refuse after that."""
    slow, unused = Slow(), cast("Any", None)
    proven = cast("Any", SimpleNamespace(is_provisional=False, report=None))
    embedder = Embedder(unused, proven, cast("Any", slow), unused)
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
    assert all(isinstance(answer, ShuttingDown) for answer in answers[2:])


async def test_closing(model: Model, settings: Config) -> None:
    """End the model's threads on leaving, and refuse texts after that."""
    async with open_embedder(model, settings) as embedder:
        assert len(model_threads()) == embedder.proven.placement.lanes
    assert model_threads() == []
    with pytest.raises(ShuttingDown):
        await embedder.embed(["a"])


def test_a_refused_provider_leaves_no_thread(model: Model, settings: Config) -> None:
    """Start nothing when no provider can be proven."""

    async def main() -> None:
        with pytest.raises(ProviderError):
            async with open_embedder(model, settings, altered):
                raise AssertionError("opened")

    asyncio.run(main())
    assert model_threads() == []


def _without_specials(path: Path) -> None:
    content = json.loads(path.read_text())
    content["post_processor"]["special_tokens"] = {}
    path.write_text(json.dumps(content))


def _without_unknown(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["model"]["vocab"]["[UNK]"]
    path.write_text(json.dumps(content))


def test_another_models_tokenizer(model: Model, settings: Config) -> None:
    """Refuse to open with a tokenizer that knows words for which the model has no vectors."""

    async def main(words: int) -> None:
        async with open_embedder(replace(model, words=words), settings):
            pass

    most = max(Tokenizer.from_file(str(model.tokenizer)).get_vocab().values())
    asyncio.run(main(most + 1))
    with pytest.raises(ModelError, match=f"up to {most}, but the model has {most} words"):
        asyncio.run(main(most))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text("{}"),
        lambda path: path.write_bytes(b"\xff" * 99),
        lambda path: path.write_bytes(path.read_bytes()[:-99]),
        Path.unlink,
        # these are found with the first text, and one of them panics
        _without_specials,
        _without_unknown,
    ],
)
def test_a_broken_tokenizer(
    model: Model, settings: Config, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    """Refuse to open with a tokenizer that cannot be read, or tokenizes nothing."""
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("model.safetensors", "tokenizer.json"):
        (broken / name).write_bytes((model.folder / name).read_bytes())
    damage(broken / "tokenizer.json")

    async def main() -> None:
        with pytest.raises(ModelError, match="cannot read the tokenizer"):
            async with open_embedder(replace(model, folder=broken), settings):
                raise AssertionError("opened")

    asyncio.run(main())
