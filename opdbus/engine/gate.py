"""The accuracy gate: the fastest precision that loses nothing, measured once and kept."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from opdbus.errors import ProviderError
from opdbus.models import child, files

if TYPE_CHECKING:
    from opdbus.models.folder import Model

log = structlog.get_logger()

# A less exact precision must give this many times as many texts a second.
GAIN: Final = 1.1
CHECK_SET: Final = Path(__file__).parent / "check_set.json"
FULL: Final = "fp32"
_LIBRARIES: Final = ("onnxruntime-gpu", "onnxruntime", "openvino")


@dataclass(frozen=True, slots=True)
class Grade:
    """The figures of one precision on the check set; cosines are to fp32 on the same provider."""

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
    """A provider to grade, and the graph of each of its precisions, fp32 included."""

    provider: str
    hardware: str
    device: int
    features: frozenset[str]
    graphs: Mapping[str, str]
    # the rows and reference vectors that every precision is proven with
    proof: str


async def judge(model: Model, candidate: Candidate, folder: Path) -> Report:
    """Give the report for a model on a provider, kept or measured now in a child process.

    Takes seconds the first time. Raises ProviderError if fp32 itself cannot be had.
    """
    path = folder / f"{key(model, candidate)}.json"
    try:
        return Report.read(path.read_text())
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("gate report unreadable", path=str(path), reason=str(error))
    log.info("grading precisions", provider=candidate.provider, precisions=list(candidate.graphs))
    request = {**asdict(candidate), "features": sorted(candidate.features)}
    request |= {"tokenizer": str(model.tokenizer), "max_tokens": model.shape.max_tokens}
    try:
        text = await child.run("opdbus.engine.grading", **request)
    except child.ChildFailed as fault:
        raise ProviderError(f"{candidate.provider} could not be graded: {fault}") from None
    try:
        await asyncio.to_thread(_keep, path, text)
    except OSError as error:
        # it costs the next start some seconds, and this one nothing
        log.warning("gate report not kept", path=str(path), reason=str(error))
    return Report.read(text)


def _keep(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(path, text)


def key(model: Model, candidate: Candidate) -> str:
    """Hash all that a report depends on: weights, hardware, libraries, graphs and check set."""
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
    """Give the fastest precision that passed; a less exact one must be faster by GAIN."""
    exact, *others = sorted(grades, key=lambda grade: grade.precision != FULL)
    best = exact
    for grade in sorted(others, key=lambda grade: -grade.min_cosine):
        if not grade.refused and grade.texts_per_second > GAIN * best.texts_per_second:
            best = grade
    return best.precision
