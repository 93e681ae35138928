"""What the steps share: models, embedders, and how a rate is measured."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import random_models
from numpy.typing import NDArray

from opdbus import config
from opdbus.api import Embedder
from opdbus.bench import texts
from opdbus.engine import cpus
from opdbus.engine.batching import same_lengths
from opdbus.engine.provider import Placement
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.sessions import open_session
from opdbus.models import build, folder, level_table
from opdbus.models.level_table import LEVELS
from opdbus.platform.slices import slices

if TYPE_CHECKING:
    from opdbus.engine.provider import Provider, Session
    from opdbus.engine.tokenizer import Tokens
    from opdbus.models.folder import Model

    Vectors = Iterator[NDArray[np.float32]]
    Findings = Iterator[tuple[str, Any]]
    Run = Callable[[NDArray[np.int64]], NDArray[np.float32]]

LANES = 2
KINDS = {"short": texts.shorts, "object": texts.objects}


@dataclass(frozen=True, slots=True)
class Kit:
    """The command line, as every step sees it."""

    device: str
    quick: bool
    scratch: str
    # how long one figure is measured
    seconds: float
    # a folder that stands for the medium model and is the only level
    model: str = ""
    # instead of the fastest
    precision: str = ""

    @property
    def provider(self) -> Provider:
        """The row that is measured."""
        return PROVIDERS["cuda" if self.device == "cuda" else "cpu:onnxruntime"]

    @property
    def precisions(self) -> list[str]:
        """The floats that the provider computes in, the faster first."""
        wanted = (self.precision,) if self.precision else ("fp16", "fp32")
        return [name for name in wanted if name in self.provider.dialects]

    @property
    def levels(self) -> list[str]:
        """The levels that are measured, the one with real weights first."""
        return ["medium"] if self.model else ["medium", "low", "high"]

    @property
    def measured(self) -> list[str]:
        """The levels whose speed is measured: of a short trial on a CPU, the first."""
        return self.levels[:1] if self.quick and self.device == "cpu" else self.levels

    @property
    def count(self) -> int:
        """Different texts that are measured with."""
        if self.device == "cuda":
            return 4096 if self.quick else 8192
        return 256 if self.quick else 1024

    @property
    def budgets(self) -> tuple[int, ...]:
        """Tokens of a batch, the last but one as the engine would have them."""
        return (1 << 14, 1 << 16, 1 << 17) if self.device == "cuda" else (128, 256, 512)

    @property
    def batches(self) -> int:
        """Batches that stand for all."""
        return 24 if self.device == "cuda" else 4

    @property
    def window(self) -> int:
        """Texts that are tokenized together."""
        return 8192 if self.device == "cuda" else 32

    def folder(self, level: str) -> Path:
        """Give the folder of a level's model: real for medium, else made of random weights."""
        if self.model:
            return Path(self.model)
        real = folder.find_model(LEVELS["medium"], config.load({"HOME": self.scratch}))
        if level == "medium":
            return real
        made = Path(self.scratch) / "models" / f"random-{LEVELS[level].folder}"
        if not (made / level_table.WEIGHTS).is_file():
            random_models.write_random_model(LEVELS[level], real, made)
        return made

    def embedder(self, level: str, precision: str = "", **more: object) -> Embedder:
        """Make an embedder of a level, in a precision or that of the gate's choice."""
        return Embedder(
            level=level,
            provider=self.provider.name,
            model=self.folder(level),
            state_dir=Path(self.scratch) / "state",
            precision=precision or "auto",
            **more,
        )

    def texts(self, kind: str) -> list[str]:
        """Make the texts of a kind, or read those that an earlier step made."""
        kept = Path(self.scratch) / f"{kind}-{self.count}.json"
        if not kept.is_file():
            kept.write_text(json.dumps(KINDS[kind](self.count)), encoding="utf-8")
        return list(json.loads(kept.read_text(encoding="utf-8")))


def batches(rows: Tokens, tokens: int, most: int = 1 << 20) -> list[NDArray[np.int64]]:
    """Repeat rows until those of most lengths fill batches, and stack them, at most so many."""
    times = -(-tokens * len(np.unique(rows.lengths)) // int(rows.lengths.sum()))
    repeated = rows.take(np.tile(np.arange(len(rows)), times))
    planned = [
        chunk
        for numbers, length in same_lengths(repeated.lengths)
        for chunk in slices(numbers, max(1, tokens // length))
    ]
    # shuffled alike on every machine: a few batches are then like all
    order = np.random.default_rng(0).permutation(len(planned))[:most]
    return [repeated.stacked(planned[number]) for number in order]


def model_rate(
    runs: Sequence[Run], work: Sequence[NDArray[np.int64]], seconds: float
) -> dict[str, float]:
    """Run batches in turn, each lane on its own thread; texts and tokens a second.

    Lanes end with a whole number of rounds over all batches, one or more, so that lengths keep
    their shares.
    """
    for ids in work:
        runs[0](ids)
    began = time.perf_counter()

    def rounds(run: Run, offset: int) -> int:
        turned = [*work[offset:], *work[:offset]]
        done = 0
        while not done or time.perf_counter() - began < seconds:
            for ids in turned:
                run(ids)
            done += 1
        return done

    offsets = [number * len(work) // len(runs) for number in range(len(runs))]
    with ThreadPoolExecutor(len(runs)) as pool:
        done = sum(pool.map(rounds, runs, offsets))
    rate = done / (time.perf_counter() - began)
    texts, tokens = sum(map(len, work)), sum(ids.size for ids in work)
    return {"texts": round(rate * texts), "tokens": round(rate * tokens)}


def streaming(kit: Kit, embedder: Embedder) -> Callable[[Iterator[str]], Vectors]:
    """Give the engine's own stream, or one of smaller windows where its own take a minute."""
    if kit.device == "cuda":
        return embedder.stream

    def windows(texts: Iterator[str]) -> Vectors:
        while True:
            yield embedder.embed(list(itertools.islice(texts, kit.window)))

    return windows


def stream_rate(
    stream: Callable[[Iterator[str]], Vectors],
    some: Sequence[str],
    seconds: float,
) -> float:
    """Stream texts without end, and count vectors a second once the first have come."""
    vectors = stream(itertools.cycle(some))
    next(vectors)
    began, count = time.perf_counter(), 0
    for window in vectors:
        count += len(window)
        if time.perf_counter() - began > seconds:
            break
    return round(count / (time.perf_counter() - began), 1)


def least_cosine(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Give the smallest cosine of vectors of length 1."""
    return round(float((found * expected).sum(axis=1).min()), 7)


def read(kit: Kit, level: str) -> Model:
    """Read a level's model."""
    return folder.read_model(kit.folder(level), LEVELS[level])


def built(kit: Kit, loaded: Model, dialect: str) -> build.Built:
    """Build a model's graph where the embedders look for it, or find it there."""
    return asyncio.run(build.ensure(loaded, Path(kit.scratch) / "state" / "graphs", dialect))


def recording(kit: Kit, loaded: Model, precision: str) -> Session:
    """Open a session of a model that still records where it runs."""
    made = built(kit, loaded, kit.provider.dialects[precision])
    at = Placement(precision=precision, threads=cpus.usable(), lanes=LANES)
    return open_session(made.graph, kit.provider, at)


def opened(kit: Kit, loaded: Model) -> Session:
    """Open a session of a model in the fastest float."""
    session = recording(kit, loaded, kit.precisions[0])
    session.run(np.ones((1, 2), np.int64))
    session.finish_profile()
    return session


def once(work: Callable[[Any], object], given: object) -> float:
    """Give the seconds that a call takes."""
    began = time.perf_counter()
    work(given)
    return time.perf_counter() - began
