"""Hostile HTTP clients beside friendly ones: what D-Bus clients notice, and the gateway's memory.

`PYTHONPATH=.:tests python benchmarks/http_hostile.py [--seconds 20] [--json FILE]`, as root.
A daemon with the level static and a gateway run as child processes, and the attackers in one of
their own, as another user than the friendly clients.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from harness.gateways import Gateway
from harness.running import Bus, Running

from opdbus.client import Client

_NOBODY = 65534
EXAMPLE = Path(__file__).parents[1] / "state.example.json"
POST = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
CHUNK = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
# name: clients, what each sends first, again and again, and the pause in between
ATTACKS = {
    "idle connections": (1000, b"", b"", 3600.0),
    "slow headers": (50, GET, b"X: y\r\n", 0.5),
    "slow bodies": (50, POST + b"Content-Length: 1000000\r\n\r\n", b"x", 0.5),
    "endless chunks": (8, POST + b"Transfer-Encoding: chunked\r\n\r\n", CHUNK, 0.0),
    "broken chunks": (8, POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"", 0.01),
    "bodies declared too large": (
        8,
        POST + b"Content-Length: 99999999999\r\n\r\n",
        b"x" * 65536,
        0.0,
    ),
    "header floods": (8, GET, b"X-Flood: " + b"x" * 4000 + b"\r\n", 0.0),
    "deep JSON": (8, POST + b"Content-Length: 1000000\r\n\r\n" + b"[" * 1_000_000, b"", 0.01),
    "JSON of small objects": (
        8,
        POST + b"Content-Length: 15000010\r\n\r\n" + b'{"input":[' + b"{}," * 5_000_000,
        b"",
        0.01,
    ),
    "path tricks": (8, b"", b"GET /..%2f%00 HTTP/1.1\r\nHost: x\r\n\r\n", 0.01),
    "clients that do not read": (50, b"", (GET + b"\r\n") * 100, 0.0),
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
    works = [
        attack(path, first, again, pause)
        for count, first, again, pause in ATTACKS.values()
        for _ in range(count)
    ]
    await asyncio.gather(*works)


async def measure_bus(bus: str, seconds: float) -> list[float]:
    """Search and vectorize in turn, and give how long each call took."""
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


async def measure_http(path: str, seconds: float) -> tuple[list[float], int]:
    """Embed one text again and again, and give the times and the number of refusals."""
    spent: list[float] = []
    refused = 0
    transport = httpx.AsyncHTTPTransport(uds=path, retries=5)
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


def memory(pid: int) -> tuple[int, int]:
    """Give the resident memory of a process now and at its peak, in MiB."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = dict(line.split(":", 1) for line in text.splitlines())
    return int(found["VmRSS"].split()[0]) >> 10, int(found["VmHWM"].split()[0]) >> 10


def summed(spent: list[float]) -> dict[str, Any]:
    """Give the number of calls and percentiles in milliseconds."""
    ordered = sorted(spent)
    at = {name: ordered[int(len(ordered) * share)] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {"calls": len(spent), **{name: round(value * 1000, 2) for name, value in at.items()}}


async def measure(gateway: Gateway, bus: str, seconds: float) -> dict[str, Any]:
    """Measure D-Bus and HTTP clients at one time."""
    on_bus, (on_http, refused) = await asyncio.gather(
        measure_bus(bus, seconds), measure_http(str(gateway.socket), seconds)
    )
    now, peak = memory(gateway.pid)
    http = {**summed(on_http), "refused": refused}
    return {"bus": summed(on_bus), "http": http, "gateway MiB": now, "gateway peak MiB": peak}


def main() -> None:
    """Measure quiet, under attack and afterwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.attack:
        os.setuid(_NOBODY)
        asyncio.run(attack_all(given.attack))
    folder, bus = Path(tempfile.mkdtemp()), Bus()
    settings = {"VECTOR_LEVEL": "static", "STATE_FILE": EXAMPLE}
    with Running(folder, bus.address, **settings) as daemon, Gateway(daemon, folder) as gateway:
        daemon.vectorized()
        asyncio.run(measure(gateway, bus.address, 2.0))
        report: dict[str, Any] = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{os.cpu_count()} processors, Linux {platform.release()}",
            "load average": round(os.getloadavg()[0], 1),
            "attackers": {name: row[0] for name, row in ATTACKS.items()},
            "quiet": asyncio.run(measure(gateway, bus.address, given.seconds)),
        }
        command = [sys.executable, __file__, "--attack", str(gateway.socket)]
        folder.chmod(0o755)
        gateway.socket.chmod(0o666)
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as attackers:
            time.sleep(3)
            report["attacked"] = asyncio.run(measure(gateway, bus.address, given.seconds))
            attackers.kill()
        time.sleep(1)
        report["afterwards"] = asyncio.run(measure(gateway, bus.address, given.seconds / 2))
        report["log bytes"] = gateway.log.stat().st_size
    bus.kill()
    ratio = report["attacked"]["bus"]["p99"] / report["quiet"]["bus"]["p99"]
    report["p99 on the bus, attacked to quiet"] = round(ratio, 2)
    text = json.dumps(report, indent=2) + "\n"
    print(text)
    if given.json:
        given.json.write_text(text)


if __name__ == "__main__":
    main()
