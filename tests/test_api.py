"""The engine as a library: `opdbus.Embedder`."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import opdbus
from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import ConfigError, InvalidArgs, ModelError, ProviderError, ShuttingDown
from opdbus.models import folder, reference, weights
from opdbus.models.catalogue import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Make = Callable[..., opdbus.Embedder]

TEXTS = ["network name server", "", "mail", "disk " * 60, "mail", "a b c d"]
# what one window of a stream holds
WINDOW = 2048


@pytest.fixture
def make(tiny_model: Path, tiny_graphs: Path, tmp_path: Path) -> Make:
    """Make embedders of the tiny model, whose graph is built already, not opened yet."""
    (tmp_path / "graphs").symlink_to(tiny_graphs)
    ours = {"model": tiny_model, "state_dir": tmp_path, "precision": "fp32"}

    def made(**settings: Any) -> opdbus.Embedder:
        return opdbus.Embedder(**{**ours, "provider": "cpu:onnxruntime", **settings})

    return made


@pytest.fixture
def embedder(make: Make) -> Iterator[opdbus.Embedder]:
    """Open one."""
    with make() as opened:
        yield opened


def our_threads() -> list[str]:
    """List the threads that an open embedder has, those left out that end when told to."""
    names = ("op-dbus", "model-", "tokenizer")
    ours = [thread for thread in threading.enumerate() if thread.name.startswith(names)]
    for thread in ours:
        # a closed embedder's own ends in its own time, as do idle tokenizers
        thread.join(0.0 if thread.name.startswith("model-") else 0.2)
    return [thread.name for thread in ours if thread.is_alive()]


def test_texts_to_vectors(embedder: opdbus.Embedder, tiny_model: Path) -> None:
    """Give the model's own vectors of texts, in order."""
    model = folder.read(tiny_model, LEVELS["medium"])
    found = embedder.embed(TEXTS)
    rows = Tokenizer(model.tokenizer, model.shape.max_tokens).encode(TEXTS)
    ids = [row.ids.tolist() for row in rows]
    expected = reference.forward(model.shape, weights.read(model.weights), ids)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-6
    assert embedder.embed([]).shape == (0, 32)


def test_what_it_is(embedder: opdbus.Embedder) -> None:
    """Tell what was proven."""
    assert (embedder.provider, embedder.precision) == ("cpu:onnxruntime", "fp32")
    assert (embedder.dimension, embedder.max_tokens) == (32, 48)
    assert embedder.device
    assert embedder.fallbacks == ()
    assert embedder.proof.max_deviation < 1e-5


def test_a_chain_tells_why_it_moved_on(make: Make) -> None:
    """Fall back as the daemon does, and keep the reason."""
    if opdbus.Embedder.is_available("migraphx"):
        pytest.skip("there is an AMD GPU here")
    with make(provider="migraphx,cpu:onnxruntime") as embedder:
        assert embedder.provider == "cpu:onnxruntime"
        (fallback,) = embedder.fallbacks
        assert (fallback.provider, fallback.reason[:19]) == ("migraphx", "migraphx cannot run")
    with pytest.raises(ProviderError, match="migraphx cannot run"), make(provider="migraphx"):
        raise AssertionError("opened")


def test_coroutines(make: Make) -> None:
    """Embed from an event loop of the caller's, which goes on meanwhile, many calls at once."""

    async def main() -> None:
        async with make() as embedder:
            alone = embedder.embed(TEXTS)
            calls = [embedder.embed_async(TEXTS) for _ in range(20)]
            together = await asyncio.gather(*calls)
            assert all(np.abs(found - alone).max() < 1e-6 for found in together)

    asyncio.run(main())
    assert our_threads() == []


def test_threads(embedder: opdbus.Embedder) -> None:
    """Give each of many threads what it would get alone."""
    alone = embedder.embed(TEXTS)
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(embedder.embed, [TEXTS] * 40):
            assert np.abs(found - alone).max() < 1e-6


def texts(count: int) -> Iterator[str]:
    """Give texts whose vectors differ."""
    return (f"{number % 4} {'abcde'[number % 5]} {number % 3}" for number in range(count))


def test_a_stream(embedder: opdbus.Embedder) -> None:
    """Give a stream's vectors in order, a window at a time, as `embed` gives them all at once."""
    windows = list(embedder.stream(texts(2 * WINDOW + 5)))
    assert [len(window) for window in windows] == [WINDOW, WINDOW, 5]
    first = embedder.embed(list(texts(60)))
    found = np.concatenate(windows)
    # the texts come again after 60
    assert np.abs(found - np.resize(first, found.shape)).max() < 1e-6
    assert np.abs(embedder.embed(list(texts(2 * WINDOW + 5))) - found).max() < 1e-6
    assert list(embedder.stream([])) == []


def test_a_stream_takes_no_more_than_it_must(embedder: opdbus.Embedder) -> None:
    """Take texts a few windows ahead only, so that memory does not grow with their number."""
    taken = 0

    def counted() -> Iterator[str]:
        nonlocal taken
        for text in texts(10 * WINDOW):
            taken += 1
            yield text

    stream = embedder.stream(counted())
    next(stream)
    assert taken <= 3 * WINDOW
    # who stops half way leaves nothing behind
    stream.close()  # type: ignore[attr-defined]
    assert embedder.engine.scheduler.depth == 0


def test_a_stream_that_fails(embedder: opdbus.Embedder) -> None:
    """Raise the error of whoever gives the texts, and serve on."""

    def broken() -> Iterator[str]:
        yield from texts(WINDOW)
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="the disk went away"):
        list(embedder.stream(broken()))
    assert len(embedder.embed(["mail"])) == 1


def test_a_closed_embedder(make: Make) -> None:
    """Say that it is not open, before and after, and leave no thread behind."""
    embedder = make()
    for _ in range(2):
        with pytest.raises(ShuttingDown, match="is not open: use it in a `with` block"):
            embedder.embed(["mail"])
        with pytest.raises(ShuttingDown):
            _ = embedder.device
        # it can be opened again
        with embedder:
            assert embedder.embed(["mail"]).shape == (1, 32)
            assert "op-dbus" in our_threads()
        assert our_threads() == []
        embedder.close()


def test_opening_twice(embedder: opdbus.Embedder) -> None:
    """Leave an open one as it is."""
    engine = embedder.engine
    assert embedder.open() is embedder
    assert embedder.engine is engine


def test_a_model_that_is_not_there(make: Make, tmp_path: Path) -> None:
    """Raise what the daemon would, and leave no thread behind."""
    with pytest.raises(ModelError, match="nowhere"), make(model=tmp_path / "nowhere"):
        raise AssertionError("opened")
    assert our_threads() == []


def test_settings_are_the_daemons(make: Make) -> None:
    """Take every setting of the daemon's under its name, and no other."""
    with make(batch_tokens=16, threads=1, precision=None) as embedder:
        assert embedder.engine.scheduler.budget == 16
        assert embedder.engine.scheduler.lanes == 1
    with pytest.raises(ConfigError, match="there is no setting colour; see `op-dbus config`"):
        opdbus.Embedder(colour="blue")
    with pytest.raises(ConfigError, match="--threads many is not accepted"):
        opdbus.Embedder(threads="many")
    with pytest.raises(ConfigError, match="the level none has no model"):
        opdbus.Embedder("none")
    with pytest.raises((ConfigError, InvalidArgs), match="psychic"):
        opdbus.Embedder(provider="psychic")


def test_what_is_available() -> None:
    """Tell which providers could be used, without opening a model."""
    assert opdbus.Embedder.is_available()
    assert opdbus.Embedder.is_available("cpu:onnxruntime")
    assert opdbus.Embedder.is_available("migraphx,cpu:onnxruntime")
    # no processor has a hundred thousand GPUs
    assert not opdbus.Embedder.is_available("cuda", device="99999")
    with pytest.raises(ConfigError):
        opdbus.Embedder.is_available("psychic")
