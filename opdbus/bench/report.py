"""Results of a comparison as values and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median

from opdbus.bench.contenders import OURS
from opdbus.bench.decode import decode
from opdbus.bench.figures import EngineFigures
from opdbus.bench.machine import Machine


@dataclass(frozen=True, slots=True)
class Entry:
    """One contender as it ran; `failure` is the reason for missing figures."""

    name: str
    versions: Mapping[str, str] = field(default_factory=dict)
    precision: str = ""
    threads: str = ""
    settings: str = ""
    # time until the first vector, without the start of the process
    load_seconds: float = 0.0
    # bytes, after the last pass
    rss: int = 0
    # cosines of its vectors to the reference's; None if either has none
    cosine_min: float | None = None
    cosine_mean: float | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """Seconds that a contender took for all texts of a kind, in each of its turns.

    The texts were passed `batch` a call or, if `whole`, in one call with that batch size; then 0
    means that the contender chose its batches itself.
    """

    contender: str
    texts: str
    batch: int
    whole: bool
    count: int
    seconds: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Texts a second in the median turn."""
        return self.count / median(self.seconds)


@dataclass(frozen=True, slots=True)
class Ratio:
    """Speed of op-dbus as a multiple of a contender's: best to best, and by batch size.

    `calls`: both got this number of texts a call. `whole`: both got all texts in one call, the
    contender with this batch size, op-dbus choosing its own.
    """

    contender: str
    texts: str
    best: float
    calls: Mapping[int, float]
    whole: Mapping[int, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The figures of all contenders with one model."""

    level: str
    model: str
    # mean tokens of each kind of texts, by the model's own tokenizer
    tokens: Mapping[str, float]
    entries: tuple[Entry, ...]
    figures: tuple[Figure, ...]

    def of(self, contender: str, texts: str, *, whole: bool) -> dict[int, float]:
        """Return a contender's texts a second by batch size."""
        return {
            figure.batch: figure.rate
            for figure in self.figures
            if (figure.contender, figure.texts, figure.whole) == (contender, texts, whole)
        }

    def best(self, contender: str, texts: str) -> float:
        """Return a contender's largest number of texts a second; 0 if it has no figures."""
        rates = [self.of(contender, texts, whole=whole) for whole in (False, True)]
        return max((rate for found in rates for rate in found.values()), default=0.0)

    def ratios(self) -> tuple[Ratio, ...]:
        """Compare op-dbus with every other contender; those without figures are left out."""
        return tuple(
            self._ratio(entry.name, texts)
            for entry in self.entries
            for texts in self.tokens
            if entry.name != OURS and self.best(entry.name, texts) and self.best(OURS, texts)
        )

    def _ratio(self, contender: str, texts: str) -> Ratio:
        ours, theirs = self.of(OURS, texts, whole=False), self.of(contender, texts, whole=False)
        own = max(self.of(OURS, texts, whole=True).values(), default=0.0)
        return Ratio(
            contender,
            texts,
            self.best(OURS, texts) / self.best(contender, texts),
            {batch: ours[batch] / rate for batch, rate in theirs.items() if batch in ours},
            {batch: own / rate for batch, rate in self.of(contender, texts, whole=True).items()},
        )


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the benchmark on one machine."""

    date: str
    version: str
    machine: Machine
    comparisons: tuple[Comparison, ...]
    engines: tuple[EngineFigures, ...] = ()
    # true for a quick run, whose figures are of one round
    quick: bool = False

    def to_json(self) -> str:
        """Return the report as JSON, with derived figures."""
        content = asdict(self)
        for written, comparison in zip(content["comparisons"], self.comparisons, strict=True):
            for row, figure in zip(written["figures"], comparison.figures, strict=True):
                row["rate"] = round(figure.rate, 2)
            written["ratios"] = [asdict(ratio) for ratio in comparison.ratios()]
        for written, engine in zip(content["engines"], self.engines, strict=True):
            written["share"] = engine.share
        return json.dumps(content, indent=1) + "\n"


def from_json(text: str) -> Report:
    """Parse the JSON of `to_json`; derived figures are computed again."""
    return decode(Report, json.loads(text))
