"""Child process of the accuracy gate, which measures the grades of precisions.

Each precision is opened alone beside the reference, so that memory holds two models at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.engine import cpus
from opdbus.engine.batching import plan_batches
from opdbus.engine.check_set import CheckSet, interval
from opdbus.engine.gate import FULL, LIBRARIES, Grade, Report, choose
from opdbus.engine.host import versions
from opdbus.engine.proof import Probe, prove
from opdbus.engine.provider import Placement, Provider, Session
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.sessions import open_session
from opdbus.engine.tokenizer import Tokenizer, Tokens
from opdbus.errors import OpDbusError, ProviderError
from opdbus.models import child

# Least speed relative to the reference that makes a precision worth its errors.
GAIN: Final = 1.1
# Limits of what a precision may lose against the reference on the check set: cosines, and the low
# end of the 95% interval of the change in mean reciprocal rank.
MEAN_COSINE: Final = 0.99
LEAST_COSINE: Final = 0.95
LOST_RANK: Final = 0.01
_BATCH_TOKENS: Final = 512
# Every second batch is timed, in `_ROUNDS` rounds with batches of all lengths. Lengths come one
# after another, as when serving, because some runtimes are slow to change shape.
_TIMED: Final = 2
_ROUNDS: Final = 5
# Student's t for 95% and four degrees of freedom.
_T: Final = 2.776


class Place(NamedTuple):
    """A provider and the precision to grade on it."""

    provider: Provider
    precision: str


@dataclass(frozen=True, slots=True)
class GradedSession:
    """An open session that passed its proof."""

    place: Place
    session: Session

    def run(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embed a batch as when serving: some providers take only full batches or single texts."""
        provider = self.place.provider
        is_small = provider.whole_batches and ids.size <= _BATCH_TOKENS // 2
        is_single = is_small or self.place.precision in provider.single
        parts = ids[:, np.newaxis] if is_single else [ids]
        return np.concatenate([self.session.run(part) for part in parts])

    def seconds(self, ids: NDArray[np.int64]) -> float:
        """Return the seconds of a batch: CPU time on a CPU, which other processes share."""
        clock = time.process_time if self.place.provider.is_cpu else time.perf_counter
        began = clock()
        self.run(ids)
        return clock() - began


class Grader:
    """Grader of precisions against a reference session, which stays open."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        self._probe = Probe.read(Path(request["proof"]))
        tokenizer = Tokenizer(Path(request["tokenizer"]), request["max_tokens"])
        self._check_set = CheckSet.read(tokenizer)
        # vectors of the first look, reused by the second
        self._seen: dict[Place, NDArray[np.float32]] = {}
        self._places = [
            Place(PROVIDERS[provider], precision)
            for provider, graphs in request["graphs"].items()
            for precision in graphs
        ]

    @cached_property
    def _reference(self) -> GradedSession:
        """The first fp32 session that opens; raises ProviderError if there is none."""
        reasons = []
        for place in self._places:
            if place.precision == FULL:
                try:
                    return self._open(place)
                except OpDbusError as error:
                    reasons.append(str(error))
        raise ProviderError("; ".join(reasons))

    @cached_property
    def _exact(self) -> NDArray[np.float32]:
        return self._sample(self._reference)

    @cached_property
    def _all_exact(self) -> NDArray[np.float32]:
        return np.concatenate([self._exact, self._pairs(self._reference)])

    @cached_property
    def _rate(self) -> float:
        """Texts per second of the reference."""
        seconds = sum(self._reference.seconds(batch) for batch in self._timed)
        return sum(map(len, self._timed)) / seconds

    @cached_property
    def _timed(self) -> list[NDArray[np.int64]]:
        rows = self._check_set.rows.take(range(self._check_set.sample))
        return [ids for _, ids in iterate_batches(rows)][::_TIMED]

    def report(self) -> Report:
        """Grade every precision; raises ProviderError if fp32 itself cannot run."""
        grades = {place: self._first_look(place) for place in self._places}
        for place, grade in sorted(grades.items(), key=lambda item: -item[1].texts_per_second):
            if is_undecided(grade):
                grades[place] = self._second_look(place, grade)
            if not grades[place].refused:
                break
        best = choose([grade for grade in grades.values() if not is_undecided(grade)])
        why = f"{best.precision} on {best.provider} is faster, and passed"
        found = [replace(g, refused=why) if is_undecided(g) else g for g in grades.values()]
        where = best.provider, self._request["hardware"]
        return Report(*where, versions(LIBRARIES), found, best.precision, time.time())

    def _first_look(self, place: Place) -> Grade:
        """Measure the speed, and the quality on the questions."""
        # Embed before timing: some runtimes compile code for each new shape.
        exact, grade = self._exact, Grade(provider=place.provider.name, precision=place.precision)
        try:
            is_reference = place == self._reference.place
            opened = self._reference if is_reference else self._open(place)
            vectors = self._seen[place] = exact if is_reference else self._sample(opened)
            ratios = self._ratios(opened)
        except OpDbusError as error:
            return replace(grade, refused=str(error))
        found = compare_vectors(
            add_rate(grade, self._rate * ratios), self._check_set, vectors, exact
        )
        if found.refused or is_reference:
            return found
        return replace(found, refused=too_slow(float(ratios.mean())))

    def _second_look(self, place: Place, grade: Grade) -> Grade:
        """Grade with the pairs as well, which takes longer."""
        try:
            more = self._pairs(self._open(place, _lanes(place.provider)))
        except OpDbusError as error:
            return replace(grade, refused=str(error))
        vectors = np.concatenate([self._seen[place], more])
        return compare_vectors(grade, self._check_set, vectors, self._all_exact)

    def _ratios(self, opened: GradedSession) -> NDArray[np.float64]:
        """Return the speed relative to the reference in each round, measured batch by batch."""
        seconds = np.zeros((2, _ROUNDS))
        for number, ids in enumerate(self._timed):
            for side, each in enumerate((self._reference, opened)):
                seconds[side, number % _ROUNDS] += each.seconds(ids)
        return np.array(seconds[0] / seconds[1])

    def _sample(self, opened: GradedSession) -> NDArray[np.float32]:
        return self._vectors(opened, self._check_set.rows.take(range(self._check_set.sample)))

    def _pairs(self, opened: GradedSession) -> NDArray[np.float32]:
        rows = self._check_set.rows
        return self._vectors(opened, rows.take(range(self._check_set.sample, len(rows))))

    def _vectors(self, opened: GradedSession, rows: Tokens) -> NDArray[np.float32]:
        """Embed rows of the check set, in parallel on a CPU."""
        order, given = zip(*iterate_batches(rows), strict=True)
        with ThreadPoolExecutor(_lanes(opened.place.provider)) as threads:
            found = np.concatenate(list(threads.map(opened.run, given)))
        return np.array(found[np.argsort(np.concatenate(order))])

    def _open(self, place: Place, lanes: int = 1) -> GradedSession:
        """Open and prove a session; raises OpDbusError."""
        graph = Path(self._request["graphs"][place.provider.name][place.precision])
        placement = Placement(
            device=self._request["device"],
            precision=place.precision,
            threads=lanes,
            lanes=lanes,
            cache=graph.parent.parent,
            longest=self._request["max_tokens"],
        )
        session = open_session(graph, place.provider, placement)
        prove(session, place.provider, place.precision, self._probe)
        return GradedSession(place, session)


def _lanes(provider: Provider) -> int:
    return cpus.usable() if provider.is_cpu else 1


def iterate_batches(rows: Tokens) -> Iterator[tuple[NDArray[np.intp], NDArray[np.int64]]]:
    """Yield batches of rows of one length, as row indexes and as ids."""
    for numbers in plan_batches(rows.lengths, _BATCH_TOKENS):
        yield numbers, rows.stacked(numbers)


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


def add_rate(grade: Grade, rates: NDArray[np.float64]) -> Grade:
    """Return the grade with its rate and margin, from the rates of the rounds."""
    margin = _T * rates.std(ddof=1) / np.sqrt(len(rates))
    rate, margin = round(float(rates.mean()), 1), round(float(margin), 1)
    return replace(grade, texts_per_second=rate, rate_margin=margin)


def grade_precisions(request: dict[str, Any]) -> str:
    """Grade every precision of a request and return the report as JSON; raises ProviderError."""
    # an engine may be serving meanwhile
    child.go_second()
    return Grader(request).report().json()


if __name__ == "__main__":
    child.answer(grade_precisions)
