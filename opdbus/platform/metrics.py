"""Metrics as values, and Prometheus' text format 0.0.4 for them."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import accumulate
from typing import Any, Final, NamedTuple

from opdbus.platform.lines import split_lines

PREFIX: Final = "opdbus_"
# Upper bounds in seconds: 0.5 ms to 4 s.
SECONDS: Final = tuple(0.0005 * 2**step for step in range(14))


class Histogram:
    """Numbers of values up to each bound; `add` may run on one thread at a time."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        # the last one counts the values above all bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count


class Definition(NamedTuple):
    """A row of the table of all metrics."""

    kind: str
    labels: Sequence[str]
    help: str


class Family(NamedTuple):
    """The samples of one metric of the table, by the tuples of its labels' values."""

    name: str
    samples: Mapping[Any, float | Histogram]


@cache
def definitions() -> Mapping[str, Definition]:
    """Read the table of all metrics, by name without PREFIX."""
    file = resources.files("opdbus") / "tables" / "metrics.tsv"
    rows = (line.split("\t") for line in split_lines(file.read_text("utf-8")) if line[0] != "#")
    return {name: Definition(kind, labels.split(), text) for name, kind, labels, text in rows}


def render(families: Iterable[Family], table: Mapping[str, Definition] | None = None) -> str:
    """Return families in the text format; raises KeyError for one that the table lacks."""
    table = table or definitions()
    return "".join([line for family in families for line in _lines(family, table[family.name])])


def _lines(family: Family, definition: Definition) -> Iterator[str]:
    name, (kind, names, text) = PREFIX + family.name, definition
    yield f"# HELP {name} {_escape(text)}\n# TYPE {name} {kind}\n"
    for values, sample in family.samples.items():
        pairs = [f'{key}="{_escape(value)}"' for key, value in zip(names, values, strict=True)]
        labels = f"{{{','.join(pairs)}}}" if pairs else ""
        if not isinstance(sample, Histogram):
            yield f"{name}{labels} {sample}\n"
            continue
        before = "".join([f"{pair}," for pair in pairs])
        # a copy: another thread may be counting
        totals = [*accumulate([*sample.counts])]
        for bound, total in zip((*sample.bounds, "+Inf"), totals, strict=True):
            yield f'{name}_bucket{{{before}le="{bound}"}} {total}\n'
        yield f"{name}_sum{labels} {sample.sum}\n{name}_count{labels} {totals[-1]}\n"


def _escape(text: str) -> str:
    # texts of the table have none of these characters, and in them quotes need no escape
    if text.isalnum():
        return text
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
