"""Measurement of the engine in a child process, so that its memory is counted alone."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from opdbus import api
from opdbus.bench import ceiling, measures, texts
from opdbus.bench.figures import Arithmetic, EngineFigures, Threads, decode
from opdbus.bench.measures import Effort, Notify, Subject, Texts
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import OpDbusError
from opdbus.models import child, level_table
from opdbus.models.level_table import LEVELS
from opdbus.platform.gc_tuning import resident_bytes

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
    # as in OP_DBUS_GPU_DEVICE
    device: str = "0"
    # true: measure only the thread comparison, on one processor
    one_cpu: bool = False

    def nothing(self, failure: str = "") -> EngineFigures:
        """Return figures without measurements."""
        subject = self.subject
        return EngineFigures(
            subject.level, subject.name, subject.random, self.provider, failure=failure
        )


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
    request = json.loads(json.dumps(asdict(task), default=str))
    try:
        with closing(child.parts(__spec__.name, **request)) as parts:
            for part in parts:
                message = json.loads(part)
                if "doing" not in message:
                    return decode(EngineFigures, message)
                notify(f"{task.subject.level} on {task.provider}: {message['doing']}")
    except child.ChildFailed as fault:
        return task.nothing(str(fault))
    return task.nothing("its process gave no figures")


# functions for the child process


def measure(task: Task) -> Iterator[str | EngineFigures]:
    """Run all measurements: yield the name of each, then the figures.

    Raises ModelError and ProviderError.
    """
    some, effort, shape = _texts(task), task.effort, arithmetic(task.subject.folder)
    if task.one_cpu:
        threads = yield from _on_one(task, some)
        yield replace(task.nothing(), one_cpu=threads)
        return
    yield "loading"
    began = time.perf_counter()
    with _embedder(task) as embedder:
        seconds = time.perf_counter() - began
        found = replace(
            _described(task, embedder, some), load_seconds=seconds, rss=resident_bytes()
        )
        yield "single texts"
        latencies = tuple(measures.latencies(embedder, some, effort))
        yield "batches"
        rates = tuple(measures.rates(embedder, some, effort, shape))
        yield "streams"
        streams = tuple(measures.streams(embedder, some, effort))
    found = replace(found, latencies=latencies, rates=rates, streams=streams)
    if not shape.layers:
        yield found
        return
    yield "the device's ceiling"
    with tempfile.TemporaryDirectory(dir=task.scratch) as scratch:
        only = "" if effort.all_precisions else found.precision
        ways = (Path(scratch), effort.rows, effort.seconds)
        (device, *_) = PROVIDERS[found.provider].require(task.device.split(","))
        ceilings = tuple(ceiling.ceilings(found.provider, shape, *ways, only, device))
    yield replace(found, ceilings=ceilings)


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


def _on_one(task: Task, some: Texts) -> Generator[str, None, Threads]:
    """Compare the engine's own choice of threads with others in turns, on one processor."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    effort = replace(task.effort, batches=())
    seconds: dict[str, list[float]] = {}
    calls = [list(kind[: effort.texts]) for kind in some.kinds.values()]
    for turn in range(effort.rounds):
        yield f"one processor, round {turn + 1} of {effort.rounds}"
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
        **({} if task.provider.startswith("cpu") else {"gpu_device": task.device}),
        model=task.subject.folder,
        state_dir=task.scratch,
        threads=threads,
    )


def _texts(task: Task) -> Texts:
    subject = task.subject
    tokenizer = Tokenizer(subject.folder / level_table.TOKENIZER, LEVELS[subject.level].max_tokens)
    count = max(task.effort.texts, min(_DIFFERENT, max(task.effort.streams, default=0)))
    kinds = texts.kinds(count)
    lengths = {kind: tokenizer.encode(some).lengths.tolist() for kind, some in kinds.items()}
    return Texts(kinds, lengths)


def arithmetic(folder: Path) -> Arithmetic:
    """Read the numbers of a model's arithmetic; a static table has no layers."""
    if (folder / level_table.TABLE_ROWS).is_file():
        return Arithmetic(0, 0, 0)
    config: Mapping[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    keys = ("num_hidden_layers", "hidden_size", "intermediate_size")
    return Arithmetic(*(config[key] for key in keys))


def _answer(request: dict[str, Any]) -> Iterator[bytes]:
    """Answer the request of `_child` with lines of progress, then the figures, as JSON."""
    task = decode(Task, request)
    try:
        for found in measure(task):
            message = {"doing": found} if isinstance(found, str) else asdict(found)
            yield json.dumps(message).encode()
    except Exception as error:  # noqa: BLE001 -- any failure is a result, which the report names
        is_named = isinstance(error, OpDbusError | OSError)
        reason = " ".join(str(error).split()) if is_named else f"{type(error).__name__}: {error}"
        yield json.dumps(asdict(task.nothing(reason))).encode()


if __name__ == "__main__":
    child.answer_in_parts(_answer)
