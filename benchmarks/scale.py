"""A daemon with 10,000 objects: restart, search latency, one change, memory, the command line.

Starts a private bus and the daemon with the real model; writes JSON to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdbus.bus.transport.connection import Connection
from opdbus.client import Client
from opdbus.errors import OpDbusError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

QUESTIONS = (
    "what keeps the clock right?",
    "which service sends mail?",
    "container for the shop",
    "who resolves names?",
    "interface eth17",
    "nightly copy of the database",
)
ROLES = "mail web database cache backup monitoring proxy directory print queue".split()
PLACES = "Vienna Linz Graz Salzburg Innsbruck Bregenz Klagenfurt Villach Wels Steyr".split()


def state(count: int) -> dict[str, Any]:
    """Make a believable state of `count` objects, each with a text of its own."""
    units = {
        f"{ROLES[i % 10]}-{i}.service": {
            "description": f"{ROLES[i % 10]} server {i} for the office in {PLACES[i // 10 % 10]}",
            "active_state": "active",
            "enabled": i % 3 > 0,
            "properties": {
                "ExecStart": f"/usr/sbin/{ROLES[i % 10]}d --port {2000 + i}",
                "MainPID": i,
            },
        }
        for i in range(count // 2)
    }
    interfaces = [
        {
            "name": f"eth{i}",
            "type": "ethernet",
            "description": f"cable {i} to {PLACES[i % 10]}",
            "ipv4": {
                "enabled": True,
                "address": [{"ip": f"10.{i >> 8 & 255}.{i & 255}.1", "prefix": 24}],
            },
        }
        for i in range(count - count // 2)
    ]
    return {
        "version": 1,
        "plugins": {"systemd": {"units": units}, "net": {"interfaces": interfaces}},
    }


@asynccontextmanager
async def bus(folder: Path) -> AsyncIterator[str]:
    """Run a private message bus."""
    address = f"unix:path={folder}/bus.sock"
    daemon = await asyncio.create_subprocess_exec(
        "dbus-daemon", "--session", "--nofork", f"--address={address}"
    )
    while not (folder / "bus.sock").exists():  # noqa: ASYNC110 -- the daemon tells in no other way
        await asyncio.sleep(0.02)
    try:
        yield address
    finally:
        daemon.terminate()
        await daemon.wait()


class Daemon:
    """A running daemon, and what the bus says of it."""

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.folder = folder

    async def start(self) -> float:
        """Start, and give the seconds until ready with every vector there."""
        began = time.perf_counter()
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "opdbus", "--bus", self.address, "daemon"),
            *("--state-file", str(self.folder / "state.json")),
            *("--state-dir", str(self.folder / "state"), "--log-level", "warning"),
        )
        async with Client(self.address) as client:
            while True:
                try:
                    status = await client.status()
                    if status["State"] == "ready" and status["Pending"] == 0:
                        break
                except OpDbusError:
                    pass
                await asyncio.sleep(0.01)
        return time.perf_counter() - began

    async def stop(self) -> float:
        """Stop, and give the seconds that it took."""
        began = time.perf_counter()
        self.process.send_signal(signal.SIGTERM)
        await self.process.wait()
        return time.perf_counter() - began

    def memory_mib(self, what: str = "VmRSS") -> float:
        """Give the resident memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


async def search_latency(address: str, rounds: int) -> dict[str, float]:
    """Give percentiles of Search over D-Bus, one caller, in milliseconds."""
    times = []
    async with Client(address) as client:
        for number in range(rounds):
            began = time.perf_counter()
            await client.search(QUESTIONS[number % len(QUESTIONS)], 10, {})
            times.append((time.perf_counter() - began) * 1000)
    times.sort()
    return {
        "p50 ms": round(statistics.median(times), 2),
        "p99 ms": round(times[int(len(times) * 0.99)], 2),
        "max ms": round(times[-1], 2),
    }


async def one_change(daemon: Daemon, content: dict[str, Any], rounds: int) -> dict[str, float]:
    """Give the milliseconds from replacing the state file to the Vectorized signal."""
    times = []
    arrived: asyncio.Queue[float] = asyncio.Queue()
    async with Connection(daemon.address) as connection:
        connection.on_signal = lambda message: (
            arrived.put_nowait(time.perf_counter()) if message.member == "Vectorized" else None
        )
        await connection.subscribe("type='signal',interface='org.opdbus.State1'")
        for number in range(rounds):
            interface = content["plugins"]["net"]["interfaces"][number * 7]
            interface["description"] = f"moved to rack {number} in {PLACES[number % 10]}"
            fresh = daemon.folder / "state.new"
            fresh.write_text(json.dumps(content, indent=1))
            began = time.perf_counter()
            fresh.rename(daemon.folder / "state.json")
            async with asyncio.timeout(60):
                times.append((await arrived.get() - began) * 1000)
            await asyncio.sleep(0.3)
    times.sort()
    return {"median ms": round(statistics.median(times), 1), "max ms": round(times[-1], 1)}


def command_line(address: str, rounds: int = 15) -> dict[str, float]:
    """Give the median milliseconds of whole `op-dbus` processes."""
    environ = {**os.environ, "OP_DBUS_BUS": address}
    program = str(Path(sys.executable).with_name("op-dbus"))
    figures = {}
    for arguments in (["--help"], ["status"]):
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            subprocess.run([program, *arguments], env=environ, check=True, capture_output=True)
            times.append((time.perf_counter() - began) * 1000)
        figures[arguments[0].strip("-") + " median ms"] = round(statistics.median(times), 1)
    return figures


async def measure(objects: int) -> dict[str, Any]:
    """Give all figures."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        content = state(objects)
        (folder / "state.json").write_text(json.dumps(content, indent=1))
        async with bus(folder) as address:
            daemon = Daemon(address, folder)
            first = await daemon.start()
            figures: dict[str, Any] = {"objects": objects, "first start s": round(first, 2)}
            figures["memory after it MiB"] = round(daemon.memory_mib(), 1)
            figures["stop s"] = round(await daemon.stop(), 2)
            restarts = []
            for _ in range(3):
                restarts.append(await daemon.start())
                await daemon.stop()
            figures["restart s"] = round(statistics.median(restarts), 2)
            await daemon.start()
            figures["search"] = await search_latency(address, 600)
            figures["one change"] = await one_change(daemon, content, 11)
            figures["command line"] = command_line(address)
            figures["steady memory MiB"] = round(daemon.memory_mib(), 1)
            figures["peak memory MiB"] = round(daemon.memory_mib("VmHWM"), 1)
            await daemon.stop()
            return figures


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=10_000)
    json.dump(asyncio.run(measure(parser.parse_args().objects)), sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
