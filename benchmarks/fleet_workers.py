"""Texts a second of one and of two fleet workers of one thread each, and how near precisions are.

    PYTHONPATH=.:tests .venv/bin/python benchmarks/fleet_workers.py [--json FILE]

So that other programs do not take part, give it a session of a higher priority:
`setsid sh -c 'echo -15 > /proc/self/autogroup; exec nice -n -15 ...'` as root.

The workers are processes of `op-dbus fleet worker`, the server is the embedded one. All run on this
machine, so that two workers need two free processors, less what PostgreSQL takes.
"""

import argparse
import asyncio
import json
import os
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import asyncpg
import numpy as np
from harness.fleet_workers import start_command
from harness.fleets import FleetDatabase, facts, fleet_database, state_row

from opdbus import config
from opdbus.engine.opening import open_level
from opdbus.fleet import fleet_level, vector_store
from opdbus.fleet.uplink import StateRow
from opdbus.fleet.vector_store import Model

# of all processors, and without a measurement of others first
PRECISION = "fp32"
_DONE = "SELECT count(*) FROM opdbus.vector"


def main() -> None:
    """Measure, print, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--level", default="medium")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rates: dict[int, list[float]] = {1: [], 2: []}
    costs: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as home, fleet_database() as database:
        _fill(database, options)
        for number in range(options.rounds):
            for count, measured in rates.items():
                folder = Path(home, f"{number}-{count}")
                rate, cost = _measure(database, folder, count, options)
                measured.append(rate)
                costs[count].append(cost)
                print(
                    f"{count} worker(s): {rate:.1f} texts a second, {cost:.2f} ms of processor time"
                    f" each; load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    found: dict[str, Any] = {
        "texts": options.texts,
        "level": options.level,
        "processors": os.cpu_count(),
        "load": os.getloadavg()[1],
        "texts_per_second": {str(count): each for count, each in rates.items()},
        "worker_ms_per_text": {str(count): each for count, each in costs.items()},
        "gain": median(two / one for one, two in zip(rates[1], rates[2], strict=True)),
    }
    print(f"two workers do {found['gain']:.2f} times what one does (median of rounds)")
    found["least_cosine"] = asyncio.run(_compare(options.level))
    for name, cosine in found["least_cosine"].items():
        print(f"least cosine of {name}: {cosine:.6f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


def _fill(database: FleetDatabase, options: argparse.Namespace) -> None:
    host = database.add("web1")
    settings = config.load(os.environ, {"vector_level": options.level, "precision": PRECISION})
    database.run(lambda connection: fleet_level.change_level(connection, settings))

    async def send() -> None:
        async with database.uplink(host) as uplink:
            await uplink.begin(facts(host, numerics=""), None)
            await uplink.send([], objects(options.texts), 0)

    asyncio.run(send())


def objects(count: int) -> list[StateRow]:
    """Return objects with texts of the length that those of a host have."""
    words = "web mail cache queue proxy backup metrics storage login search".split()
    return [
        state_row(
            f"{words[number % 10]}{number}.service",
            f"systemd unit {words[number % 10]}{number}.service, The {words[number // 10 % 10]}"
            f" server of tenant {number}: active and running, enabled, main process"
            f" {1000 + number * 7}, {number % 90 + 10} MB of memory, started by"
            f" {words[number // 100 % 10]}.target, file"
            f" /usr/lib/systemd/system/{words[number % 10]}{number}.service, restarts"
            f" {number % 4}, user {words[number % 7]}, no limits of memory",
        )
        for number in range(count)
    ]


def _measure(
    database: FleetDatabase, folder: Path, count: int, options: argparse.Namespace
) -> tuple[float, float]:
    """Return the texts a second of so many workers, and their processor time for one, in ms."""
    database.run(_empty)
    with ExitStack() as stack:
        workers = []
        for number in range(count):
            home = folder / str(number)
            home.mkdir(parents=True)
            given = ("worker", "--level", options.level, "--threads", "1")
            process = start_command(database, home, *given, PRECISION=PRECISION)
            workers.append(stack.enter_context(process))
            # all log lines of a run fit into the pipe
            for line in process.stderr or ():
                if '"engine ready"' in line:
                    break
        time.sleep(3)
        ((begin,),) = database.fetch(_DONE)
        database.run(
            lambda each: each.execute("UPDATE opdbus.embedding_task SET not_before = now()")
        )
        used = sum(map(_processor_seconds, workers))
        began = time.perf_counter()
        while (done := database.fetch(_DONE)[0][0]) < options.texts:
            time.sleep(0.1)
        seconds = time.perf_counter() - began
        used = sum(map(_processor_seconds, workers)) - used
        for process in workers:
            process.terminate()
    return (done - begin) / seconds, 1000 * used / (done - begin)


def _processor_seconds(process: subprocess.Popen[str]) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _empty(connection: asyncpg.Connection) -> None:
    """Queue all texts, for later."""
    await connection.execute("DELETE FROM opdbus.vector")
    for (number,) in await connection.fetch("SELECT numerics FROM opdbus.numerics"):
        await vector_store.queue_missing(connection, number)
    await connection.execute(
        "UPDATE opdbus.embedding_task SET not_before = now() + interval '1 day'"
    )


async def _compare(level: str) -> dict[str, float]:
    """Return the least cosine of the vectors of other precisions and runtimes with fp32's."""
    texts = [row.body or "" for row in objects(200)]
    texts += [" ".join(texts[:number]) for number in range(2, 12)]
    vectors = {}
    for provider, precision in (
        ("cpu", "fp32"),
        ("cpu:openvino", "int8"),
        ("cpu:openvino", "fp32"),
        ("cpu:openvino", "bf16"),
        ("cpu", "int8"),
    ):
        given = {"execution_provider": provider, "precision": precision, "vector_level": level}
        try:
            async with open_level(config.load(os.environ, given), level) as engine:
                name = (
                    f"{engine.provider} {engine.precision} ({engine.numerics.rpartition('/')[2]})"
                )
                vectors[name] = await Model(engine, 0).compute(texts)
        except Exception as error:  # noqa: BLE001 -- what is not here is not measured
            print(f"{provider} {precision}: {error}")
    exact = next(iter(vectors.values()))
    # as the database rounds them
    return {
        name: float(np.min(np.sum(exact * each.astype(np.float16), axis=1)))
        for name, each in vectors.items()
    }


if __name__ == "__main__":
    main()
