"""A full change of a fleet's level by three workers, one of them killed each minute.

    PYTHONPATH=.:tests .venv/bin/python benchmarks/fleet_level.py [--json FILE]

The fleet serves level static, with vectors of all texts; then it wants --level. The workers are
processes of `op-dbus fleet worker` with one thread each. The report counts the texts that they
computed, those of killed workers too, and looks at each second which level questions use.
"""

import argparse
import asyncio
import json
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleet_workers import PRECISION, objects
from harness.fleet_workers import count_computed, start_command, work
from harness.fleets import FleetDatabase, facts, fleet_database

from opdbus import config
from opdbus.bench.machine import describe
from opdbus.fleet import fleet_level, vector_store

WORKERS = 3
_OBJECTS = 2000
_DONE = (
    "SELECT count(*) FROM opdbus.vector WHERE numerics = (SELECT numerics FROM opdbus.numerics"
    " WHERE level = $1)"
)


class Workers:
    """Processes of workers, and the logs of all, whose vectors are counted in the end."""

    def __init__(self, database: FleetDatabase, home: Path) -> None:
        self._database = database
        self._home = home
        self._logs: list[Path] = []
        self.processes = [self._start() for _ in range(WORKERS)]

    def _start(self) -> subprocess.Popen[str]:
        home = self._home / str(len(self._logs))
        home.mkdir()
        self._logs.append(home / "log")
        with self._logs[-1].open("w") as log:
            return start_command(
                self._database,
                home,
                *("worker", "--threads", "1"),
                stderr=log,
                PRECISION=PRECISION,
                LOG_LEVEL="debug",
            )

    def replace(self, number: int) -> None:
        """Kill a worker with SIGKILL, and start another in its place."""
        self.processes[number].kill()
        self.processes[number].wait()
        self.processes[number] = self._start()

    def end(self) -> int:
        """End all by SIGTERM; return the number of vectors that all of them computed."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait()
        return sum(count_computed(log.read_text()) for log in self._logs)


def fill(database: FleetDatabase, texts: int, home: Path) -> None:
    """Send texts as hosts have them, and serve level static."""
    rows = objects(texts)

    async def send(host: str, start: int) -> None:
        async with database.uplink(host) as uplink:
            await uplink.begin(facts(host, numerics=""), None)
            await uplink.send([], rows[start : start + _OBJECTS], 0)

    for start in range(0, texts, _OBJECTS):
        asyncio.run(send(database.add(f"web{start // _OBJECTS}"), start))
    environ = {"HOME": str(home), "OP_DBUS_STATE_DIR": str(home / "state")}
    work(database, config.load(environ, {"vector_level": "static"}))


def change_level(
    database: FleetDatabase, home: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """Change the level, killing a worker now and then, and return the report."""
    environ = {"HOME": str(home), "OP_DBUS_STATE_DIR": str(home / "state")}
    given = {"vector_level": options.level, "precision": PRECISION}
    wanted = config.load(environ, given)
    database.run(lambda connection: fleet_level.change_level(connection, wanted))
    began = time.monotonic()
    killed, served = 0, Counter[str]()
    workers = Workers(database, home)
    while True:
        progress = database.run(fleet_level.read_progress)
        served[progress.serving] += 1
        if progress.serving == options.level:
            break
        if time.monotonic() - began > (killed + 1) * options.kill_seconds:
            # as likely in the middle of a batch as anywhere
            workers.replace(random.randrange(WORKERS))  # noqa: S311 -- a benchmark
            killed += 1
            print(f"{killed} killed, {progress.done} of {progress.total} texts", flush=True)
        time.sleep(1)
    seconds = time.monotonic() - began
    computed = workers.end()
    ((stored,),) = database.fetch(_DONE, options.level)
    return {
        "texts": options.texts,
        "vectors stored": stored,
        "vectors computed": computed,
        "computed again": computed - stored,
        "killed workers": killed,
        "texts of a batch": vector_store.BATCH,
        "seconds": round(seconds, 1),
        "seconds by the level that served": dict(served),
    }


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=60_000)
    parser.add_argument("--level", default="medium")
    parser.add_argument("--kill-seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(fleet_database())
        fill(database, options.texts, home)
        figures = change_level(database, home, options)
    report = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe().line,
        "workers": WORKERS,
        "level": options.level,
        **figures,
    }
    print(text := json.dumps(report, indent=1))
    if options.json:
        options.json.write_text(text + "\n")
    most = figures["killed workers"] * vector_store.BATCH
    if not 0 <= figures["computed again"] <= most:
        raise SystemExit(f"{figures['computed again']} computed again, of at most {most}")


if __name__ == "__main__":
    main()
