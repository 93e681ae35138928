"""Measurement of the engine in a child process, so that its memory is counted alone."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TextIO

from opdbus import api
from opdbus.bench import ceiling, measures, texts
from opdbus.bench.decode import decode
from opdbus.bench.figures import Arithmetic, EngineFigures, Threads
from opdbus.bench.measures import Effort, Notify, Subject, Texts
from opdbus.bench.peers.child import die_with_parent, own_stdout, rss
from opdbus.bench.process import Child
from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import OpDbusError
from opdbus.models import formats
from opdbus.models.catalogue import LEVELS

# Numbers of threads that the engine's own choice is compared with on one processor.
_BY_HAND: Final = (1, 2, 4)
# Number of different texts: enough that calls differ, and few enough to make in a second.
_DIFFERENT: Final = 2000


@dataclass(frozen=True, slots=True)
class Task:
    """A measurement task: a model, its provider, and the effort."""

    subject: Subject
    # folder of graphs and the gate's report
    scratch: Path
    effort: Effort
    provider: str = "cpu"
    precision: str = "auto"
    # true: measure only the thread comparison, on one processor
    one_cpu: bool = False

    def nothing(self, failure: str = "") -> EngineFigures:
        """Return figures without measurements."""
        subject = self.subject
        return EngineFigures(
            subject.level, subject.name, subject.random, self.provider, failure=failure
        )

    def to_json(self) -> str:
        """Return the task as JSON for the child."""
        return json.dumps(asdict(self), default=str)


def figures(task: Task, notify: Notify) -> EngineFigures:
    """Measure in child processes, which are killed at the end in any case.

    A failure is part of the figures.
    """
    found = _child(task, notify)
    is_wanted = task.effort.one_cpu and task.provider == "cpu"
    if found.failure or not is_wanted or not hasattr(os, "sched_setaffinity"):
        return found
    alone = _child(replace(task, one_cpu=True), notify)
    return replace(found, one_cpu=alone.one_cpu, failure=alone.failure)


def _child(task: Task, notify: Notify) -> EngineFigures:
    command = [sys.executable, "-P", "-m", __spec__.name, task.to_json()]
    with Child(command) as child:
        while message := child.read():
            if "doing" not in message:
                return decode(EngineFigures, message)
            notify(f"{task.subject.level} on {task.provider}: {message['doing']}")
        return task.nothing(child.last_words())


# functions for the child process


def measure(task: Task, notify: Notify) -> EngineFigures:
    """Run all measurements; raises ModelError and ProviderError."""
    some, effort, shape = _texts(task), task.effort, arithmetic(task.subject.folder)
    if task.one_cpu:
        return replace(task.nothing(), one_cpu=_on_one(task, some, notify))
    notify("loading")
    began = time.perf_counter()
    with _embedder(task) as embedder:
        seconds = time.perf_counter() - began
        found = replace(_described(task, embedder, some), load_seconds=seconds, rss=rss())
        notify("single texts")
        latencies = tuple(measures.latencies(embedder, some, effort))
        notify("batches")
        rates = tuple(measures.rates(embedder, some, effort, shape))
        notify("streams")
        streams = tuple(measures.streams(embedder, some, effort))
    if not shape.layers:
        return replace(found, latencies=latencies, rates=rates, streams=streams)
    notify("the device's ceiling")
    with tempfile.TemporaryDirectory(dir=task.scratch) as scratch:
        only = "" if effort.all_precisions else found.precision
        ways = (Path(scratch), effort.rows, effort.seconds)
        ceilings = tuple(ceiling.ceilings(found.provider, shape, *ways, only))
    return replace(found, latencies=latencies, rates=rates, streams=streams, ceilings=ceilings)


def _described(task: Task, embedder: api.Embedder, some: Texts) -> EngineFigures:
    report = embedder.engine.proven.report
    return replace(
        task.nothing(),
        provider=embedder.provider,
        hardware=embedder.device,
        precision=embedder.precision,
        tokens={kind: round(fmean(lengths), 1) for kind, lengths in some.lengths.items()},
        gate=asdict(report) if report else None,
    )


def _on_one(task: Task, some: Texts, notify: Notify) -> Threads:
    """Compare the engine's own choice of threads with others in turns, on one processor."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    effort = replace(task.effort, batches=())
    seconds: dict[str, list[float]] = {}
    calls = [list(kind[: effort.texts]) for kind in some.kinds.values()]
    for turn in range(effort.rounds):
        notify(f"one processor, round {turn + 1} of {effort.rounds}")
        for threads in ("auto", *map(str, _BY_HAND)):
            # one engine at a time: another engine's threads may spin
            with _embedder(task, threads) as embedder:
                embedder.embed(calls[0])
                seconds.setdefault(threads, []).append(measures.timed(embedder, calls))
    count = sum(map(len, calls))
    # the best turn, in which other programs took the least time
    return Threads({threads: count / min(found) for threads, found in seconds.items()})


def _embedder(task: Task, threads: str = "auto") -> api.Embedder:
    return api.Embedder(
        task.subject.level,
        task.provider,
        precision=task.precision,
        model=task.subject.folder,
        state_dir=task.scratch,
        threads=threads,
    )


def _texts(task: Task) -> Texts:
    subject = task.subject
    tokenizer = Tokenizer(subject.folder / formats.TOKENIZER, LEVELS[subject.level].max_tokens)
    count = max(task.effort.texts, min(_DIFFERENT, max(task.effort.streams, default=0)))
    kinds = texts.kinds(count)
    lengths = {kind: tokenizer.encode(some).lengths.tolist() for kind, some in kinds.items()}
    return Texts(kinds, lengths)


def arithmetic(folder: Path) -> Arithmetic:
    """Read the numbers of a model's arithmetic; a static table has no layers."""
    if (folder / formats.ROWS).is_file():
        return Arithmetic(0, 0, 0)
    config: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    keys = ("num_hidden_layers", "hidden_size", "intermediate_size")
    return Arithmetic(*(config[key] for key in keys))


def main(arguments: list[str]) -> None:
    """Run as the child: the argument is a task, the output JSON lines of progress, then figures."""
    die_with_parent()
    replies: TextIO = own_stdout()

    def say(message: Mapping[str, Any]) -> None:
        print(json.dumps(message), file=replies, flush=True)

    (text,) = arguments
    try:
        say(asdict(measure(decode(Task, json.loads(text)), lambda doing: say({"doing": doing}))))
    except (OpDbusError, OSError) as error:
        # a single line, since the parent passes on the last one
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    main(sys.argv[1:])
