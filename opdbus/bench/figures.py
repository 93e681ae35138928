"""Results of the benchmark, as values and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from opdbus.bench.machine import Machine

T = TypeVar("T")

_GIGA: Final = 1e9


@dataclass(frozen=True, slots=True)
class Rate:
    """Texts of a kind embedded a second, `batch` a call; 0 is all of them in one call."""

    texts: str
    batch: int
    count: int
    # seconds of each round
    seconds: tuple[float, ...]
    rate: float
    # rate of the model's arithmetic, computed from its shape and the texts' tokens
    gflops: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of calls with this number of texts, one call after the other."""

    texts: int
    # mean tokens of a text
    tokens: float
    # true if another thread streamed texts at the same time
    beside_bulk: bool
    calls: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of `count` texts: seconds, cost of each text, and memory in bytes after it."""

    count: int
    seconds: float
    microseconds_per_text: float
    rss: int


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Largest rate of matrix products of the model's shape that a runtime reached."""

    provider: str
    precision: str
    gflops: float
    # configuration that reached it: rows of the product, parallel runs, threads of each run
    rows: int
    lanes: int
    threads: int


@dataclass(frozen=True, slots=True)
class Threads:
    """Texts a second on one processor by number of threads; "auto" is the engine's choice."""

    rates: Mapping[str, float]

    @property
    def share(self) -> float:
        """Rate of the engine's own choice as a share of the best hand-set rate."""
        return self.rates["auto"] / max(rate for name, rate in self.rates.items() if name != "auto")


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Figures of one model on one provider; `failure` is the reason for missing ones."""

    level: str
    model: str
    # true if the weights are random, in the model's shape
    random: bool
    provider: str
    hardware: str = ""
    precision: str = ""
    # mean tokens by kind of texts
    tokens: Mapping[str, float] | None = None
    load_seconds: float = 0.0
    # bytes, after the model was loaded
    rss: int = 0
    rates: tuple[Rate, ...] = ()
    latencies: tuple[Latency, ...] = ()
    streams: tuple[Stream, ...] = ()
    ceilings: tuple[Ceiling, ...] = ()
    one_cpu: Threads | None = None
    # the accuracy gate's report, if there was a choice
    gate: Mapping[str, Any] | None = None
    failure: str = ""

    @property
    def best_gflops(self) -> float:
        """Rate of the model's arithmetic at the best of its rates."""
        return max((rate.gflops for rate in self.rates), default=0.0)

    @property
    def ceiling(self) -> Ceiling | None:
        """The ceiling of the engine's own runtime and precision."""
        own = (self.provider, self.precision)
        found = [each for each in self.ceilings if (each.provider, each.precision) == own]
        return found[0] if found else None

    @property
    def share(self) -> float | None:
        """Share of its ceiling that the engine reaches, tokenizing included; None without one."""
        return self.best_gflops / self.ceiling.gflops if self.ceiling else None

    def rate(self, texts: str, batch: int) -> float:
        """Return the texts a second of a kind and batch size; 0 if they were not measured."""
        found = [each.rate for each in self.rates if (each.texts, each.batch) == (texts, batch)]
        return found[0] if found else 0.0


def percentiles(seconds: Sequence[float], *cuts: int) -> dict[str, float]:
    """Return percentiles in milliseconds: p50, p95 and p99, or the given cuts."""
    wanted = cuts or (50, 95, 99)
    found = np.percentile(np.array(seconds) * 1000, wanted).tolist()
    return {f"p{cut}": round(at, 3) for cut, at in zip(wanted, found, strict=True)}


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Numbers of a model's shape from which its floating-point operations are computed."""

    layers: int
    hidden: int
    wide: int

    def flops(self, lengths: Sequence[int]) -> float:
        """Count the operations of all matrix products for texts of these numbers of tokens."""
        dense = 2 * self.layers * (4 * self.hidden**2 + 2 * self.hidden * self.wide)
        # queries times keys, and the result times values
        mixing = 4 * self.layers * self.hidden
        return float(sum(dense * length + mixing * length**2 for length in lengths))

    def gflops(self, lengths: Sequence[int], seconds: float) -> float:
        """Return the rate in GFLOP/s for texts that took this time."""
        return self.flops(lengths) / seconds / _GIGA


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the benchmark on one machine."""

    date: str
    version: str
    machine: Machine
    engines: tuple[EngineFigures, ...] = ()
    # true for a quick run, whose figures are of one round
    quick: bool = False

    def content(self) -> dict[str, Any]:
        """Return the report for JSON, with derived figures."""
        content = asdict(self)
        for written, engine in zip(content["engines"], self.engines, strict=True):
            written["share"] = engine.share
        return content

    def to_json(self) -> str:
        """Return the report as JSON, which `decode` reads."""
        return json.dumps(self.content(), indent=1) + "\n"


def decode(kind: type[T], written: Mapping[str, Any]) -> T:
    """Make a value of its JSON; keys that are no fields, such as derived figures, are skipped."""
    hints = get_type_hints(kind)
    return kind(**{name: _value(hints[name], written[name]) for name in hints.keys() & written})


def _value(hint: Any, written: Any) -> Any:  # noqa: ANN401 -- any type, any JSON
    inner = get_args(hint)
    if written is None:
        return None
    if NoneType in inner:
        return _value(next(each for each in inner if each is not NoneType), written)
    if get_origin(hint) is tuple:
        return tuple(_value(inner[0], each) for each in written)
    if is_dataclass(hint):
        made: Any = hint
        return decode(made, written)
    return Path(written) if hint is Path else written
