"""The report on a static table: its ranks beside those of other levels, and its speed.

Ranks are of op-dbus' own search, over the check set and over packages that no training text was
made of (test.json, see corpus.py). Intervals are from 2,000 samples of the questions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import structlog

sys.path.insert(0, str(Path(__file__).parents[1]))
from quality import opened, reciprocal_ranks

from opdbus import config
from opdbus.bench import machine
from opdbus.bench.texts import kinds
from opdbus.engine.static_encoder import StaticEncoder
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS
from opdbus.models.static_table import StaticTable

ROOT: Final = Path(__file__).parents[2]
LEVELS_COMPARED: Final = ("medium", "low")
_SAMPLES: Final = 2000
_TEXTS: Final = 8192
_ROUNDS: Final = 15
_SEED: Final = 14

Question = dict[str, Any]


def check_sets(corpus: Path, scratch: Path) -> dict[str, tuple[Path, list[Question]]]:
    """Return each set's state file and questions; that of the packages is written."""
    ours = json.loads((ROOT / "tests/data/questions.json").read_text(encoding="utf-8"))
    test = json.loads((corpus / "test.json").read_text(encoding="utf-8"))
    items = [
        {"name": name, "description": short}
        for name, short in zip(test["names"], test["shorts"], strict=True)
    ]
    state = scratch / "packages.json"
    state.write_text(json.dumps({"version": 1, "plugins": {"packages": {"packages": items}}}))
    asked = [
        {"question": question, "object": f"packages/package/{name}"}
        for question, name in zip(test["questions"], test["names"], strict=True)
    ]
    return {"check set": (ROOT / "state.example.json", ours), "packages": (state, asked)}


async def ranks(
    level: str, state: Path, asked: list[Question], scratch: Path
) -> dict[str, list[float]]:
    """Return the reciprocal ranks of all questions, by way of searching."""
    settings = config.load(
        {**os.environ, "OP_DBUS_STATE_DIR": str(scratch), "OP_DBUS_VECTOR_LEVEL": level}
    )
    async with opened(state, settings, scratch) as finder:
        found = {
            mode: await reciprocal_ranks(finder, asked, mode)
            for mode in ("lexical", "vector", "hybrid")
        }
        if level == "static":
            found["re-scored by medium"] = await reciprocal_ranks(finder, asked, "hybrid", "medium")
        return found


def interval(values: Sequence[float]) -> list[float]:
    """Return the mean of values, and the 95% interval of it over samples of them."""
    random, array = np.random.default_rng(_SEED), np.array(values)
    means = array[random.integers(0, len(array), (_SAMPLES, len(array)))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return [round(float(value), 4) for value in (array.mean(), low, high)]


def quality(corpus: Path) -> dict[str, Any]:
    """Return the ranks of all levels that are here, and how far static is from each."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, (state, asked) in check_sets(corpus, Path(scratch)).items():
            found = {}
            for level in ("static", *LEVELS_COMPARED):
                place = Path(scratch) / f"{name} {level}"
                place.mkdir()
                found[level] = asyncio.run(ranks(level, state, asked, place))
                means = {mode: interval(values) for mode, values in found[level].items()}
                print(name, level, means, file=sys.stderr, flush=True)
            figures[name] = {"questions": len(asked)} | {
                level: {mode: interval(values) for mode, values in modes.items()}
                for level, modes in found.items()
            }
            for level in LEVELS_COMPARED:
                apart = np.subtract(found["static"]["hybrid"], found[level]["hybrid"])
                figures[name][f"static - {level}, hybrid"] = interval(apart.tolist())
    return figures


# What both processes and threads encode with: processes have it by being forked.
_SHARED: dict[str, tuple[StaticEncoder, list[str]]] = {}


def _encode(kind: str) -> None:
    encoder, texts = _SHARED[kind]
    encoder.encode(texts)


def _on_both(pool: Executor, kind: str) -> None:
    list(pool.map(_encode, [kind, kind]))


def _best(works: Sequence[Callable[[], object]], rounds: int = _ROUNDS) -> list[float]:
    """Return the least seconds of each work; they take turns, so that others slow all of them."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, taken in zip(works, seconds, strict=True):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
    return [min(taken) for taken in seconds]


def speed() -> dict[str, Any]:
    """Return milliseconds to load, and texts a second on one thread, two threads, two processes."""
    model = folder.load(LEVELS["static"], config.load(os.environ))
    began = time.perf_counter()
    table = StaticTable.read(model.folder, model.shape.max_tokens)
    encoder = StaticEncoder(table)
    figures: dict[str, Any] = {"load_ms": round(1000 * (time.perf_counter() - began), 1)}
    for kind, texts in kinds(_TEXTS).items():
        [first] = _best([partial(StaticEncoder(table).encode, texts)], rounds=1)
        _SHARED[kind] = (encoder, texts)
        _encode(kind)
        figures[kind] = {"new_words": round(_TEXTS / first), **_side_by_side(kind)}
    one = ["which service answers questions about host names?"]
    [alone] = _best([lambda: [encoder.encode(one) for _ in range(1000)]])
    return {**figures, "single_us": round(1000 * alone, 1)}


def _side_by_side(kind: str) -> dict[str, int]:
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, fork) as processes, ThreadPoolExecutor(2) as threads:
        works = [partial(_on_both, pool, kind) for pool in (threads, processes)]
        alone, *both = _best([partial(_encode, kind), *works])
    return {
        "one_thread": round(_TEXTS / alone),
        "two_threads": round(2 * _TEXTS / both[0]),
        "two_processes": round(2 * _TEXTS / both[1]),
    }


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("corpus", type=Path, nargs="?", help="what corpus.py wrote, for the ranks")
    given = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    figures: dict[str, Any] = {"machine": asdict(machine.describe()), "speed": speed()}
    if given.corpus:
        figures["quality"] = quality(given.corpus)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
