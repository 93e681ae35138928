"""Bulk over the bus beside the engine itself: texts of about 60 tokens, file to file, and memory.

Starts a private bus and the daemon with the real model; the two take turns. Writes JSON to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdbus import Embedder
from opdbus.bench import texts
from opdbus.client import Client

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from fuzz.health import memory_mib
from fuzz.serving import serving

if TYPE_CHECKING:
    from running import Running


async def over_the_bus(address: str, path: Path) -> float:
    """Give the seconds that all texts of a file take by VectorizeBulk."""
    async with Client(address) as client:
        began = time.perf_counter()
        vectors = await client.vectorize_bulk(path)
        vectors.file.close()
        return time.perf_counter() - began


def by_the_engine(embedder: Embedder, path: Path) -> float:
    """Give the seconds that the same texts take in this process, read from the same file."""
    began = time.perf_counter()
    with path.open(encoding="utf-8") as lines:
        for _ in embedder.stream(json.loads(line) for line in lines):
            pass
    return time.perf_counter() - began


async def compare(folder: Path, daemon: Running, count: int, rounds: int) -> dict[str, Any]:
    """Give rates and memory for `count` texts, both ways in turns."""
    files = {number: written(folder, number) for number in (1000, count)}
    taken: dict[str, list[float]] = {"bus": [], "engine": []}
    with Embedder(state_dir=folder / "engine") as embedder:
        await over_the_bus(daemon.bus, files[1000])
        by_the_engine(embedder, files[1000])
        before = round(memory_mib(daemon.pid), 1)
        for _ in range(rounds):
            taken["bus"].append(await over_the_bus(daemon.bus, files[count]))
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


def written(folder: Path, count: int) -> Path:
    """Write `count` texts as the lines of a file."""
    path = folder / f"{count}.jsonl"
    path.write_text("".join(f"{json.dumps(text)}\n" for text in texts.objects(count)))
    return path


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, empty = Path(scratch), b'{"version": 1, "plugins": {}}'
        with serving(folder, medium=True, state=empty) as daemon:
            figures = asyncio.run(compare(folder, daemon, given.texts, given.rounds))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
