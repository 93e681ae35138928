"""A fleet's database for tests: the embedded server in a folder of its own, with its schema."""

import asyncio
import hashlib
import json
import shutil
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import asyncpg

from opdbus.fleet import administration, postgres
from opdbus.fleet.embedded_server import DATABASE, SUPERUSER, EmbeddedServer
from opdbus.fleet.uplink import ChangeRow, HostFacts, StateRow, Uplink
from opdbus.history.hash_chain import row_hash
from opdbus.state.object import canonical

T = TypeVar("T")
NUMERICS = "tiny/test/float"
DIMENSION = 8
_MEMORY = Path("/dev/shm")  # noqa: S108 -- the folder in it is private
_ROOM = 4 << 30


class Served(Protocol):
    """A database of a running server, and its superuser's password."""

    @property
    def url(self) -> str:
        """The superuser's URL."""

    @property
    def password(self) -> str:
        """The superuser's password."""


class OneOfMany(NamedTuple):
    """One database of a server that has several."""

    url: str
    password: str


@dataclass
class FleetDatabase:
    """A running server and its database; hosts have their passwords here."""

    server: Served
    passwords: dict[str, str] = field(default_factory=dict)

    def run(self, work: Callable[[asyncpg.Connection], Awaitable[T]]) -> T:
        """Run a coroutine function with the superuser's connection."""

        async def run() -> T:
            async with postgres.connected(self.server.url, self.server.password) as connection:
                return await work(connection)

        return asyncio.run(run())

    def fetch(self, sql: str, *arguments: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self.run(lambda each: _tuples(each, sql, *arguments))

    def add(self, name: str, *tags: str) -> str:
        """Add a host, and return its name."""
        add = administration.add_host
        self.passwords[name] = self.run(lambda connection: add(connection, name, tags))
        return name

    def url(self, name: str) -> str:
        """Return the URL of a host's role, without its password."""
        return self.server.url.replace(SUPERUSER, administration.role_of(name), 1)

    def uplink(self, name: str) -> Uplink:
        """Return the connection of a host, as a context."""
        return Uplink(self.url(name), self.passwords[name])


@contextmanager
def another_database(main: FleetDatabase, number: int) -> Iterator[FleetDatabase]:
    """Give an empty copy of a server's database, and remove it with all roles that it got."""
    name, roles = f"test{number}", "SELECT rolname FROM pg_roles"
    before = set(main.fetch(roles))
    postgres_url = main.server.url.replace(f"/{DATABASE}?", "/postgres?")
    postgres_database = FleetDatabase(OneOfMany(postgres_url, main.server.password))
    # by its files: to write each page to the log first takes five times as long
    create = f"CREATE DATABASE {name} TEMPLATE {DATABASE} STRATEGY file_copy"
    postgres_database.fetch(create)
    url = main.server.url.replace(f"/{DATABASE}?", f"/{name}?")
    try:
        yield FleetDatabase(OneOfMany(url, main.server.password))
    finally:
        postgres_database.fetch(f"DROP DATABASE {name} WITH (FORCE)")
        for (role,) in set(main.fetch(roles)) - before:
            main.fetch(f'DROP ROLE "{role}"')


async def _tuples(
    connection: asyncpg.Connection, sql: str, *arguments: object
) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in await connection.fetch(sql, *arguments)]


@contextmanager
def server_folder() -> Iterator[Path]:
    """Make a folder for a server, in memory if there is room: files of databases are many."""
    has_room = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _ROOM
    # the path of a unix socket has at most 107 bytes
    with tempfile.TemporaryDirectory("", "op-dbus-fleet-", _MEMORY if has_room else None) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextmanager
def fleet_database() -> Iterator[FleetDatabase]:
    """Run an embedded server with the newest schema; it has no hosts yet."""
    with server_folder() as folder:
        started: list[EmbeddedServer | BaseException] = []
        is_started, is_done = threading.Event(), threading.Event()

        async def serve() -> None:
            try:
                async with EmbeddedServer(folder) as server:
                    started.append(server)
                    is_started.set()
                    await asyncio.to_thread(is_done.wait)
            except BaseException as error:
                started.append(error)
                raise
            finally:
                is_started.set()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        is_started.wait()
        try:
            server = started[0]
            if isinstance(server, BaseException):
                raise server
            database = FleetDatabase(server)
            # no test of this server loses power, or makes so much that it has to be cleaned up
            for setting in ("fsync", "full_page_writes", "synchronous_commit", "autovacuum"):
                database.run(
                    lambda each, name=setting: each.execute(f"ALTER SYSTEM SET {name} = off")
                )
            database.fetch("SELECT pg_reload_conf()")
            database.run(postgres.make_schema)
            database.fetch("SELECT opdbus.add_numerics($1, 'medium', $2)", NUMERICS, DIMENSION)
            yield database
        finally:
            is_done.set()
            thread.join()


def facts(machine: str, first: int = 1, last: int = 0, numerics: str = NUMERICS) -> HostFacts:
    """Return the facts of a host with a history of these rows."""
    return HostFacts(machine, "1", "medium", numerics, DIMENSION, first, last)


def state_row(
    name: str, text: str = "", plugin: str = "app", source: str = "live:test", **observed: Any
) -> StateRow:
    """Return the row of an observed object."""
    state = {
        "plugin": plugin,
        "kind": "service",
        "name": name,
        "source": source,
        "declared": None,
        "observed": observed,
        "text": text or f"service {name} {observed}",
    }
    return StateRow(plugin, "service", name, 1, canonical(state))


def text_digest(row: StateRow) -> bytes:
    """Return the digest of the text of an object's state."""
    assert row.body is not None
    return hashlib.sha256(json.loads(row.body)["text"].encode()).digest()


def history(
    count: int, first: int = 1, before: bytes = bytes(32), mark: str = "", at: int = 1_000_000
) -> list[ChangeRow]:
    """Return `count` chained rows of history; `mark` makes them differ from other ones."""
    rows = []
    for seq in range(first, first + count):
        hashed: Sequence[Any] = (
            *(seq, at * seq, "boot", "live:test", "app", "service", f"s{seq}", "changed"),
            *(mark, 0, "00" * 32),
        )
        before = row_hash(before, hashed)
        details = {"fields": [], "sentence": f"s{seq} changed", "severity": "", "known": {}}
        rows.append(ChangeRow(seq, canonical(hashed), before, details))
    return rows
