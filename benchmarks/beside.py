"""Vectors in op-dbus beside sqlite-vec and LanceDB, which hold the same ones, in one run.

Each holds them in a process and files of its own; questions go to all in turns. Recall is that of
the ten with the highest products, computed exactly in float32; a tenth of the rows meets the
condition. `PEERS` is the python of an environment that has sqlite-vec, lancedb and numpy. Writes
JSON to stdout.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

sys.path.append(str(Path(__file__).parent))

if TYPE_CHECKING:
    from numpy.typing import NDArray

HERE: Final = Path(__file__)
BEST: Final = 10
# Rows that meet the condition: one of so many.
APART: Final = 10
ASKED: Final = 60
WAYS: Final = {
    "op-dbus": "ours",
    "sqlite-vec, float32": "sqlite_vec",
    "sqlite-vec, bits and 400 compared again": "sqlite_vec_bits",
    "LanceDB, no index": "lance",
    "LanceDB, IVF-PQ and 400 compared again": "lance_index",
}


class Holder:
    """A process that holds vectors one way, and answers questions; use as a context."""

    def __init__(self, python: str, way: str, vectors: Path, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._process = subprocess.Popen(
            [python, str(HERE.with_name("holders.py")), way, str(vectors), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        """Go on."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def ask(self, request: object = None) -> Any:  # noqa: ANN401 -- what it answers
        """Send a request, and wait for the answer; the first is given unasked."""
        if request is not None:
            print(json.dumps(request), file=self._process.stdin, flush=True)
        assert self._process.stdout  # noqa: S101 -- for mypy
        return json.loads(self._process.stdout.readline())

    def size_mib(self) -> float:
        """Give the size of its files."""
        files = (path for path in self._folder.rglob("*") if path.is_file())
        return sum(path.stat().st_size for path in files) / (1 << 20)

    def private_mib(self) -> float:
        """Give the memory that is its own."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text("ascii").splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def exact(
    vectors: NDArray[np.float32], query: NDArray[np.float32], allowed: NDArray[np.bool_]
) -> set[int]:
    """Give the rows of the highest products."""
    products = np.where(allowed, vectors @ query, -2)
    return set(np.argpartition(-products, BEST)[:BEST].tolist())


def measure(python: str, vectors: Path, queries: NDArray[np.float32], scratch: Path) -> Any:  # noqa: ANN401 -- JSON
    """Give the figures of each way."""
    held = np.load(vectors, mmap_mode="r")
    every = np.ones(len(held), np.bool_)
    some = np.arange(len(held)) % APART == 0
    found: dict[str, Any] = {}
    holders: dict[str, Holder] = {}
    for name, way in WAYS.items():
        own = sys.executable if way == "ours" else python
        holders[name] = Holder(own, way, vectors, scratch / way)
        built = holders[name].ask()
        found[name] = {**built, "files MiB": round(holders[name].size_mib(), 1)}
        print(name, found[name], file=sys.stderr, flush=True)
    for key, allowed in (("all", every), ("a condition", some)):
        best = [exact(held, query, allowed) for query in queries]
        times: dict[str, list[float]] = {name: [] for name in holders}
        shares: dict[str, float] = dict.fromkeys(holders, 0.0)
        for number, query in enumerate(queries):
            for name, holder in holders.items():
                answer = holder.ask({"query": query.tolist(), "condition": allowed is some})
                times[name].append(answer["ms"])
                shares[name] += len(best[number].intersection(answer["rows"])) / BEST
        for name in holders:
            found[name][key] = {
                "p50 ms": round(float(np.percentile(times[name], 50)), 2),
                "p99 ms": round(float(np.percentile(times[name], 99)), 2),
                "recall@10": round(shares[name] / len(queries), 4),
            }
    for name, holder in holders.items():
        found[name]["private MiB"] = round(holder.private_mib(), 1)
        holder.__exit__()
    return found


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", help="the python of the peers' environment")
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--level", default="static")
    given = parser.parse_args()
    from mixed import REAL, mixed, real_vectors

    from opdbus.bench.machine import describe

    real, versions = asyncio.run(real_vectors(given.level, REAL + ASKED))
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as scratch:
        file = Path(scratch) / "vectors.npy"
        made = mixed(np.random.default_rng(15), real[ASKED:], given.vectors)
        np.save(file, made)
        del made
        found = measure(given.peers, file, real[:ASKED], Path(scratch))
    report = {
        "date": f"{datetime.now(UTC):%F}",
        "machine": describe().line,
        "vectors": given.vectors,
        "numerics": versions,
        "dimension": real.shape[1],
        "ways": found,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
