"""The engine as a library: `opdbus.Embedder`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from harness.running import run_program

import opdbus
from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import (
    CallerError,
    ConfigError,
    InvalidArgs,
    ModelError,
    ProviderError,
    ShuttingDown,
    Truncated,
)
from opdbus.models import folder, reference, weights
from opdbus.models.level_table import LEVELS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Make = Callable[..., opdbus.Embedder]

TEXTS = ["network name server", "", "mail", "disk " * 60, "mail", "a b c d"]
# what one window of a stream holds
WINDOW = 2048
# generous: it only ends a test that would otherwise never end
PATIENCE = 60.0


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
    model = folder.read_model(tiny_model, LEVELS["medium"])
    found = embedder.embed(TEXTS)
    rows = Tokenizer(model.tokenizer, model.shape.max_tokens).encode(TEXTS)
    ids = [each.tolist() for each in rows]
    expected = reference.forward(model.shape, weights.read_weights(model.weights), ids)
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


async def test_coroutines(make: Make) -> None:
    """Embed from an event loop of the caller's, which goes on meanwhile, many calls at once."""
    async with make() as embedder:
        alone = embedder.embed(TEXTS)
        calls = [embedder.embed_async(TEXTS) for _ in range(20)]
        together = await asyncio.gather(*calls)
        assert all(np.abs(found - alone).max() < 1e-6 for found in together)
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
    stream.close()
    # what is asked next finds nothing left of it
    embedder.embed(["mail"])
    assert embedder.engine.scheduler.depth == 0


def test_a_stream_that_fails(embedder: opdbus.Embedder) -> None:
    """Raise the error of whoever gives the texts, and serve on."""

    def broken() -> Iterator[str]:
        yield from texts(WINDOW)
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="the disk went away"):
        list(embedder.stream(broken()))
    assert len(embedder.embed(["mail"])) == 1


def test_a_stream_of_a_slow_generator(embedder: opdbus.Embedder) -> None:
    """Take a stream's texts in the thread that reads it: others are served while it waits."""
    waits, goes_on = threading.Event(), threading.Event()

    def slow() -> Iterator[str]:
        yield from texts(WINDOW)
        waits.set()
        assert goes_on.wait(PATIENCE)
        yield "mail"

    with ThreadPoolExecutor(1) as thread:
        streamed = thread.submit(lambda: list(embedder.stream(slow())))
        assert waits.wait(PATIENCE)
        assert len(embedder.embed(["disk"])) == 1
        goes_on.set()
        assert [len(window) for window in streamed.result()] == [WINDOW, 1]


def test_a_stream_of_a_generator_that_embeds(embedder: opdbus.Embedder) -> None:
    """Serve a generator that itself asks the embedder that it feeds."""

    def asking() -> Iterator[str]:
        for text in texts(3):
            embedder.embed([text])
            yield text

    assert sum(map(len, embedder.stream(asking()))) == 3


@pytest.mark.parametrize("how", ["stream", "embed"])
def test_ctrl_c(tiny_model: Path, tmp_path: Path, how: str) -> None:
    """End a stream or a call with KeyboardInterrupt on Ctrl-C, and serve on."""
    done = run_program(
        [sys.executable, "-X", "faulthandler", "-c", INTERRUPTED, tiny_model, tmp_path, how]
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n(1, 32)\n"), done.stderr


INTERRUPTED = """
import itertools, signal, sys, threading, time
import opdbus
model, state, how = sys.argv[1:]
# a script that starts jobs with & has Ctrl-C ignored
signal.signal(signal.SIGINT, signal.default_int_handler)

def work(embedder):
    if how == "stream":
        for _ in embedder.stream("disk %d" % n for n in itertools.count()):
            begun.set()
    begun.set()
    while True:
        embedder.embed(["disk"] * 5000)

def interrupt():
    begun.wait()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

begun = threading.Event()
with opdbus.Embedder(model=model, state_dir=state, precision="fp32") as embedder:
    threading.Thread(target=interrupt).start()
    try:
        work(embedder)
    except KeyboardInterrupt:
        print("interrupted")
    print(embedder.embed(["mail"]).shape)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no os.fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")
def test_a_forked_process(embedder: opdbus.Embedder) -> None:
    """Refuse at once in a forked process, where the engine's threads are not; end cleanly there."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            embedder.embed(["mail"])
        except CallerError as error:
            os.write(writing, str(error).encode())
        embedder.close()
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as answer:
        assert "forked from" in answer.read()
    assert os.waitpid(child, 0)[1] == 0
    assert len(embedder.embed(["mail"])) == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("hello", r"not str: write \[text\] for a single text"),
        (b"hello", r"not bytes: write \[text\]"),
        (None, "must be a list of str or another iterable of them, not NoneType"),
        (["mail", 1], "text number 1, counted from 0, is int, not str"),
        ([b"mail"], "text number 0, counted from 0, is bytes"),
        (["mail", "disk \udc80"], "text number 1, .* its character 5 is a lone surrogate"),
    ],
)
def test_what_is_no_text(embedder: opdbus.Embedder, given: Any, said: str) -> None:
    """Refuse what is no list of texts in one sentence, whichever way it is given."""
    for method in (embedder.embed, embedder.stream, embedder.count_tokens):
        with pytest.raises(InvalidArgs, match=said):
            list(method(given))
    with pytest.raises(InvalidArgs, match=said):
        asyncio.run(embedder.embed_async(given))


def test_any_iterable(embedder: opdbus.Embedder) -> None:
    """Take generators and other iterables as lists are taken."""
    listed = embedder.embed(["a", "b"])
    assert np.array_equal(embedder.embed(text for text in "ab"), listed)
    assert np.array_equal(embedder.embed({"a": 1, "b": 2}.keys()), listed)


def test_texts_that_are_cut(embedder: opdbus.Embedder) -> None:
    """Cut long texts unless told not to, and count the tokens of each."""
    long = ["mail", "disk " * 60]
    assert embedder.count_tokens(long) == [3, 62]
    assert len(embedder.embed(long)) == 2
    many = [*texts(WINDOW + 7), long[1]]
    for given, number in ((long, 1), (many, WINDOW + 7)):
        with pytest.raises(Truncated, match=f"number {number}, counted from 0"):
            embedder.embed(given, truncate=False)
        with pytest.raises(Truncated, match=f"number {number}, counted from 0"):
            list(embedder.stream(given, truncate=False))
    with pytest.raises(Truncated):
        asyncio.run(embedder.embed_async(long, truncate=False))
    assert len(embedder.embed(["mail"], truncate=False)) == 1


def test_closed_while_texts_wait(make: Make) -> None:
    """Fail calls of other threads with ShuttingDown when it is closed; none waits for ever."""
    embedder = make().open()
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(embedder.embed, ["disk " * 40] * 4000) for _ in range(2)]
        embedder.embed(["mail"])  # goes before them
        embedder.close()
        errors = [call.exception(PATIENCE) for call in calls]
    assert [type(error) for error in errors] == [ShuttingDown] * 2


def test_types_reach_programs(tmp_path: Path) -> None:
    """Let a type checker find the types of what is installed, also of an editable installation."""
    program = tmp_path / "program.py"
    program.write_text("import opdbus\nreveal_type(opdbus.Embedder().provider)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", program],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert 'Revealed type is "str"' in done.stdout, done.stdout
    assert done.returncode == 0


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
    with pytest.raises(ConfigError, match="threads='many' is not accepted: give auto or"):
        opdbus.Embedder(threads="many")
    with pytest.raises(ConfigError, match="the level none has no model"):
        opdbus.Embedder("none")
    with pytest.raises(ConfigError, match=r"^provider='psychic' is not accepted: give one of auto"):
        opdbus.Embedder(provider="psychic")
    with pytest.raises(ConfigError, match=r"^level='highest' is not accepted: give one of none"):
        opdbus.Embedder("highest")


def test_what_is_available() -> None:
    """Tell which providers could be used, without opening a model."""
    assert opdbus.Embedder.is_available()
    assert opdbus.Embedder.is_available("cpu:onnxruntime")
    assert opdbus.Embedder.is_available("migraphx,cpu:onnxruntime")
    # no processor has a hundred thousand GPUs
    assert not opdbus.Embedder.is_available("cuda", device="99999")
    with pytest.raises(ConfigError):
        opdbus.Embedder.is_available("psychic")
