"""Measure whether `auto` chooses the engine that is fastest in use.

The gate chooses anew, as at a first start: half of the times alone, half beside a process that
takes a core. After each choice every engine that may be chosen embeds the same texts, in turns, as
callers and the index have it. A choice is right if no other engine was faster for certain than the
chosen one in the same condition. OP_DBUS_MODEL_DIR has the models. Writes JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from opdbus import config
from opdbus.bench import measures, texts
from opdbus.engine import check_set
from opdbus.engine.embedder import Embedder
from opdbus.engine.gate import TIE
from opdbus.engine.opening import open_embedder
from opdbus.engine.provider_chain import Chain
from opdbus.engine.providers import PROVIDERS, cpu_engines
from opdbus.errors import OpDbusError, ProviderError
from opdbus.models import build, folder
from opdbus.models.level_table import LEVELS
from opdbus.settings.parsing import ProviderRequest

if TYPE_CHECKING:
    from opdbus.config import Config
    from opdbus.engine.gate import Report
    from opdbus.models.folder import Model

    Engines = Mapping[str, Embedder]

RESULTS: Final = Path(__file__).parents[1] / "results"
# Texts of a turn: the same time in each level.
_TEXTS: Final = {"low": 128, "medium": 64, "high": 16}
# Measurements of each kind of texts.
_TIMES: Final = 5
_SPIN: Final = "while True: pass"
# Student's t for 95% and five degrees of freedom; it is smaller for more turns.
_T: Final = 2.571


@dataclass(frozen=True, slots=True)
class Ratio:
    """Logarithm of the ratio of two speeds, and half the width of its 95% interval."""

    log: float
    margin: float

    @classmethod
    def of(cls, logs: list[float]) -> Self:
        """Return the mean of the logarithms of at least six ratios."""
        return cls(float(np.mean(logs)), float(_T * np.std(logs, ddof=1) / math.sqrt(len(logs))))


@dataclass
class Condition:
    """Choices in one condition, and seconds of each engine's turns there."""

    choices: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def result(self, count: int) -> dict[str, Any]:
        """Return each choice with what was faster, and each engine's texts per second."""
        passed = {name for one in self.choices for name in one["passed"]}
        used = {name: found for name, found in self.seconds.items() if name in passed}
        rates = {name: round(count / median(found), 1) for name, found in used.items()}
        choices = []
        for one in self.choices:
            own = np.log(self.seconds[one["chosen"]])
            ratios = {
                name: Ratio.of((own - np.log(found)).tolist()) for name, found in used.items()
            }
            fastest = max(ratios, key=lambda name: ratios[name].log)
            best = ratios[fastest]
            is_right = best.log - best.margin <= 0 or math.exp(best.log) < TIE
            judged = {
                "fastest_in_use": fastest,
                "its_ratio": round(math.exp(best.log), 3),
                "ratio_margin": round(best.margin, 3),
                "right": is_right,
            }
            choices.append(one | judged)
        return {"choices": choices, "texts_per_second": rates}


@contextmanager
def busy(*, is_beside: bool) -> Iterator[None]:
    """Run a process that takes a core, or nothing."""
    if not is_beside:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", _SPIN])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def choose(model: Model, settings: Config, graphs: Path) -> tuple[Report, float]:
    """Have the gate choose in a state folder of its own; return its report and the seconds."""
    with tempfile.TemporaryDirectory(dir=graphs.parent) as state:
        shutil.copytree(graphs, Path(state) / "graphs", copy_function=os.link)
        own = replace(settings, state_dir=Path(state))
        began = time.monotonic()
        proven = await Chain(model, own).choose()
        seconds = time.monotonic() - began
    if not proven.report:
        raise ProviderError("there is only one engine, or OP_DBUS_PRECISION is set")
    return proven.report, seconds


async def open_all(model: Model, settings: Config, stack: AsyncExitStack) -> Engines:
    """Open every engine of `cpu` in every precision that it can be proven in."""
    found = {}
    for name in cpu_engines():
        for precision, dialect in PROVIDERS[name].dialects.items():
            await build.ensure(model, settings.state_dir / "graphs", dialect)
            own = replace(
                settings, execution_provider=ProviderRequest((name,)), precision=precision
            )
            try:
                engine = await stack.enter_async_context(open_embedder(model, own))
            except OpDbusError as error:
                print(f"{precision} on {name}: {error}", file=sys.stderr)
            else:
                found[f"{precision} on {name}"] = engine
    return found


async def use(engines: Engines, some: list[str], number: int) -> dict[str, float]:
    """Return the seconds in which each engine embeds texts; another one is first each time."""
    names = [*engines]
    found = {}
    for name in names[number % len(names) :] + names[: number % len(names)]:
        began = time.perf_counter()
        await engines[name].embed(some)
        found[name] = time.perf_counter() - began
    return found


def questions(count: int) -> list[str]:
    """Return questions of the check set, which are short."""
    return check_set.read_questions()[1][:count]


async def by_length(engines: Engines, kinds: Mapping[str, list[str]]) -> dict[str, dict[str, int]]:
    """Return each engine's tokens per CPU second by kind of text, medians of some times."""
    found: dict[str, dict[str, int]] = {}
    for name, engine in engines.items():
        for kind, some in kinds.items():
            rows = await engine.tokenize(some)
            seconds = []
            for _ in range(1 + _TIMES):
                began = time.process_time()
                await engine.run(rows)
                seconds.append(time.process_time() - began)
            rate = int(rows.lengths.sum()) / median(seconds[1:])
            found.setdefault(name, {})[kind] = round(rate)
    return found


def described(report: Report, seconds: float) -> dict[str, Any]:
    """Return a choice as the report has it."""
    grades = {f"{grade.precision} on {grade.provider}": grade for grade in report.grades}
    rates = {name: (each.texts_per_second, each.spread) for name, each in grades.items()}
    return {
        "chosen": f"{report.chosen} on {report.provider}",
        "is_steady": report.is_steady,
        "seconds": round(seconds, 1),
        "load": round(os.getloadavg()[0], 1),
        "graded": rates,
        "passed": [name for name, each in grades.items() if not each.refused],
    }


async def level_result(level: str, state: Path, runs: int, minutes: float) -> dict[str, Any]:
    """Choose so many times in each condition, or for so long."""
    end = time.monotonic() + 60 * minutes
    settings = config.load(os.environ, {"state_dir": str(state), "execution_provider": "cpu"})
    model = folder.load_model(LEVELS[level], settings)
    some = list(texts.kinds(_TEXTS[level])["object"])
    conditions = {"alone": Condition(), "beside a process": Condition()}
    async with AsyncExitStack() as stack:
        engines = await open_all(model, settings, stack)
        lengths = await by_length(engines, {"questions": questions(len(some)), "objects": some})
        for number in range(runs):
            if time.monotonic() > end:
                break
            for name, condition in conditions.items():
                with busy(is_beside=name != "alone"):
                    report, seconds = await choose(model, settings, state / "graphs")
                    for turn in range(2):
                        for engine, spent in (await use(engines, some, 2 * number + turn)).items():
                            condition.seconds.setdefault(engine, []).append(spent)
                condition.choices.append(described(report, seconds))
                print(level, name, condition.choices[-1], file=sys.stderr, flush=True)
    found = {name: each.result(len(some)) for name, each in conditions.items()}
    return found | {"tokens_per_cpu_second": lengths}


def main() -> None:
    """Choose for each level, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("levels", nargs="*", default=["low", "medium"])
    parser.add_argument("--state", type=Path, help="folder with graphs that are kept")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of a level, at most")
    parser.add_argument("--runs", type=int, default=10, help="choices in each condition")
    given = parser.parse_args()
    levels = {}
    for level in given.levels:
        with tempfile.TemporaryDirectory() as scratch:
            state = given.state or Path(scratch)
            levels[level] = asyncio.run(level_result(level, state, given.runs, given.minutes))
    date = datetime.now(UTC).strftime("%Y-%m-%d")
    report = {"date": date, "machine": asdict(measures.describe()), "levels": levels}
    path = RESULTS / f"{date}-choice.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    main()
