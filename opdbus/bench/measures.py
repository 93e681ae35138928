"""Measurement of each level on each provider, in a child process: a broken driver may kill it."""

from __future__ import annotations

import asyncio
import json
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from opdbus import config
from opdbus.bench import texts
from opdbus.engine import cpus
from opdbus.engine.host import HERE, Host
from opdbus.engine.opening import open_embedder
from opdbus.engine.provider_chain import require_provider
from opdbus.engine.providers import PROVIDERS
from opdbus.errors import InvalidArgs, ModelError, ProviderError
from opdbus.models import child, folder
from opdbus.models.level_table import LEVELS, ON_PROVIDERS, find_level
from opdbus.platform.slices import slices
from opdbus.settings.parsing import REMOTE, ProviderRequest

if TYPE_CHECKING:
    from opdbus.config import Config
    from opdbus.engine.embedder import Embedder
    from opdbus.models.folder import Model

# Number of different texts of each kind, and of texts in a call.
_TEXTS: Final = 256
_BATCHES: Final = (1, 16, 64, 256)
# Processor features that decide which engine is fastest, and in which precision.
_FEATURES: Final = (
    "avx2 avx512f avx512_vnni avx_vnni avx512_bf16 avx512_fp16 amx_tile amx_bf16 amx_int8".split()
)


@dataclass(frozen=True, slots=True)
class Machine:
    """Processor, number of usable processors, their features, kernel and Python."""

    processor: str
    processors: int
    features: tuple[str, ...]
    kernel: str
    python: str

    @property
    def line(self) -> str:
        """The machine in one line, for the heading of figures."""
        features = " ".join(self.features) or "no vector extensions known"
        return f"{self.processors} processors of {self.processor} ({features}), {self.kernel}"


def describe(root: Path = Path("/")) -> Machine:
    """Describe this machine; without /proc, only as far as Python can."""
    features = cpus.features(root)
    return Machine(
        processor=cpus.name(root),
        processors=cpus.usable(),
        features=tuple(name for name in _FEATURES if name in features),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
    )


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Figures of a level's model on a provider; `failure` is the reason for missing ones."""

    level: str
    provider: str
    failure: str = ""
    model: str = ""
    device: str = ""
    precision: str = ""
    proof: Mapping[str, Any] | None = None
    load_seconds: float = 0.0
    # by kind of texts, and by the number of texts in a call
    texts_per_second: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # percentiles in milliseconds of calls with one text, by its kind
    latency: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def percentiles(seconds: Sequence[float], *cuts: int) -> dict[str, float]:
    """Return percentiles in milliseconds: p50, p95 and p99, or the given cuts."""
    wanted = cuts or (50, 95, 99)
    found = np.percentile(np.array(seconds) * 1000, wanted).tolist()
    return {f"p{cut}": round(at, 3) for cut, at in zip(wanted, found, strict=True)}


def find_engines(names: Sequence[str], settings: Config) -> list[tuple[str, str]]:
    """Return the levels to measure, all installed ones if none is named, with each provider.

    Raises InvalidArgs, ModelError and ProviderError if there is nothing to measure.
    """
    named = dict.fromkeys(find_level(name).name for name in names)
    levels = []
    for level in named or LEVELS:
        try:
            folder.find_model(LEVELS[level], settings)
        except ModelError:
            if named:
                raise
        else:
            levels.append(level)
    providers = find_providers(settings) if ON_PROVIDERS & {*levels} else []
    # a static table runs on no provider
    return [
        (level, provider)
        for level in levels
        for provider in (providers if level in ON_PROVIDERS else ["cpu"])
    ]


def find_providers(settings: Config, host: Host = HERE) -> list[str]:
    """Return the providers to measure: those asked for, else the CPU and each accelerator.

    Raises InvalidArgs, and ProviderError if none of those asked for can run here.
    """
    names = [name for name in settings.execution_provider.names if not name.startswith(REMOTE)]
    if settings.is_default("execution_provider") or settings.execution_provider.is_auto:
        names = ["cpu", *(row.name for row in PROVIDERS.values() if not row.is_cpu)]
    if not names:
        raise InvalidArgs("the benchmark measures this machine, no embedding servers")
    found = []
    for name in names:
        with suppress(ProviderError):
            require_provider(replace(settings, execution_provider=ProviderRequest((name,))), host)
            found.append(name)
    if not found:
        require_provider(replace(settings, execution_provider=ProviderRequest((*names,))), host)
    return found


async def measure_in_child(
    level: str, provider: str, settings: Config, seconds: float
) -> EngineFigures:
    """Return the figures of a level on a provider, or why there are none."""
    given = {variable: value for variable, value, _ in settings.rows()}
    with TemporaryDirectory(prefix="op-dbus-bench-") as scratch:
        given |= {"OP_DBUS_EXECUTION_PROVIDER": provider, "OP_DBUS_STATE_DIR": scratch}
        try:
            found = await child.run(__spec__.name, level=level, seconds=seconds, settings=given)
        except child.ChildFailed as fault:
            return EngineFigures(level, provider, str(fault))
    return EngineFigures(**json.loads(found))


async def measure(model: Model, settings: Config, seconds: float) -> EngineFigures:
    """Open an engine and measure it; raises ModelError and ProviderError."""
    kinds = texts.kinds(_TEXTS)
    began = time.perf_counter()
    async with open_embedder(model, settings) as engine:
        load_seconds = round(time.perf_counter() - began, 3)
        spent = {
            kind: {size: await _time_calls(engine, some, size, seconds) for size in _BATCHES}
            for kind, some in kinds.items()
        }
        proof = engine.proven.proof
        return EngineFigures(
            level=model.level,
            provider=engine.provider,
            model=model.name,
            device=engine.proven.hardware,
            precision=engine.precision,
            proof={**asdict(proof), "tolerance": proof.tolerance},
            load_seconds=load_seconds,
            texts_per_second={
                kind: {
                    str(size): round(size * len(times) / sum(times), 1)
                    for size, times in found.items()
                }
                for kind, found in spent.items()
            },
            latency={kind: percentiles(found[1]) for kind, found in spent.items()},
        )


async def _time_calls(
    engine: Embedder, some: Sequence[str], size: int, seconds: float
) -> list[float]:
    """Return the seconds of each call with `size` texts, one after the other."""
    calls = cycle(slices(some, size))
    await engine.embed(next(calls))
    found: list[float] = []
    end = time.monotonic() + seconds
    while not found or time.monotonic() <= end:
        began = time.perf_counter()
        await engine.embed(next(calls))
        found.append(time.perf_counter() - began)
    return found


def _answer(request: dict[str, Any]) -> str:
    """Answer the request of `measure_in_child`."""
    settings = config.load(request["settings"])
    model = folder.load_model(LEVELS[request["level"]], settings)
    return json.dumps(asdict(asyncio.run(measure(model, settings, request["seconds"]))))


if __name__ == "__main__":
    child.answer(_answer)
