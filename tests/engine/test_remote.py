"""Embedding servers as a provider: what they must give to be used, and when they are dropped."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from harness.liars import EmbeddingServer, model_of
from harness.running import PATIENCE_SECONDS
from harness.tiny import write_tiny_model
from hypothesis import given
from hypothesis import strategies as st

from opdbus.config import Config
from opdbus.engine.opening import open_embedder
from opdbus.engine.provider_survey import survey
from opdbus.engine.remote import known_texts
from opdbus.engine.remote.remote_server import RemoteServer, Terms
from opdbus.engine.tokenizer import LibraryTokenizer
from opdbus.errors import ConfigError, ProofFailed, ProviderError, ServerUnreachable
from opdbus.models.folder import OURS, Model
from opdbus.serving.serving import Serving
from opdbus.settings import parsing
from opdbus.settings.parsing import ProviderRequest

if TYPE_CHECKING:
    from opdbus.engine.embedder import Embedder
    from opdbus.engine.remote.known_texts import KnownTexts

CPU = "cpu:onnxruntime"
TEXTS = [f"mail server {number} of the network" for number in range(200)]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    """Read the tiny model."""
    return model_of(tiny_model)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Write a model of the same shape with other weights."""
    return model_of(write_tiny_model(tmp_path_factory.mktemp("other") / "tiny", seed=1))


@pytest.fixture(scope="module")
def short_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Write the tiny model with a smaller limit of tokens."""
    folder = tmp_path_factory.mktemp("short") / "tiny"
    return model_of(write_tiny_model(folder, max_tokens=40))


@pytest.fixture(scope="module")
def known(model: Model, tmp_path_factory: pytest.TempPathFactory) -> KnownTexts:
    """Make the known texts of the tiny model once."""
    return asyncio.run(known_texts.ensure(model, tmp_path_factory.mktemp("known")))


@pytest.fixture
def server(model: Model) -> Iterator[EmbeddingServer]:
    """Run a server that tells the truth."""
    with EmbeddingServer(model) as running:
        yield running


OPEN: list[RemoteServer] = []


@pytest.fixture(autouse=True)
def _closing() -> Iterator[None]:
    """Close the connections of a test."""
    yield
    while OPEN:
        OPEN.pop().close()


def remote_of(known: KnownTexts, server: EmbeddingServer | str, **terms: Any) -> RemoteServer:
    """Open a server as a provider, not proven yet."""
    url = server if isinstance(server, str) else server.url
    options = {"seconds": 20.0, **terms}
    OPEN.append(RemoteServer(url, known, Terms("medium", "tiny", **options)))
    return OPEN[-1]


def proven(known: KnownTexts, server: EmbeddingServer | str, **terms: Any) -> RemoteServer:
    """Open a server as a provider, and prove it."""
    remote = remote_of(known, server, **terms)
    remote.prove()
    return remote


def serving_on(config: Config, *names: str) -> Config:
    """Ask for providers."""
    return replace(config, execution_provider=ProviderRequest(names))


# settings


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("remote:http://10.0.0.1:9900", "remote:http://10.0.0.1:9900"),
        ("REMOTE:HTTP://GPU.Example/Some/Path/", "remote:http://gpu.example/Some/Path"),
        ("remote:unix:/run/op-dbus/http.sock", "remote:unix:/run/op-dbus/http.sock"),
        ("remote:https://b#Model", "remote:https://b#Model"),
        ("remote:http://[::1]:80", "remote:http://[::1]:80"),
    ],
)
def test_addresses_are_read(text: str, name: str) -> None:
    """Keep the case of a path and a model, anywhere in a chain."""
    assert parsing.providers(text).names == (name,)
    assert parsing.providers(f"cuda, {text} ,cpu").names == ("cuda", name, "cpu")
    assert str(parsing.providers(name)) == name


@pytest.mark.parametrize(
    "text",
    [
        "remote:",
        "remote:localhost:9900",
        "remote:ftp://host",
        "remote:http://",
        "remote:http://host:99999",
        "remote:http://host:0",
        "remote:http://[::1",
        "remote:unix:relative.sock",
        "remote:unix://host/x.sock",
        "remote:http://a:1+http://b:1",
        "remote:http://a b",
    ],
)
def test_addresses_that_are_none(text: str) -> None:
    """Refuse what is no address, and show the forms that there are."""
    with pytest.raises(ValueError, match=r"remote:http://HOST:PORT|an address that can be read"):
        parsing.providers(text)


@pytest.mark.parametrize("text", ["remote:http://me:secret@host", "remote:http://host/?key=secret"])
def test_no_secret_in_an_address(text: str) -> None:
    """Refuse a secret in an address, which would be shown, and name the setting for it."""
    with pytest.raises(ValueError, match="OP_DBUS_REMOTE_TOKEN_FILE"):
        parsing.providers(text)


# the proof


def test_a_right_server_is_proven(known: KnownTexts, server: EmbeddingServer) -> None:
    """Give the right vectors in the order of the texts, among which known ones were sent."""
    remote = remote_of(known, server)
    proof = remote.prove()
    assert proof.precision == "fp32"
    assert proof.max_deviation < 1e-5
    assert remote.name == f"{server.url}/v1/embeddings, tiny"
    assert np.abs(remote.run(TEXTS) - server.right(TEXTS)).max() < 1e-6


def test_known_texts_are_few_and_at_random_places(
    known: KnownTexts, server: EmbeddingServer
) -> None:
    """Send at least one known text with each batch, a few percent of all, at changing places."""
    remote = proven(known, server)
    server.asked.clear()
    for first in range(0, 6000, 60):
        remote.run([f"text {number}" for number in range(first, first + 60)])
    places = [
        [place for place, text in enumerate(body["input"]) if text in known.texts]
        for body in server.asked
    ]
    assert all(places)
    assert 0.01 < sum(map(len, places)) / len(server.texts) < 0.06
    flat = [place for each in places for place in each]
    assert len({*flat}) > 40
    # all of them are used
    assert len({*server.texts} & {*known.texts}) == len(known.texts)


def test_known_texts_are_of_this_host_alone(model: Model, tmp_path: Path) -> None:
    """Make other texts on each host, and keep them for this one where only its user reads them."""
    one, again, other = (
        asyncio.run(known_texts.ensure(model, tmp_path / name)) for name in ("a", "a", "b")
    )
    assert one.texts == again.texts
    assert len({*one.texts} & {*other.texts}) < len(one.texts) / 2
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0
    (kept,) = (tmp_path / "a").iterdir()
    kept.write_text('{"texts": ["x"], "vectors": "AAAA"}')
    assert len(asyncio.run(known_texts.ensure(model, tmp_path / "a")).texts) == len(one.texts)


def altered(alter: Callable[[np.ndarray], np.ndarray]) -> Callable[[EmbeddingServer], None]:
    """Make a lie about the vectors alone."""

    def tell(server: EmbeddingServer) -> None:
        server.lie = lambda _texts, vectors: alter(vectors)

    return tell


def answering(status: int, body: bytes, **headers: str) -> Callable[[EmbeddingServer], None]:
    """Make a server that gives one answer to all requests for vectors."""

    def tell(server: EmbeddingServer) -> None:
        server.answer = lambda _texts: (status, headers, body)

    return tell


def sparse_index(server: EmbeddingServer) -> None:
    """Give each vector the number of the first."""

    def answer(texts: list[str]) -> tuple[int, dict[str, str], bytes]:
        rows = [{"index": 0, "embedding": row.tolist()} for row in server.right(texts)]
        return 200, {}, json.dumps({"data": rows}).encode()

    server.answer = answer


LIES = {
    "another order": (altered(lambda vectors: vectors[::-1]), "another order"),
    "a shift": (altered(lambda vectors: np.roll(vectors, 1, axis=0)), "another order"),
    "another pooling": (altered(np.abs), "serves another model"),
    "too narrow": (altered(lambda vectors: vectors[:, :16]), "vectors of 16 numbers"),
    "too few": (altered(lambda vectors: vectors[1:]), "another model"),
    "NaN": (altered(lambda vectors: vectors * np.nan), "NaN"),
    "nothing": (altered(lambda vectors: vectors * 0), "no length"),
    "coarse": (
        altered(lambda vectors: np.round(vectors * 12) / 12),
        "computes in int8 .* let the server compute in bf16 or more",
    ),
    "one index": (sparse_index, "what is no vectors"),
    "garbage": (answering(200, b"<html>\xff"), "what is no vectors"),
    "other JSON": (answering(200, b'[1, {"data": null}]'), "what is no vectors"),
    "deep JSON": (answering(200, b"[" * 60_000), "what is no vectors"),
    "bad base64": (
        answering(200, b'{"data": [{"index": 0, "embedding": "*"}]}'),
        "what is no vectors",
    ),
    "endless": (answering(200, b" " * (1 << 20)), "answered with more than"),
    "cut off": (
        answering(200, b'{"data": ', **{"Content-Length": "900", "Connection": "close"}),
        "broke off",
    ),
    "refused": (answering(400, b'{"error": {"message": "no\\u0007 way"}}'), r"400 \(no  way\)"),
    "a fault": (answering(500, b'{"error": "CUDA out of memory"}'), "500 .CUDA out of memory"),
    "no access": (answering(401, b"{}"), "OP_DBUS_REMOTE_TOKEN_FILE"),
    "elsewhere": (answering(302, b"", Location="http://127.0.0.1:1/"), "answered 302"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_liar_is_never_used(known: KnownTexts, server: EmbeddingServer, lie: str) -> None:
    """Refuse a server whose answers are not the model's vectors, and say what is wrong."""
    tell, reason = LIES[lie]
    tell(server)
    remote = remote_of(known, server)
    with pytest.raises(ProviderError, match=reason):
        remote.prove()
    remote.close()


def test_another_model_is_refused(known: KnownTexts, other_model: Model) -> None:
    """Refuse a server with a model of the same size, with the cosine."""
    with (
        EmbeddingServer(other_model) as server,
        pytest.raises(ProofFailed, match=r"cosine to those of tiny is only .*another model"),
    ):
        proven(known, server)


def test_a_server_that_cuts_texts_is_refused(known: KnownTexts, short_model: Model) -> None:
    """Refuse the right model with a smaller limit: only long texts show it."""
    with (
        EmbeddingServer(short_model) as server,
        pytest.raises(ProofFailed, match="it cuts texts earlier"),
    ):
        proven(known, server)


def test_a_slow_server_is_refused(known: KnownTexts, server: EmbeddingServer) -> None:
    """Wait for an answer no longer than the limit."""
    server.seconds = 30.0
    with pytest.raises(ProviderError, match=r"gave no answer in 0\.2 s"):
        proven(known, server, seconds=0.2)


@pytest.mark.parametrize(
    ("precision", "is_refused"), [("auto", False), ("fp32", True), ("bf16", False), ("int8", True)]
)
def test_precision_is_measured(
    known: KnownTexts, server: EmbeddingServer, precision: str, *, is_refused: bool
) -> None:
    """Take 16-bit vectors for what they are, and only where the setting allows them."""
    server.lie = lambda _texts, vectors: np.round(vectors * 500) / 500
    if is_refused:
        with pytest.raises(ProofFailed, match=f"computes in fp16 .* {precision} is wanted"):
            proven(known, server, precision=precision)
    else:
        assert proven(known, server, precision=precision).precision == "fp16"


def test_vectors_of_eight_bits_are_a_class_of_their_own(
    known: KnownTexts, server: EmbeddingServer
) -> None:
    """Accept coarse vectors where int8 is set, as int8."""
    server.lie = lambda _texts, vectors: np.round(vectors * 12) / 12
    assert proven(known, server, precision="int8").precision == "int8"


# forms of requests


def test_floats_are_accepted(known: KnownTexts, server: EmbeddingServer) -> None:
    """Ask for base64, and read floats."""
    server.sends_floats = True
    remote = proven(known, server)
    assert {body["encoding_format"] for body in server.asked} == {"base64"}
    assert np.abs(remote.run(TEXTS) - server.right(TEXTS)).max() < 1e-6


def test_lengths_are_made_one(known: KnownTexts, server: EmbeddingServer) -> None:
    """Bring vectors to length 1 where a server leaves that to the client."""
    server.lie = lambda _texts, vectors: vectors * 7
    assert np.abs(proven(known, server).run(TEXTS) - server.right(TEXTS)).max() < 1e-6


@pytest.mark.parametrize("suffix", ["", "/embed"])
def test_text_embeddings_inference(known: KnownTexts, model: Model, suffix: str) -> None:
    """Speak the other form where that is what the server has."""
    with EmbeddingServer(model, ("/embed",)) as server:
        remote = proven(known, server.url + suffix)
        assert remote.name == f"{server.url}/embed"
        assert np.abs(remote.run(TEXTS) - server.right(TEXTS)).max() < 1e-6


class Tei(EmbeddingServer):
    """A server with text-embeddings-inference's documented limits and errors.

    It takes 32 texts at a time, and refuses every third request as overloaded.
    """

    def __init__(self, model: Model) -> None:
        super().__init__(model, ("/embed",))
        self.statuses: list[int] = []
        # its backend fails once
        self.failures = 1

    def serve(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        """Answer a request for vectors."""
        count = len(body["inputs"])
        if count > 32:
            found = _flat(413, f"batch size {count} > maximum allowed batch size 32", "Validation")
        elif len(self.statuses) % 3 == 2:
            found = _flat(429, "Model is overloaded", "Overloaded")
        elif self.failures:
            self.failures -= 1
            found = _flat(424, "inference failed", "Backend")
        else:
            found = super().serve(path, body)
        self.statuses.append(found[0])
        return found


def _flat(status: int, sentence: str, kind: str) -> tuple[int, dict[str, str], bytes]:
    body = {"error": sentence, "error_type": kind}
    return status, {}, json.dumps(body).encode()


def test_the_errors_of_text_embeddings_inference(known: KnownTexts, model: Model) -> None:
    """Send fewer texts where they are too many, and again later what was refused as overload."""
    with Tei(model) as server:
        remote = proven(known, server)
        assert np.abs(remote.run(TEXTS) - server.right(TEXTS)).max() < 1e-6
        assert {*server.statuses} == {200, 413, 424, 429}
        # what was computed had the form that is documented, and no model
        assert {*map(frozenset, server.asked)} == {frozenset(("inputs", "normalize", "truncate"))}
        assert max(len(body["inputs"]) for body in server.asked) <= 32


@pytest.mark.parametrize("fault", ["lies", "dies"])
def test_text_embeddings_inference_is_dropped_later(
    known: KnownTexts, model: Model, fault: str
) -> None:
    """Drop it with the reason where it lies or dies after its proof."""
    with Tei(model) as server:
        remote = proven(known, server)
        remote.run(TEXTS[:40])
        if fault == "dies":
            server.die()
            with pytest.raises(ServerUnreachable, match=r"cannot be reached|broke off"):
                remote.run(TEXTS[:40])
            return
        LIES["another order"][0](server)
        with pytest.raises(ProofFailed, match="gave a known text"):
            remote.run(TEXTS[:40])
        server.asked.clear()
        with pytest.raises(ProofFailed):
            remote.run(TEXTS[:40])
        assert server.asked == []


@pytest.mark.parametrize("suffix", ["/v1", "/v1/embeddings", "/v1/"])
def test_addresses_with_a_path(known: KnownTexts, server: EmbeddingServer, suffix: str) -> None:
    """Accept the address that other clients of the server are given."""
    (name,) = parsing.providers(f"remote:{server.url}{suffix}").names
    assert proven(known, parsing.remote_url(name)).name.startswith(server.url)


def test_the_model_is_found(known: KnownTexts, server: EmbeddingServer) -> None:
    """Ask for the model of the level among those that a server lists, or the one of the address."""
    server.models = ["chat-7b", "org/Tiny"]
    assert proven(known, server).name.endswith("/v1/embeddings, org/Tiny")
    server.models = ["chat-7b", "mine"]
    assert {body["model"] for body in server.asked} <= {"org/Tiny", *server.models}
    assert proven(known, f"{server.url}#mine").name.endswith("/v1/embeddings, mine")
    with pytest.raises(ProviderError, match="no such model"):
        proven(known, f"{server.url}#gone")


@pytest.mark.parametrize("most", [1, 5, 32])
def test_batches_follow_the_server(known: KnownTexts, server: EmbeddingServer, most: int) -> None:
    """Send no more texts at a time than a server accepts, known ones included."""
    server.most_texts = most
    remote = proven(known, server)
    server.asked.clear()
    assert np.abs(remote.run(TEXTS[:70]) - server.right(TEXTS[:70])).max() < 1e-6
    assert max(len(body["input"]) for body in server.asked) <= most
    assert {*known.texts} & {*server.texts}


def test_an_empty_text_stays_here(known: KnownTexts, server: EmbeddingServer) -> None:
    """Give the vector of the empty text without a request, which many servers refuse."""
    remote = proven(known, server)
    server.asked.clear()
    found = remote.run(["", "name", ""])
    assert np.abs(found - server.right(["", "name", ""])).max() < 1e-6
    assert "" not in server.texts
    remote.run([""])
    assert len(server.asked) == 1


@given(st.text(max_size=60))
def test_cut_texts_have_the_same_tokens(text: str) -> None:
    """Cut a text so that its tokens are those that are kept of the whole text."""
    tokenizer = LibraryTokenizer(OURS / "tokenizer.json", 8)
    cut = tokenizer.cut(text)
    assert tokenizer.encode([cut]).ids.tolist() == tokenizer.encode([text]).ids.tolist()
    assert text.startswith(cut)


def test_long_texts_are_cut_before_they_are_sent() -> None:
    """Send nothing of a text beyond the model's limit."""
    tokenizer = LibraryTokenizer(OURS / "tokenizer.json", 8)
    for text in ("one two three four five six seven eight", "unbelievableness " * 50, "é" * 99):
        cut = tokenizer.cut(text)
        assert len(cut) < len(text)
        assert not tokenizer.encode([cut]).truncated.any()


# the watch


def test_a_server_that_lies_later_is_dropped(
    known: KnownTexts, server: EmbeddingServer, other_model: Model
) -> None:
    """Discard the batch of a server that changed its model after the proof, with the reason."""
    remote = proven(known, server)
    remote.run(TEXTS)
    with EmbeddingServer(other_model) as other:
        server.lie = lambda texts, _vectors: other.right(texts)
        with pytest.raises(ProofFailed, match=r"gave a known text .* after \d+ right ones"):
            remote.run(TEXTS)
    server.asked.clear()
    with pytest.raises(ProofFailed):
        remote.run(TEXTS)
    assert server.asked == []


@pytest.mark.parametrize("lie", ["another order", "a shift", "another pooling", "NaN", "garbage"])
def test_later_lies_are_seen_in_the_first_batch(
    known: KnownTexts, server: EmbeddingServer, lie: str
) -> None:
    """Give no vector of a batch in which a known text is wrong."""
    remote = proven(known, server)
    LIES[lie][0](server)
    with pytest.raises(ProofFailed):
        remote.run(TEXTS[:40])


def test_a_server_that_asks_back_is_dropped(known: KnownTexts, server: EmbeddingServer) -> None:
    """Notice at once that texts come back, as from the gateway of this very daemon."""
    remote = proven(known, server)
    server.lie = lambda texts, _vectors: remote.run(texts)
    with pytest.raises(ProofFailed, match="the server asks this daemon for the vectors"):
        # a short known text that comes back may be a user's
        remote.run(TEXTS * 2)


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(
    known: KnownTexts, server: EmbeddingServer, status: int
) -> None:
    """Wait as long as a server asks for, at the proof and later, and ask again."""
    left = [3]

    def answer(_texts: list[str]) -> tuple[int, dict[str, str], bytes] | None:
        left[0] -= 1
        return (status, {"Retry-After": "0"}, b"{}") if left[0] >= 0 else None

    server.answer = answer
    remote = proven(known, server, busy_seconds=PATIENCE_SECONDS)
    left[0] = 2
    assert np.abs(remote.run(TEXTS[:9]) - server.right(TEXTS[:9])).max() < 1e-6
    assert left[0] < 0


def test_a_server_that_stays_busy_is_dropped(known: KnownTexts, server: EmbeddingServer) -> None:
    """Give up a server that is busy for longer than callers should wait."""
    remote = proven(known, server, busy_seconds=0.5)
    answering(429, b"{}", **{"Retry-After": "900"})(server)
    with pytest.raises(ProviderError, match="answered 429"):
        remote.run(TEXTS)


def test_a_broken_connection_is_repeated(known: KnownTexts, server: EmbeddingServer) -> None:
    """Ask again where a request broke off, as at a restart of the server."""
    remote = proven(known, server)
    left = [2]

    def answer(_texts: list[str]) -> tuple[int, dict[str, str], bytes] | None:
        left[0] -= 1
        cut_off = {"Content-Length": "99", "Connection": "close"}
        return (200, cut_off, b"{") if left[0] >= 0 else None

    server.answer = answer
    assert np.abs(remote.run(TEXTS[:9]) - server.right(TEXTS[:9])).max() < 1e-6


def test_a_kept_connection_may_be_closed(known: KnownTexts, server: EmbeddingServer) -> None:
    """Ask again at once where the server closes an idle connection at that moment: NeMo-Gym 1555.

    There are more such connections than repeats of a request that broke off.
    """
    remote = proven(known, server)
    remote.run(TEXTS)
    kept = [own for own in server.connections if own.fileno() >= 0]
    assert kept
    for own in kept:
        # the request arrives, and the connection ends without an answer
        own.shutdown(socket.SHUT_WR)
    assert np.abs(remote.run(TEXTS) - server.right(TEXTS)).max() < 1e-6


def test_closing_ends_what_waits(known: KnownTexts, server: EmbeddingServer) -> None:
    """Fail a batch at once when the provider is closed, though its server says nothing."""
    remote = proven(known, server)
    server.seconds = PATIENCE_SECONDS
    errors: list[Exception] = []

    def run() -> None:
        try:
            remote.run(TEXTS[:5])
        except ProviderError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    server.asked.clear()
    thread.start()
    while not server.asked:
        pass
    remote.close()
    thread.join(PATIENCE_SECONDS / 2)
    assert len(errors) == 1


# the token


def test_the_token_is_sent(
    settings: Config, model: Model, server: EmbeddingServer, tmp_path: Path
) -> None:
    """Send the token of the file, and show it nowhere."""
    server.token = "s3cret-of-the-gpu"
    path = tmp_path / "token"
    path.write_text(f"{server.token}\n")
    path.chmod(0o600)

    async def work(token_file: Path | None) -> str:
        asked = serving_on(settings, f"remote:{server.url}")
        async with open_embedder(model, replace(asked, remote_token_file=token_file)) as embedder:
            assert (await embedder.embed(TEXTS)).vectors.shape == (200, 32)
            return embedder.proven.hardware + repr(embedder.proven)

    assert server.token not in asyncio.run(work(path))
    with pytest.raises(ProviderError, match="OP_DBUS_REMOTE_TOKEN_FILE"):
        asyncio.run(work(None))
    path.write_text("wrong")
    with pytest.raises(ProviderError, match="answered 401") as caught:
        asyncio.run(work(path))
    assert "wrong" not in str(caught.value)
    for content in ("", "two words", "two\nlines", "\x00"):
        path.write_text(content)
        with pytest.raises(ProviderError, match="has no token: write one word") as caught:
            asyncio.run(work(path))
    path.chmod(0o604)
    with pytest.raises(ProviderError, match="open to all users"):
        asyncio.run(work(path))
    with pytest.raises(ProviderError, match="cannot read the token"):
        asyncio.run(work(tmp_path / "gone"))


# the chain


@asynccontextmanager
async def serving(config: Config, *retry_seconds: float) -> AsyncIterator[Serving]:
    """Serve."""
    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        Serving(config, retry_seconds=retry_seconds or (3600.0,)) as made,
    ):
        await made.start()
        yield made


async def until_provider(served: Serving, name: str) -> Embedder:
    """Wait until a provider serves."""
    while True:
        embedder = await served.embedder()
        if embedder.provider == name:
            return embedder
        await asyncio.sleep(0.01)


@pytest.fixture
def chain(
    settings: Config, tiny_graphs: Path, server: EmbeddingServer
) -> tuple[Config, EmbeddingServer]:
    """Give settings that ask a server first, then the CPU."""
    import shutil

    shutil.copytree(tiny_graphs, settings.state_dir / "graphs")
    return serving_on(settings, f"remote:{server.url}", CPU), server


@pytest.mark.parametrize("lie", ["another order", "NaN", "garbage", "a fault"])
async def test_every_call_is_answered_where_a_server_begins_to_lie(
    chain: tuple[Config, EmbeddingServer], lie: str
) -> None:
    """Answer the very calls that met the lie on the next provider, and say why it moved on."""
    config, server = chain
    right = server.right(TEXTS)
    async with serving(config) as served:
        before = await served.embed(TEXTS)
        (engine,) = served.loaded.values()
        assert engine.provider == f"remote:{server.url}"
        LIES[lie][0](server)
        many = await asyncio.gather(*(served.embed(TEXTS) for _ in range(10)))
        assert all(np.abs(each.vectors - right).max() < 1e-5 for each in (before, *many))
        # the classes of vectors agree: both are floats
        assert {each.numerics for each in (before, *many)} == {before.numerics}
        (engine,) = served.loaded.values()
        assert engine.provider == CPU
        (fallback,) = engine.proven.fallbacks
        assert fallback.provider == f"remote:{server.url}"
        assert LIES[lie][1].split(" ")[0] in fallback.reason or "known text" in fallback.reason
        samples = {family.name: family.samples for family in served.metrics()}
        assert samples["provider_fallbacks_total"] == {("remote", CPU, "lost"): 1}


async def test_a_server_that_is_down_at_first_is_used_later(
    settings: Config, tiny_graphs: Path, model: Model
) -> None:
    """Serve on the CPU while no server answers, and move to the server once it does."""
    import shutil

    shutil.copytree(tiny_graphs, settings.state_dir / "graphs")
    with EmbeddingServer(model) as server:
        name = f"remote:{server.url}"
        server.answer = lambda _texts: (404, {}, b"{}")
        async with serving(serving_on(settings, name, CPU), 0.05) as served:
            assert (await served.embedder()).provider == CPU
            server.answer = lambda _texts: None
            await until_provider(served, name)
            server.answer = lambda _texts: (500, {}, b"{}")
            await served.embed(TEXTS)
            server.answer = lambda _texts: None
            await until_provider(served, name)


async def test_a_bulk_job_goes_on_from_a_server_to_the_cpu_and_back(
    chain: tuple[Config, EmbeddingServer],
) -> None:
    """Run the same rows on either kind of provider, so that a job outlives the loss."""
    config, server = chain
    right = server.right(TEXTS)
    for order in ((f"remote:{server.url}", CPU), (CPU, f"remote:{server.url}")):
        server.answer = lambda _texts: None
        async with serving(serving_on(config, *order)) as served:
            embedder = await served.embedder()
            with served.lease(embedder) as engine:
                rows = await engine.tokenize(TEXTS)
                assert np.abs(await engine.embed(rows) - right).max() < 1e-5
                if order[0] == CPU:
                    embedder.scheduler._give_up(ProviderError("the cpu burns"))  # type: ignore[attr-defined]
                else:
                    server.answer = lambda _texts: (500, {}, b"{}")
                assert np.abs(await engine.embed(rows) - right).max() < 1e-5
            assert (await served.embedder()).provider == order[1]


async def test_a_server_alone_that_is_down(settings: Config, server: EmbeddingServer) -> None:
    """Raise an error after which systemd starts the daemon again: the server may come."""
    server.die()
    with pytest.raises(ServerUnreachable, match="cannot be reached: Connection refused") as caught:
        async with serving(serving_on(settings, f"remote:{server.url}")):
            pass
    assert caught.value.exit_code not in {2, 3}


async def test_long_texts_and_counts(chain: tuple[Config, EmbeddingServer]) -> None:
    """Cut, count and refuse long texts as any provider does."""
    config, server = chain
    texts = ["mail " * 100, "", "a", " \t ", "name " * 46, "name " * 47]
    async with serving(config) as served:
        server.asked.clear()
        found = await served.embed(texts)
        assert found.truncated == 2
        assert np.abs(found.vectors - server.right(texts)).max() < 1e-6
        assert max(map(len, {*server.texts} - {*texts})) < len(texts[0])
        (engine,) = served.loaded.values()
        assert engine.scheduler.batches
        tokens = sum(min(48, count) for count in await engine.count_tokens(texts))
        assert engine.scheduler.batches.tokens == tokens


async def test_the_survey_lists_servers(chain: tuple[Config, EmbeddingServer]) -> None:
    """Examine the servers of the settings beside the table's providers."""
    config, server = chain
    found = {each.provider: each for each in await survey(config, None)}
    ours = found[f"remote:{server.url}"]
    assert (ours.reason, ours.devices) == ("", (server.url,))


# the sandbox

FENCED = """
import sys
from opdbus.engine.remote.http_client import reach
from opdbus.errors import ProviderError
for url in sys.argv[1:]:
    try:
        reach(url)
    except ProviderError as error:
        print(error)
"""


def test_a_process_without_a_network_says_so() -> None:
    """Name the drop-in where the unit's sandbox keeps a server from being reached."""
    urls = ["http://192.0.2.1:9900", "http://127.0.0.1:9900", "http://gpu.example:9900"]
    command = [sys.executable, "-c", FENCED, *urls]
    fence = ["unshare", "--map-root-user", "--net"]
    try:
        subprocess.run([*fence, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may make no network namespace: `unshare --map-root-user --net true`")
    done = subprocess.run([*fence, *command], check=True, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all("this process has no network: copy" in line for line in lines)
    assert all("remote.conf" in line for line in lines)


def test_what_a_server_sends_is_decoded_as_little_endian() -> None:
    """Read base64 as little-endian 32-bit floats."""
    from opdbus.engine.remote.request_forms import _vector

    packed = base64.b64encode(bytes.fromhex("0000803f000000c0")).decode()
    assert _vector(packed).tolist() == [1.0, -2.0]


def test_settings_name_the_bad_address() -> None:
    """Say in one message which value is not accepted."""
    from opdbus import config

    with pytest.raises(
        ConfigError, match=r"OP_DBUS_EXECUTION_PROVIDER='remote:x,cpu' .*remote:unix"
    ):
        config.load({"HOME": "/", "OP_DBUS_EXECUTION_PROVIDER": "remote:x,cpu"})
