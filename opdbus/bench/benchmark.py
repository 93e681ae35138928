"""The whole benchmark: models to measure, and the engine's figures with each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from opdbus import __version__
from opdbus.bench import machine
from opdbus.bench.engine import Task, figures
from opdbus.bench.figures import Report
from opdbus.bench.measures import Effort, Notify, Subject
from opdbus.engine.host import HERE, Host
from opdbus.engine.provider_chain import require_provider
from opdbus.engine.providers import PROVIDERS
from opdbus.errors import InvalidArgs, ModelError, ProviderError
from opdbus.models import folder, level_table, synthetic
from opdbus.models.level_table import LEVELS, ON_PROVIDERS, find_level
from opdbus.settings.parsing import REMOTE, ProviderRequest

if TYPE_CHECKING:
    from opdbus.bench.figures import EngineFigures
    from opdbus.config import Config


FULL: Final = Effort(512, (1, 4, 16, 64, 256), 3, 400, (1_000, 10_000))
# The high level is slow; with random weights only the shape is of interest.
SLOW: Final = Effort(
    128, (1, 16, 64), 3, 100, (1_000,), bulk=256, compared=64, sizes=(1, 8, 32, 64)
)
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
# The level whose tokenizer models with random weights use, since the vocabulary fits.
_TOKENIZER_OF: Final = "medium"
_SLOW: Final = "high"


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the benchmark; empty `levels` means those whose model is installed."""

    levels: Sequence[str] = ()
    # random weights for levels whose model is not installed
    random: bool = False
    quick: bool = False
    long: bool = False
    # 0 for the usual number
    rounds: int = 0


def bench(options: Options, config: Config, notify: Notify) -> Report:
    """Run the benchmark; takes minutes, reports progress, and leaves no process or file behind.

    Raises InvalidArgs, ModelError and ProviderError if there is nothing to measure.
    """
    with TemporaryDirectory(prefix="op-dbus-bench-") as scratch:
        tasks = find_tasks(options, config, Path(scratch))
        is_on_provider = any(task.subject.level in ON_PROVIDERS for task in tasks)
        providers = find_providers(config) if is_on_provider else []
        engines = [each for task in tasks for each in _engines(task, providers, notify)]
    today = datetime.now(UTC).strftime("%Y-%m-%d")
    here = machine.describe()
    return Report(today, __version__, here, tuple(engines), options.quick)


def find_tasks(options: Options, config: Config, scratch: Path) -> list[Task]:
    """Find the models, make those with random weights, and choose the effort for each."""
    named = dict.fromkeys(find_level(name).name for name in options.levels)
    found, reasons = [], []
    for level in named or LEVELS:
        place = scratch / level
        place.mkdir()
        try:
            found.append(_model(level, options, config, place))
        except ModelError as error:
            reasons.append(str(error))
    if not found or (options.levels and reasons):
        raise ModelError("; ".join(reasons))
    return found


def _model(level: str, options: Options, config: Config, place: Path) -> Task:
    try:
        # a configured folder belongs to the configured level
        model = folder.load_model(LEVELS[level], config)
    except ModelError:
        if not options.random:
            raise
        tokenizer = folder.find_model(LEVELS[_TOKENIZER_OF], config) / level_table.TOKENIZER
        made = synthetic.write_model(LEVELS[level], place, tokenizer)
        name = f"{LEVELS[level].folder}'s shape, random weights"
        subject, usual = Subject(level, name, made, random=True), SHAPE
    else:
        subject = Subject(level, model.name, model.folder)
        usual = SLOW if level == _SLOW else FULL
    effort = QUICK if options.quick else usual
    if options.long and effort.streams:
        effort = replace(effort, streams=(*effort.streams, LONG))
    effort = replace(effort, rounds=options.rounds or effort.rounds)
    device = ",".join(config.gpu_device)
    return Task(subject, place, effort, precision=config.precision, device=device)


def find_providers(config: Config, host: Host = HERE) -> list[str]:
    """Return the providers to measure: those asked for, else the CPU and each accelerator.

    Raises InvalidArgs, and ProviderError if none of those asked for can run here.
    """
    names = [name for name in config.execution_provider.names if not name.startswith(REMOTE)]
    if config.is_default("execution_provider") or config.execution_provider.is_auto:
        names = ["cpu", *(row.name for row in PROVIDERS.values() if not row.is_cpu)]
    if not names:
        raise InvalidArgs("the benchmark measures this machine, no embedding servers")
    asked = [replace(config, execution_provider=ProviderRequest((name,))) for name in names]
    found = []
    for one in asked:
        with suppress(ProviderError):
            require_provider(one, host)
            found.append(str(one.execution_provider))
    if not found:
        require_provider(replace(config, execution_provider=ProviderRequest((*names,))), host)
    return found


def _engines(task: Task, providers: Sequence[str], notify: Notify) -> Iterator[EngineFigures]:
    """Yield the figures on each provider; a static table runs on none."""
    for provider in providers if task.subject.level in ON_PROVIDERS else ("cpu",):
        yield figures(replace(task, provider=provider), notify)
