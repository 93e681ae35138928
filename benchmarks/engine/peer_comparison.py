"""Compares op-dbus with other programs that embed texts: same texts, one run, in turns.

`make peers` makes the programs' environments. It takes an hour with all levels, prints tables,
writes a report with `--json`, and draws charts with `--chart`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
from numpy.typing import NDArray
from peer_processes import (
    CONTENDERS,
    OURS,
    REFERENCE,
    TORCH,
    Contender,
    ContenderFailed,
    Process,
    Workspace,
    export,
)

from opdbus import __version__, config
from opdbus.bench import machine, texts
from opdbus.bench.machine import Machine
from opdbus.bench.measures import find_levels
from opdbus.cli import output
from opdbus.engine import cpus
from opdbus.engine.tokenizer import Tokenizer
from opdbus.models import folder
from opdbus.models.level_table import LEVELS, ON_PROVIDERS, TOKENIZER

Notify = Callable[[str], None]

# Texts of each kind whose vectors are compared with the reference's, and the batch size.
_CHECKED: Final = 32
_CHECKED_BATCH: Final = 8
# Large enough that no text is cut when its tokens are counted.
_MAX_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to compare with: its level, its name and its folder."""

    level: str
    name: str
    folder: Path


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
class PeerReport:
    """One run of the comparison on one machine."""

    date: str
    version: str
    machine: Machine
    comparisons: tuple[Comparison, ...] = ()

    @property
    def headline(self) -> str:
        """The machine and the date in one line."""
        return f"{self.machine.line}, {self.date}"

    def to_json(self) -> str:
        """Return the report as JSON, with derived figures."""
        content = asdict(self)
        for written, comparison in zip(content["comparisons"], self.comparisons, strict=True):
            for row, figure in zip(written["figures"], comparison.figures, strict=True):
                row["rate"] = round(figure.rate, 2)
            written["ratios"] = [asdict(ratio) for ratio in comparison.ratios()]
        return json.dumps(content, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class Plan:
    """Work of each contender: texts by kind, batch sizes, and number of rounds."""

    texts: Mapping[str, Sequence[str]]
    batches: Sequence[int]
    rounds: int


def compare(
    contenders: Sequence[Contender], subject: Subject, plan: Plan, place: Workspace, notify: Notify
) -> Comparison:
    """Run the comparison; a contender that fails becomes an entry with the reason.

    It takes minutes and reports progress. No process is left when it ends.
    """
    with ExitStack() as stack:
        run = _Run(subject, plan, place, notify)
        for contender in contenders:
            run.open(contender, stack)
        for number in range(plan.rounds):
            for batch in plan.batches:
                notify(f"{subject.level}: round {number + 1} of {plan.rounds}, batch size {batch}")
                run.turn(batch)
        run.check()
        return run.result()


class _Run:
    """A running comparison: the remaining contenders, and the figures so far."""

    def __init__(self, subject: Subject, plan: Plan, place: Workspace, notify: Notify) -> None:
        self._subject = subject
        self._plan = plan
        self._place = place
        self._notify = notify
        self._entries: dict[str, Entry] = {}
        self._processes: dict[str, Process] = {}
        self._seconds: dict[tuple[str, str, int, bool], list[float]] = {}

    def open(self, contender: Contender, stack: ExitStack) -> None:
        """Start a contender and let it load the model."""
        name = contender.name
        self._notify(f"{self._subject.level}: loading {name}")
        self._entries[name] = Entry(name)
        with self._may_fail(name):
            options = self._options(contender)
            process = stack.enter_context(Process(contender, self._place))
            self._entries[name] = self._load(process, options)
            process.pause()
            self._processes[name] = process

    def turn(self, batch: int) -> None:
        """Let every contender in turn do all passes with a batch size."""
        for name in list(self._processes):
            with self._awake(name) as process:
                for texts in self._plan.texts:
                    self._measure(process, texts, batch, whole=False)
                    self._measure(process, texts, batch, whole=True)

    def check(self) -> None:
        """Compare the vectors of every contender with the reference's."""
        vectors: dict[str, NDArray[np.float64]] = {}
        texts = [text for kind in self._plan.texts.values() for text in kind[:_CHECKED]]
        for name in list(self._processes):
            with self._awake(name) as process:
                reply = process.request("vectors", texts=texts, batch=_CHECKED_BATCH)
                vectors[name] = _unit(reply["vectors"])
        for name, found in vectors.items():
            if REFERENCE in vectors:
                self._entries[name] = _checked(self._entries[name], found, vectors[REFERENCE])

    def result(self) -> Comparison:
        """Return the comparison."""
        counts = {name: len(texts) for name, texts in self._plan.texts.items()}
        return Comparison(
            self._subject.level,
            self._subject.name,
            self._tokens(),
            tuple(self._entries.values()),
            tuple(
                Figure(name, texts, batch, whole, counts[texts], tuple(seconds))
                for (name, texts, batch, whole), seconds in self._seconds.items()
            ),
        )

    def _options(self, contender: Contender) -> dict[str, str]:
        options = {**contender.options, "level": self._subject.level}
        if contender.exported:
            options["exported"] = str(export(self._subject.folder, TORCH, self._place))
        return options

    def _load(self, process: Process, options: dict[str, str]) -> Entry:
        reply = process.request(
            "load",
            folder=str(self._subject.folder),
            scratch=str(self._place.scratch),
            threads=cpus.usable(),
            options=options,
        )
        return Entry(
            process.contender.name,
            reply["versions"],
            **reply["facts"],
            load_seconds=reply["seconds"],
            rss=reply["rss"],
        )

    def _measure(self, process: Process, texts: str, batch: int, *, whole: bool) -> None:
        name = process.contender.name
        reply = process.request(
            "measure", texts=list(self._plan.texts[texts]), batch=batch, whole=whole
        )
        shown = 0 if whole and process.contender.own_batches else batch
        self._seconds.setdefault((name, texts, shown, whole), []).append(reply["seconds"])
        self._entries[name] = replace(self._entries[name], rss=reply["rss"])

    def _tokens(self) -> dict[str, float]:
        tokenizer = Tokenizer(self._subject.folder / TOKENIZER, _MAX_TOKENS)
        return {
            name: round(fmean(tokenizer.count(texts)), 1)
            for name, texts in self._plan.texts.items()
        }

    @contextmanager
    def _awake(self, name: str) -> Iterator[Process]:
        with self._may_fail(name):
            self._processes[name].resume()
            yield self._processes[name]
            self._processes[name].pause()

    @contextmanager
    def _may_fail(self, name: str) -> Iterator[None]:
        """Remove a contender that fails from the comparison, and keep the reason."""
        try:
            yield
        except ContenderFailed as failure:
            self._notify(str(failure))
            self._entries[name] = replace(self._entries[name], failure=str(failure))
            self._processes.pop(name, None)


def _checked(entry: Entry, found: NDArray[np.float64], reference: NDArray[np.float64]) -> Entry:
    if found.shape != reference.shape:
        sentence = f"its vectors are {found.shape[1]} long, the model's {reference.shape[1]}"
        return replace(entry, failure=sentence)
    cosines = np.sum(found * reference, axis=1)
    return replace(entry, cosine_min=float(cosines.min()), cosine_mean=float(cosines.mean()))


def _unit(rows: Sequence[Sequence[float]]) -> NDArray[np.float64]:
    vectors = np.asarray(rows, np.float64)
    unit: NDArray[np.float64] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def print_comparison(comparison: Comparison) -> None:
    """Print the contenders, then texts a second by texts a call for each kind of texts."""
    columns = ("", "precision", "cosine to fp32, worst", "load s", "memory MiB", "with")
    rows = [(entry.name, *_cells(entry)) for entry in comparison.entries]
    print(f"\n{comparison.level}: {comparison.model}")
    output.print_table(columns, rows)
    for kind in comparison.tokens:
        _print_figures(comparison, kind)


def _cells(entry: Entry) -> tuple[str, ...]:
    if entry.failure:
        return ("failed", "", "", "", entry.failure)
    cosine = "" if entry.cosine_min is None else f"{entry.cosine_min:.5f}"
    versions = ", ".join(f"{name} {version}" for name, version in entry.versions.items())
    settings = f"{entry.settings}, {entry.threads} threads; {versions}"
    load, rss = f"{entry.load_seconds:.1f}", f"{entry.rss / (1 << 20):.0f}"
    return (entry.precision, cosine, load, rss, settings)


def _print_figures(comparison: Comparison, texts: str) -> None:
    """Print the table of texts a second by texts a call, with ratios to op-dbus."""
    batches = sorted(
        {each.batch for each in comparison.figures if each.texts == texts and not each.whole}
    )
    print(f"\n{texts} texts of {comparison.tokens[texts]:.0f} tokens, texts/s by texts a call")
    rows = []
    ratios = {ratio.contender: ratio for ratio in comparison.ratios() if ratio.texts == texts}
    for entry in comparison.entries:
        rates = comparison.of(entry.name, texts, whole=False)
        found = [*(rates.get(batch, 0.0) for batch in batches), comparison.best(entry.name, texts)]
        ratio = ratios.get(entry.name)
        cells = [f"{rate:,.0f}" if rate else "-" for rate in found]
        rows.append((entry.name, *cells, f"{ratio.best:.2f}x" if ratio else ""))
    output.print_table(("", *map(str, batches), "best", "op-dbus is"), rows)


def compare_levels(
    levels: Sequence[str],
    plan: Plan,
    settings: config.Config,
    venvs: Path,
    notify: Notify,
) -> PeerReport:
    """Compare the levels whose models run on a provider; raises InvalidArgs and ModelError."""
    comparisons = []
    with TemporaryDirectory(prefix="op-dbus-bench-") as scratch:
        for level in find_levels(levels, settings):
            if level in ON_PROVIDERS:
                model = folder.load_model(LEVELS[level], settings)
                place = Workspace(venvs, Path(scratch), os.environ)
                subject = Subject(level, model.name, model.folder)
                comparisons.append(compare(CONTENDERS, subject, plan, place, notify))
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    return PeerReport(today, __version__, machine.describe(), tuple(comparisons))


def main() -> None:
    """Compare, print the tables, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venvs", type=Path, default=Path(".peers"), help="[.peers]")
    parser.add_argument("--level", dest="levels", action="append", default=[], help="only this")
    parser.add_argument("--texts", type=int, default=256, help="of each kind [256]")
    parser.add_argument("--rounds", type=int, default=3, help="the median counts [3]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report")
    parser.add_argument("--chart", type=Path, metavar="FOLDER", help="draw SVG and PNG")
    given = parser.parse_args()
    plan = Plan(texts.kinds(given.texts), (1, 8, 32, 64, 256), given.rounds)
    notify = partial(print, file=sys.stderr, flush=True)
    settings = config.load(os.environ)
    report = compare_levels(given.levels, plan, settings, given.venvs.absolute(), notify)
    if given.json:
        given.json.write_text(report.to_json(), "utf-8")
    print(report.headline)
    for comparison in report.comparisons:
        print_comparison(comparison)
    if given.chart:
        from peer_chart import draw

        for comparison in report.comparisons:
            print(*draw(report, comparison.level, given.chart), sep="\n")


if __name__ == "__main__":
    main()
