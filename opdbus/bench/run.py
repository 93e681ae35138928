"""The whole benchmark: which models are here, the engine's own figures, and the comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from opdbus import __version__, api
from opdbus.bench import machine, texts
from opdbus.bench.compare import Plan, Subject, compare
from opdbus.bench.contenders import CONTENDERS
from opdbus.bench.engine import Task, figures
from opdbus.bench.measures import Effort
from opdbus.bench.process import Workspace
from opdbus.bench.report import Report
from opdbus.engine.providers import PROVIDERS
from opdbus.errors import InvalidArgs, ModelError
from opdbus.models import folder, synthetic
from opdbus.models.catalogue import LEVELS

if TYPE_CHECKING:
    from opdbus.bench.contenders import Contender
    from opdbus.bench.figures import EngineFigures
    from opdbus.bench.report import Comparison
    from opdbus.config import Config

    Notify = Callable[[str], None]

FULL: Final = Effort(512, (1, 4, 16, 64, 256), 3, 400, (1_000, 10_000))
# Of random weights only the shape is of interest, and the high one is slow.
SHAPE: Final = Effort(128, (1, 16, 64), 3, 50, (), bulk=128, compared=64, sizes=(1, 8, 32))
QUICK: Final = Effort(
    texts=32,
    batches=(1, 16),
    rounds=1,
    singles=20,
    streams=(400,),
    bulk=128,
    hundreds=3,
    rows=(64,),
    seconds=0.02,
    all_precisions=False,
    one_cpu=False,
    compared=16,
    sizes=(1, 8),
)
LONG: Final = 100_000
# The level whose tokenizer models with random weights are given: theirs has the same words.
_TOKENIZER_OF: Final = "medium"


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked of the benchmark; no `levels` are those whose model is here."""

    levels: Sequence[str] = ()
    # random weights for levels whose model is not here
    random: bool = False
    peers: bool = False
    quick: bool = False
    long: bool = False
    # 0 is as many as are usual
    rounds: int = 0


@dataclass(frozen=True, slots=True)
class Setting:
    """Where it is measured: settings, the peers' environments, and their variables."""

    config: Config
    venvs: Path
    environ: Mapping[str, str]
    contenders: Sequence[Contender] = CONTENDERS


@dataclass(frozen=True, slots=True)
class Measured:
    """A model that is measured with, and how much."""

    subject: Subject
    scratch: Path
    random: bool
    effort: Effort


def bench(options: Options, setting: Setting, notify: Notify) -> Report:
    """Measure; takes minutes, reports what it is doing, and leaves no process or file behind.

    Raises InvalidArgs and ModelError if there is nothing to measure.
    """
    with TemporaryDirectory(prefix="op-dbus-bench-") as scratch:
        found = models(options, setting.config, Path(scratch))
        engines = [each for model in found for each in _engines(model, setting.config, notify)]
        comparisons = [_compared(model, setting, notify) for model in found if options.peers]
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    here = machine.describe()
    return Report(today, __version__, here, tuple(comparisons), tuple(engines), options.quick)


def models(options: Options, config: Config, scratch: Path) -> list[Measured]:
    """Find the models, and make those with random weights."""
    unknown = set(options.levels) - LEVELS.keys()
    if unknown:
        known = ", ".join(LEVELS)
        raise InvalidArgs(f"there is no level {', '.join(sorted(unknown))}; there are {known}")
    found, reasons = [], []
    for level in options.levels or LEVELS:
        place = scratch / level
        place.mkdir()
        try:
            found.append(_model(level, options, config, place))
        except ModelError as error:
            reasons.append(str(error))
    if not found or (options.levels and reasons):
        raise ModelError("; ".join(reasons))
    return found


def _model(level: str, options: Options, config: Config, place: Path) -> Measured:
    try:
        # a folder that is set belongs to the level that is set
        model = folder.load(LEVELS[level], config)
    except ModelError:
        if not options.random:
            raise
        tokenizer = folder.find(LEVELS[_TOKENIZER_OF], config) / folder.TOKENIZER
        made = synthetic.write_model(LEVELS[level], place, tokenizer)
        subject = Subject(level, f"{LEVELS[level].folder}'s shape, random weights", made)
        return Measured(subject, place, random=True, effort=_effort(options, SHAPE))
    subject = Subject(level, model.name, model.folder)
    return Measured(subject, place, random=False, effort=_effort(options, FULL))


def _effort(options: Options, usual: Effort) -> Effort:
    effort = QUICK if options.quick else usual
    if options.long and effort.streams:
        effort = replace(effort, streams=(*effort.streams, LONG))
    return replace(effort, rounds=options.rounds or effort.rounds)


def _engines(model: Measured, config: Config, notify: Notify) -> Iterator[EngineFigures]:
    """Yield the figures on the CPU and, where there is one, on the first accelerator."""
    task = Task(
        model.subject.level,
        model.subject.folder,
        model.scratch,
        model.effort,
        model.random,
        precision=config.precision,
    )
    for provider in ("cpu", *_accelerators()):
        yield replace(figures(replace(task, provider=provider), notify), model=model.subject.name)


def _accelerators() -> list[str]:
    names = [row.name for row in PROVIDERS.values() if not row.is_cpu]
    return [name for name in names if api.Embedder.is_available(name)][:1]


def _compared(model: Measured, setting: Setting, notify: Notify) -> Comparison:
    effort = model.effort
    plan = Plan(texts.kinds(effort.compared), effort.sizes, effort.rounds)
    place = Workspace(setting.venvs, model.scratch, setting.environ)
    return compare(setting.contenders, model.subject, plan, place, notify)
