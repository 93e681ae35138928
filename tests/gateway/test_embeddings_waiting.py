"""Requests that wait: for a place, for a model that loads; and clients that leave meanwhile."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness.gateways import Gateway, receive, status
from harness.liars import EmbeddingServer, model_of
from harness.running import PATIENCE_SECONDS, Make, Running
from harness.tiny import write_tiny_model
from starlette.requests import Request
from starlette.types import Message

from opdbus.client import Client
from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.embedding_call import EmbeddingCalls
from opdbus.gateway.http_errors import HttpError
from opdbus.models.level_table import LEVELS

BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "x"},
    "/embeddings": {"input": ["x"] * 100},
    "/embed": {"inputs": "x"},
    "/rerank": {"query": "x", "texts": ["y"]},
    "/api/embed": {"model": "default", "input": "x"},
    "/api/embeddings": {"model": "default", "prompt": "x"},
}


class Held(EmbeddingServer):
    """A server that answers once `gate` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(model_of(folder))
        self.gate = threading.Event()
        self.answer = lambda _texts: self.gate.wait(PATIENCE_SECONDS) and None


@pytest.fixture
def held(tiny_model: Path) -> Iterator[Held]:
    """Run a server that a daemon has as its only provider."""
    with Held(tiny_model) as server:
        yield server
        server.gate.set()


def post(gateway: Gateway, texts: list[str]) -> socket.socket:
    """Send a request for vectors, and do not wait for its answer."""
    body = json.dumps({"input": texts, "encoding_format": "base64"}).encode()
    own = gateway.connect()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    own.sendall(head.encode() + body)
    return own


def counted(daemon: Running) -> tuple[int, int]:
    """Give the daemon's own counters: texts that wait or run, and texts computed."""

    async def work() -> tuple[int, int]:
        async with Client(daemon.bus) as client:
            found = await client.status()
            return found["QueueDepth"], found["Texts"]

    return asyncio.run(work())


def until(is_so: Callable[[], bool]) -> None:
    """Wait."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_work_of_clients_that_left_is_not_computed(
    daemons: Make, held: Held, tmp_path: Path
) -> None:
    """Drop what waits in the daemon's queue, of few texts as of many: llama.cpp #6421."""
    held.gate.set()
    daemon = daemons(EXECUTION_PROVIDER=f"remote:{held.url}")
    with daemon, Gateway(daemon.vectorized(), tmp_path) as gateway:
        until(lambda: counted(daemon)[0] == 0)
        before = counted(daemon)[1]
        held.gate.clear()
        # more than the four requests of 64 texts that run
        stay = [post(gateway, [f"stay {number} {text}" for text in range(128)]) for number in "123"]
        until(lambda: counted(daemon)[0] == 384)
        leave = [post(gateway, ["leave 100"]), post(gateway, [f"leave {n}" for n in range(100)])]
        until(lambda: counted(daemon)[0] == 485)
        for own in leave:
            own.close()
        until(lambda: counted(daemon)[0] == 384)
        held.gate.set()
        for own in stay:
            with own:
                assert status(receive(own)) == 200
        assert not [text for text in held.texts if text.startswith("leave ")]
        assert counted(daemon) == (0, before + 384)


async def test_who_leaves_before_there_is_a_place_asks_nothing() -> None:
    """End a request that waits for a connection to the daemon."""

    async def left() -> Message:
        return {"type": "http.disconnect"}

    # there is no such bus
    calls = EmbeddingCalls(DaemonLink("none"), _places=asyncio.Semaphore(0))
    with pytest.raises(HttpError) as caught:
        await calls.embed(Request({"type": "http"}, left), ["x"], None)
    assert caught.value.status == 499


def test_warming_up_is_503_at_once(daemons: Make, held: Held, tmp_path: Path) -> None:
    """Answer 503 with Retry-After while the daemon loads, never 429 nor later: lilbee 535."""
    daemon = daemons(EXECUTION_PROVIDER=f"remote:{held.url}")
    with daemon, Gateway(daemon, tmp_path) as gateway, gateway.http() as http:
        # its proof has begun, and cannot end
        until(lambda: bool(held.asked))
        for path, body in BODIES.items():
            answer = http.post(path, json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), path
        answer = http.get("/health")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        held.gate.set()
        daemon.vectorized()
        for path, body in BODIES.items():
            assert http.post(path, json=body).status_code == 200, path


def ask_until_loaded(http: httpx.Client, level: str) -> httpx.Response:
    """Ask as clients do that obey 503; the first answer is one."""
    asked = {"model": level, "input": "x"}
    answers = [http.post("/v1/embeddings", json=asked)]
    while answers[-1].status_code == 503:
        assert answers[-1].headers["retry-after"] == "1"
        assert "is loading" in answers[-1].text
        time.sleep(0.05)
        answers.append(http.post("/v1/embeddings", json=asked))
    assert len(answers) > 1
    return answers[-1]


def test_another_level_loads_behind_503(daemons: Make, tmp_path: Path) -> None:
    """Begin to load a level that is asked for, and answer at once; serve it when it is loaded."""
    folder = tmp_path / "models" / LEVELS["high"].folder
    write_tiny_model(folder, family="mpnet")
    daemon = daemons(MODEL_DIR=tmp_path / "models")
    with daemon, Gateway(daemon.vectorized(), tmp_path) as gateway, gateway.http() as http:
        answer = ask_until_loaded(http, "high")
        assert answer.status_code == 200
        assert answer.headers["x-opdbus-level"] == "high"


def test_a_level_that_cannot_load_says_so(daemons: Make, tmp_path: Path) -> None:
    """Answer with the reason after the 503, not with 503 for ever."""
    folder = tmp_path / "models" / LEVELS["high"].folder
    write_tiny_model(folder, family="mpnet")
    (folder / "tokenizer.json").write_text("{}")
    daemon = daemons(MODEL_DIR=tmp_path / "models")
    with daemon, Gateway(daemon.vectorized(), tmp_path) as gateway, gateway.http() as http:
        answer = ask_until_loaded(http, "high")
        assert answer.status_code == 404
        assert "tokenizer" in answer.text
