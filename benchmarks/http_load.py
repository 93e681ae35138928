"""The gateway beside other embedding servers, and beside hostile clients.

`python benchmarks/http_load.py servers --venvs DIR [--seconds 4] [--rounds 2]`: the gateway,
infinity and sentence-transformers behind FastAPI, all with the medium model on this machine's
processor, on TCP of the loopback interface, with the settings that they come with. Texts are
objects of a host, none twice. One server is asked at a time, in turns: by 1, 8 and 64 clients, each
with one request at a time, of one text or of 32. At the end the gateway is asked beside the bus.
`make peers` makes the environments; a server that is not in DIR is left out.

`python benchmarks/http_load.py hostile [--seconds 20]`, as root: what clients of the bus and of
HTTP notice while attackers, in a process of another user, hold connections, send endless bodies and
floods of headers, or do not read; and the gateway's memory. The level is static.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import httpx
from harness import EXAMPLE, Daemon, memory_mib, milliseconds, parse, say, write

from opdbus import config
from opdbus.bench import texts
from opdbus.client import Client
from opdbus.models import folder
from opdbus.models.level_table import LEVELS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Sequence

_CLIENTS: Final = (1, 8, 64)
_BATCHES: Final = (1, 32)
_OURS: Final = "op-dbus gateway"
_TOKEN: Final = "a-token-that-only-this-has"
_START_SECONDS: Final = 180.0
_PEERS: Final = {
    "infinity": (
        "infinity/bin/infinity_emb v2 --model-id {model} --port {port} --host 127.0.0.1"
        " --device cpu --engine torch --no-model-warmup --url-prefix /v1"
    ),
    # -P: a module beside it has the name of the library
    "sentence-transformers behind FastAPI": (
        "torch/bin/python -P {here}/engine/peers/fastapi_server.py {model} {port}"
    ),
}


# servers


def object_texts() -> Iterator[str]:
    """Yield texts of objects without an end, none twice."""
    made = texts.objects(2000)
    for number in count():
        yield from (f"{text} {number}" for text in made)


class HttpClient:
    """A connection that is kept, with one request at a time; libraries would add their own time."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = (
            "POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            + (f"Authorization: Bearer {token}\r\n" if token else "")
        )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def embed(self, texts: Sequence[str], model: str = "") -> None:
        """Ask for vectors, in base64 where a server has that."""
        asked = {"input": texts, "model": model, "encoding_format": "base64"}
        body = json.dumps(asked).encode()
        if not self._streams:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        reader, writer = self._streams
        writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        content = await reader.readexactly(int(fields[b"content-length"]))
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head!r} {content[:300]!r}")

    def close(self) -> None:
        """Close the connection."""
        if self._streams:
            self._streams[1].close()


async def load(name: str, port: int, clients: int, batch: int, seconds: float) -> dict[str, Any]:
    """Ask a server for some seconds, and return texts a second and milliseconds of requests."""
    spent, made = [], object_texts()
    end = time.perf_counter() + seconds

    async def ask() -> None:
        client = HttpClient(port, _TOKEN if name == _OURS else "")
        while time.perf_counter() < end:
            some = [next(made) for _ in range(batch)]
            began = time.perf_counter()
            await client.embed(some, "" if name == _OURS else "medium")
            spent.append(time.perf_counter() - began)
        client.close()

    began = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(clients)))
    rate = len(spent) * batch / (time.perf_counter() - began)
    row = {"server": name, "clients": clients, "batch": batch, "texts a second": round(rate, 1)}
    return {**row, **milliseconds(spent)}


async def beside_the_bus(bus: str, port: int, turns: int) -> dict[str, Any]:
    """Ask the gateway and the bus in turns: single short texts, and batches of 32."""
    short = (f"{text} {n}" for n in count() for text in texts.shorts(1000))
    found: dict[str, list[float]] = {}

    async def timed(name: str, call: Awaitable[Any]) -> None:
        began = time.perf_counter()
        await call
        found.setdefault(name, []).append(time.perf_counter() - began)

    source, http = object_texts(), HttpClient(port, _TOKEN)
    async with Client(bus) as client:
        for _ in range(turns):
            await timed("http single", http.embed([next(short)]))
            await timed("bus single", client.vectorize_raw([next(short)]))
        for _ in range(turns // 8):
            some = [next(source) for _ in range(32)]
            await timed("http batch", http.embed(some))
            await timed("bus batch", client.vectorize_raw([next(source) for _ in range(32)]))
    http.close()
    return {name: round(1e3 * median(times), 3) for name, times in found.items()}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as own:
        port: int = own.getsockname()[1]
        return port


def _until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise RuntimeError(f"{process.args} does not listen")


def _start_peers(venvs: Path, scratch: Path, stack: ExitStack) -> dict[str, int]:
    """Start the servers that are installed, and return their ports."""
    named, ports = scratch / "medium", dict[str, int]()
    named.symlink_to(folder.load_model(LEVELS["medium"], config.load(os.environ)).folder)
    for name, line in _PEERS.items():
        port = _free_port()
        program, *rest = line.format(model=named, port=port, here=Path(__file__).parent).split()
        if not (venvs / program).exists():
            say(f"{name} is left out: there is no {venvs / program}")
            continue
        with (scratch / "peer.log").open("ab") as log:
            process = subprocess.Popen([venvs / program, *rest], stdout=log, stderr=log)
        stack.callback(process.kill)
        _until_open(port, process)
        ports[name] = port
    return ports


def compare(given: argparse.Namespace, scratch: Path, stack: ExitStack) -> dict[str, Any]:
    """Start all servers, ask each in turns, and return the medians of the rounds."""
    ports = _start_peers(given.venvs.absolute(), scratch, stack)
    daemon = stack.enter_context(Daemon(scratch, VECTOR_LEVEL="medium"))
    asyncio.run(daemon.until_vectorized())
    token = scratch / "token"
    token.touch(mode=0o600)
    token.write_text(_TOKEN)
    ports[_OURS] = _free_port()
    gateway = daemon.gateway(f"127.0.0.1:{ports[_OURS]}", HTTP_TOKEN_FILE=token)
    stack.enter_context(gateway).wait_for_log("listening")
    for name, port in ports.items():  # each has to build what it needs
        asyncio.run(load(name, port, 8, 8, 2 * given.seconds))
    rows: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for _ in range(given.rounds):
        for clients in _CLIENTS:
            for batch in _BATCHES:
                for name, port in ports.items():
                    row = asyncio.run(load(name, port, clients, batch, given.seconds))
                    say(row)
                    rows.setdefault((clients, batch, name), []).append(row)
    median_rows = [
        {key: median(row[key] for row in some) if key != "server" else name for key in some[0]}
        for (_, _, name), some in rows.items()
    ]
    beside = asyncio.run(beside_the_bus(daemon.bus, ports[_OURS], given.turns))
    return {"servers": median_rows, "milliseconds beside the bus": beside}


# hostile clients

_NOBODY: Final = 65534
_POST: Final = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
_GET: Final = b"GET /health HTTP/1.1\r\nHost: x\r\n"
_CHUNKED: Final = _POST + b"Transfer-Encoding: chunked\r\n\r\n"
# name: clients, what each sends first, again and again, and the pause in between
ATTACKS: Final = {
    "idle connections": (1000, b"", b"", 3600.0),
    "slow headers": (50, _GET, b"X: y\r\n", 0.5),
    "slow bodies": (50, _POST + b"Content-Length: 1000000\r\n\r\n", b"x", 0.5),
    "endless chunks": (8, _CHUNKED, b"10000\r\n" + b"x" * 0x10000 + b"\r\n", 0.0),
    "broken chunks": (8, _CHUNKED + b"zz\r\n", b"", 0.01),
    "too large": (8, _POST + b"Content-Length: 99999999999\r\n\r\n", b"x" * 65536, 0.0),
    "header floods": (8, _GET, b"X-Flood: " + b"x" * 4000 + b"\r\n", 0.0),
    "deep JSON": (8, _POST + b"Content-Length: 1000000\r\n\r\n" + b"[" * 1_000_000, b"", 0.01),
    "JSON of small objects": (
        8,
        _POST + b"Content-Length: 15000010\r\n\r\n" + b'{"input":[' + b"{}," * 5_000_000,
        b"",
        0.01,
    ),
    "path tricks": (8, b"", b"GET /..%2f%00 HTTP/1.1\r\nHost: x\r\n\r\n", 0.01),
    "clients that do not read": (50, b"", (_GET + b"\r\n") * 100, 0.0),
}


async def attack(path: str, first: bytes, again: bytes, pause: float) -> None:
    """Connect and misbehave for ever; connect again whenever it is ended."""
    while True:
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_unix_connection(path, limit=4096)
            try:
                writer.write(first)
                while not reader.at_eof() and not writer.transport.is_closing():
                    writer.write(again)
                    await writer.drain()
                    await asyncio.sleep(pause)
                    if not again:
                        await reader.read(4096)
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.05)


async def attack_all(path: str) -> None:
    """Run all attacks at one time."""
    works = [attack(path, *row) for clients, *row in ATTACKS.values() for _ in range(clients)]
    await asyncio.gather(*works)


async def _ask_bus(bus: str, seconds: float) -> list[float]:
    """Search and vectorize in turn, and return how long each call took."""
    spent: list[float] = []
    async with Client(bus) as client:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for call in (client.search("mail", 5, {}), client.vectorize(["mail server"])):
                began = time.perf_counter()
                await call
                spent.append(time.perf_counter() - began)
                await asyncio.sleep(0.002)
    return spent


async def _ask_http(path: Path, seconds: float) -> tuple[list[float], int]:
    """Embed one text again and again, and return the times and the number of refusals."""
    spent, refused = list[float](), 0
    transport = httpx.AsyncHTTPTransport(uds=str(path), retries=5)
    async with httpx.AsyncClient(transport=transport, timeout=60) as client:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            try:
                answer = await client.post("http://x/v1/embeddings", json={"input": "mail server"})
                refused += answer.status_code != 200
            except httpx.TransportError:
                refused += 1
            spent.append(time.perf_counter() - began)
            await asyncio.sleep(0.01)
    return spent, refused


def besiege(given: argparse.Namespace, scratch: Path, stack: ExitStack) -> dict[str, Any]:
    """Measure clients of both kinds when it is quiet, under attack and afterwards."""
    daemon = stack.enter_context(Daemon(scratch, VECTOR_LEVEL="static", STATE_FILE=EXAMPLE))
    asyncio.run(daemon.until_vectorized())
    path = scratch / "http.sock"
    gateway = stack.enter_context(daemon.gateway(f"unix:{path}"))
    gateway.wait_for_log("listening")

    async def measure(seconds: float) -> dict[str, Any]:
        bus, (http, refused) = await asyncio.gather(
            _ask_bus(daemon.bus, seconds), _ask_http(path, seconds)
        )
        memory = {"MiB": memory_mib(gateway.pid), "peak MiB": memory_mib(gateway.pid, "VmHWM")}
        figures = {"bus": milliseconds(bus), "http": milliseconds(http)}
        return {**figures, "http calls": len(http), "refused": refused, **memory}

    asyncio.run(measure(2.0))
    report: dict[str, Any] = {"attackers": {name: row[0] for name, row in ATTACKS.items()}}
    report["quiet"] = asyncio.run(measure(given.seconds))
    command = [sys.executable, __file__, "attack", "--socket", str(path)]
    scratch.chmod(0o755)
    path.chmod(0o666)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as attackers:
        time.sleep(3)
        report["attacked"] = asyncio.run(measure(given.seconds))
        attackers.kill()
    time.sleep(1)
    report["afterwards"] = asyncio.run(measure(given.seconds / 2))
    ratio = report["attacked"]["bus"]["p99"] / report["quiet"]["bus"]["p99"]
    return report | {"p99 on the bus, attacked to quiet": round(ratio, 2)}


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["servers", "hostile", "attack"])
    parser.add_argument("--venvs", type=Path, default=Path(".peers"), help="[.peers]")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turns", type=int, default=400, help="of the gateway beside the bus")
    parser.add_argument("--socket", help=argparse.SUPPRESS)
    given = parse(parser)
    if given.what == "attack":
        os.setuid(_NOBODY)
        return asyncio.run(attack_all(given.socket))
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        run = compare if given.what == "servers" else besiege
        return write(given, run(given, Path(scratch), stack))


if __name__ == "__main__":
    main()
