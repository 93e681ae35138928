"""Bulk over the bus beside the engine itself: texts, file to file, and memory.

Starts a private bus and the daemon with a level's real model; the two take turns. Writes JSON to
stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdbus import Embedder
from opdbus.bench import texts
from opdbus.client import Client

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from harness.health import memory_mib
from harness.serving import serving

if TYPE_CHECKING:
    from harness.running import Running


_DIFFERENT = 50_000


async def over_the_bus(address: str, path: Path, dtype: str) -> float:
    """Give the seconds that all texts of a file take by VectorizeBulk."""
    async with Client(address) as client:
        began = time.perf_counter()
        vectors = await client.vectorize_bulk(path, {"dtype": dtype})
        vectors.file.close()
        return time.perf_counter() - began


def by_the_engine(embedder: Embedder, path: Path) -> float:
    """Give the seconds that the same texts take in this process, read from the same file."""
    began = time.perf_counter()
    with path.open(encoding="utf-8") as lines:
        for _ in embedder.stream(json.loads(line) for line in lines):
            pass
    return time.perf_counter() - began


async def compare(
    folder: Path, daemon: Running, files: dict[int, Path], given: argparse.Namespace
) -> dict[str, Any]:
    """Give rates and memory for the texts of the larger of two files, both ways in turns."""
    few, count = files
    taken: dict[str, list[float]] = {"bus": [], "engine": []}
    with Embedder(given.level, state_dir=folder / "engine") as embedder:
        await over_the_bus(daemon.bus, files[few], given.dtype)
        by_the_engine(embedder, files[few])
        before = round(memory_mib(daemon.pid), 1)
        for _ in range(given.rounds):
            taken["bus"].append(await over_the_bus(daemon.bus, files[count], given.dtype))
            taken["engine"].append(by_the_engine(embedder, files[count]))
        facts = {"provider": embedder.provider, "precision": embedder.precision}
    rates = {name: round(count / statistics.median(seconds), 1) for name, seconds in taken.items()}
    return {
        **facts,
        "texts": count,
        "texts per second": rates,
        "bus to engine": round(rates["bus"] / rates["engine"], 3),
        "daemon MiB after 1,000": before,
        "daemon MiB after all": round(memory_mib(daemon.pid), 1),
    }


def written(folder: Path, some: list[str]) -> Path:
    """Write texts as the lines of a file."""
    path = folder / f"{len(some)}.jsonl"
    path.write_text("".join(f"{json.dumps(text)}\n" for text in some))
    return path


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--level", default="medium")
    parser.add_argument("--dtype", default="float32", help="of the vectors over the bus")
    parser.add_argument("--kind", choices=["object", "short"], default="object")
    given = parser.parse_args()
    make = {"object": texts.objects, "short": texts.shorts}[given.kind]
    # a million take minutes to make
    some = list(islice(cycle(make(min(given.texts, _DIFFERENT))), given.texts))
    with tempfile.TemporaryDirectory() as scratch:
        folder, empty = Path(scratch), b'{"version": 1, "plugins": {}}'
        files = {number: written(folder, some[:number]) for number in (1000, given.texts)}
        with serving(folder, medium=True, state=empty, VECTOR_LEVEL=given.level) as daemon:
            figures = asyncio.run(compare(folder, daemon, files, given))
    print(json.dumps({"kind": given.kind, "dtype": given.dtype, **figures}, indent=1))


if __name__ == "__main__":
    main()
