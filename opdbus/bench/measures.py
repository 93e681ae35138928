"""Measurements of an open Embedder: rates, single texts idle and beside bulk, long streams."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from opdbus.bench.figures import Latency, Rate, Stream, percentiles
from opdbus.platform.gc_tuning import resident_bytes
from opdbus.platform.slices import slices

if TYPE_CHECKING:
    from opdbus.api import Embedder
    from opdbus.bench.figures import Arithmetic

# Batch size that stands for all texts in one call.
WHOLE: Final = 0
# Tokens of the single texts: a typical question, and the line of an object.
SINGLES: Final = (16, 19)
_HUNDRED: Final = 100
# Pause between single texts beside bulk work, as people ask now and then.
_PAUSE_SECONDS: Final = 0.01
# Streams up to this length are repeated as often as rates are, because they are short.
_SHORT_STREAM: Final = 2000
# Two bulk streams, so that one has queued texts while the other restarts.
_BULK_STREAMS: Final = 2
# Number of different texts of similar length that are embedded in turn.
_ASKED: Final = 64


Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to measure with: its level, a name for the report, and its folder."""

    level: str
    name: str
    folder: Path
    # true if the weights are random, in the model's shape
    random: bool = False


@dataclass(frozen=True, slots=True)
class Effort:
    """Amount of measurement: texts of each kind, batch sizes, rounds, single texts, streams."""

    texts: int
    batches: tuple[int, ...]
    rounds: int
    singles: int
    streams: tuple[int, ...]
    # texts of each bulk stream beside single texts; the measurement waits for the last stream
    bulk: int = 2048
    # number of calls of 100 texts
    hundreds: int = 20
    # for the device's ceiling: rows of the products, seconds of each, and whether all precisions or
    # only the engine's own are measured
    rows: tuple[int, ...] = (32, 128, 512)
    seconds: float = 0.2
    all_precisions: bool = True
    # true: compare numbers of threads on one processor, too
    one_cpu: bool = True
    # for the comparison with other programs in benchmarks/engine: texts of each kind, batch sizes
    compared: int = 256
    sizes: tuple[int, ...] = (1, 8, 32, 64, 256)


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts by kind, and the number of tokens of each after truncation."""

    kinds: Mapping[str, Sequence[str]]
    lengths: Mapping[str, Sequence[int]]

    def near(self, tokens: int) -> list[str]:
        """Return the texts whose lengths are nearest to `tokens`."""
        pairs = [
            (abs(length - tokens), text)
            for kind, texts in self.kinds.items()
            for text, length in zip(texts, self.lengths[kind], strict=True)
        ]
        return [text for _, text in sorted(pairs)[:_ASKED]]


def rates(
    embedder: Embedder, texts: Texts, effort: Effort, arithmetic: Arithmetic
) -> Iterator[Rate]:
    """Yield the rate of each kind of texts at each batch size, and of all in one call."""
    for kind, whole in texts.kinds.items():
        some = whole[: effort.texts]
        for batch in (*effort.batches, WHOLE):
            calls = list(slices(some, batch or len(some)))
            embedder.embed(some[:16])
            seconds = tuple(timed(embedder, calls) for _ in range(effort.rounds))
            middle = median(seconds)
            gflops = arithmetic.gflops(texts.lengths[kind][: len(some)], middle)
            yield Rate(kind, batch, len(some), seconds, len(some) / middle, gflops)


def timed(embedder: Embedder, calls: Sequence[Sequence[str]]) -> float:
    """Return the seconds that calls take, one after the other."""
    began = time.perf_counter()
    for call in calls:
        embedder.embed(call)
    return time.perf_counter() - began


def latencies(embedder: Embedder, texts: Texts, effort: Effort) -> Iterator[Latency]:
    """Yield latencies of single texts, idle and beside bulk streams, and of batches of 100."""
    singles = {
        tokens: [[text] for text in islice(cycle(texts.near(tokens)), effort.singles)]
        for tokens in SINGLES
    }
    for tokens, calls in singles.items():
        yield _latency(embedder, calls, tokens, beside_bulk=False)
    longest = max(texts.kinds, key=lambda kind: fmean(texts.lengths[kind]))
    with bulk(embedder, texts.kinds[longest], effort.bulk):
        for tokens, calls in singles.items():
            yield _latency(embedder, calls, tokens, beside_bulk=True)
    for kind, whole in texts.kinds.items():
        hundreds = [list(whole[:_HUNDRED])] * effort.hundreds
        mean = fmean(texts.lengths[kind][:_HUNDRED])
        yield _latency(embedder, hundreds, mean, beside_bulk=False)


def _latency(
    embedder: Embedder, calls: Sequence[Sequence[str]], tokens: float, *, beside_bulk: bool
) -> Latency:
    embedder.embed(calls[0])
    seconds = []
    for call in calls:
        if beside_bulk:
            time.sleep(_PAUSE_SECONDS)
        seconds.append(timed(embedder, [call]))
    points = percentiles(seconds)
    return Latency(len(calls[0]), round(tokens, 1), beside_bulk, len(calls), **points)


@contextmanager
def bulk(embedder: Embedder, texts: Sequence[str], count: int) -> Iterator[None]:
    """Stream `count` texts on other threads, repeatedly, during the context."""
    stop, flows = threading.Event(), threading.Event()

    def some() -> Iterator[str]:
        yield from islice(cycle(texts), count)
        flows.set()

    def stream() -> None:
        while not stop.is_set():
            for _ in embedder.stream(some()):
                pass

    with ThreadPoolExecutor(_BULK_STREAMS) as pool:
        for _ in range(_BULK_STREAMS):
            pool.submit(stream)
        try:
            flows.wait()
            yield
        finally:
            stop.set()


def streams(embedder: Embedder, texts: Texts, effort: Effort) -> Iterator[Stream]:
    """Yield the cost of ever longer streams of the first kind of texts."""
    whole = next(iter(texts.kinds.values()))
    for count in effort.streams:
        turns = effort.rounds if count <= _SHORT_STREAM else 1
        seconds = median(_streamed(embedder, whole, count) for _ in range(turns))
        yield Stream(count, seconds, 1e6 * seconds / count, resident_bytes())


def _streamed(embedder: Embedder, texts: Sequence[str], count: int) -> float:
    began = time.perf_counter()
    for _ in embedder.stream(islice(cycle(texts), count)):
        pass
    return time.perf_counter() - began
