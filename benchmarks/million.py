"""What 10,000, 100,000 and a million objects cost, published over D-Bus: filled, and measured.

`fill FOLDER` publishes objects in batches and has them get their vectors; `measure FOLDER...` gives
all figures of daemons that were filled, as JSON. A filled folder can be measured again and again.
`first FOLDER` follows first starts with a state file of so many objects, in FOLDER-LEVEL each,
until all have static vectors, and how long others wait meanwhile; those of a level with a model
take minutes.
`reload FOLDER` follows one with a state file of a million small objects, all of which change then.
With `--mixed`, vectors are mixed of two real texts' ones each, since a model takes hours for a
million; recall is measured on real texts, by recall.py.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.extend(str(Path(__file__).parent / part) for part in (".", "../tests"))
import sizes
from harness.running import Bus, Running
from limited import Limited
from mixed import mix
from robustness.harness import QUESTIONS, state

from opdbus.bench.figures import percentiles
from opdbus.bench.machine import describe
from opdbus.bus.transport.connection import Connection
from opdbus.client import Client
from opdbus.errors import OpDbusError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opdbus.state.object import StateObject

# Objects published in one call.
BATCH: Final = 1000
_PING_SECONDS: Final = 0.005
_NO_LIMIT: Final = {"PUBLISH_OBJECTS": 1 << 30, "PUBLISH_BYTES": "1T"}
_ROUNDS: Final = 210
# A tenth of the objects meets the condition.
_WAYS: Final = {
    "search": {},
    "search, where": {"where": "active_state=failed"},
    "search, vector": {"mode": "vector"},
    "search, lexical": {"mode": "lexical"},
}
# A daemon that computes less of the time is idle; how long is looked.
_IDLE: Final = 0.05
_LOOK_SECONDS: Final = 2.0
# Between two looks at a first start, which are a part of what it costs.
_FOLLOW_SECONDS: Final = 0.1
_ASKED: Final = QUESTIONS[1], 10, {"all": True}


# filling


def fill(folder: Path, count: int, level: str, *, is_mixed: bool) -> dict[str, Any]:
    """Fill a folder with a daemon's memory of so many objects, and give what that cost."""
    folder.mkdir(parents=True)
    take_built(folder)
    (folder / "none.json").write_text('{"version": 1, "plugins": {}}')
    first = "none" if is_mixed else level
    with placed(folder, first) as daemon, daemon:
        figures = {"objects": count, "level": level, "mixed": is_mixed}
        if count:
            figures |= asyncio.run(_published(daemon, count))
        began = time.perf_counter()
        asyncio.run(sizes.until_all_have_vectors(daemon.bus))
        figures["vectors after it s"] = round(time.perf_counter() - began, 1)
        sizes.stop(daemon)
    if is_mixed:
        asyncio.run(mix(daemon.state_dir, level))
    (folder / "fill.json").write_text(json.dumps(figures))
    return figures


def take_built(folder: Path) -> None:
    """Copy what a folder beside has built of the model, which takes minutes."""
    beside = (path / "state" for path in folder.parent.iterdir() if path != folder)
    if built := next((path for path in beside if (path / "gates").exists()), None):
        for name in ("graphs", "gates"):
            shutil.copytree(built / name, folder / "state" / name)


@contextlib.contextmanager
def placed(folder: Path, level: str, **settings: object) -> Iterator[Running]:
    """Give a daemon with a filled folder and a bus of its own, which is not started."""
    bus = Bus()
    try:
        given = {"STATE_FILE": folder / "none.json", "LOG_LEVEL": "warning", "VECTOR_LEVEL": level}
        daemon = Running(folder, bus.address, **given, **_NO_LIMIT, **settings)
        yield daemon
    finally:
        bus.kill()


async def _published(daemon: Running, count: int) -> dict[str, float]:
    """Publish objects, and give what one costs and how long others wait meanwhile."""
    await sizes.until_serving(daemon.bus)
    with pinging(daemon) as waits:
        before, took = sizes.processor_seconds(daemon.pid), 0.0
        async with Client(daemon.bus) as client:
            made = sizes.objects(count)
            while part := [_wire(one) for one in itertools.islice(made, BATCH)]:
                began = time.perf_counter()
                await client.publish("sizes", part)
                took += time.perf_counter() - began
        used = sizes.processor_seconds(daemon.pid) - before
    return {
        "published s": round(took, 1),
        "daemon ms an object": round(1000 * used / count, 4),
        **waits,
    }


def _wire(one: StateObject) -> tuple[str, str, str, dict[str, Any]]:
    return *one.identity[1:], dict(one.properties)


@contextlib.contextmanager
def pinging(daemon: Running) -> Iterator[dict[str, float]]:
    """Call the daemon's simplest method all the time from a process, and give what it took."""
    found: dict[str, float] = {}
    command = [sys.executable, __file__, "ping", daemon.bus]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield found
        process.send_signal(signal.SIGTERM)
        found |= json.loads(process.communicate()[0])


async def ping(bus: str) -> dict[str, float]:
    """Call the daemon's simplest method until SIGTERM, and give percentiles in milliseconds."""
    stop, seconds = asyncio.Event(), []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Connection(bus) as connection:
        while not stop.is_set():
            began = time.perf_counter()
            await connection.call("org.opdbus", "/org/opdbus", "org.freedesktop.DBus.Peer.Ping", "")
            seconds.append(time.perf_counter() - began)
            await asyncio.sleep(_PING_SECONDS)
    found = percentiles(seconds, 50, 99, 100)
    return {f"ping {name} ms": round(value, 2) for name, value in found.items()}


# a first start


def first(folder: Path, count: int, level: str) -> dict[str, Any]:
    """Start a daemon that has nothing yet on a state file, and give when what was there."""
    folder.mkdir(parents=True)
    take_built(folder)
    (folder / "none.json").write_text(json.dumps(state(count)))
    with placed(folder, level) as daemon, daemon:
        figures: dict[str, Any] = {"objects": count, "level": level}
        figures |= asyncio.run(followed(daemon, count))
        if level == "static":
            figures["settled s"] = settled(daemon)
            figures["settled, computed s"] = sizes.processor_seconds(daemon.pid)
        else:
            figures["ends"] = "with all static vectors: those of the level take minutes"
        figures["memory"] = sizes.memory(daemon.pid)
        sizes.stop(daemon)
    # then it can be measured as one that was filled
    (folder / "fill.json").write_text(json.dumps(figures))
    return figures


async def followed(daemon: Running, count: int) -> dict[str, dict[str, float]]:
    """Give the seconds, and those computed, until a daemon serves, answers, and has all."""
    began, figures = time.perf_counter(), dict[str, dict[str, float]]()

    def note(name: str) -> None:
        took, used = time.perf_counter() - began, sizes.processor_seconds(daemon.pid)
        figures.setdefault(name, {"s": round(took, 2), "computed s": used})

    waits: dict[str, float] = {}
    async with Client(daemon.bus) as client, contextlib.AsyncExitStack() as stack:
        while "all static vectors" not in figures:
            await asyncio.sleep(_FOLLOW_SECONDS)
            with contextlib.suppress(OpDbusError):
                values = await client.status()
                if "serving" not in figures:
                    waits = stack.enter_context(pinging(daemon))
                note("serving")
                if "first answer" not in figures and await client.search(*_ASKED):
                    note("first answer")
                if values["Count"] == count:
                    note("all stored")
                    if count in (values["FirstStage"], values["Count"] - values["Pending"]):
                        note("all static vectors")
    return {**figures, "pings from serving on": waits}


# a reload


def reload(folder: Path, count: int) -> dict[str, Any]:
    """Start a daemon on a state file, have all in it change, and give what both cost others."""
    folder.mkdir(parents=True)
    file = folder / "none.json"
    file.write_text(declared(count, "cable"))
    with placed(folder, "static") as daemon, daemon:
        figures: dict[str, Any] = {"objects": count, "MiB": round(file.stat().st_size / 2**20, 1)}
        figures |= asyncio.run(followed(daemon, count))
        settled(daemon)
        figures["all changed"] = asyncio.run(reloaded(daemon, file, declared(count, "fibre")))
        figures["memory"] = sizes.memory(daemon.pid)
        sizes.stop(daemon)
    return figures


def declared(count: int, what: str) -> str:
    """Make a state file of objects so small that a million are below its limit."""
    rows = [
        {"name": f"p{n}", "description": f"{what} {n % 4999} rack {n % 37}"} for n in range(count)
    ]
    content = {"version": 1, "plugins": {"net": {"interfaces": rows}}}
    return json.dumps(content, separators=(",", ":"))


async def reloaded(daemon: Running, file: Path, text: str) -> dict[str, float]:
    """Replace a state file, and give the seconds until it is stored, and all has its vectors."""
    new = file.with_suffix(".new")
    new.write_text(text)
    async with Client(daemon.bus) as client:
        began, used = time.perf_counter(), sizes.processor_seconds(daemon.pid)
        with pinging(daemon) as waits:
            new.replace(file)
            await client.reload()
            stored = time.perf_counter() - began
            await sizes.until_all_have_vectors(daemon.bus)
        took, computed = time.perf_counter() - began, sizes.processor_seconds(daemon.pid) - used
    seconds = {"stored s": stored, "all vectors s": took, "computed s": computed}
    return {name: round(each, 1) for name, each in seconds.items()} | waits


# measuring


def measure(folder: Path, limit: str, rounds: int) -> dict[str, Any]:
    """Give all figures of a filled folder, without and with a limit of memory."""
    filled = json.loads((folder / "fill.json").read_text())
    figures: dict[str, Any] = {"fill": filled}
    with placed(folder, filled["level"]) as daemon:
        # makes what is made once, and kept in files
        figures["first start"] = told("first start", asyncio.run(started(daemon)))
        settled(daemon)
        sizes.stop(daemon)
    for name, most in (("", ""), (f"under {limit}", limit)):
        with Limited(most) as limited, placed(folder, filled["level"]) as daemon:
            daemon.starter = limited.starter
            found = served(daemon, rounds if filled["objects"] else 0)
            found |= limited.figures()
            sizes.stop(daemon)
        figures |= {name: found} if name else found
    return figures


def served(daemon: Running, rounds: int) -> dict[str, Any]:
    """Start a daemon, and give what it costs."""
    found: dict[str, Any] = {}
    found["restart"] = told("restart", asyncio.run(started(daemon)))
    found["settled s"] = told("settled s", settled(daemon))
    found["memory"] = told("memory", sizes.memory(daemon.pid))
    found |= asyncio.run(asked(daemon, rounds))
    found["memory in the end"] = told("memory in the end", sizes.memory(daemon.pid))
    return found


def told(name: str, figure: Any) -> Any:  # noqa: ANN401 -- what it is given
    """Say a figure as soon as it is there."""
    print(f"{name}: {figure}", file=sys.stderr, flush=True)
    return figure


def settled(daemon: Running) -> float:
    """Wait until a daemon computes no more, and give the seconds: searches wait for none of it."""
    began = time.perf_counter()
    used = -1.0
    while (now := sizes.processor_seconds(daemon.pid)) - used > _IDLE * _LOOK_SECONDS:
        used = now
        time.sleep(_LOOK_SECONDS)
    return round(time.perf_counter() - began, 1)


async def started(daemon: Running) -> dict[str, float]:
    """Start a daemon, and give the seconds until it is ready, and until all have their vectors."""
    began = time.perf_counter()
    daemon.start()
    await sizes.until_serving(daemon.bus)
    ready = time.perf_counter() - began
    await sizes.until_all_have_vectors(daemon.bus)
    return {
        "ready s": round(ready, 2),
        "all vectors s": round(time.perf_counter() - began, 2),
        "computed s": sizes.processor_seconds(daemon.pid),
    }


async def asked(daemon: Running, rounds: int) -> dict[str, Any]:
    """Give what searches, a status and a change cost."""
    found: dict[str, Any] = {}
    for name, options in _WAYS.items() if rounds else ():
        figures = await sizes.latency(rounds, lambda c, q, o=options: c.search(q, 10, o), daemon)
        found[name] = told(name, figures)
    found["status"] = told("status", await sizes.status_cost(daemon))
    found["one change ms"] = told("one change ms", await sizes.one_change(daemon))
    return found


def headed(report: dict[str, Any]) -> dict[str, Any]:
    """Give a report with when and where it was measured."""
    return {"date": f"{datetime.now(UTC):%F}", "machine": describe().line, **report}


def with_more(report: dict[str, Any]) -> dict[str, Any]:
    """Give the private memory above an empty daemon's, if one was measured: the first one."""
    empty = report["sizes"][0]
    if not empty["fill"]["objects"]:
        report["empty"] = report["sizes"].pop(0)
        least = empty["memory in the end"]["private MiB"]
        for row in report["sizes"]:
            more = row["memory in the end"]["private MiB"] - least
            row["more private MiB"] = round(more, 1)
    return report


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    filling = commands.add_parser("fill")
    filling.add_argument("folder", type=Path)
    filling.add_argument("--objects", type=int, required=True)
    filling.add_argument("--level", default="medium")
    filling.add_argument("--mixed", action="store_true")
    starting = commands.add_parser("first")
    starting.add_argument("folder", type=Path)
    starting.add_argument("--objects", type=int, default=100_000)
    starting.add_argument("--levels", nargs="+", default=["static", "medium"])
    reloading = commands.add_parser("reload")
    reloading.add_argument("folder", type=Path)
    reloading.add_argument("--objects", type=int, default=1_000_000)
    measuring = commands.add_parser("measure")
    measuring.add_argument("folders", type=Path, nargs="+")
    measuring.add_argument("--limit", default="2G")
    measuring.add_argument("--rounds", type=int, default=_ROUNDS)
    commands.add_parser("ping").add_argument("bus")
    given = parser.parse_args()
    if given.command == "ping":
        print(json.dumps(asyncio.run(ping(given.bus))))
    elif given.command == "fill":
        found = fill(given.folder, given.objects, given.level, is_mixed=given.mixed)
        print(json.dumps(found))
    elif given.command == "first":
        named = {
            each: given.folder.with_name(f"{given.folder.name}-{each}") for each in given.levels
        }
        starts = [first(path, given.objects, level) for level, path in named.items()]
        print(json.dumps(headed({"starts": starts}), indent=1))
    elif given.command == "reload":
        print(json.dumps(headed(reload(given.folder, given.objects)), indent=1))
    else:
        rows = [measure(folder, given.limit, given.rounds) for folder in given.folders]
        print(json.dumps(headed(with_more({"sizes": rows})), indent=1))


if __name__ == "__main__":
    main()
