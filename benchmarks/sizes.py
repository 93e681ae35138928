"""Objects made of a seed, and what each thing costs a daemon that has very many: see million.py."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from harness.health import memory_mib
from harness.running import Running, replace
from robustness.harness import PLACES, ROLES

from opdbus.bench.figures import percentiles
from opdbus.bus.transport.connection import Connection
from opdbus.client import Client
from opdbus.errors import OpDbusError
from opdbus.state import publish

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from opdbus.state.object import StateObject

SEED: Final = 15
_KINDS: Final = (("systemd", "unit"), ("net", "interface"), ("packages", "package"))
_ENDS: Final = (".service", "", "-tools")
_THINGS: Final = "printer scanner camera router switch laptop server phone sensor display".split()
# The last of them have words that a tenth of all objects have, or half of them.
QUESTIONS: Final = (
    "what keeps the clock right?",
    "which service sends mail?",
    "nightly copy of the database",
    "interface eth17",
    "camera in Linz",
    "who prints for the office in Vienna?",
    "server in the office",
)
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def objects(count: int, seed: int = SEED, first: int = 0) -> Iterator[StateObject]:
    """Yield believable objects, each with a text of its own, numbered from the first."""
    chance = random.Random(seed)  # noqa: S311 -- no secret
    for number in range(first, first + count):
        plugin, kind = _KINDS[number % 3]
        role, place, object_id = (chance.choice(words) for words in (ROLES, PLACES, _THINGS))
        where = "in the office" if number % 2 else f"at desk {chance.randrange(10_000)}"
        properties = {
            "description": f"{role} of the {object_id} {number} {where} of {place}",
            "active_state": "active" if number % 10 else "failed",
            "main_pid": chance.randrange(1 << 20),
            "path": f"/srv/{role}/{number:x}",
        }
        yield publish.make_object(
            "publish:sizes", plugin, kind, f"{role}{number}{_ENDS[number % 3]}", properties
        )


def processor_seconds(pid: int) -> float:
    """Give how long a process has computed, and those that it started and that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / _TICKS


def exact_seconds(pid: int) -> float:
    """Give how long the threads of a process that still run have computed, to the microsecond."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


async def until_all_have_vectors(bus: str) -> None:
    """Wait until the daemon is ready, and nothing waits."""
    await until_serving(bus)
    async with Client(bus) as client:
        while (await client.status())["Pending"]:  # noqa: ASYNC110 -- signals tell of no number
            await asyncio.sleep(0.02)


async def until_serving(bus: str) -> None:
    """Wait until the daemon is ready."""
    async with Client(bus) as client:
        while True:
            with suppress(OpDbusError):
                if (await client.status())["State"] in {"ready", "degraded"}:
                    return
            await asyncio.sleep(0.01)


def stop(daemon: Running) -> None:
    """Stop the daemon."""
    daemon.send(signal.SIGTERM)
    daemon.exit_code()


async def status_cost(daemon: Running, rounds: int = 400) -> dict[str, float]:
    """Give the milliseconds of the daemon's processor that a status takes, and how long it lasts.

    What the daemon computes by itself meanwhile is part of it.
    """
    async with Client(daemon.bus) as client:
        await client.status()
        before, began = exact_seconds(daemon.pid), time.perf_counter()
        for _ in range(rounds):
            await client.status()
        took = time.perf_counter() - began
        used = exact_seconds(daemon.pid) - before
    return {"daemon ms": round(1000 * used / rounds, 3), "ms": round(1000 * took / rounds, 3)}


async def latency(
    rounds: int, ask: Callable[[Client, str], Awaitable[Any]], daemon: Running
) -> dict[str, float]:
    """Give percentiles of a call, one caller, and what the daemon computes, in milliseconds."""
    seconds = []
    async with Client(daemon.bus) as client:
        for question in QUESTIONS:
            await ask(client, question)
        before = processor_seconds(daemon.pid)
        for number in range(rounds):
            began = time.perf_counter()
            await ask(client, QUESTIONS[number % len(QUESTIONS)])
            seconds.append(time.perf_counter() - began)
        used = processor_seconds(daemon.pid) - before
    found = {f"{name} ms": value for name, value in percentiles(seconds, 50, 99).items()}
    found["daemon ms"] = 1000 * used / rounds
    return {name: round(value, 2) for name, value in found.items()}


async def changes(
    daemon: Running, path: Path, texts: Iterable[str], patience: float = 120.0
) -> list[float]:
    """Give the milliseconds from replacing the state file by each text to the Vectorized signal."""
    times = []
    arrived: asyncio.Queue[float] = asyncio.Queue()
    async with Connection(daemon.bus) as connection:
        connection.on_signal = lambda message: (
            arrived.put_nowait(time.perf_counter()) if message.member == "Vectorized" else None
        )
        await connection.subscribe("type='signal',interface='org.opdbus.State1'")
        for text in texts:
            began = time.perf_counter()
            replace(path, text)
            async with asyncio.timeout(patience):
                times.append(1000 * (await arrived.get() - began))
            await asyncio.sleep(0.3)
    return sorted(times)


async def one_change(daemon: Running, rounds: int = 9) -> float:
    """Give the median milliseconds until a change of one declared object is vectorized."""
    said = (f"moved to rack {number}" for number in range(rounds))
    plugins = ({"demo": {"things": {"one": {"description": text}}}} for text in said)
    texts = (json.dumps({"version": 1, "plugins": each}) for each in plugins)
    return round(statistics.median(await changes(daemon, daemon.folder / "none.json", texts)), 1)


def memory(pid: int) -> dict[str, float]:
    """Give the resident and the private memory of a process."""
    return {
        "resident MiB": round(memory_mib(pid), 1),
        "private MiB": round(memory_mib(pid, "RssAnon"), 1),
    }
