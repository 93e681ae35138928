"""A fleet's server under simulated hosts, and its workers.

`python benchmarks/fleet.py hosts [--hosts 200] [--objects 2000] [--json FILE]`: the server is
`op-dbus fleet serve` in a folder of its own, with a worker of the level static. All hosts stay
connected by TLS; a process of its own asks questions at rest, and while objects of the hosts
change. At the end PostgreSQL is killed, and starts again.

`python benchmarks/fleet.py workers [--texts 4000] [--level medium]`: texts a second of one and of
two workers of one thread each, which share this machine with PostgreSQL.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Self

from harness import ROOT, cpu_seconds, milliseconds, parse, say, timed, write

from opdbus import config
from opdbus.engine.opening import open_level
from opdbus.fleet import administration, fleet_level, postgres
from opdbus.fleet.embedded_server import EmbeddedServer
from opdbus.fleet.fleet_server import open_authority, read_endpoint
from opdbus.fleet.questions.fleet_comparison import compare
from opdbus.fleet.questions.fleet_scope import Scope
from opdbus.fleet.questions.fleet_search import search
from opdbus.fleet.questions.peers import find_missing, find_odd
from opdbus.fleet.uplink import ChangeRow, HostFacts, StateRow, Uplink
from opdbus.history.hash_chain import row_hash
from opdbus.state.object import canonical

sys.path.append(str(ROOT / ".ci"))
from simulated_hosts import SimulatedObject, host_objects, shared_objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import asyncpg

    from opdbus.fleet.questions.vector_ranks import Numerics

QUESTIONS: Final = (
    "web server",
    "name resolution",
    "which hosts have openssh",
    "failed units",
    "time synchronization",
    "database server",
    "firewall rules",
    "python",
    "mail server",
    "nginx",
)
ROLES: Final = 4
LEVEL: Final = "static"
# Of all processors, and without a measurement of others first.
PRECISION: Final = "fp32"
_BATCH: Final = 500
_LOADED_AT_ONCE: Final = 4
_TEXTS: Final = "SELECT count(*) FROM opdbus.text"
_LACKING: Final = "SELECT (SELECT count(*) FROM opdbus.text) - (SELECT count(*) FROM opdbus.vector)"


class FleetServer:
    """`op-dbus fleet serve` in a folder of its own, as a context; its `pid` has PostgreSQL below.

    `level` is that of its worker, `none` for no worker.
    """

    def __init__(self, folder: Path, level: str) -> None:
        self.folder = folder
        self._level = level
        self._database = EmbeddedServer(folder)
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        given = ("--listen", "127.0.0.1:0", "--name", "localhost", "--level", self._level)
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "opdbus", "fleet", "--folder", str(self.folder)),
            *("serve", *given),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | {"OP_DBUS_LOG_LEVEL": "warning"},
        )
        output = self._process.stdout
        while output and (line := await output.readline()):
            if line.startswith(b"serving"):
                return self
        raise RuntimeError("the server did not start: its messages are above")

    async def __aexit__(self, *_error: object) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()
        await self._process.wait()

    @property
    def pid(self) -> int:
        """The process that ends TLS; PostgreSQL and the worker are its children."""
        return self._process.pid

    @property
    def admin(self) -> tuple[str, str]:
        """The superuser's URL, by the unix socket, and password."""
        return self._database.url, self._database.password

    def url(self, role: str) -> str:
        """Return a role's URL by TLS."""
        endpoint = read_endpoint(self.folder)
        assert endpoint  # noqa: S101 -- it serves
        return endpoint.url(role, f"{self.folder}/tls/")

    async def add_reader(self, name: str) -> tuple[str, str]:
        """Add a role that may ask; return its URL, by TLS, and password."""
        async with postgres.connected(*self.admin) as connection:
            password = await administration.add_role(connection, name, administration.READER)
        return self.url(name), password

    async def add_hosts(self, tags: dict[str, list[str]]) -> list[Uplink]:
        """Add hosts with their tags; return their connections, by TLS, not open yet."""
        authority, links = open_authority(self.folder), []
        keys = self.folder / "keys"
        keys.mkdir()
        async with postgres.connected(*self.admin) as connection:
            for name, own in tags.items():
                password = await administration.add_host(connection, name, own)
                role = administration.role_of(name)
                files = keys / f"{name}.crt", keys / f"{name}.key"
                for file, text in zip(files, authority.issue(role), strict=True):
                    file.touch(mode=0o600)
                    file.write_text(text)
                url = f"{self.url(role)}&sslcert={files[0]}&sslkey={files[1]}"
                links.append(Uplink(url, password))
        return links

    async def until(self, sql: str, wanted: int) -> None:
        """Wait until a query gives a number."""
        async with postgres.connected(*self.admin) as connection:
            while await connection.fetchval(sql) != wanted:  # noqa: ASYNC110 -- a database
                await asyncio.sleep(0.1)

    async def crash(self) -> None:
        """Kill all of PostgreSQL's processes at once, and wait until `serve` has ended of it."""
        first_line = (self.folder / "data" / "postmaster.pid").read_text().splitlines()[0]
        os.killpg(int(first_line), signal.SIGKILL)
        await self._process.wait()


class Host:
    """A simulated host: its objects, its history, and since when its changes have waited."""

    def __init__(self, number: int, shared: list[SimulatedObject]) -> None:
        self.name = f"sim{number:04}"
        self.tags = ["sim", f"role{number % ROLES}"]
        self._objects = list(host_objects(shared, number))
        self._random = random.Random(number)  # noqa: S311 -- a simulation
        self.changed: deque[tuple[float, int, ChangeRow]] = deque()
        self._seq, self._hash = 0, bytes(32)

    def __len__(self) -> int:
        return len(self._objects)

    def change(self) -> None:
        """Change a value of a random object, which waits from now on to be sent."""
        place = self._random.randrange(len(self._objects))
        before = self._objects[place]
        fields = {**before.fields, "restarts": self._random.randrange(1000)}
        self._objects[place] = replace_fields(before, fields)
        self._seq += 1
        name = before.object_id
        row = [self._seq, time.time_ns() // 1000, "boot", "live:simulated", *name, "changed", "job"]
        row += [0, "00" * 32]
        self._hash = row_hash(self._hash, row)
        details = {
            "fields": [["restarts", "", str(fields["restarts"])]],
            "sentence": f"{name.name}: restarts {fields['restarts']}",
            "severity": "",
            "known": {},
        }
        change = ChangeRow(self._seq, canonical(row), self._hash, details)
        self.changed.append((time.perf_counter(), place, change))

    def rows(self, places: Sequence[int]) -> list[StateRow]:
        """Return the rows of objects."""
        now = time.time_ns() // 1000
        some = [self._objects[place] for place in places]
        return [StateRow(*each.object_id, now, each.body()) for each in some]

    async def load(self, uplink: Uplink) -> None:
        """Send all objects."""
        await uplink.stored_history()
        await uplink.begin(HostFacts(f"simulated/{self.name}", "sim", "", "", 0, 1, 0), None)
        for start in range(0, len(self), _BATCH):
            await uplink.send([], self.rows(range(start, min(start + _BATCH, len(self)))), 0)
        await uplink.end_comparison()

    async def send(self, uplink: Uplink, waits: list[float]) -> None:
        """Send changes as they come, until cancelled."""
        while True:
            if not self.changed:
                await asyncio.sleep(0.05)
                continue
            taken = [self.changed.popleft() for _ in range(len(self.changed))]
            places = sorted({place for _, place, _ in taken})
            await uplink.send([row for *_, row in taken], self.rows(places), 0)
            waits += [time.perf_counter() - began for began, *_ in taken]


def replace_fields(before: SimulatedObject, fields: dict[str, Any]) -> SimulatedObject:
    """Return an object with other fields."""
    return before._replace(fields=fields, state="")


async def change_hosts(hosts: Sequence[Host], rate: float) -> None:
    """Change random hosts, `rate` times a second, until cancelled."""
    while True:
        began = time.perf_counter()
        for host in random.choices(hosts, k=round(rate / 4)):  # noqa: S311 -- a simulation
            host.change()
        await asyncio.sleep(max(0.0, 0.25 - (time.perf_counter() - began)))


@dataclass(frozen=True)
class Asker:
    """Questions over the fleet, as a reader asks them by TLS, in a process of its own."""

    url: str
    password: str
    hosts: Sequence[str]
    count: int

    async def ask(self) -> dict[str, Any]:
        """Return the milliseconds of each question."""
        loop = asyncio.get_running_loop()
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, context) as process:
            return await loop.run_in_executor(process, _ask, self)


def _ask(asker: Asker) -> dict[str, Any]:
    return asyncio.run(_ask_all(asker))


async def _ask_all(asker: Asker) -> dict[str, Any]:
    settings = config.load(os.environ, {"vector_level": LEVEL})
    async with (
        postgres.connected(asker.url, asker.password) as connection,
        open_level(settings, LEVEL) as engine,
    ):

        async def embed(text: str, wanted: Sequence[Numerics]) -> dict[str, list[float]]:
            rows = await engine.run(await engine.tokenize([text]))
            return {each.name: rows[0].tolist() for each in wanted if each.level == LEVEL}

        def tagged(number: int) -> Scope:
            return Scope(tags=(f"role{number % ROLES}",))

        async def find(number: int, scope: Scope | None = None) -> None:
            question = QUESTIONS[number % len(QUESTIONS)]
            await search(connection, question, embed=embed, scope=scope)

        async def compare_two(number: int) -> None:
            names = [asker.hosts[(number + each) % len(asker.hosts)] for each in (0, 1)]
            await compare(connection, *names)

        count = asker.count
        seconds = {
            "search": await timed(count, find),
            "search of a tag": await timed(count // 4, lambda n: find(n, tagged(n))),
            "odd": await timed(10, lambda _: find_odd(connection)),
            "odd of a tag": await timed(10, lambda n: find_odd(connection, tagged(n))),
            "missing": await timed(10, lambda _: find_missing(connection)),
            "compare": await timed(20, compare_two),
        }
        return {name: milliseconds(each) for name, each in seconds.items()}


async def stored(server: FleetServer) -> dict[str, Any]:
    """Return rows and sizes of the database, and how often equal states and texts were stored."""
    async with postgres.connected(*server.admin) as connection:
        await connection.execute("VACUUM ANALYZE")
        rows = {
            each: await connection.fetchval(f"SELECT count(*) FROM opdbus.{each}")  # noqa: S608
            for each in ("object", "content", "text", "vector", "change")
        }
        total = await connection.fetchval("SELECT pg_database_size(current_database())")
    return {
        "rows": rows,
        "MiB": round(total / 2**20, 1),
        "objects for each state": round(rows["object"] / rows["content"], 1),
        "objects for each text": round(rows["object"] / rows["text"], 1),
    }


async def measure_hosts(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Load the hosts, ask at rest and under changes, and kill PostgreSQL."""
    shared = shared_objects(given.objects)
    hosts = [Host(number, shared) for number in range(given.hosts)]
    report: dict[str, Any] = {"hosts": given.hosts, "objects of each": given.objects}
    async with FleetServer(folder, LEVEL) as server, AsyncExitStack() as stack:
        links = await server.add_hosts({host.name: host.tags for host in hosts})
        for link in links:
            await stack.enter_async_context(link)
        turns = asyncio.Semaphore(_LOADED_AT_ONCE)

        async def load(host: Host, link: Uplink) -> None:
            async with turns:
                await host.load(link)

        began = time.perf_counter()
        await asyncio.gather(*map(load, hosts, links))
        loaded = time.perf_counter() - began
        total = sum(map(len, hosts))
        report["load"] = {"s": round(loaded, 1), "objects a second": round(total / loaded)}
        await server.until(_LACKING, 0)
        report["every vector s"] = round(time.perf_counter() - began, 1)
        report["stored"] = await stored(server)
        say(report)
        reader = await server.add_reader("reader")
        asker = Asker(*reader, [each.name for each in hosts], given.questions)
        report["questions at rest, ms"] = await asker.ask()
        report["under changes"] = await under_changes(given, hosts, links, asker, server)
        report["MiB of the server"] = memory_mib(server.pid)
        await server.crash()
    began = time.perf_counter()
    async with FleetServer(folder, "none") as server:
        await server.until("SELECT 1", 1)
        report["start after kill -9, s"] = round(time.perf_counter() - began, 1)
    return report


async def under_changes(
    given: argparse.Namespace,
    hosts: Sequence[Host],
    links: Sequence[Uplink],
    asker: Asker,
    server: FleetServer,
) -> dict[str, Any]:
    """Let hosts change while questions are asked; return what was stored, and how quickly."""
    waits: list[float] = []
    senders = [host.send(link, waits) for host, link in zip(hosts, links, strict=True)]
    tasks = [*map(asyncio.ensure_future, (change_hosts(hosts, given.rate), *senders))]
    await asyncio.sleep(given.seconds / 10)
    waits.clear()
    began, before = time.perf_counter(), tree_seconds(server.pid)
    asked = asyncio.ensure_future(asker.ask())
    await asyncio.wait({*tasks, asked}, timeout=given.seconds)
    seconds = time.perf_counter() - began
    spent = tree_seconds(server.pid) - before
    figures = {
        "changes a second, wanted": given.rate,
        "changes a second, stored": round(len(waits) / seconds, 1),
        "change to commit, ms": milliseconds(waits),
        "processors of the server": round(spent / seconds, 2),
        "questions, ms": await asked,
    }
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    return figures


def processes(root: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield root
    for path in Path(f"/proc/{root}/task").glob("*/children"):
        with suppress(OSError):
            for child in path.read_text().split():
                yield from processes(int(child))


def memory_mib(root: int) -> float:
    """Return the proportional memory of a process and all below it, in MiB."""
    total = 0
    for pid in processes(root):
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            found = re.search(r"^Pss: +(\d+)", text, re.MULTILINE)
            total += int(found[1]) if found else 0
    return round(total / 1024, 1)


def tree_seconds(root: int) -> float:
    """Return the processor time of a process and all below it."""
    total = 0.0
    for pid in processes(root):
        with suppress(OSError):
            total += cpu_seconds(pid)
    return total


# workers


async def measure_workers(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the texts a second of one and of two workers, and their processor time for one."""
    settings = config.load(os.environ, {"vector_level": given.level, "precision": PRECISION})
    rates: dict[int, list[float]] = {1: [], 2: []}
    costs: dict[int, list[float]] = {1: [], 2: []}
    async with FleetServer(folder, "none") as server:
        (link,) = await server.add_hosts({"web1": []})
        host = Host(1, shared_objects(given.texts))
        async with link, postgres.connected(*server.admin) as connection:
            await fleet_level.change_level(connection, settings)
            await host.load(link)
            # from then on the fleet knows the model
            await work(server, connection, 1, given.level)
            for _ in range(given.rounds):
                for count, measured in rates.items():
                    rate, cost = await work(server, connection, count, given.level)
                    measured.append(round(rate, 1))
                    costs[count].append(round(cost, 2))
                    say(f"{count} workers: {measured[-1]} texts a second")
    gain = median(two / one for one, two in zip(rates[1], rates[2], strict=True))
    found = {"texts": given.texts, "level": given.level, "texts a second": rates}
    return {**found, "worker ms for a text": costs, "gain": round(gain, 2)}


async def work(
    server: FleetServer, connection: asyncpg.Connection, count: int, level: str
) -> tuple[float, float]:
    """Have so many workers compute all vectors anew."""
    await connection.execute("DELETE FROM opdbus.vector")
    for row in await connection.fetch("SELECT numerics FROM opdbus.numerics"):
        await connection.execute(
            "INSERT INTO opdbus.embedding_task (numerics, digest, not_before)"
            " SELECT $1, digest, now() + interval '1 day' FROM opdbus.text ON CONFLICT DO NOTHING",
            row["numerics"],
        )
    password = server.folder / "password"
    password.touch(mode=0o600)
    password.write_text(server.admin[1])
    given = {
        "FLEET_DATABASE": server.admin[0],
        "FLEET_PASSWORD_FILE": password,
        "STATE_DIR": server.folder / "worker",
        "LOG_FORMAT": "json",
        "PRECISION": PRECISION,
    }
    environ = os.environ | {f"OP_DBUS_{name}": str(value) for name, value in given.items()}
    command = [sys.executable, "-m", "opdbus", "fleet", "worker", "--level", level]
    workers = []
    for _ in range(count):
        process = subprocess.Popen(  # noqa: ASYNC220 -- nothing else runs
            [*command, "--threads", "1"], env=environ, stderr=subprocess.PIPE, text=True
        )
        workers.append(process)
        for line in process.stderr or ():
            if '"engine ready"' in line:
                break
    await asyncio.sleep(2)
    total = await connection.fetchval(_TEXTS)
    used, began = sum(cpu_seconds(each.pid) for each in workers), time.perf_counter()
    await connection.execute("UPDATE opdbus.embedding_task SET not_before = now()")
    await server.until(_LACKING, 0)
    seconds = time.perf_counter() - began
    used = sum(cpu_seconds(each.pid) for each in workers) - used
    for process in workers:
        process.terminate()
        process.communicate()
    return total / seconds, 1000 * used / total


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["hosts", "workers"])
    parser.add_argument("--hosts", type=int, default=200)
    parser.add_argument("--objects", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=200.0, help="changes a second of all hosts")
    parser.add_argument("--seconds", type=float, default=120.0, help="of changes")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--texts", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--level", default="medium", help="of workers")
    given = parse(parser)
    # the path of a unix socket has at most 107 bytes; PostgreSQL of root is another user
    with tempfile.TemporaryDirectory(prefix="op-dbus-fleet-") as name:
        Path(name).chmod(0o755)
        run = measure_hosts if given.what == "hosts" else measure_workers
        write(given, asyncio.run(run(given, Path(name))))


if __name__ == "__main__":
    main()
