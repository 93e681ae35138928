"""Child process of the accuracy gate, which measures the grades of precisions.

Speed is measured as an engine is used, with the scheduler, lanes and batches that it serves with,
and of two engines in turns. Memory holds two models at a time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.batching import Rank
from opdbus.engine.check_set import CheckSet, interval
from opdbus.engine.gate import FULL, LIBRARIES, TEXT_TOKENS, Grade, Report
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

# Least speed relative to the reference that makes a precision worth its errors.
GAIN: Final = 1.1
# Speeds are equal if their ratio is surely smaller.
TIE: Final = 1.05
# Limits of what a precision may lose against the reference on the check set: cosines, and the low
# end of the 95% interval of the change in mean reciprocal rank.
MEAN_COSINE: Final = 0.99
LEAST_COSINE: Final = 0.95
LOST_RANK: Final = 0.01
# Tokens of the timed texts, as objects have; a turn has one length, as the index embeds them.
_LENGTHS: Final = tuple(TEXT_TOKENS + offset for offset in (-24, -12, -4, 4, 12, 24))
# Tokens of a turn on each lane.
_TURN_TOKENS: Final = 512
# In the folder of graphs.
LOCK: Final = ".grading.lock"
# Turns that compare an engine with the reference, and the most that compare two fast engines.
_TURNS: Final = len(_LENGTHS)
_MOST_TURNS: Final = 10 * _TURNS
# Student's t for 95% and five degrees of freedom; it is smaller for more turns.
_T: Final = 2.571


class Place(NamedTuple):
    """A provider and the precision to grade on it."""

    provider: Provider
    precision: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """Logarithm of the ratio of two speeds, and half the width of its 95% interval."""

    log: float
    margin: float

    @classmethod
    def of(cls, logs: Sequence[float]) -> Self:
        """Return the mean of the logarithms of at least six ratios."""
        return cls(float(np.mean(logs)), float(_T * np.std(logs, ddof=1) / math.sqrt(len(logs))))

    @property
    def value(self) -> float:
        """The ratio itself."""
        return math.exp(self.log)

    @property
    def is_tie(self) -> bool:
        """True if the speeds are equal."""
        return abs(self.log) + self.margin < math.log(TIE)

    @property
    def is_decided(self) -> bool:
        """True if it is certain which speed is higher."""
        return abs(self.log) > self.margin and not self.is_tie


class Grader:
    """Grader of precisions against a reference, the first fp32 that opens."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._probe = Probe.read(Path(request["proof"]))
        tokenizer = Tokenizer(Path(request["tokenizer"]), request["max_tokens"])
        self._check_set = CheckSet.read(tokenizer)
        self._places = [
            Place(PROVIDERS[provider], precision)
            for provider, graphs in request["graphs"].items()
            for precision in graphs
        ]
        self._reference = self._places[0]
        self._grades: dict[Place, Grade] = {}
        # vectors of the questions and their texts
        self._answers: dict[Place, NDArray[np.float32]] = {}

    async def report(self) -> Report:
        """Grade every precision; raises ProviderError if fp32 itself cannot run."""
        async with AsyncExitStack() as stack:
            reference = await self._open_reference(stack)
            rate = await self._rate(reference)
            for place in self._places:
                self._grades[place] = await self._first_look(place, reference, rate)
        best, is_certain = await self._choose()
        why = f"{best.precision} on {best.provider.name} is faster, and passed"
        grades = self._grades.values()
        found = [replace(g, refused=why) if is_undecided(g) else g for g in grades]
        where = best.provider.name, self._request["hardware"], versions(LIBRARIES)
        return Report(*where, found, best.precision, time.time(), is_certain=is_certain)

    async def _open_reference(self, stack: AsyncExitStack) -> Scheduler:
        reasons = []
        for place in self._places:
            if place.precision == FULL:
                try:
                    engine = await stack.enter_async_context(self._open(place))
                    self._answers[place] = await self._embed_questions(engine)
                except OpDbusError as error:
                    reasons.append(str(error))
                else:
                    self._reference = place
                    return engine
        raise ProviderError("; ".join(reasons))

    async def _first_look(self, place: Place, reference: Scheduler, rate: float) -> Grade:
        """Measure the speed, and the quality on the questions."""
        grade = Grade(provider=place.provider.name, precision=place.precision)
        is_reference = place == self._reference
        try:
            async with AsyncExitStack() as stack:
                engine = reference
                if not is_reference:
                    engine = await stack.enter_async_context(self._open(place))
                    self._answers[place] = await self._embed_questions(engine)
                ratio = await self._race(engine, reference, _TURNS)
        except OpDbusError as error:
            return replace(grade, refused=str(error))
        exact = self._answers[self._reference]
        found = compare_vectors(
            add_rate(grade, rate, ratio), self._check_set, self._answers[place], exact
        )
        if found.refused or is_reference:
            return found
        return replace(found, refused=too_slow(ratio.value))

    async def _choose(self) -> tuple[Place, bool]:
        """Return the fastest precision that passes, and whether it certainly is.

        If speeds cannot be told apart after the first look, two engines run in turns. Of equally
        fast ones, the one with the smaller error is taken.
        """
        passed: list[Place] = []
        for place in sorted(self._places, key=lambda each: -self._grades[each].texts_per_second):
            grade = self._grades[place]
            if grade.refused or (passed and is_slower(grade, self._grades[passed[0]])):
                continue
            if is_undecided(grade):
                grade = self._grades[place] = await self._second_look(place, grade)
            if not grade.refused:
                passed.append(place)
        best, is_certain = passed[0], True
        for place in passed[1:]:
            async with self._open(best) as engine, self._open(place) as other:
                ratio = await self._race(other, engine, _MOST_TURNS)
            grade = add_rate(self._grades[place], self._grades[best].texts_per_second, ratio)
            self._grades[place] = grade
            is_certain = is_certain and (ratio.is_decided or ratio.is_tie)
            is_better = grade.mean_cosine > self._grades[best].mean_cosine
            if ratio.log > 0 if ratio.is_decided else is_better:
                best = place
        return best, is_certain

    async def _second_look(self, place: Place, grade: Grade) -> Grade:
        """Grade with the pairs as well, which takes longer."""
        rows = self._check_set.rows
        pairs = rows.take(range(self._check_set.sample, len(rows)))
        try:
            for each in (self._reference, place):
                if len(self._answers[each]) < len(rows):
                    async with self._open(each) as engine:
                        more = await engine.embed(pairs, Rank.BULK)
                    self._answers[each] = np.concatenate([self._answers[each], more])
        except OpDbusError as error:
            return replace(grade, refused=str(error))
        exact = self._answers[self._reference]
        return compare_vectors(grade, self._check_set, self._answers[place], exact)

    async def _race(self, engine: Scheduler, other: Scheduler, most: int) -> Ratio:
        """Return the speed relative to another engine's, from turns of both until it is certain."""
        logs: list[float] = []
        for rows in islice(cycle(self._timed), most):
            # the first of a turn may be at a disadvantage
            pair, sign = ((engine, other), 1) if len(logs) % 2 else ((other, engine), -1)
            seconds = [await self._time(each, rows) for each in pair]
            logs.append(sign * math.log(seconds[1] / seconds[0]))
            if len(logs) % _TURNS == 0 and ((ratio := Ratio.of(logs)).is_decided or ratio.is_tie):
                break
        return Ratio.of(logs)

    async def _rate(self, engine: Scheduler) -> float:
        """Return the texts per second of an engine."""
        seconds = sum([await self._time(engine, rows) for rows in self._timed])
        return sum(int(rows.lengths.sum()) for rows in self._timed) / TEXT_TOKENS / seconds

    async def _time(self, engine: Scheduler, rows: Tokens) -> float:
        """Return the seconds in which an engine embeds rows.

        Where each lane has one thread, that is CPU time, which other processes do not change.
        Threads that share a batch wait for each other, and are timed by the clock.
        """
        threads = self._request["threads"]
        is_single = self._reference.provider.is_cpu and engine.lanes == threads
        clock = time.process_time if is_single else time.perf_counter
        began = clock()
        await engine.embed(rows, Rank.BULK)
        return (clock() - began) / (threads if is_single else 1)

    async def _embed_questions(self, engine: Scheduler) -> NDArray[np.float32]:
        rows = self._check_set.rows.take(range(self._check_set.sample))
        return await engine.embed(rows, Rank.BULK)

    @cached_property
    def _timed(self) -> list[Tokens]:
        """Texts for a turn of each length, cut out of the check set's."""
        lanes = self._reference.provider.lanes(self._request["threads"])
        ids = self._check_set.rows.ids
        turns = []
        for length in _LENGTHS:
            number = max(1, lanes * _TURN_TOKENS // length)
            cut = np.full(number, min(length, self._request["max_tokens"]))
            first = np.arange(number) * cut[0] % (len(ids) - cut[0])
            turns.append(Tokens(ids, first, cut, np.zeros(number, np.bool_)))
        return turns

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


def compare_vectors(
    grade: Grade, check_set: CheckSet, vectors: NDArray[np.float32], exact: NDArray[np.float32]
) -> Grade:
    """Return the grade with its vectors compared to the reference's, and a refusal if they lose."""
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
    """Return the reason to refuse a precision whose gain is too small, or ""."""
    return "" if ratio >= GAIN else f"it is only {ratio:.3f} times as fast as fp32"


def add_rate(grade: Grade, rate: float, ratio: Ratio) -> Grade:
    """Return the grade with a speed, from another engine's and the ratio to it."""
    return replace(
        grade,
        texts_per_second=round(rate * ratio.value, 1),
        rate_margin=round(rate * ratio.value * math.sinh(ratio.margin), 1),
    )


def is_slower(grade: Grade, other: Grade) -> bool:
    """Return true if a precision is slower than another for certain."""
    fastest = grade.texts_per_second + grade.rate_margin
    return fastest < other.texts_per_second - other.rate_margin


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
