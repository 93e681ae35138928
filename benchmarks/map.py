"""A map of 20,000 objects: how long it takes, how large it is, and how true it is.

The objects are descriptions of packages of the distribution, published to a daemon on a private
bus. True is a map whose neighbours are neighbours in meaning: the share of the 10 nearest of each
object that are among its 10 nearest on the map, and trustworthiness, which counts against a map how
far in meaning those are that are near on it (Venna and Kaski 2001). Writes JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from safetensors.numpy import load

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from harness.running import Bus, Running
from robustness.harness import until_ready

from opdbus.bench import machine
from opdbus.bus.paths import STATE
from opdbus.client import Client
from opdbus.errors import UnknownObject

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NEAREST: Final = 10
_COMPARED: Final = 2000
_AT_A_TIME: Final = 200
_CALLS: Final = 200
_PARAGRAPH: Final = re.compile(r"^(Package|Description|Section): ?(.*)$", re.MULTILINE)


def packages(count: int) -> list[tuple[str, str, str, dict[str, str]]]:
    """Return so many packages as objects, evenly taken from those that apt knows, by name."""
    done = subprocess.run(["apt-cache", "dumpavail"], check=True, capture_output=True)
    found = {}
    for paragraph in done.stdout.decode(errors="replace").split("\n\n"):
        fields = dict(_PARAGRAPH.findall(paragraph))
        if "Description" in fields:
            name = fields.pop("Package")
            values = {key.lower(): value for key, value in fields.items()}
            found[name] = ("packages", "package", name, values)
    ordered = [found[name] for name in sorted(found)]
    return [ordered[n * len(ordered) // count] for n in range(count)]


async def asked_meanwhile(bus: str, wanted: dict[str, Any]) -> tuple[Any, dict[str, float]]:
    """Ask for vectors, and for a property again and again beside it."""
    async with Client(bus) as client, Client(bus) as other:
        alone = sorted([await _seconds(other) for _ in range(_CALLS)])
        beside = []
        began = time.perf_counter()
        asking = asyncio.create_task(client.vectors(wanted))
        while not asking.done():
            beside.append(await _seconds(other))
        with await asking as file:
            content = file.read()
        seconds = time.perf_counter() - began
    beside.sort()
    figures = {"s": round(seconds, 2), "MB": round(len(content) / 1e6, 1)}
    for name, calls in (("alone", alone), ("beside it", beside)):
        middle, slowest = calls[len(calls) // 2], calls[-1]
        figures[f"a small call {name}, p50 ms"] = round(1000 * middle, 1)
        figures[f"a small call {name}, slowest ms"] = round(1000 * slowest, 1)
    return load(content), figures


async def _seconds(client: Client) -> float:
    """Ask for one object that is not there, and return how long that took."""
    began = time.perf_counter()
    with contextlib.suppress(UnknownObject):
        await client.show(f"{STATE}/none/none/none")
    return time.perf_counter() - began


def faithful(vectors: NDArray[np.float32], places: NDArray[np.float32]) -> dict[str, float]:
    """Return how many of the 10 nearest are kept, and trustworthiness, of an even sample."""
    count, k = len(vectors), _NEAREST
    sample = np.linspace(0, count - 1, min(_COMPARED, count)).astype(int)
    kept = beyond = 0
    for part in (sample[n : n + _AT_A_TIME] for n in range(0, len(sample), _AT_A_TIME)):
        rows = np.arange(len(part))
        cosines = vectors[part] @ vectors.T
        cosines[rows, part] = 2
        order = np.argsort(-cosines, axis=1, kind="stable")
        ranks = np.empty_like(order)
        np.put_along_axis(ranks, order, np.arange(count)[None].repeat(len(part), 0), axis=1)
        far = ((places[part][:, None] - places[None]) ** 2).sum(axis=2)
        far[rows, part] = -1
        near = np.take_along_axis(ranks, np.argsort(far, axis=1, kind="stable")[:, 1 : k + 1], 1)
        kept += int((near <= k).sum())
        beyond += int(np.maximum(near - k, 0).sum())
    worst = len(sample) * k * (2 * count - 3 * k - 1) / 2
    return {
        "10 nearest kept": round(kept / (k * len(sample)), 3),
        "of those by chance": round(k / count, 4),
        "trustworthiness": round(1 - beyond / worst, 3),
    }


def drawn(daemon: Running, target: Path, count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a map, and return what it took, and the data of a page."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = daemon.cli("map", "-o", str(target), "--plugin", "packages", "-n", str(count), "--json")
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(done.stderr)
    took = {
        "s": round(seconds, 2),
        "CPU s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 2),
        "MB": round(target.stat().st_size / 1e6, 1),
    }
    text = target.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return took, json.loads(found[1]) if found else {}


async def fill(bus: str, objects: list[Any]) -> None:
    """Publish objects, and wait for their vectors."""
    async with Client(bus) as client:
        await client.publish("benchmark", objects)
    await until_ready(bus)


def measure(count: int, level: str, folder: Path) -> dict[str, Any]:
    """Return the figures of one level."""
    bus = Bus()
    empty = folder / "none.json"
    empty.write_text(json.dumps({"version": 1, "plugins": {}}))
    settings = {"VECTOR_LEVEL": level, "OBSERVE": "none", "STATE_FILE": empty}
    try:
        with Running(folder, bus.address, **settings) as daemon:
            asyncio.run(until_ready(bus.address))
            asyncio.run(fill(bus.address, packages(count)))
            wanted = {"plugin": "packages", "dtype": "float16"}
            found, asked = asyncio.run(asked_meanwhile(bus.address, wanted))
            page, data = drawn(daemon, folder / "map.html", count)
            picture, _ = drawn(daemon, folder / "map.svg", count)
    finally:
        bus.kill()
    vectors = found["vectors"].astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    places = np.array([data["x"], data["y"]], np.float32).T
    return {
        "objects": len(vectors),
        "Vectors": asked,
        "map.html": page,
        "map.svg": picture,
        "labels": len(data["labels"]),
        **faithful(vectors, places),
    }


def main() -> None:
    """Measure, and write the report to stdout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--level", action="append", help="static and medium, if none is given")
    given = parser.parse_args()
    levels = {}
    for level in given.level or ["static", "medium"]:
        with tempfile.TemporaryDirectory() as folder:
            levels[level] = measure(given.objects, level, Path(folder))
    json.dump(
        {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine.describe().line,
            "levels": levels,
        },
        sys.stdout,
        indent=2,
    )
    print()


if __name__ == "__main__":
    main()
