"""Comparison of all contenders on the same texts in one run, taking turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.bench.contenders import REFERENCE, TORCH
from opdbus.bench.process import ContenderFailed, Process, export
from opdbus.bench.report import Comparison, Entry, Figure
from opdbus.engine import cpus
from opdbus.engine.tokenizer import Tokenizer
from opdbus.models.formats import TOKENIZER

if TYPE_CHECKING:
    from opdbus.bench.contenders import Contender
    from opdbus.bench.measures import Notify, Subject
    from opdbus.bench.process import Workspace


# Texts of each kind whose vectors are compared with the reference's, and the batch size.
_CHECKED: Final = 32
_CHECKED_BATCH: Final = 8
# Large enough that no text is cut when its tokens are counted.
_MAX_TOKENS: Final = 512


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
