"""Measures the grades of a provider's precisions: the child process of the accuracy gate."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.batching import plan
from opdbus.engine.gate import CHECK_SET, FULL, Grade, Report, choose, libraries
from opdbus.engine.proof import Probe, prove
from opdbus.engine.provider import Provider
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.runtimes import open_session
from opdbus.engine.session import Placement, Session
from opdbus.engine.tokenizer import Tokenizer, Tokens
from opdbus.errors import OpDbusError, ProviderError
from opdbus.models import child

# What a faster precision may lose against fp32 on the check set.
MEAN_COSINE: Final = 0.99
LEAST_COSINE: Final = 0.95
LOST_RANK: Final = 0.005
_BATCH_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class CheckSet:
    """The tokenized texts, questions last, and the number of the right text for each question."""

    rows: Sequence[Tokens]
    texts: int
    wanted: NDArray[np.intp]

    @classmethod
    def read(cls, tokenizer: Tokenizer) -> CheckSet:
        """Tokenize the check set that comes with the package."""
        content = json.loads(CHECK_SET.read_text(encoding="utf-8"))
        texts, questions = content["texts"], content["questions"]
        rows = tokenizer.encode([*texts, *(question for question, _ in questions)])
        return cls(rows, len(texts), np.array([number for _, number in questions], np.intp))

    def rank(self, vectors: NDArray[np.float32]) -> float:
        """Give the mean reciprocal rank of the right texts."""
        texts, questions = vectors[: self.texts], vectors[self.texts :]
        scores = questions @ texts.T
        right = scores[np.arange(len(scores)), self.wanted]
        ranks = (scores > right[:, None]).sum(axis=1) + 1
        return float((1.0 / ranks).mean())


def measure(request: dict[str, Any]) -> str:
    """Grade every precision, batches of one beside those of the others: hosts are noisy.

    Gives a report as JSON; raises ProviderError if fp32 itself cannot be had.
    """
    provider = PROVIDERS[request["provider"]]
    check_set = CheckSet.read(Tokenizer(Path(request["tokenizer"]), request["max_tokens"]))
    sessions, refused = _opened(request, provider)
    if FULL not in sessions:
        raise ProviderError(refused[FULL])
    vectors, seconds = _run(sessions, check_set, provider)
    exact = vectors[FULL], check_set.rank(vectors[FULL])
    grades = [
        grade(precision, found, exact, check_set, len(check_set.rows) / seconds[precision])
        for precision, found in vectors.items()
    ]
    grades += [Grade(precision, 0.0, 0.0, 0.0, 0.0, why) for precision, why in refused.items()]
    where = request["provider"], request["hardware"]
    return Report(*where, libraries(), grades, choose(grades), time.time()).json()


def _opened(
    request: Mapping[str, Any], provider: Provider
) -> tuple[dict[str, Session], dict[str, str]]:
    """Open and prove a session for each precision, or give the reason why it is refused."""
    probe = Probe.read(Path(request["proof"]))
    sessions: dict[str, Session] = {}
    refused: dict[str, str] = {}
    for precision, graph in request["graphs"].items():
        placement = Placement(
            device=request["device"],
            precision=precision,
            cache=Path(graph).parent.parent,
            longest=request["max_tokens"],
        )
        try:
            session = open_session(Path(graph), provider, placement)
            prove(session, provider, precision, probe)
            sessions[precision] = session
        except OpDbusError as error:
            refused[precision] = str(error)
    return sessions, refused


def _run(
    sessions: Mapping[str, Session], check_set: CheckSet, provider: Provider
) -> tuple[dict[str, NDArray[np.float32]], dict[str, float]]:
    """Give each precision's vectors, and the seconds that computing them once takes."""
    # CPU time where the CPU computes: other processes may use it meanwhile
    clock = time.process_time if provider.is_cpu else time.perf_counter
    found: dict[str, dict[int, NDArray[np.float32]]] = {name: {} for name in sessions}
    seconds = dict.fromkeys(sessions, 0.0)
    for is_timed in (False, True):
        for batch in plan([len(row) for row in check_set.rows], _BATCH_TOKENS):
            ids = np.stack([check_set.rows[number].ids for number in batch])
            for name, session in sessions.items():
                began = clock()
                parts = ids[:, np.newaxis] if name in provider.single else [ids]
                vectors = np.concatenate([session.run(part) for part in parts])
                # the first pass is not timed: some runtimes make code for each new shape
                seconds[name] += is_timed * (clock() - began)
                found[name].update(zip(batch, vectors, strict=True))
    order = range(len(check_set.rows))
    return {name: np.stack([rows[n] for n in order]) for name, rows in found.items()}, seconds


def grade(
    precision: str,
    vectors: NDArray[np.float32],
    exact: tuple[NDArray[np.float32], float],
    check_set: CheckSet,
    rate: float,
) -> Grade:
    """Hold one precision's vectors against fp32's vectors and rank."""
    cosines = (vectors * exact[0]).sum(axis=1)
    mean, least, rank = float(cosines.mean()), float(cosines.min()), check_set.rank(vectors)
    refused = ""
    if mean < MEAN_COSINE or least < LEAST_COSINE:
        refused = f"its cosine to fp32 is {mean:.4f} on average and {least:.4f} at least"
    elif exact[1] - rank > LOST_RANK:
        refused = f"it loses {100 * (exact[1] - rank):.2f} points of mean reciprocal rank"
    figures = round(mean, 5), round(least, 5), round(rank, 4), round(rate, 1)
    return Grade(precision, *figures, refused)


if __name__ == "__main__":
    child.answer(measure)
