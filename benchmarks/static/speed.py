"""How fast a static table encodes: on one thread, on two, in two processes, beside model2vec."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from opdbus import config
from opdbus.engine.static_encoder import StaticEncoder
from opdbus.models import folder
from opdbus.models.level_table import LEVELS
from opdbus.models.static_table import StaticTable

_ROUNDS: Final = 15
# What both processes and threads encode with: processes have it by being forked.
_SHARED: dict[str, tuple[StaticEncoder, Sequence[str]]] = {}


def best(works: Sequence[Callable[[], object]], rounds: int = _ROUNDS) -> list[float]:
    """Return the least seconds of each work; they take turns, so that others slow all of them."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(rounds):
        for work, taken in zip(works, seconds, strict=True):
            began = time.perf_counter()
            work()
            taken.append(time.perf_counter() - began)
    return [min(taken) for taken in seconds]


def speed(kinds: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return milliseconds to load, texts a second of each kind, and the deviation of vectors."""
    model = folder.load_model(LEVELS["static"], config.load(os.environ))
    began = time.perf_counter()
    table = StaticTable.read(model.folder, model.shape.max_tokens)
    encoder = StaticEncoder(table)
    figures: dict[str, Any] = {"load_ms": round(1000 * (time.perf_counter() - began), 1)}
    for kind, texts in kinds.items():
        [first] = best([partial(_begin, table, texts)], rounds=3)
        _SHARED[kind] = (encoder, texts)
        apart = np.abs(encoder.encode(texts).vectors - encoder.reference(texts)).max()
        rates = _side_by_side(kind, len(texts))
        figures[kind] = {"new_words": round(len(texts) / first), **rates, "deviation": float(apart)}
    one, fresh = ["which service answers questions about host names?"], StaticEncoder(table)
    [alone] = best([lambda: [fresh.encode(one) for _ in range(1000)]])
    return {**figures, "single_us": round(1000 * alone, 1)}


def _begin(table: StaticTable, texts: Sequence[str]) -> None:
    """Encode texts whose words are all new."""
    StaticEncoder(table).encode(texts)


def _encode(kind: str) -> None:
    encoder, texts = _SHARED[kind]
    encoder.encode(texts)


def _on_both(pool: Executor, kind: str) -> None:
    list(pool.map(_encode, [kind, kind]))


def _side_by_side(kind: str, texts: int) -> dict[str, int]:
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(2, fork) as processes, ThreadPoolExecutor(2) as threads:
        works = [partial(_on_both, pool, kind) for pool in (threads, processes)]
        alone, *both = best([partial(_encode, kind), *works])
    return {
        "one_thread": round(texts / alone),
        "two_threads": round(2 * texts / both[0]),
        "two_processes": round(2 * texts / both[1]),
    }


def peer(python: Path, kinds: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the texts a second of model2vec with the same table, by an environment's python."""
    with tempfile.TemporaryDirectory() as scratch:
        texts = Path(scratch) / "texts.json"
        texts.write_text(json.dumps(kinds))
        script = Path(__file__).with_name("peer.py")
        done = subprocess.run(
            [python, script, folder.OURS, texts], check=True, stdout=subprocess.PIPE
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found
