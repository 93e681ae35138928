"""Child process of the accuracy gate, which measures the grades of precisions.

Speed is measured as an engine is used, with the scheduler, lanes and batches that it serves with.
Engines are opened one after the other, so that memory holds one model at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.batching import Rank
from opdbus.engine.check_set import CheckSet, interval
from opdbus.engine.gate import FULL, LIBRARIES, STEADY, TEXT_TOKENS, TIE, Grade, Report, choose
from opdbus.engine.host import versions
from opdbus.engine.opening import make_scheduler
from opdbus.engine.proof import Probe, prove
from opdbus.engine.provider import Placement, Provider
from opdbus.engine.provider_chain import ProvenSessions
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.scheduler import Scheduler
from opdbus.engine.sessions import open_session
from opdbus.engine.tokenizer import Tokenizer, Tokens
from opdbus.errors import OpDbusError, ProviderError
from opdbus.models import child, files
from opdbus.platform import gc_tuning

# Limits of what a precision may lose against fp32 on the check set: cosines, and the low end of the
# 95% interval of the change in mean reciprocal rank.
MEAN_COSINE: Final = 0.99
LEAST_COSINE: Final = 0.95
LOST_RANK: Final = 0.01
# Tokens of the timed texts, as objects have.
_LENGTHS: Final = tuple(TEXT_TOKENS + offset for offset in (-24, 0, 24))
# Tokens of each length on each lane.
_LANE_TOKENS: Final = 512
# Runs of an engine that are compared, and the most that are made until so many agree.
_RUNS: Final = 5
_MOST_RUNS: Final = 30
# In the folder of graphs.
LOCK: Final = ".grading.lock"


class Place(NamedTuple):
    """A provider and the precision to grade on it."""

    provider: Provider
    precision: str


class Grader:
    """Grader of precisions against a reference, the first fp32 that opens."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._probe = Probe.read(Path(request["proof"]))
        tokenizer = Tokenizer(Path(request["tokenizer"]), request["max_tokens"])
        self._check_set = CheckSet.read(tokenizer)
        places = [
            Place(PROVIDERS[provider], precision)
            for provider, graphs in request["graphs"].items()
            for precision in graphs
        ]
        self._places = sorted(places, key=lambda place: place.precision != FULL)
        self._timed = self._cut_texts()
        # vectors of all rows, and speed
        self._exact: NDArray[np.float32] | None = None
        self._rate = 0.0

    async def report(self) -> Report:
        """Grade every precision; raises ProviderError if fp32 itself cannot run."""
        grades: list[Grade] = []
        for place in self._places:
            grade = Grade(provider=place.provider.name, precision=place.precision)
            if place.precision != FULL and self._exact is None:
                raise ProviderError("; ".join(each.refused for each in grades))
            try:
                async with self._open(place) as engine:
                    grades.append(await self._grade(grade, engine))
            except OpDbusError as error:
                grades.append(replace(grade, refused=str(error)))
            gc_tuning.trim()
        best = choose(grades)
        where = best.provider, self._request["hardware"], versions(LIBRARIES)
        return Report(*where, grades, best.precision, time.time())

    async def _grade(self, grade: Grade, engine: Scheduler) -> Grade:
        """Measure the speed, then the quality on the questions, and on the pairs if undecided."""
        seconds, spread = await self._time(engine)
        tokens = sum(int(rows.lengths.sum()) for rows in self._timed)
        rate = tokens / TEXT_TOKENS / seconds
        grade = replace(grade, texts_per_second=round(rate, 1), spread=round(spread, 3))
        rows, sample = self._check_set.rows, self._check_set.sample
        is_reference = self._exact is None
        if self._exact is None:
            self._exact, self._rate = await engine.embed(rows, Rank.BULK), rate
        vectors = await engine.embed(rows.take(range(sample)), Rank.BULK)
        found = compare_vectors(grade, self._check_set, vectors, self._exact)
        if is_undecided(found):
            pairs = await engine.embed(rows.take(range(sample, len(rows))), Rank.BULK)
            vectors = np.concatenate([vectors, pairs])
            found = compare_vectors(grade, self._check_set, vectors, self._exact)
        if found.refused or is_reference:
            return found
        return replace(found, refused=too_slow(rate / self._rate))

    async def _time(self, engine: Scheduler) -> tuple[float, float]:
        """Return the seconds of the fastest run and the spread, once runs agree.

        Where each lane has one thread, that is CPU time, which other processes do not change.
        Threads that share a batch wait for each other, and are timed by the clock.
        """
        threads = self._request["threads"]
        is_single = self._places[0].provider.is_cpu and engine.lanes == threads
        clock = time.process_time if is_single else time.perf_counter
        runs: list[float] = []
        while True:
            began = clock()
            for rows in self._timed:
                await engine.embed(rows, Rank.BULK)
            runs.append((clock() - began) / (threads if is_single else 1))
            if found := compare_runs(runs):
                return found

    def _cut_texts(self) -> list[Tokens]:
        """Cut texts of each length out of the check set's."""
        lanes = self._places[0].provider.lanes(self._request["threads"])
        ids = self._check_set.rows.ids
        found = []
        for length in _LENGTHS:
            number = max(1, lanes * _LANE_TOKENS // length)
            cut = np.full(number, min(length, self._request["max_tokens"]))
            first = np.arange(number) * cut[0] % (len(ids) - cut[0])
            found.append(Tokens(ids, first, cut, np.zeros(number, np.bool_)))
        return found

    @asynccontextmanager
    async def _open(self, place: Place) -> AsyncIterator[Scheduler]:
        """Open and prove an engine; raises OpDbusError."""
        request, provider = self._request, place.provider
        graph = Path(request["graphs"][provider.name][place.precision])
        placement = Placement(
            device=request["device"],
            precision=place.precision,
            threads=request["threads"],
            lanes=provider.lanes(request["threads"]),
            cache=graph.parent.parent,
            longest=request["max_tokens"],
        )
        session = open_session(graph, provider, placement)
        proof = prove(session, provider, place.precision, self._probe)
        proven = ProvenSessions((session,), provider, "", proof, (), placement, 0)
        dimension = self._probe.vectors.shape[1]
        async with make_scheduler(proven, dimension, request["batch_tokens"]) as engine:
            # before any timing: some runtimes compile code for each new shape
            for rows in self._timed:
                await engine.embed(rows, Rank.BULK)
            yield engine


def compare_runs(runs: Sequence[float]) -> tuple[float, float] | None:
    """Return the seconds of the fastest run, and the share by which the middle one is slower.

    Only the latest _RUNS count. Return None if there should be more of them.
    """
    latest = runs[-_RUNS:]
    spread = median(latest) / min(latest) - 1
    is_enough = spread <= STEADY or len(runs) >= _MOST_RUNS
    return (min(latest), spread) if len(runs) >= _RUNS and is_enough else None


def compare_vectors(
    grade: Grade, check_set: CheckSet, vectors: NDArray[np.float32], exact: NDArray[np.float32]
) -> Grade:
    """Return the grade with its vectors compared to the reference's, and a refusal if they lose."""
    exact = exact[: len(vectors)]
    cosines = (vectors * exact).sum(axis=1)
    ranks = check_set.ranks(vectors)
    moved, low, high = interval(ranks - check_set.ranks(exact))
    found = replace(
        grade,
        mean_cosine=round(float(cosines.mean()), 5),
        min_cosine=round(float(cosines.min()), 5),
        rank=round(float(ranks.mean()), 4),
        rank_change=round(moved, 5),
        change_low=round(low, 5),
        change_high=round(high, 5),
        questions=len(ranks),
    )
    is_last = len(vectors) == len(check_set.rows)
    return replace(found, refused=describe_loss(found, is_last=is_last))


def describe_loss(grade: Grade, *, is_last: bool) -> str:
    """Return the reason to refuse a precision, or ""; `is_last`: there are no more questions."""
    mean, least = grade.mean_cosine, grade.min_cosine
    if mean < MEAN_COSINE or least < LEAST_COSINE:
        return f"its cosine to fp32 is {mean:.4f} on average and {least:.4f} at least"
    worst, best = 100 * grade.change_low, 100 * grade.change_high
    if grade.change_high < -LOST_RANK or (is_last and grade.change_low < -LOST_RANK):
        return (
            f"its mean reciprocal rank is {worst:+.2f} to {best:+.2f} points from fp32's,"
            f" and {100 * LOST_RANK:g} is the most that it may lose"
        )
    return ""


def is_undecided(grade: Grade) -> bool:
    """Return true if the questions were too few to decide on the loss."""
    return not grade.refused and grade.change_low < -LOST_RANK


def too_slow(ratio: float) -> str:
    """Return the reason to refuse a precision that is faster than fp32 by less than TIE, or ""."""
    return "" if ratio >= TIE else f"it is only {ratio:.3f} times as fast as fp32"


def grade_precisions(request: dict[str, Any]) -> str:
    """Grade every precision of a request and return the report as JSON; raises ProviderError."""
    # an engine may be serving meanwhile
    child.go_second()
    graphs = Path(request["proof"]).parents[1]
    # side by side, each of two gradings would measure less than there is
    with files.locked(graphs / LOCK):
        return asyncio.run(Grader(request).report()).json()


if __name__ == "__main__":
    child.answer(grade_precisions)
