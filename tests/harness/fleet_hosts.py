"""A daemon that sends to a fleet's database, and the comparison of both."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from harness.fleets import FleetDatabase
from harness.running import PATIENCE_SECONDS, Running, environment
from opdbus.client import Client
from opdbus.fleet import host_reader, postgres
from opdbus.fleet.embedded_server import EmbeddedServer
from opdbus.fleet.sender import Pace, Sender
from opdbus.fleet.uplink import Uplink
from opdbus.platform.tasks import cancel, until_first_ends

FAST = Pace(
    gather=0.02, linger=30, keep_alive=0.5, drift=0.1, first_retry=0.05, longest_retry=0.5,
    refused=0.3,
)  # fmt: skip


@dataclass
class FleetHost:
    """A daemon, its name in a fleet, and how to connect."""

    daemon: Running
    database: FleetDatabase
    name: str
    url: str = ""

    def uplink(self) -> Uplink:
        """Return a connection, by the given URL instead of the database's own."""
        own = self.database.url(self.name)
        return Uplink(self.url or own, self.database.passwords[self.name])

    def sender(self, pace: Pace = FAST) -> Sender:
        """Return a sender of this host."""
        return Sender(self.daemon.bus, self.uplink, pace=pace)

    @asynccontextmanager
    async def sending(self, pace: Pace = FAST) -> AsyncIterator[Sender]:
        """Run a sender meanwhile."""
        sender = self.sender(pace)
        task = asyncio.create_task(sender.run())
        try:
            yield sender
        finally:
            await cancel([task])

    def process(self, log: Path, **settings: str) -> subprocess.Popen[bytes]:
        """Start `op-dbus fleet send`; its messages are added to a log."""
        password = log.with_suffix(".password")
        password.write_text(self.database.passwords[self.name])
        password.chmod(0o600)
        own = {
            "OP_DBUS_FLEET_DATABASE": self.url or self.database.url(self.name),
            "OP_DBUS_FLEET_PASSWORD_FILE": str(password),
        }
        environ = environment(self.daemon.bus, self.daemon.state_dir, own | settings)
        with log.open("ab") as file:
            command = [sys.executable, "-m", "opdbus", "fleet", "send"]
            return subprocess.Popen(command, env=environ, stdout=file, stderr=file)

    async def fetch(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Return rows of the database."""
        return await asyncio.to_thread(self.database.fetch, sql, *arguments)

    async def fetch_none(self, sql: str) -> None:
        """Run statements as the superuser."""
        await asyncio.to_thread(self.database.run, lambda each: each.execute(sql))

    async def differences(self, client: Client) -> dict[str, Any]:
        """Return in what the database and the daemon differ: digests, drift, history."""
        found: dict[str, Any] = {}
        own = {name: digest async for name, digest in host_reader.read_digests(client)}
        rows = await self.fetch(
            "SELECT plugin, kind, object.name, content FROM opdbus.object JOIN opdbus.host"
            " USING (host) WHERE host.name = $1",
            self.name,
        )
        stored = {tuple(name): digest for *name, digest in rows}
        if wrong := {n for n in own.keys() | stored.keys() if own.get(n) != stored.get(n)}:
            found["objects"] = sorted(wrong)[:10], len(wrong)
        drift = sorted(await host_reader.read_drift(client))
        rows = await self.fetch(
            "SELECT plugin, kind, drift.name, class, severity, since, fields FROM opdbus.drift"
            " JOIN opdbus.host USING (host) WHERE host.name = $1",
            self.name,
        )
        if drift != (there := sorted([*row[:6], json.loads(row[6])] for row in rows)):
            found["drift"] = drift[:5], there[:5]
        found |= await self._history_differences(client)
        return found

    async def _history_differences(self, client: Client) -> dict[str, Any]:
        """Compare the rows of the newest epoch, and follow the chain from its beginning."""
        changes = await client.changes({"order": "oldest", "chain": True}, 1_000_000)
        own = [(row["seq"], row["hash"], row["sentence"]) for row in changes]
        rows = await self.fetch(
            "SELECT change.seq, encode(change.hash, 'hex'), sentence FROM opdbus.change"
            " JOIN opdbus.host USING (host, epoch) WHERE host.name = $1 ORDER BY change.seq",
            self.name,
        )
        if own != rows:
            wrong = [*set(own) ^ set(rows)]
            return {"history": (len(own), len(rows), sorted(wrong)[:8])}
        before = bytes(32)
        for row in changes:
            expected = hashlib.sha256(b"\0" + before + row["chained"].encode()).digest()
            if (row["seq"] == 1 or before != bytes(32)) and expected.hex() != row["hash"]:
                return {"chain": row["seq"]}
            before = bytes.fromhex(row["hash"])
        return {}

    async def until_equal(self, client: Client) -> None:
        """Wait until the database equals the daemon."""
        await until(lambda: self.differences(client), {})

    async def until_answer(self, sql: str, *wanted: tuple[Any, ...]) -> None:
        """Wait until a query has these rows."""
        await until(lambda: self.fetch(sql), list(wanted))


async def until(ask: Callable[[], Awaitable[Any]], wanted: object) -> None:
    """Ask again and again until the answer is the wanted one; neither side has a signal for it."""
    found: Any = None
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (found := await ask()) != wanted:  # noqa: ASYNC110 -- no signal says it
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(f"{found}, not {wanted}") from None


class Proxy:
    """A proxy in front of a database's unix socket, which misbehaves as its `fault` says.

    Each connection counts the bytes that the client sent; `fault` gets them and returns what
    happens: "" for nothing, cut, swallow (nothing is forwarded any more), deaf (the server's answer
    is lost), or a number of seconds by which this piece is delayed.
    """

    def __init__(self, folder: Path, database: FleetDatabase) -> None:
        folder.mkdir()
        self.folder = folder
        self.fault: Callable[[bytes], str | float] = lambda _data: ""
        self.faults = Counter[str]()
        (run,) = parse_qs(urlsplit(database.server.url).query)["host"]
        self._target = Path(run, ".s.PGSQL.5432")
        self._tasks = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Self:
        """Listen."""
        self._server = await asyncio.start_unix_server(self._serve, self.folder / ".s.PGSQL.5432")
        return self

    async def __aexit__(self, *_error: object) -> None:
        """End all connections."""
        self._server.close()
        await cancel(self._tasks)

    def url(self, host: FleetHost) -> str:
        """Return the URL of a host's role by way of this proxy."""
        own = urlsplit(host.database.url(host.name))
        return urlunsplit(own._replace(query=f"host={quote(str(self.folder), safe='')}"))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        with suppress(OSError, asyncio.CancelledError):
            await self._forward(reader, writer)
        writer.close()
        self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_unix_connection(self._target)
        is_deaf = False

        async def up() -> None:
            nonlocal is_deaf
            while data := await reader.read(1 << 16):
                fault = self.fault(data)
                self.faults[fault if isinstance(fault, str) else "delay"] += 1
                if fault == "cut":
                    return
                is_deaf |= fault == "deaf"
                if isinstance(fault, float):
                    await asyncio.sleep(fault)
                if fault == "swallow":
                    await asyncio.sleep(1)
                    return
                to_server.write(data)
                await to_server.drain()
                if is_deaf:
                    # time for the server to do it
                    await asyncio.sleep(0.3)
                    return

        async def down() -> None:
            while data := await from_server.read(1 << 16):
                if not is_deaf:
                    writer.write(data)
                    await writer.drain()

        try:
            await until_first_ends(up(), down())
        finally:
            to_server.close()


@asynccontextmanager
async def crashing_database(
    folder: Path,
) -> AsyncIterator[tuple[EmbeddedServer, FleetDatabase]]:
    """Run a server that `crash` kills and starts again, and its database."""
    server = EmbeddedServer(folder)
    await server.__aenter__()
    try:
        database = FleetDatabase(server)
        await asyncio.to_thread(database.run, postgres.make_schema)
        yield server, database
    finally:
        await server.__aexit__()


async def crash(server: EmbeddedServer) -> None:
    """Kill all processes of a server at once, and start it again."""
    # it has a session of its own
    os.killpg(server.pid, signal.SIGKILL)
    await server.wait()
    await until(lambda: asyncio.to_thread(_has_processes, server.pid), wanted=False)
    await server.__aenter__()


def _has_processes(session: int) -> bool:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, own = stat.read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state != "Z":
                return True
    return False
