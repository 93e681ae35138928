"""A fleet's server under simulated hosts: load, changes, questions, disk, memory, recovery.

`PYTHONPATH=.:tests python benchmarks/fleet.py [--hosts 200] [--objects 2000] [--json FILE]`: the
hosts are made of this host's own objects, as a daemon observes them: most packages and files are
shared, some by the hosts of one role, addresses and one object in twenty are each host's own, some
packages have another version on some hosts, and some values differ on one host. Each host sends as
the sender does, over the server's unix socket.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from harness.running import Bus, Running

from opdbus.bench.figures import percentiles
from opdbus.bench.machine import describe
from opdbus.client import Client
from opdbus.fleet import administration, postgres
from opdbus.fleet.embedded_server import SUPERUSER, EmbeddedServer
from opdbus.fleet.questions.fleet_comparison import compare
from opdbus.fleet.questions.fleet_scope import Scope
from opdbus.fleet.questions.fleet_search import search
from opdbus.fleet.questions.peers import find_missing, find_odd
from opdbus.fleet.questions.vector_ranks import Numerics
from opdbus.fleet.uplink import ChangeRow, HostFacts, StateRow, Uplink
from opdbus.history.hash_chain import row_hash
from opdbus.state.object import canonical

ROOT = Path(__file__).parents[1]
# Kinds of which every host has its own values.
OWN_KINDS = {"net", "system", "devices", "login1", "mounts"}
ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b")
VERSION = re.compile(r"\d+(?=\D*$)")
# Shares of objects: of one role of hosts only; of one host only, as containers, accounts and sites
# are; packages with another version on some hosts; files with a content of their own; and values
# that have drifted.
ROLES, OF_A_ROLE, OWN, PATCHED, WAVES, OWN_FILES, DRIFTED = 4, 0.12, 0.05, 0.05, 4, 0.05, 0.01
BATCH = 500
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


@dataclass
class Vectors:
    """Vectors by the digest of their text, of one model."""

    client: Client
    numerics: str = ""
    dimension: int = 0
    rows: dict[bytes, list[float]] = field(default_factory=dict)

    async def add(self, texts: Sequence[str]) -> None:
        """Compute the vectors of the texts that have none."""
        new = {digest(text): text for text in texts}
        new = {key: text for key, text in new.items() if key not in self.rows}
        if new:
            found = await self.client.vectorize_bulk(list(new.values()))
            with found.file as file:
                data = np.frombuffer(file.read(), np.float32).reshape(-1, found.dimension)
            self.rows |= dict(zip(new, np.round(data, 5).tolist(), strict=True))


def digest(text: str) -> bytes:
    """Return the digest of a text."""
    return hashlib.sha256(text.encode()).digest()


async def template(client: Client, vectors: Vectors, count: int) -> list[dict[str, Any]]:
    """Return states of this host's objects, padded to a number with units of packages."""
    await settled(client)
    states = []
    with await client.export([], vectors=True) as file:
        for line in file.read().decode().splitlines():
            meta, _, body = line.partition("\t")
            _, numerics, vector = json.loads(meta)
            state = json.loads(body)
            states.append(state)
            if vector:
                row = np.frombuffer(base64.b64decode(vector), np.float16).astype(np.float32)
                vectors.numerics, vectors.dimension = numerics, len(row)
                vectors.rows[digest(state["text"])] = np.round(row, 5).tolist()
    names = unit_files()
    for number in range(max(0, count - len(states))):
        unit = names[number % len(names)] if number < len(names) else f"job-{number}.service"
        observed = {"active_state": "active", "sub_state": "running", "unit_file_state": "enabled"}
        states.append(
            {
                "plugin": "systemd",
                "kind": "unit",
                "name": unit,
                "source": "live:systemd",
                "declared": None,
                "observed": observed,
                "text": f"systemd unit {unit}: active, running, enabled",
            }
        )
    return states[:count]


def unit_files() -> list[str]:
    """Return the names of this host's services, running or not."""
    return sorted(each.name for each in Path("/lib/systemd/system").glob("*.service"))


async def settled(client: Client) -> None:
    """Wait until the observers have listed, and every object has its vector."""
    before = -1
    while True:
        status = await client.status()
        if status["Count"] == before and not status["Pending"]:
            return
        before = status["Count"]
        await asyncio.sleep(5)


class Host:
    """A simulated host: its states, its history, and the time that its changes have waited."""

    def __init__(self, number: int, states: Sequence[dict[str, Any]], count: int) -> None:
        self.name = f"sim{number:04}"
        self.tags = ["sim", f"role{number % ROLES}"]
        self.random = random.Random(number)  # noqa: S311 -- a simulation
        ours = [state for state in states if _role(state) in {None, number % ROLES}]
        self.states = [self._own(number, state) for state in ours[:count]]
        self.changed: deque[tuple[float, int, ChangeRow]] = deque()
        self._seq, self._hash = 0, bytes(32)

    def _own(self, number: int, state: dict[str, Any]) -> dict[str, Any]:
        """Return an object as this host has it."""
        text, share = canonical(state), _share(state)
        changed = text
        if state["plugin"] in OWN_KINDS:
            ours = f"10.{number // 250}.{number % 250}"
            changed = ADDRESS.sub(lambda found: _address(found[0], ours, number), text)
        elif share > 1 - OWN:
            name = f"{state['name']}-{self.name}"
            own = {"name": name, "text": state["text"].replace(state["name"], name)}
            changed = canonical(state | own)
        elif state["plugin"] == "packages" and share < PATCHED:
            version = str((state["observed"] or {}).get("version", "0"))
            changed = text.replace(version, VERSION.sub(str(number % WAVES), version))
        elif state["plugin"] == "files" and share < OWN_FILES:
            own = (state["observed"] or {}) | {"sha256": digest(self.name + state["name"]).hex()}
            changed = canonical(state | {"observed": own})
        elif self.random.random() < DRIFTED:
            changed = text.replace("enabled", "disabled")
        return dict(json.loads(changed)) if changed != text else state

    def change(self) -> tuple[str, tuple[float, int, ChangeRow]]:
        """Change a value of a random object; return its new text, and what is to be sent."""
        place = self.random.randrange(len(self.states))
        state = json.loads(canonical(self.states[place]))
        value = self.random.randrange(1000)
        state["observed"] = (state["observed"] or {}) | {"restarts": value}
        state["text"] = re.sub(r"; restarts \d+$", "", state["text"]) + f"; restarts {value}"
        self.states[place] = state
        self._seq += 1
        at = time.time_ns() // 1000
        identity = (state["source"], state["plugin"], state["kind"], state["name"])
        row = [self._seq, at, "boot", *identity, "changed", "job", 0, "00" * 32]
        self._hash = row_hash(self._hash, row)
        details = {
            "fields": [["restarts", "", str(value)]],
            "sentence": f"{state['name']}: restarts {value}",
            "severity": "",
            "known": {},
        }
        change = ChangeRow(self._seq, canonical(row), self._hash, details)
        return str(state["text"]), (time.perf_counter(), place, change)

    def row(self, place: int) -> StateRow:
        """Return an object's row."""
        state = self.states[place]
        identity = (state["plugin"], state["kind"], state["name"])
        return StateRow(*identity, time.time_ns() // 1000, canonical(state))

    def facts(self, vectors: Vectors) -> HostFacts:
        """Return what begins a synchronization."""
        return HostFacts(
            f"op-dbus/{self.name}",
            "sim",
            "medium",
            vectors.numerics,
            vectors.dimension,
            1,
            self._seq,
        )


def _share(state: dict[str, Any]) -> float:
    """Return a number from 0 to 1 by the name of an object, the same on all hosts."""
    return digest(f"{state['plugin']}/{state['name']}")[0] / 256


def _role(state: dict[str, Any]) -> int | None:
    """Return the only role that has an object; None if all have it."""
    share = digest(f"role of {state['plugin']}/{state['name']}")[0] / 256
    return int(share / OF_A_ROLE * ROLES) if share < OF_A_ROLE else None


def _address(found: str, ours: str, number: int) -> str:
    if found.startswith("127.") or "." not in found:
        return found if "." in found else f"{found[:-5]}{number // 256:02x}:{number % 256:02x}"
    return f"{ours}.{found.rpartition('.')[2]}"


async def offer(uplink: Uplink, lacking: Sequence[StateRow], vectors: Vectors) -> None:
    """Offer the vectors of objects whose texts lack them."""
    texts = {digest(json.loads(row.body or "{}")["text"]) for row in lacking}
    if texts:
        await uplink.offer_vectors({text: vectors.rows[text] for text in sorted(texts)})


async def load(host: Host, uplink: Uplink, vectors: Vectors) -> None:
    """Send all objects of a host."""
    await uplink.stored_history()
    await uplink.begin(host.facts(vectors), None)
    for start in range(0, len(host.states), BATCH):
        places = range(start, min(start + BATCH, len(host.states)))
        await offer(uplink, await uplink.send([], [host.row(at) for at in places], 0), vectors)
    await uplink.end_comparison()


async def send_changes(host: Host, uplink: Uplink, vectors: Vectors, waits: list[float]) -> None:
    """Send a host's changes as they come, until cancelled."""
    while True:
        if not host.changed:
            await asyncio.sleep(0.05)
            continue
        taken = [host.changed.popleft() for _ in range(len(host.changed))]
        places = sorted({place for _, place, _ in taken})
        lacking = await uplink.send([row for *_, row in taken], [host.row(at) for at in places], 0)
        await offer(uplink, lacking, vectors)
        waits += [time.perf_counter() - began for began, *_ in taken]


async def make_changes(hosts: Sequence[Host], rate: float, vectors: Vectors) -> None:
    """Change objects of random hosts, and compute their vectors, until cancelled."""
    while True:
        began = time.perf_counter()
        chosen = random.choices(hosts, k=round(rate / 4))  # noqa: S311 -- a simulation
        made = [(host, *host.change()) for host in chosen]
        # hosts have their vectors a moment later; the sender offers those
        await vectors.add([text for _, text, _ in made])
        for host, _, change in made:
            host.changed.append(change)
        await asyncio.sleep(max(0.0, 0.25 - (time.perf_counter() - began)))


async def timed(count: int, ask: Callable[[int], Awaitable[Any]]) -> dict[str, float]:
    """Ask again and again, and return milliseconds."""
    seconds = []
    for number in range(count):
        began = time.perf_counter()
        await ask(number)
        seconds.append(time.perf_counter() - began)
    found = percentiles(seconds, 50, 99, 100)
    return {name: round(found[cut], 1) for name, cut in NAMES.items()}


NAMES = {"p50 ms": "p50", "p99 ms": "p99", "max ms": "p100"}


def processes(root: int) -> Iterator[int]:
    """Yield a process and all below it."""
    yield root
    for path in Path(f"/proc/{root}/task").glob("*/children"):
        for child in path.read_text().split():
            yield from processes(int(child))


def memory_mib(root: int) -> float:
    """Return the proportional memory of a process and all below it, in MiB."""
    total = 0
    for pid in processes(root):
        found = re.search(
            r"^Pss: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE
        )
        total += int(found[1]) if found else 0
    return round(total / 1024, 1)


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
    given: argparse.Namespace, client: Client, address: str, server: EmbeddedServer
) -> dict[str, Any]:
    """Load the hosts, measure questions at rest and under changes, and return the report."""
    url, password = server.url, server.password
    vectors = Vectors(client)
    # no host has what only other roles have
    states = await template(client, vectors, round(given.objects * (1 + 2 * OF_A_ROLE)))
    hosts = [Host(number, states, given.objects) for number in range(given.hosts)]
    began = time.perf_counter()
    await vectors.add([state["text"] for host in hosts for state in host.states])
    report: dict[str, Any] = {
        "vectors computed before, seconds": round(time.perf_counter() - began, 1)
    }
    async with postgres.connected(url, password) as connection:
        await postgres.migrate(connection)
        await connection.execute(
            "SELECT opdbus.add_numerics($1, 'medium', $2)", vectors.numerics, vectors.dimension
        )
        passwords = {
            host.name: await administration.add_host(connection, host.name, host.tags)
            for host in hosts
        }
    async with AsyncExitStack() as stack:
        links = [
            await stack.enter_async_context(
                Uplink(
                    url.replace(SUPERUSER, administration.role_of(each.name), 1),
                    passwords[each.name],
                )
            )
            for each in hosts
        ]
        turns = asyncio.Semaphore(given.at_once)

        async def load_in_turn(host: Host, link: Uplink) -> None:
            async with turns:
                await load(host, link, vectors)

        began = time.perf_counter()
        await asyncio.gather(*map(load_in_turn, hosts, links))
        loaded = time.perf_counter() - began
        total = given.hosts * given.objects
        report["initial load"] = {"seconds": round(loaded, 1), "objects/s": round(total / loaded)}
        began = time.perf_counter()
        await publish_offers(url, password)
        report["offered vectors published, seconds"] = round(time.perf_counter() - began, 1)
        report["stored after the load"] = await store_size(url, password)
        names = [each.name for each in hosts]
        asker = Asker(url, password, address, vectors.numerics, names, given.questions)
        report["questions at rest"] = await asker.ask()
        report["under changes"] = await measure_changes(given, hosts, links, vectors, asker, server)
        report["memory of the server, MiB"] = memory_mib(server.pid)
    report["stored after the changes"] = await store_size(url, password)
    return report


async def measure_changes(
    given: argparse.Namespace,
    hosts: Sequence[Host],
    links: Sequence[Uplink],
    vectors: Vectors,
    asker: Asker,
    server: EmbeddedServer,
) -> dict[str, Any]:
    """Let hosts change while questions are asked; return what was stored, and how quickly."""
    waits: list[float] = []
    senders = [
        send_changes(host, link, vectors, waits) for host, link in zip(hosts, links, strict=True)
    ]
    works = (make_changes(hosts, given.rate, vectors), *senders)
    tasks = [asyncio.ensure_future(work) for work in works]
    await asyncio.sleep(given.warm_up)
    waits.clear()
    began, before = time.perf_counter(), processor_seconds(server.pid)
    asked = asyncio.ensure_future(asker.ask())
    await asyncio.wait({*tasks, asked}, timeout=given.seconds)
    seconds, spent = time.perf_counter() - began, processor_seconds(server.pid) - before
    found = percentiles(waits, 50, 99, 100)
    figures = {
        "changes/s wanted": given.rate,
        "changes/s stored": round(len(waits) / seconds, 1),
        "change to commit": {name: round(found[cut], 1) for name, cut in NAMES.items()},
        "server, processors": round(spent / seconds, 2),
        "questions": await asked,
    }
    for task in tasks:
        task.cancel()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
    return figures


def processor_seconds(root: int) -> float:
    """Return the processor time of a process and all below it, with those that have ended."""
    total = 0
    for pid in processes(root):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15] if pid == root else fields[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


async def serve(given: argparse.Namespace, address: str) -> dict[str, Any]:
    """Run the server in a folder of its own."""
    async with Client(address) as client, EmbeddedServer(given.folder) as server:
        report = await run(given, client, address, server)
        os.killpg(server.pid, signal.SIGKILL)
        await server.wait()
    began = time.perf_counter()
    async with EmbeddedServer(given.folder) as server:
        report["start after kill -9, seconds"] = round(time.perf_counter() - began, 1)
        async with postgres.connected(server.url, server.password) as connection:
            await connection.fetchval("SELECT count(*) FROM opdbus.object")
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
    with tempfile.TemporaryDirectory() as folder, Running(Path(folder), bus.address, **settings):
        try:
            figures = asyncio.run(serve(given, bus.address))
        finally:
            shutil.rmtree(given.folder)
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
