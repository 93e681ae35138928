"""A fleet's server under simulated hosts and a real one: load, changes, questions, recovery.

`PYTHONPATH=.:tests python benchmarks/fleet.py [--hosts 200] [--objects 2000] [--json FILE]`, as
root: the server is `op-dbus fleet serve`; simulated hosts (see simulated_fleet.py) and the process
that asks come to it by TLS, and so does `op-dbus-fleet.service` of a host that is booted here, with
a daemon of level medium.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from fleet_machines import (
    PORT,
    SERVER_ADDRESS,
    FleetServer,
    RealHost,
    memory_mib,
    processor_seconds,
    real_host,
)
from harness.running import Bus, Running
from simulated_fleet import (
    OF_A_ROLE,
    ROLES,
    Change,
    Host,
    Vectors,
    load,
    make_changes,
    plan_changes,
    send_changes,
    settled,
    template,
)

from opdbus.bench.figures import percentiles
from opdbus.bench.machine import describe
from opdbus.client import Client
from opdbus.fleet import postgres
from opdbus.fleet.questions.fleet_comparison import compare
from opdbus.fleet.questions.fleet_scope import Scope
from opdbus.fleet.questions.fleet_search import search
from opdbus.fleet.questions.peers import find_missing, find_odd
from opdbus.fleet.questions.vector_ranks import Numerics
from opdbus.fleet.uplink import Uplink

ROOT = Path(__file__).parents[1]
QUESTIONS = (
    "web server",
    "name resolution",
    "which hosts have openssh",
    "failed units",
    "time synchronization",
    "database server",
    "firewall rules",
    "disk that is full",
    "python",
    "kernel parameters of the network",
    "users who may become root",
    "backup job",
    "mail server",
    "nginx",
    "certificates",
    "cron jobs at night",
)


async def timed(count: int, ask: Callable[[int], Awaitable[Any]]) -> dict[str, float]:
    """Ask again and again, and return milliseconds."""
    seconds = []
    for number in range(count):
        began = time.perf_counter()
        await ask(number)
        seconds.append(time.perf_counter() - began)
    return in_ms(seconds)


def in_ms(seconds: Sequence[float]) -> dict[str, float]:
    """Return the milliseconds that half of the times, 99 of 100 and all are at most."""
    found = percentiles(seconds, 50, 99, 100)
    names = {"p50 ms": "p50", "p99 ms": "p99", "max ms": "p100"}
    return {name: round(found[cut], 1) for name, cut in names.items()}


@dataclass(frozen=True)
class Asker:
    """A process of its own that asks the fleet's questions, as the command line does."""

    url: str
    password: str
    bus: str
    numerics: str
    hosts: Sequence[str]
    count: int

    async def ask(self) -> dict[str, Any]:
        """Return the milliseconds of each question."""
        return await asyncio.get_running_loop().run_in_executor(_PROCESSES, _ask, self)


def _ask(asker: Asker) -> dict[str, Any]:
    return asyncio.run(ask_all(asker))


_PROCESSES = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


async def ask_all(asker: Asker) -> dict[str, Any]:
    """Ask each question again and again; return their milliseconds."""
    async with (
        postgres.connected(asker.url, asker.password) as connection,
        Client(asker.bus) as client,
    ):

        async def embed(text: str, wanted: Sequence[Numerics]) -> dict[str, list[float]]:
            (row,) = await client.vectorize([text])
            return {each.name: row for each in wanted if each.name == asker.numerics}

        async def ask(number: int) -> None:
            await search(connection, QUESTIONS[number % len(QUESTIONS)], embed=embed)

        async def ask_filtered(number: int) -> None:
            question = QUESTIONS[number % len(QUESTIONS)]
            scope = Scope(tags=(f"role{number % ROLES}",))
            await search(connection, question, embed=embed, scope=scope)

        async def compare_two(number: int) -> None:
            names = [asker.hosts[(number + each) % len(asker.hosts)] for each in (0, 1)]
            await compare(connection, *names)

        return {
            "search": await timed(asker.count, ask),
            "search of the hosts with a tag": await timed(asker.count // 4, ask_filtered),
            "odd": await timed(10, lambda _: find_odd(connection)),
            "odd of the hosts with a tag": await timed(
                10, lambda each: find_odd(connection, Scope(tags=(f"role{each % ROLES}",)))
            ),
            "missing": await timed(10, lambda _: find_missing(connection)),
            "compare": await timed(20, compare_two),
        }


async def store_size(url: str, password: str) -> dict[str, Any]:
    """Return the rows and the bytes of the tables, and how often equal texts were stored once."""
    async with postgres.connected(url, password) as connection:
        await connection.execute("VACUUM ANALYZE")
        names = "object content text vector change".split()
        rows = {
            each: await connection.fetchval(f"SELECT count(*) FROM opdbus.{each}")  # noqa: S608
            for each in names
        }
        size = (
            "SELECT greatest(pg_total_relation_size($1::regclass),"
            " (SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree($1::regclass)))"
        )
        mib = {
            each: round(int(await connection.fetchval(size, f"opdbus.{each}")) / 2**20, 1)
            for each in names
        }
        total = await connection.fetchval("SELECT pg_database_size(current_database())")
    return {
        "rows": rows,
        "MiB": mib | {"database": round(total / 2**20, 1)},
        "objects for each stored state": round(rows["object"] / rows["content"], 1),
        "objects for each stored text": round(rows["object"] / rows["text"], 1),
    }


async def publish_offers(url: str, password: str) -> None:
    """Publish what simulated hosts offer: a worker's part, which has a benchmark of its own."""
    async with postgres.connected(url, password) as connection:
        await connection.execute(
            "INSERT INTO opdbus.vector SELECT numerics, digest, v, host FROM opdbus.offered_vector"
            " ON CONFLICT DO NOTHING"
        )
        await connection.execute("DELETE FROM opdbus.offered_vector")


async def run(
    given: argparse.Namespace, client: Client, address: str, server: FleetServer, real: RealHost
) -> dict[str, Any]:
    """Load the hosts, measure questions at rest and under changes, and return the report."""
    vectors = Vectors(client)
    # no host has what only other roles have
    states = await template(client, vectors, round(given.objects * (1 + 2 * OF_A_ROLE)))
    hosts = [Host(number, states, given.objects) for number in range(given.hosts)]
    began = time.perf_counter()
    await vectors.add([state["text"] for host in hosts for state in host.states])
    report: dict[str, Any] = {
        "vectors computed before, seconds": round(time.perf_counter() - began, 1)
    }
    async with postgres.connected(*server.admin) as connection:
        await connection.execute(
            "SELECT opdbus.add_numerics($1, 'medium', $2)", vectors.numerics, vectors.dimension
        )
    opened = await server.add_hosts({host.name: host.tags for host in hosts})
    async with AsyncExitStack() as stack:
        links = [await stack.enter_async_context(opened[each.name]) for each in hosts]
        turns = asyncio.Semaphore(given.at_once)

        async def load_in_turn(host: Host, link: Uplink) -> None:
            async with turns:
                await load(host, link, vectors)

        began = time.perf_counter()
        await asyncio.gather(*map(load_in_turn, hosts, links))
        loaded = time.perf_counter() - began
        total = given.hosts * given.objects
        report["initial load"] = {"seconds": round(loaded, 1), "objects/s": round(total / loaded)}
        report["initial load of the booted host, seconds"] = round(await real.send_to(server), 1)
        began = time.perf_counter()
        await publish_offers(*server.admin)
        report["offered vectors published, seconds"] = round(time.perf_counter() - began, 1)
        report["stored after the load"] = await store_size(*server.admin)
        names = [each.name for each in hosts]
        reader = await server.add_reader("reader")
        asker = Asker(*reader, address, vectors.numerics, names, given.questions)
        report["questions at rest"] = await asker.ask()
        count = round(given.rate * (given.warm_up + given.seconds + 60))
        planned = await plan_changes(hosts, count, vectors)
        changing = Changing(hosts, links, vectors, planned, asker, server, real)
        report["under changes"] = await changing.measure(given)
        report["memory of the server, MiB"] = memory_mib(server.pid)
    report["objects of the booted host, all equal"] = await real.until_equal(server)
    report["stored after the changes"] = await store_size(*server.admin)
    return report


@dataclass(frozen=True)
class Changing:
    """Hosts that change while questions are asked."""

    hosts: Sequence[Host]
    links: Sequence[Uplink]
    vectors: Vectors
    planned: Sequence[tuple[Host, Change]]
    asker: Asker
    server: FleetServer
    real: RealHost

    async def measure(self, given: argparse.Namespace) -> dict[str, Any]:
        """Let hosts change while questions are asked; return what was stored, and how quickly."""
        waits: list[float] = []
        real_waits: list[float] = []
        senders = [
            send_changes(host, link, self.vectors, waits)
            for host, link in zip(self.hosts, self.links, strict=True)
        ]
        works = (
            make_changes(self.planned, given.rate),
            self.real.change(self.server, real_waits),
            *senders,
        )
        tasks = [asyncio.ensure_future(work) for work in works]
        await asyncio.sleep(given.warm_up)
        waits.clear()
        real_waits.clear()
        began, before = time.perf_counter(), processor_seconds(self.server.pid)
        asked = asyncio.ensure_future(self.asker.ask())
        await asyncio.wait({*tasks, asked}, timeout=given.seconds)
        seconds = time.perf_counter() - began
        spent = processor_seconds(self.server.pid) - before
        figures = {
            "changes/s wanted": given.rate,
            "changes/s stored": round(len(waits) / seconds, 1),
            "change to commit": in_ms(waits),
            "units started on the booted host": len(real_waits),
            "unit started to stored": in_ms(real_waits),
            "server, processors": round(spent / seconds, 2),
            "questions": await asked,
        }
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        return figures


async def serve(given: argparse.Namespace, address: str, real: RealHost) -> dict[str, Any]:
    """Run the server in a folder of its own."""
    listen = f"{SERVER_ADDRESS}:{PORT}"
    async with Client(real.bus) as client:
        await settled(client)
    async with Client(address) as client, FleetServer(given.folder, listen, given.worker) as server:
        report = await run(given, client, address, server, real)
        await server.crash()
    began = time.perf_counter()
    async with FleetServer(given.folder, listen, "none") as server:
        async with postgres.connected(*server.admin) as connection:
            await connection.fetchval("SELECT count(*) FROM opdbus.object")
        report["start after kill -9, seconds"] = round(time.perf_counter() - began, 1)
    return report


def main() -> None:
    """Measure, and print or write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=200.0, help="changes a second of all hosts")
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of the measurement of changes"
    )
    parser.add_argument("--warm-up", type=float, default=10.0)
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--at-once", type=int, default=4, help="hosts that are loaded at one time")
    parser.add_argument("--worker", default="medium", metavar="LEVEL", help="`none` for no worker")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    # the path of a unix socket has at most 107 bytes
    given.folder = Path(tempfile.mkdtemp(prefix="op-dbus-fleet-"))
    given.folder.chmod(0o755)
    bus = Bus()
    settings = {
        "VECTOR_LEVEL": "medium",
        "OBSERVE": "auto",
        "STATE_FILE": ROOT / "state.example.json",
    }
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, given.folder)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(Running(folder, bus.address, **settings))
        real = stack.enter_context(real_host())
        figures = asyncio.run(serve(given, bus.address, real))
    report = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe().line,
        "hosts": given.hosts,
        "objects of each": given.objects,
        **figures,
    }
    text = json.dumps(report, indent=1)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
