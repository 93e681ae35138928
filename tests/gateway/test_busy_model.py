"""Embedding requests while the model loads, and while it is busy: with weights that take time.

Names such as llama.cpp #6421 are public reports of what other servers got wrong.
"""

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest
from harness.gateways import Gateway, receive, status
from harness.running import PATIENCE_SECONDS, Bus, Running, state_file

from opdbus.client import Client

# enough for seconds of work
MANY = [
    f"disk {number} of the store in rack {number % 40} is nearly full" for number in range(2048)
]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Have a daemon that is not started yet."""
    bus, folder = Bus(), tmp_path_factory.mktemp("daemon")
    state = state_file(folder / "state.json", {"mail": "sends mail"})
    settings = {"VECTOR_LEVEL": "medium", "EXECUTION_PROVIDER": "cpu", "STATE_FILE": state}
    found = Running(folder, bus.address, **settings)
    yield found
    found.kill()
    bus.kill()


@pytest.fixture(scope="module")
def told(
    daemon: Running, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Gateway, list[httpx.Response]]]:
    """Run a gateway, ask it, start the daemon, and ask until it serves; give all answers."""
    with Gateway(daemon, tmp_path_factory.mktemp("gateway")) as running, running.http() as http:
        answers = [embed(http, ["mail"])]
        daemon.start()
        until = time.monotonic() + PATIENCE_SECONDS
        while answers[-1].status_code != 200 and time.monotonic() < until:
            time.sleep(0.05)
            answers.append(embed(http, ["mail"]))
        yield running, answers


@pytest.fixture
def busy(told: tuple[Gateway, list[httpx.Response]]) -> Gateway:
    """Give a gateway whose model serves."""
    return told[0]


def embed(http: httpx.Client, texts: list[str], timeout: float = 60.0) -> httpx.Response:
    """Post to OpenAI's route."""
    body = {"input": texts, "model": "medium"}
    return http.post("/v1/embeddings", json=body, timeout=timeout)


def computed(daemon: Running) -> float:
    """Return the number of texts whose vectors the daemon has computed."""

    async def work() -> float:
        async with Client(daemon.bus) as client:
            text = (await client.metrics()).splitlines()
        found = [line for line in text if line.startswith("opdbus_texts_total{")]
        return sum(float(line.split()[-1]) for line in found)

    return asyncio.run(work())


def test_while_it_loads_clients_are_told_when_to_ask_again(
    told: tuple[Gateway, list[httpx.Response]],
) -> None:
    """Answer at once, 503 and never 429, until the model serves (lilbee PR 535)."""
    *early, last = told[1]
    assert last.status_code == 200
    assert {answer.status_code for answer in early} == {503}
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in early)


def test_an_idle_connection_is_the_clients_to_close(busy: Gateway) -> None:
    """Keep one longer than clients do, so that none sends on one that ends (NeMo-Gym PR 1555)."""
    request = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with busy.connect() as own:
        own.sendall(request)
        assert status(receive(own)) == 200
        # clients and servers often wait for five
        time.sleep(6)
        own.sendall(request)
        assert status(receive(own)) == 200


def test_work_of_a_client_that_left_is_not_computed(busy: Gateway, daemon: Running) -> None:
    """Drop what is queued once its client is gone (llama.cpp #6421)."""
    before = computed(daemon)
    with busy.http() as http, pytest.raises(httpx.ReadTimeout):
        embed(http, MANY, timeout=0.5)
    with busy.http() as http:
        # the queue is free for others
        assert embed(http, ["after it"]).status_code == 200
    last, now = -1.0, computed(daemon)
    while now != last:
        time.sleep(0.5)
        last, now = now, computed(daemon)
    assert now - before < len(MANY) / 2
