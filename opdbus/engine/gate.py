"""The accuracy gate: the fastest precision that loses nothing, measured once and kept."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from opdbus.engine import check_set
from opdbus.engine.host import versions
from opdbus.errors import ProviderError
from opdbus.models import build, child, files
from opdbus.platform.regular_files import read_regular

if TYPE_CHECKING:
    from opdbus.models.folder import Model

    # builds what a candidate names
    Prepare = Callable[[], Awaitable[None]]

log = structlog.get_logger()

FULL: Final = "fp32"
_LIBRARIES: Final = ("onnxruntime-gpu", "onnxruntime", "openvino")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """The figures of one precision on one provider, beside the reference: the first one's fp32."""

    provider: str
    precision: str
    # of one thread, and half the width of its 95% interval
    texts_per_second: float = 0.0
    rate_margin: float = 0.0
    # of its vectors to the reference's
    mean_cosine: float = 0.0
    min_cosine: float = 0.0
    # mean reciprocal rank of the right answers, by vectors alone
    rank: float = 0.0
    # how far that is from the reference's rank, with the ends of its 95% interval
    rank_change: float = 0.0
    change_low: float = 0.0
    change_high: float = 0.0
    # how many were asked: fewer where they decided
    questions: int = 0
    # empty for a precision that may be used
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The grades of all precisions that can be had here, and which of them was chosen."""

    # of the chosen precision
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
        if not any(map(report.is_chosen, grades)):
            raise ValueError(f"it chose {report.chosen}, which did not pass")
        return report

    @property
    def providers(self) -> set[str]:
        """The providers that were graded."""
        return {grade.provider for grade in self.grades}

    def is_chosen(self, grade: Grade) -> bool:
        """Return whether a grade is that of the chosen precision."""
        place = (grade.provider, grade.precision)
        return place == (self.provider, self.chosen) and not grade.refused

    def best(self, provider: str) -> str:
        """Give the fastest precision of a provider that passed; fp32 where none did."""
        own = [grade for grade in self.grades if grade.provider == provider and not grade.refused]
        return choose(own).precision if own else FULL


@dataclass(frozen=True, slots=True)
class Candidate:
    """What to grade: the graph of each precision of each provider, fp32 included."""

    hardware: str
    device: int
    features: frozenset[str]
    graphs: Mapping[str, Mapping[str, str]]
    # the rows and reference vectors that every precision is proven with
    proof: str

    @property
    def there(self) -> set[str]:
        """The graphs that are there now."""
        every = (graph for graphs in self.graphs.values() for graph in graphs.values())
        return {graph for graph in every if Path(graph).exists()}


def kept(model: Model, candidate: Candidate, folder: Path) -> Report | None:
    """Return the report that an earlier start has measured, None where there is none."""
    path = _path(model, candidate, folder)
    try:
        return Report.read(read_regular(path).decode())
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("gate report unreadable", path=str(path), reason=str(error))
    return None


async def judge(model: Model, candidate: Candidate, folder: Path, prepare: Prepare) -> Report:
    """Give the report for a model on providers, kept or measured now in a child process.

    What is measured must be there after `prepare`; of it, only what each provider is to use stays.
    Takes seconds the first time, half a minute with a large model. Raises ProviderError if fp32
    itself cannot be had.
    """
    if report := kept(model, candidate, folder):
        return report
    path = _path(model, candidate, folder)
    await prepare()
    before = candidate.there
    text = await _measured(model, candidate)
    if candidate.there != before:
        # another process has decided meanwhile, and removed what this one measured
        return await judge(model, candidate, folder, prepare)
    report = Report.read(text)
    # first: of a process that is killed between the two, nothing is left that nobody needs
    await asyncio.to_thread(_clear, candidate, report)
    try:
        await asyncio.to_thread(_keep, path, text)
    except OSError as error:
        # it costs the next start some seconds, and this one nothing
        log.warning("gate report not kept", path=str(path), reason=str(error))
    return report


async def _measured(model: Model, candidate: Candidate) -> str:
    named = {provider: list(graphs) for provider, graphs in candidate.graphs.items()}
    log.info("grading precisions", precisions=named)
    request = {**asdict(candidate), "features": sorted(candidate.features)}
    request |= {"tokenizer": str(model.tokenizer), "max_tokens": model.shape.max_tokens}
    try:
        return await child.run("opdbus.engine.grading", **request)
    except child.ChildFailed as fault:
        names = " and ".join(candidate.graphs)
        raise ProviderError(f"{names} could not be graded: {fault}") from None


def _clear(candidate: Candidate, report: Report) -> None:
    """Remove the graphs that no provider is to use."""
    used = {graphs[report.best(provider)] for provider, graphs in candidate.graphs.items()}
    for graph in candidate.there - used:
        build.remove(build.Built(Path(graph).parent))


def _keep(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(path, text)


def _path(model: Model, candidate: Candidate, folder: Path) -> Path:
    return folder / f"{key(model, candidate)}.json"


def key(model: Model, candidate: Candidate) -> str:
    """Hash all that a report depends on: weights, hardware, libraries, graphs and check set."""
    parts = (
        model.weights_sha256,
        model.tokenizer_sha256,
        str(model.shape.max_tokens),
        candidate.hardware,
        *sorted(candidate.features),
        *(
            f"{provider} {name} {Path(graph).parent.name}"
            for provider, graphs in candidate.graphs.items()
            for name, graph in graphs.items()
        ),
        *(f"{name} {found}" for name, found in libraries().items()),
        check_set.version(),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def libraries() -> dict[str, str]:
    """Give the versions of the installed runtimes."""
    return versions(_LIBRARIES)


def choose(grades: Sequence[Grade]) -> Grade:
    """Give the fastest precision that passed."""
    return max(
        (grade for grade in grades if not grade.refused), key=lambda grade: grade.texts_per_second
    )
