"""Everything at once for minutes: switches, rewrites, publishers, searches, and lost providers.

Starts a private bus and the daemon with the real model. Each second another provider is chosen; the
state file is rewritten, objects are published, questions are asked all the time, and twice a minute
the provider that serves is killed (see `mortal.py`). Writes JSON only when asked; ends with 1 where
a search failed with an undocumented error, a call was not answered, memory grew by more than 3%
from the first minute to the end, or the daemon was not well.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks.scene import sampled
from fuzz.health import Health
from fuzz.serving import serving
from harness.running import replace

from opdbus.bench.figures import percentiles
from opdbus.bus.names import STATE
from opdbus.bus.service import contract
from opdbus.client import Client
from opdbus.engine.host import HERE
from opdbus.errors import OpDbusError
from robustness.harness import PLACES, QUESTIONS, finish, parser, state, until_ready

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from harness.running import Running

MOST_GROWTH = 0.03
KILLS_A_MINUTE = 2
# Longer than any model takes to open: a call that is not answered by then never is.
PATIENCE_SECONDS = 180.0
NO_ANSWER = "no answer"
SEARCHERS, PUBLISHERS = 2, 2
# Seconds from one to the next.
SWITCH, REWRITE, PUBLISH, SEARCH = 1.0, 2.0, 0.2, 0.05


@dataclass(slots=True)
class Calls:
    """What became of the calls of one kind; `failures` by the error's name and sentence."""

    answered: int = 0
    seconds: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)

    def report(self) -> dict[str, Any]:
        """Sum up."""
        found = percentiles(self.seconds, 50, 99, 100) if self.seconds else {}
        return {
            "answered": self.answered,
            **{f"{cut} ms": round(spent, 1) for cut, spent in found.items()},
            "errors": dict(self.names),
            "sentences": dict(self.failures.most_common(5)),
        }


async def go_on(
    calls: Calls, pause: float, end: float, work: Callable[[int], Awaitable[object]]
) -> None:
    """Do some work again and again until the end, each time with another number."""
    for number in count():
        began = time.monotonic()
        if began >= end:
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await work(number)
            calls.answered += 1
        except TimeoutError:
            calls.names[NO_ANSWER] += 1
        except OpDbusError as error:
            calls.names[error.dbus_name] += 1
            calls.failures[f"{type(error).__name__}: {error}"[:300]] += 1
        spent = time.monotonic() - began
        calls.seconds.append(spent)
        await asyncio.sleep(max(pause - spent, 0.0))


def memory(pid: int) -> tuple[float, float]:
    """Give the resident and the proportional memory of a process in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return found["Rss"], found["Pss"]


async def kill(daemon: Running, kills: int, seconds: float) -> None:
    """Kill the provider that serves, so many times and at equal distances."""
    for _ in range(kills):
        await asyncio.sleep(seconds / (kills + 1))
        daemon.send(signal.SIGUSR1)


def kills_in(seconds: float) -> int:
    """Give how often the provider is killed in a run of this length."""
    return max(1, round(KILLS_A_MINUTE * seconds / 60))


def complaints(log: str) -> dict[str, int]:
    """Count the daemon's warnings and errors, without what differs from one to the next."""
    found = re.findall(r"\[(?:warning|error) *\] (.*?)(?:  |$)", log, re.MULTILINE)
    return dict(Counter(found).most_common())


def providers() -> list[str]:
    """Name the two that are switched between; the one that is here, twice."""
    return [
        "cpu:onnxruntime",
        "cpu:openvino" if HERE.has_package("openvino") else "cpu:onnxruntime",
    ]


async def warm_up(daemon: Running) -> None:
    """Serve with each provider once: its graphs are built and its precisions graded only then."""
    async with Client(daemon.bus) as client:
        for name in reversed(providers()):
            await client.set_provider(name)
    await until_ready(daemon.bus)


async def live(daemon: Running, seconds: float, content: dict[str, Any]) -> dict[str, Calls]:
    """Run all clients for this time, each with a connection of its own."""
    kinds: dict[str, Calls] = {}
    end, names = time.monotonic() + seconds, cycle(providers())
    interfaces = content["plugins"]["net"]["interfaces"]

    async def rewrite(number: int) -> None:
        changed = interfaces[number * 7 % len(interfaces)]
        changed["description"] = f"moved to rack {number} in {PLACES[number % 10]}"
        replace(daemon.folder / "state.json", json.dumps(content))

    async def client(kind: str, pause: float, work: Callable[[Client, int], Any]) -> None:
        async with Client(daemon.bus) as connected:
            calls = kinds.setdefault(kind, Calls())
            await go_on(calls, pause, end, lambda number: work(connected, number))

    async with asyncio.TaskGroup() as group:
        begin = group.create_task
        begin(client("set-provider", SWITCH, lambda c, _: c.set_provider(next(names))))
        begin(go_on(kinds.setdefault("rewrite", Calls()), REWRITE, end, rewrite))
        for _ in range(SEARCHERS):
            begin(client("search", SEARCH, lambda c, n: c.search(QUESTIONS[n % 6], 10, {})))
        for name in range(PUBLISHERS):
            begin(client("publish", PUBLISH, partial(publish, f"publisher-{name}")))
        begin(client("status", 1.0, lambda c, _: c.status()))
        begin(kill(daemon, kills_in(seconds), seconds))
    return kinds


async def publish(source: str, client: Client, number: int) -> None:
    """Publish one of a hundred objects, changed."""
    text = f"round {number} of the shop in {PLACES[number % 10]}"
    object_id = ("shop", "container", f"c{number % 100}", {"description": text})
    await client.publish(source, [object_id])


def growth(readings: list[tuple[float, float]], which: int) -> dict[str, float]:
    """Compare the end with the end of the first minute: medians of some seconds each."""
    begin, width = min(60, len(readings) // 5), min(20, len(readings) // 5)
    first = statistics.median(reading[which] for reading in readings[begin : begin + width])
    last = statistics.median(reading[which] for reading in readings[-width:])
    peak = max(reading[which] for reading in readings)
    return {"first MiB": first, "last MiB": last, "peak MiB": peak, "growth": last / first - 1}


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Give what was seen."""
    content = state(given.objects)
    seconds = given.minutes * 60
    starter = (sys.executable, str(Path(__file__).with_name("mortal.py")))
    with serving(
        folder, medium=not given.tiny, state=json.dumps(content).encode(), starter=starter
    ) as daemon:
        asyncio.run(warm_up(daemon))
        health = Health(daemon)
        with sampled(lambda: memory(daemon.pid), 1.0) as readings:
            kinds = asyncio.run(live(daemon, seconds, content))
        faults = health.faults()
        health.close()
        log = complaints(daemon.log)
    return {
        "model": "tiny" if given.tiny else "medium",
        "minutes": given.minutes,
        "objects": given.objects,
        "providers": providers(),
        "kills": kills_in(seconds),
        "warnings and errors in the log": log,
        "calls": {kind: calls.report() for kind, calls in kinds.items()},
        "RSS": growth(readings, 0),
        "PSS": growth(readings, 1),
        "faults": faults,
        "RSS MiB each second": [round(resident, 1) for resident, _ in readings],
    }


def failures(report: dict[str, Any]) -> list[str]:
    """Say what went worse than it may."""
    found = list(report["faults"])
    documented = contract.interface(STATE).methods["Search"].errors
    search = report["calls"]["search"]
    for name, number in search["errors"].items():
        if not name.endswith((*documented, NO_ANSWER)):
            found.append(f"{number} searches failed with {name}, which the interface does not name")
    found += [
        f"{calls['errors'][NO_ANSWER]} calls of {kind} were not answered in {PATIENCE_SECONDS:g} s"
        for kind, calls in report["calls"].items()
        if NO_ANSWER in calls["errors"]
    ]
    found += [
        f"{what} grew by {report[what]['growth']:.1%}"
        for what in ("RSS", "PSS")
        if report[what]["growth"] > MOST_GROWTH
    ]
    found += [
        f"no {kind} succeeded" for kind, calls in report["calls"].items() if not calls["answered"]
    ]
    if "provider lost" not in report["warnings and errors in the log"]:
        found.append("no provider was lost")
    return found


def main() -> int:
    """Print what was seen, and give the exit code."""
    reading = parser(__doc__, objects=3000)
    reading.add_argument("--minutes", type=float, default=5.0)
    given = reading.parse_args()
    with tempfile.TemporaryDirectory(prefix="op-dbus-endurance-") as folder:
        report = measure(Path(folder), given)
    return finish(given, report, failures(report))


if __name__ == "__main__":
    sys.exit(main())
