"""Accuracy gate: choice of the fastest precision without loss, measured once and stored."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from opdbus import __version__
from opdbus.engine.host import versions
from opdbus.errors import ProviderError
from opdbus.models import build, child, files
from opdbus.platform.regular_files import read_regular

if TYPE_CHECKING:
    from opdbus.models.folder import Model

    # builds the graphs that a candidate names
    Prepare = Callable[[], Awaitable[None]]

log = structlog.get_logger()

FULL: Final = "fp32"
# Of reports, in the state directory.
FOLDER: Final = "gates"
# Rates are those of texts of this many tokens, the mean of objects.
TEXT_TOKENS: Final = 56
# Speeds whose runs spread more are not kept. Those that differ less than TIE are equal.
STEADY: Final = 0.15
TIE: Final = 1.05
# Distributions of the runtimes, whose versions a report depends on.
LIBRARIES: Final = ("onnxruntime-gpu", "onnxruntime", "openvino")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """Measurements of one precision on one provider, compared with the first fp32."""

    provider: str
    precision: str
    # of texts of TEXT_TOKENS on all threads, in the fastest run; the spread is the share by which
    # the middle run was slower
    texts_per_second: float = 0.0
    spread: float = 0.0
    # cosines of its vectors to the reference's
    mean_cosine: float = 0.0
    min_cosine: float = 0.0
    # mean reciprocal rank of the right answers, by vectors alone
    rank: float = 0.0
    # difference from the reference's rank, with the ends of its 95% interval
    rank_change: float = 0.0
    change_low: float = 0.0
    change_high: float = 0.0
    # number of questions used; fewer than all if those decided
    questions: int = 0
    # reason why the precision may not be used; empty if it may
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Grades of all precisions available here, and the chosen one."""

    # provider of the chosen precision
    provider: str
    hardware: str
    libraries: Mapping[str, str]
    grades: Sequence[Grade]
    chosen: str
    checked_at: float

    def json(self) -> str:
        """Return the report as JSON, as stored on disk."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def read(cls, text: str) -> Report:
        """Parse a report; raises ValueError, TypeError or KeyError if the text is invalid."""
        fields = dict(json.loads(text))
        grades = tuple(Grade(**grade) for grade in fields.pop("grades"))
        report = cls(grades=grades, **fields)
        if not any(map(report.is_chosen, grades)):
            raise ValueError(f"it chose {report.chosen}, which did not pass")
        return report

    @property
    def providers(self) -> set[str]:
        """Names of the graded providers."""
        return {grade.provider for grade in self.grades}

    @property
    def is_steady(self) -> bool:
        """False if something else disturbed the measurement of a speed."""
        return all(grade.spread <= STEADY for grade in self.grades)

    def is_chosen(self, grade: Grade) -> bool:
        """Return true if a grade is that of the chosen precision."""
        place = (grade.provider, grade.precision)
        return place == (self.provider, self.chosen) and not grade.refused

    def best(self, provider: str) -> str:
        """Return the fastest precision of a provider that passed; fp32 if none did."""
        if provider == self.provider:
            return self.chosen
        own = [grade for grade in self.grades if grade.provider == provider and not grade.refused]
        return choose(own).precision if own else FULL


@dataclass(frozen=True, slots=True)
class Candidate:
    """Configurations to grade: the graph of each precision of each provider, fp32 included."""

    hardware: str
    device: int
    features: frozenset[str]
    graphs: Mapping[str, Mapping[str, str]]
    # path of the rows and reference vectors that every precision is proven with
    proof: str
    # settings that speeds depend on
    threads: int = 1
    batch_tokens: int | None = None

    @property
    def there(self) -> set[str]:
        """Paths of the graphs that exist now."""
        every = (graph for graphs in self.graphs.values() for graph in graphs.values())
        return {graph for graph in every if Path(graph).exists()}


def kept(model: Model, candidate: Candidate, folder: Path) -> Report | None:
    """Return the report that an earlier start stored; None if there is none or it is invalid."""
    path = folder / f"{key(model, candidate)}.json"
    try:
        return Report.read(read_regular(path).decode())
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("gate report unreadable", path=str(path), reason=str(error))
    return None


def forget(folder: Path) -> None:
    """Remove all stored reports, so that precisions are measured anew."""
    for path in folder.glob("*.json"):
        path.unlink(missing_ok=True)


async def judge(model: Model, candidate: Candidate, folder: Path, prepare: Prepare) -> Report:
    """Return the stored report on a model and providers, or measure it in a child process.

    `prepare` builds the graphs to measure; afterwards only the graphs that providers use are kept.
    Takes seconds, a minute with a large model. Raises ProviderError if fp32 itself cannot run.
    """
    if report := kept(model, candidate, folder):
        return report
    await prepare()
    before = candidate.there
    text = await _grade_in_child(model, candidate)
    if candidate.there != before:
        # another process has decided meanwhile and removed graphs that this one measured
        return await judge(model, candidate, folder, prepare)
    report = Report.read(text)
    await asyncio.to_thread(
        _store, candidate, report, folder / f"{key(model, candidate)}.json", text
    )
    return report


async def _grade_in_child(model: Model, candidate: Candidate) -> str:
    named = {provider: list(graphs) for provider, graphs in candidate.graphs.items()}
    log.info("grading precisions", precisions=named)
    request = {**asdict(candidate), "features": sorted(candidate.features)}
    request |= {"tokenizer": str(model.tokenizer), "max_tokens": model.shape.max_tokens}
    try:
        return await child.run("opdbus.engine.grading", **request)
    except child.ChildFailed as fault:
        names = " and ".join(candidate.graphs)
        raise ProviderError(f"{names} could not be graded: {fault}") from None


def _store(candidate: Candidate, report: Report, path: Path, text: str) -> None:
    """Remove the graphs that no provider uses, then store the report if it is steady.

    If the process is killed in between, no unused graph is left.
    """
    used = {graphs[report.best(provider)] for provider, graphs in candidate.graphs.items()}
    for graph in candidate.there - used:
        build.remove(build.Built(Path(graph).parent))
    if not report.is_steady:
        spreads = {
            f"{grade.precision} on {grade.provider}": grade.spread for grade in report.grades
        }
        log.warning("speeds not kept, the next start measures again", spread=spreads)
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(path, text)
    except OSError as error:
        # the next start measures again; this one is not affected
        log.warning("gate report not kept", path=str(path), reason=str(error))


def key(model: Model, candidate: Candidate) -> str:
    """Hash all inputs of a report: version, weights, hardware, libraries and graphs."""
    parts = (
        __version__,
        model.weights_sha256,
        model.tokenizer_sha256,
        str(model.shape.max_tokens),
        candidate.hardware,
        *sorted(candidate.features),
        f"{candidate.threads} threads, batches of {candidate.batch_tokens}",
        *(
            f"{provider} {name} {Path(graph).parent.name}"
            for provider, graphs in candidate.graphs.items()
            for name, graph in graphs.items()
        ),
        *(f"{name} {found}" for name, found in versions(LIBRARIES).items()),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def choose(grades: Sequence[Grade]) -> Grade:
    """Return the grade of the fastest precision that passed; of equal ones, the most exact."""
    passed = [grade for grade in grades if not grade.refused]
    fastest = max(grade.texts_per_second for grade in passed)
    equal = [grade for grade in passed if grade.texts_per_second * TIE >= fastest]
    return max(equal, key=lambda grade: (grade.mean_cosine, grade.texts_per_second))
