"""The accuracy gate: which precision is the fastest that loses nothing, measured once and kept."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import structlog

from opdbus.engine.batching import plan
from opdbus.engine.proof import Probe, prove
from opdbus.engine.providers import PROVIDERS
from opdbus.engine.runtimes import open_session
from opdbus.engine.session import Placement
from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import OpDbusError, ProviderError
from opdbus.models import child

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opdbus.engine.provider import Provider
    from opdbus.engine.session import Session
    from opdbus.engine.tokenizer import Tokens
    from opdbus.models.folder import Model

log = structlog.get_logger()

# What a faster precision may lose against fp32 on the check set.
MEAN_COSINE: Final = 0.99
LEAST_COSINE: Final = 0.95
LOST_RANK: Final = 0.005
# A less exact precision must be worth it: by this factor in texts a second.
GAIN: Final = 1.1
CHECK_SET: Final = Path(__file__).parent / "check_set.json"
FULL: Final = "fp32"
_BATCH_TOKENS: Final = 512
_LIBRARIES: Final = ("onnxruntime-gpu", "onnxruntime", "openvino")


@dataclass(frozen=True, slots=True)
class Grade:
    """What one precision showed on the check set; cosines are to fp32 on the same provider."""

    precision: str
    mean_cosine: float
    min_cosine: float
    # mean reciprocal rank of the right object, by vectors alone
    rank: float
    texts_per_second: float
    # empty for a precision that may be used
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The grades of all precisions that a provider offers here, and which of them was chosen."""

    provider: str
    hardware: str
    libraries: Mapping[str, str]
    grades: Sequence[Grade]
    chosen: str
    checked_at: float

    def json(self) -> str:
        """Give the report as it is kept."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def read(cls, text: str) -> Report:
        """Read a report; raises ValueError, TypeError or KeyError for anything else."""
        fields = dict(json.loads(text))
        grades = tuple(Grade(**grade) for grade in fields.pop("grades"))
        report = cls(grades=grades, **fields)
        if report.chosen not in {grade.precision for grade in grades if not grade.refused}:
            raise ValueError(f"it chose {report.chosen}, which did not pass")
        return report


@dataclass(frozen=True, slots=True)
class Candidate:
    """What is to be graded: a provider, and the graph of each of its precisions, fp32 included."""

    provider: str
    hardware: str
    device: int
    features: frozenset[str]
    graphs: Mapping[str, str]
    # the rows and reference vectors that fp32 itself is held against
    proof: str


async def judge(model: Model, candidate: Candidate, folder: Path) -> Report:
    """Give the report for a model on a provider, kept or measured now in a child process.

    Takes seconds the first time. Raises ProviderError if fp32 itself cannot be had.
    """
    path = folder / f"{_key(model, candidate)}.json"
    try:
        return Report.read(path.read_text())
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("gate report unreadable", path=str(path), reason=str(error))
    log.info("grading precisions", provider=candidate.provider, precisions=list(candidate.graphs))
    request = {**asdict(candidate), "features": sorted(candidate.features)}
    request |= {"tokenizer": str(model.tokenizer), "max_tokens": model.shape.max_tokens}
    fault, text = await child.ask("opdbus.engine.gate", json.dumps(request))
    if fault:
        raise ProviderError(f"{candidate.provider} could not be graded: {fault}")
    report = Report.read(text)
    try:
        await asyncio.to_thread(_keep, path, report)
    except OSError as error:
        # it costs the next start some seconds, and this one nothing
        log.warning("gate report not kept", path=str(path), reason=str(error))
    return report


def _keep(path: Path, report: Report) -> None:
    """Write a report, whole or not at all; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(report.json())
    part.replace(path)


def _key(model: Model, candidate: Candidate) -> str:
    """Name what a report depends on: weights, hardware, libraries, graphs, and the questions."""
    parts = (
        model.weights_sha256,
        model.tokenizer_sha256,
        str(model.shape.max_tokens),
        candidate.provider,
        candidate.hardware,
        *sorted(candidate.features),
        *(f"{name} {Path(graph).parent.name}" for name, graph in candidate.graphs.items()),
        *(f"{name} {found}" for name, found in libraries().items()),
        hashlib.sha256(CHECK_SET.read_bytes()).hexdigest(),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def libraries() -> dict[str, str]:
    """Give the versions of the installed runtimes."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def choose(grades: Sequence[Grade]) -> str:
    """Give the fastest precision that passed, a less exact one only where it is worth it."""
    exact, *others = sorted(grades, key=lambda grade: grade.precision != FULL)
    best = exact
    for grade in sorted(others, key=lambda grade: -grade.min_cosine):
        if not grade.refused and grade.texts_per_second > GAIN * best.texts_per_second:
            best = grade
    return best.precision


# in the child process


@dataclass(frozen=True, slots=True)
class _CheckSet:
    """The tokenized texts, questions last, and the number of the right text for each question."""

    rows: Sequence[Tokens]
    texts: int
    wanted: NDArray[np.intp]

    @classmethod
    def read(cls, tokenizer: Tokenizer) -> _CheckSet:
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


def _measure(request: dict[str, Any]) -> Report:
    """Grade every precision, batches of one beside those of the others: hosts are noisy."""
    provider = PROVIDERS[request["provider"]]
    check_set = _CheckSet.read(Tokenizer(Path(request["tokenizer"]), request["max_tokens"]))
    probe = Probe.read(Path(request["proof"]))
    sessions: dict[str, Session] = {}
    refused: dict[str, str] = {}
    for precision, graph in request["graphs"].items():
        try:
            placement = Placement(
                device=request["device"],
                precision=precision,
                cache=Path(graph).parent.parent,
                longest=request["max_tokens"],
            )
            session = open_session(Path(graph), provider, placement)
            prove(session, provider, precision, probe)
            sessions[precision] = session
        except OpDbusError as error:
            refused[precision] = str(error)
    if FULL not in sessions:
        raise ProviderError(refused[FULL])
    vectors, seconds = _run(sessions, check_set, provider)
    exact = vectors[FULL], check_set.rank(vectors[FULL])
    grades = [
        _grade(precision, found, exact, check_set, len(check_set.rows) / seconds[precision])
        for precision, found in vectors.items()
    ]
    grades += [Grade(precision, 0.0, 0.0, 0.0, 0.0, why) for precision, why in refused.items()]
    return Report(
        request["provider"], request["hardware"], libraries(), grades, choose(grades), time.time()
    )


def _run(
    sessions: Mapping[str, Session], check_set: _CheckSet, provider: Provider
) -> tuple[dict[str, NDArray[np.float32]], dict[str, float]]:
    """Give each precision's vectors, and its seconds for all of them once."""
    # of the processor's own time where that is what computes: others may use it meanwhile
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
                # the first time, some runtimes make code for the shape
                seconds[name] += is_timed * (clock() - began)
                found[name].update(zip(batch, vectors, strict=True))
    order = range(len(check_set.rows))
    return {name: np.stack([rows[n] for n in order]) for name, rows in found.items()}, seconds


def _grade(
    precision: str,
    vectors: NDArray[np.float32],
    exact: tuple[NDArray[np.float32], float],
    check_set: _CheckSet,
    rate: float,
) -> Grade:
    cosines = (vectors * exact[0]).sum(axis=1)
    mean, least, rank = float(cosines.mean()), float(cosines.min()), check_set.rank(vectors)
    refused = ""
    if mean < MEAN_COSINE or least < LEAST_COSINE:
        refused = f"its cosine to fp32 is {mean:.4f} on average and {least:.4f} at least"
    elif exact[1] - rank > LOST_RANK:
        refused = f"it loses {100 * (exact[1] - rank):.2f} points of mean reciprocal rank"
    figures = round(mean, 5), round(least, 5), round(rank, 4), round(rate, 1)
    return Grade(precision, *figures, refused)


def main(arguments: list[str]) -> None:
    """Run as the child: a request as JSON; the report is printed."""
    (text,) = arguments
    # what runtimes print is no report
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        report = _measure(json.loads(text)).json()
        with os.fdopen(answer, "w") as printed:
            printed.write(report)
    except (OpDbusError, OSError) as error:
        # a last line that stands for the whole: `judge` passes it on
        sys.exit(" ".join(str(error).split()))


if __name__ == "__main__":
    child.follow()
    main(sys.argv[1:])
