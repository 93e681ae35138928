"""Embedding servers side by side over HTTP: the gateway, infinity, FastAPI; and the bus.

`python benchmarks/http_servers.py --venvs DIR [--seconds 4] [--rounds 2] [--json FILE]`. All serve
the medium model on this machine's processor, on TCP of the loopback interface, with the settings
that they come with. Texts are objects of a host, none twice. One server is asked at a time, in
turns: by 1, 8 and 64 clients, each with one request at a time, of one text or of 32, in base64
where the server has that. At the end the gateway is asked beside the bus: single short texts,
batches of 32.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from harness.gateways import TOKEN, Gateway  # noqa: E402 -- found by the path above
from harness.running import Bus, Running  # noqa: E402

from opdbus import config  # noqa: E402
from opdbus.bench import machine, texts  # noqa: E402
from opdbus.client import Client  # noqa: E402
from opdbus.models import folder  # noqa: E402
from opdbus.models.level_table import LEVELS  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_CLIENTS: Final = (1, 8, 64)
_BATCHES: Final = (1, 32)
_OURS: Final = "op-dbus gateway"
_START_SECONDS: Final = 180.0
_PEERS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "infinity": (
        "infinity/bin/infinity_emb",
        tuple(
            "v2 --model-id {model} --port {port} --host 127.0.0.1 --device cpu --engine torch"
            " --no-model-warmup --url-prefix /v1".split()
        ),
    ),
    "sentence-transformers behind FastAPI": (
        "torch/bin/python",
        # -P: a module beside it has the name of the library
        ("-P", str(ROOT / "benchmarks/engine/peers/fastapi_server.py"), "{model}", "{port}"),
    ),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """Texts a second and the slowest percentile of one server under one load."""

    server: str
    clients: int
    batch: int
    texts_per_second: float
    p50_ms: float
    p99_ms: float
    requests: int


class HttpClient:
    """A connection that is kept, with one request at a time."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = (
            "POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            + (f"Authorization: Bearer {token}\r\n" if token else "")
        )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: bytes) -> bytes:
        """Send a body, and return that of the answer; raises RuntimeError if it is no success."""
        if not self._streams:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 24)
        reader, writer = self._streams
        writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        content = await reader.readexactly(int(fields[b"content-length"]))
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head!r} {content[:300]!r}")
        return content

    def close(self) -> None:
        """Close the connection."""
        if self._streams:
            self._streams[1].close()


def object_texts() -> Iterator[str]:
    """Yield texts of objects without an end, none twice."""
    made = texts.objects(2000)
    for number in count():
        yield from (f"{text} {number}" for text in made)


async def load(server: str, port: int, clients: int, batch: int, seconds: float) -> Figure:
    """Ask a server for some seconds, and return what it did."""
    source, spent, token = object_texts(), list[float](), TOKEN if server == _OURS else ""
    end = time.perf_counter() + seconds

    async def ask() -> None:
        client = HttpClient(port, token)
        while time.perf_counter() < end:
            some = [next(source) for _ in range(batch)]
            asked = {
                "input": some if batch > 1 else some[0],
                "model": "",
                "encoding_format": "base64",
            }
            if server == "infinity":
                asked["model"] = "medium"
            began = time.perf_counter()
            await client.post(json.dumps(asked).encode())
            spent.append(time.perf_counter() - began)
        client.close()

    began = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(clients)))
    rate = len(spent) * batch / (time.perf_counter() - began)
    ranked = sorted(spent)
    p50, p99 = (1e3 * ranked[int(share * (len(ranked) - 1))] for share in (0.5, 0.99))
    return Figure(server, clients, batch, round(rate, 1), round(p50, 2), round(p99, 2), len(spent))


async def beside_the_bus(bus: str, port: int, turns: int) -> dict[str, Any]:
    """Ask the gateway and the bus in turns: single short texts, and batches of 32."""
    short = iter(f"{text} {n}" for n in count() for text in texts.shorts(1000))
    found: dict[str, list[float]] = {}

    async def timed(name: str, call: Any) -> None:  # noqa: ANN401 -- any awaitable
        began = time.perf_counter()
        await call
        found.setdefault(name, []).append(time.perf_counter() - began)

    http, source = HttpClient(port, TOKEN), object_texts()
    async with Client(bus) as client:
        for _ in range(turns):
            one = json.dumps({"input": next(short), "encoding_format": "base64"}).encode()
            await timed("http single", http.post(one))
            await timed("bus single", client.vectorize_raw([next(short)]))
        for _ in range(turns // 8):
            some = [next(source) for _ in range(32)]
            body = json.dumps({"input": some, "encoding_format": "base64"}).encode()
            await timed("http batch", http.post(body))
            await timed("bus batch", client.vectorize_raw([next(source) for _ in range(32)]))
    ms = {name: round(1e3 * median(times), 3) for name, times in found.items()}
    return {
        "milliseconds": ms,
        "single text, more than the bus": round(ms["http single"] - ms["bus single"], 3),
        "batches of 32, of the bus's rate": round(ms["bus batch"] / ms["http batch"], 3),
    }


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as own:
        port: int = own.getsockname()[1]
        return port


def until_open(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server accepts connections."""
    end = time.monotonic() + _START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise RuntimeError(f"{process.args} does not listen")


def measure(given: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    """Start all servers, and ask each in turns."""
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    model = folder.load_model(LEVELS["medium"], config.load({})).folder
    named = scratch / "medium"
    named.symlink_to(model)
    ports = {}
    for name, (program, arguments) in _PEERS.items():
        port = ports[name] = free_port()
        filled = [each.format(model=named, port=port) for each in arguments]
        with (scratch / "peer.log").open("ab") as log:
            process = subprocess.Popen([given.venvs / program, *filled], stdout=log, stderr=log)
        stack.callback(process.kill)
        until_open(port, process)
    bus = Bus()
    stack.callback(bus.kill)
    daemon = stack.enter_context(Running(scratch, bus.address, VECTOR_LEVEL="medium"))
    daemon.vectorized()
    token = scratch / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    ports[_OURS] = free_port()
    listen = ("--listen", f"127.0.0.1:{ports[_OURS]}")
    stack.enter_context(Gateway(daemon, scratch, *listen, HTTP_TOKEN_FILE=token))
    figures = []
    for name, port in ports.items():  # each has to build what it needs
        asyncio.run(load(name, port, 8, 8, 2 * given.seconds))
    for _ in range(given.rounds):
        for clients in _CLIENTS:
            for batch in _BATCHES:
                for name, port in ports.items():
                    figures.append(asyncio.run(load(name, port, clients, batch, given.seconds)))
                    print(figures[-1])
    beside = asyncio.run(beside_the_bus(bus.address, ports[_OURS], 400))
    print(beside)
    return {"figures": [asdict(each) for each in figures], "beside the bus": beside}


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venvs", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with ExitStack() as stack:
        found = measure(given, stack)
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    report = {"date": date, "machine": asdict(machine.describe()), **found}
    if given.json:
        given.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
