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
from typing import Any

from scale import Daemon, bus

from opdbus import Embedder
from opdbus.bench import texts
from opdbus.client import Client


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


async def measure(folder: Path, count: int, rounds: int) -> dict[str, Any]:
    """Give rates and memory for `count` texts, both ways in turns."""
    files = {}
    for number in (1000, count):
        files[number] = folder / f"{number}.jsonl"
        lines = "\n".join(json.dumps(text) for text in texts.objects(number))
        files[number].write_text(lines + "\n", encoding="utf-8")
    (folder / "state.json").write_text('{"version": 1, "plugins": {}}', encoding="utf-8")
    taken: dict[str, list[float]] = {"bus": [], "engine": []}
    async with bus(folder) as address:
        daemon = Daemon(address, folder)
        await daemon.start()
        with Embedder(state_dir=folder / "engine") as embedder:
            await over_the_bus(address, files[1000])
            await asyncio.to_thread(by_the_engine, embedder, files[1000])
            before = round(daemon.memory_mib(), 1)
            for _ in range(rounds):
                taken["bus"].append(await over_the_bus(address, files[count]))
                taken["engine"].append(
                    await asyncio.to_thread(by_the_engine, embedder, files[count])
                )
            after = round(daemon.memory_mib(), 1)
            facts = {"provider": embedder.provider, "precision": embedder.precision}
        await daemon.stop()
    rates = {name: round(count / statistics.median(seconds), 1) for name, seconds in taken.items()}
    return {
        **facts,
        "texts": count,
        "texts per second": rates,
        "bus to engine": round(rates["bus"] / rates["engine"], 3),
        "daemon MiB after 1,000": before,
        "daemon MiB after all": after,
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        figures = asyncio.run(measure(Path(scratch), given.texts, given.rounds))
    json.dump(figures, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
