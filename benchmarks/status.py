"""What a status costs a daemon with few and with many objects, and what 100 a second take from it.

The client is a process of its own. How many texts a second get their vectors is looked at in turns:
with the client stopped, and with it asking. OP_DBUS_MODEL_DIR has the models. Writes JSON to
stdout.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.extend(str(Path(__file__).parent / part) for part in (".", "../tests"))
import million
import sizes

from opdbus.bench.machine import describe
from opdbus.client import Client

if TYPE_CHECKING:
    from harness.running import Running

_A_SECOND: Final = 100
_CALLS: Final = 2000
# How long each look lasts, and how many texts are to be left at its end.
_LOOK_SECONDS: Final = 2.0
_LEFT: Final = 2000


def cost(folder: Path, count: int) -> dict[str, Any]:
    """Give what a status costs a daemon that computes nothing else."""
    with million.placed(folder, "static") as daemon, daemon:
        asyncio.run(_publish(daemon, count))
        asyncio.run(sizes.until_all_have_vectors(daemon.bus))
        million.settled(daemon)
        return asyncio.run(sizes.status_cost(daemon, _CALLS))


def taken(folder: Path, level: str, count: int) -> dict[str, Any]:
    """Give the texts a second that get their vectors while nobody asks, and while one does."""
    # the first engine that can be had, without a look at all the others
    engine = {"EXECUTION_PROVIDER": "cpu:onnxruntime", "PRECISION": "fp32"}
    if models := os.environ.get("OP_DBUS_MODEL_DIR"):
        engine["MODEL_DIR"] = models
    with million.placed(folder, level, **engine) as daemon, daemon:
        asyncio.run(_publish(daemon, count))
        with subprocess.Popen([sys.executable, __file__, "ask", daemon.bus]) as client:
            looks = asyncio.run(_looks(daemon, client.pid))
            client.kill()
    figures: dict[str, Any] = {"looks": len(looks)}
    for number, unit in enumerate(("a second", "a second of the daemon's processor")):
        alone, asked = ([row[name][number] for row in looks] for name in ("alone", "asked"))
        lost = 1 - statistics.median(b / a for a, b in zip(alone, asked, strict=True))
        middle = round(statistics.median(alone)), round(statistics.median(asked))
        figures[unit] = {"alone": middle[0], "asked": middle[1], "lost": round(lost, 3)}
    return figures


async def _publish(daemon: Running, count: int) -> None:
    await sizes.until_serving(daemon.bus)
    async with Client(daemon.bus) as client:
        made = ((*one.identity[1:], dict(one.properties)) for one in sizes.objects(count))
        await client.publish("sizes", list(made))


async def _looks(daemon: Running, client: int) -> list[dict[str, tuple[float, float]]]:
    """Give the rates of each pair of looks: by the clock, and by what the daemon computed."""
    found: list[dict[str, tuple[float, float]]] = []
    async with Client(daemon.bus) as own:
        while (await own.status())["Pending"] > _LEFT:
            row = {}
            for name in ("alone", "asked") if len(found) % 2 else ("asked", "alone"):
                os.kill(client, signal.SIGCONT if name == "asked" else signal.SIGSTOP)
                before, began = (await own.status())["Texts"], time.perf_counter()
                used = sizes.exact_seconds(daemon.pid)
                await asyncio.sleep(_LOOK_SECONDS)
                texts = (await own.status())["Texts"] - before
                used = sizes.exact_seconds(daemon.pid) - used
                row[name] = texts / (time.perf_counter() - began), texts / used
            found.append(row)
    # the last ones may have waited for texts
    return found[:-1]


async def ask(bus: str) -> None:
    """Ask 100 times a second until killed."""
    async with Client(bus) as client:
        while True:
            began = time.perf_counter()
            await client.status()
            await asyncio.sleep(max(0.0, began + 1 / _A_SECOND - time.perf_counter()))


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, nargs="+", default=[1000, 20_000])
    parser.add_argument("--level", default="low")
    parser.add_argument("--indexed", type=int, default=40_000)
    given = parser.parse_args()
    report: dict[str, Any] = {"date": f"{datetime.now(UTC):%F}", "machine": describe().line}
    with tempfile.TemporaryDirectory() as folder:
        for number, count in enumerate(given.objects):
            report[f"{count} objects"] = cost(_empty(folder, number), count)
        report["indexing"] = taken(_empty(folder, -1), given.level, given.indexed)
    print(json.dumps(report, indent=1))


def _empty(folder: str, number: int) -> Path:
    path = Path(folder) / str(number)
    path.mkdir()
    (path / "none.json").write_text('{"version": 1, "plugins": {}}')
    return path


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        asyncio.run(ask(sys.argv[2]))
    else:
        main()
