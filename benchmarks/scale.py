"""A daemon with 10,000 objects: restart, search latency, one change, memory, the command line.

Starts a private bus and the daemon with the real model; writes JSON to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdbus.bench.figures import percentiles
from opdbus.client import Client

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from harness.health import memory_mib
from harness.running import Bus, Running
from robustness.harness import PLACES, QUESTIONS, state, until_ready
from sizes import changes

if TYPE_CHECKING:
    from collections.abc import Iterator


async def start(daemon: Running) -> float:
    """Start the daemon, and give the seconds until it is ready with every vector there."""
    began = time.perf_counter()
    daemon.start()
    await until_ready(daemon.bus)
    return time.perf_counter() - began


def stop(daemon: Running) -> float:
    """Stop the daemon, and give the seconds that it took."""
    began = time.perf_counter()
    daemon.send(signal.SIGTERM)
    daemon.exit_code()
    return time.perf_counter() - began


async def search_latency(address: str, rounds: int) -> dict[str, float]:
    """Give percentiles of Search over D-Bus, one caller, in milliseconds."""
    seconds = []
    async with Client(address) as client:
        for number in range(rounds):
            began = time.perf_counter()
            await client.search(QUESTIONS[number % len(QUESTIONS)], 10, {})
            seconds.append(time.perf_counter() - began)
    found = percentiles(seconds, 50, 99, 100)
    names = {"p50": "p50 ms", "p99": "p99 ms", "p100": "max ms"}
    return {names[cut]: round(found[cut], 2) for cut in names}


async def one_change(daemon: Running, content: dict[str, Any], rounds: int) -> dict[str, float]:
    """Give the milliseconds from replacing the state file to the Vectorized signal."""

    def texts() -> Iterator[str]:
        for number in range(rounds):
            interface = content["plugins"]["net"]["interfaces"][number * 7]
            interface["description"] = f"moved to rack {number} in {PLACES[number % 10]}"
            yield json.dumps(content, indent=1)

    times = await changes(daemon, daemon.folder / "state.json", texts(), 60)
    return {"median ms": round(statistics.median(times), 1), "max ms": round(times[-1], 1)}


def command_line(daemon: Running, rounds: int = 15) -> dict[str, float]:
    """Give the median milliseconds of whole `op-dbus` processes."""
    figures = {}
    for argument in ("--help", "status"):
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            daemon.cli(argument).check_returncode()
            times.append((time.perf_counter() - began) * 1000)
        figures[argument.strip("-") + " median ms"] = round(statistics.median(times), 1)
    return figures


def memory_parts(pid: int) -> dict[str, float]:
    """Give the share of shared pages, and what no file backs, of resident memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {name: int(size.split()[0]) for name, size in (line.split(":") for line in lines)}
    return {"proportional": round(kib["Pss"] / 1024, 1), "anonymous": kib["Anonymous"] // 1024}


async def measure(daemon: Running, objects: int) -> dict[str, Any]:
    """Give all figures."""
    content = state(objects)
    (daemon.folder / "state.json").write_text(json.dumps(content, indent=1))
    first = await start(daemon)
    figures: dict[str, Any] = {"objects": objects, "first start s": round(first, 2)}
    figures["memory after it MiB"] = round(memory_mib(daemon.pid), 1)
    figures["stop s"] = round(stop(daemon), 2)
    restarts = []
    for _ in range(3):
        restarts.append(await start(daemon))
        stop(daemon)
    figures["restart s"] = round(statistics.median(restarts), 2)
    await start(daemon)
    figures["search"] = await search_latency(daemon.bus, 600)
    figures["one change"] = await one_change(daemon, content, 11)
    figures["command line"] = command_line(daemon)
    figures["steady memory MiB"] = round(memory_mib(daemon.pid), 1)
    figures["of it, MiB"] = memory_parts(daemon.pid)
    figures["peak memory MiB"] = round(memory_mib(daemon.pid, "VmHWM"), 1)
    stop(daemon)
    return figures


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--level", default="medium")
    given = parser.parse_args()
    bus = Bus()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        settings = {"STATE_FILE": folder / "state.json", "LOG_LEVEL": "warning"}
        settings["VECTOR_LEVEL"] = given.level
        daemon = Running(folder, bus.address, **settings)
        try:
            print(json.dumps(asyncio.run(measure(daemon, given.objects)), indent=1))
        finally:
            daemon.kill()
            bus.kill()


if __name__ == "__main__":
    main()
