"""What a long history costs: start-up and memory with 1,000,000 rows, verification, each new row.

    python benchmarks/history.py [--rows N] [--json FILE]

Needs dbus-daemon. The daemon serves without a model; all is on this machine's disk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from opdbus.bench.machine import describe
from opdbus.history import ledger
from opdbus.history.change import Cause, Change, differences
from opdbus.history.change_sentence import of_change
from opdbus.history.row_filter import Filter
from opdbus.index.database.store import Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, StateObject

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from harness.running import Bus, environment

ROWS: Final = 1_000_000
OBJECTS: Final = 10_000
_BATCH: Final = 1000
_REPEATS: Final = 5
_STATES: Final = ("active", "failed", "inactive", "reloading")

# The peak of a process's memory since it began with its program, which rusage does not give.
_TELLING: Final = """
import atexit, sys
from opdbus.cli import main
lines = lambda: [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
atexit.register(lambda: print(*lines(), file=sys.stderr))
main()
"""


def identity(number: int) -> Identity:
    """Name one of the objects."""
    return Identity("live:systemd", "systemd", "unit", f"unit-{number % OBJECTS}.service")


def changes(numbers: range) -> Iterator[Change]:
    """Make changes as units have them: two fields, a cause, a sentence."""
    for number in numbers:
        before = {"active_state": _STATES[number % 4], "restarts": number}
        after = {"active_state": _STATES[(number + 1) % 4], "restarts": number + 1}
        name = identity(number)
        item = Change(name, "changed", Cause(f"job:{number} restart"), differences(before, after))
        yield of_change(item, f"systemd service {name.name}: keeps something right")


def fill(path: Path, rows: int) -> list[float]:
    """Write that many rows, and give the seconds that each thousand took to be committed."""
    seconds = []
    with closing(Store(path)) as store:
        for first in range(0, rows, _BATCH):
            made = list(changes(range(first, min(rows, first + _BATCH))))
            began = time.perf_counter()
            with store.transaction():
                store.ledger.append(made, int(time.time() * 1e6), "b" * 32)
            seconds.append(time.perf_counter() - began)
    return seconds


def objects(path: Path) -> None:
    """Store the objects that history is about."""

    async def work() -> None:
        async with StateStore(path) as memory:
            items = [
                StateObject(identity(number), {"active_state": "active"})
                for number in range(OBJECTS)
            ]
            await memory.observe(items, set(), {})

    asyncio.run(work())


@contextmanager
def served(bus: str, folder: Path) -> Iterator[tuple[float, float]]:
    """Start the daemon; give the seconds until it serves, and its memory in MiB then."""
    environ = environment(bus, folder, {"OP_DBUS_VECTOR_LEVEL": "none"})
    began = time.perf_counter()
    command = [sys.executable, "-m", "opdbus", "daemon"]
    with subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = process.stderr or ()
            if not any("serving" in line for line in lines):
                raise SystemExit("the daemon did not serve")
            yield time.perf_counter() - began, _resident(process.pid)
        finally:
            process.kill()


def _resident(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def started(folder: Path) -> dict[str, float]:
    """Give the best of some starts, and the memory of the last."""
    found = []
    bus = Bus()
    try:
        for _ in range(_REPEATS):
            with served(bus.address, folder) as one:
                found.append(one)
    finally:
        bus.kill()
    return {
        "seconds until it serves": round(statistics.median(seconds for seconds, _ in found), 3),
        "MiB": round(statistics.median(mib for _, mib in found), 1),
    }


def verified(folder: Path, rows: int) -> dict[str, float]:
    """Run `op-dbus history verify`."""
    command = ["history", "verify", "--json", f"--database={folder / 'memory.db'}"]
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _TELLING, *command],
        env=environment("session", folder, {}),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - began
    report = json.loads(done.stdout)
    if not report["ok"] or report["rows"] != rows:
        raise SystemExit(f"history was not found right: {report}")
    return {
        "seconds": round(seconds, 1),
        "rows a second": round(rows / seconds),
        "MiB": round(int(done.stderr.split()[-2]) / 1024, 1),
    }


def asked(path: Path) -> float:
    """Give the milliseconds until it is known which rows are of the older half of the time."""
    with closing(Store(path)) as store:
        first, last = (store.history.rows_by_seq([n])[0].at for n in (1, store.history.span()[-1]))
        seconds = []
        for _ in range(_REPEATS):
            began = time.perf_counter()
            store.history.candidate_range(Filter(before=(first + last) // 2))
            seconds.append(time.perf_counter() - began)
    return round(statistics.median(seconds) * 1e3, 2)


def pruned(path: Path) -> dict[str, float]:
    """Remove rows step by step, and give how long others wait for one."""
    seconds = []
    with closing(Store(path)) as store:
        for _ in range(50):
            began = time.perf_counter()
            store.prune_history(1 << 40)
            seconds.append(time.perf_counter() - began)
    return {
        "rows a step": ledger.MAX_PRUNED,
        "median ms": round(statistics.median(seconds) * 1e3, 1),
        "longest ms": round(max(seconds) * 1e3, 1),
    }


def measure(rows: int, folder: Path) -> dict[str, Any]:
    """Measure all of it."""
    path = folder / "memory.db"
    objects(path)
    empty = started(folder)
    appended = fill(path, rows)
    full = started(folder)
    return {
        "date": f"{datetime.now(UTC):%F}",
        "machine": describe().line,
        "rows": rows,
        "objects": OBJECTS,
        "database MiB": round(path.stat().st_size / 2**20),
        "start without history": empty,
        "start with history": full,
        "verification": verified(folder, rows + OBJECTS),
        "microseconds for each new row": {
            "first 100,000": round(statistics.mean(appended[:100]) / _BATCH * 1e6, 1),
            "last 100,000": round(statistics.mean(appended[-100:]) / _BATCH * 1e6, 1),
            "longest of a thousand": round(max(appended) / _BATCH * 1e6, 1),
        },
        "ms to find the rows of a time": asked(path),
        "pruning": pruned(path),
    }


def main() -> None:
    """Print what was measured."""
    reading = argparse.ArgumentParser(description=__doc__)
    reading.add_argument("--rows", type=int, default=ROWS)
    reading.add_argument("--json", type=Path)
    given = reading.parse_args()
    with tempfile.TemporaryDirectory(prefix="op-dbus-history-") as folder:
        found = measure(given.rows, Path(folder))
    text = json.dumps(found, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
