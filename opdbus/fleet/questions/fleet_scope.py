"""The hosts that a question is about, how old each one's part is, and which ones changed."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.errors import InvalidArgs
from opdbus.fleet.host_overview import SILENT_SECONDS, HostOverview, list_hosts
from opdbus.index.query.question_conditions import MAX_CHARACTERS
from opdbus.platform import name_lists, timestamps
from opdbus.state.database_text import replace_unfit

if TYPE_CHECKING:
    import asyncpg

# Hosts that a line names.
_MOST_NAMED: Final = 5
_SNAPSHOT: Final = re.compile(r"\d{1,19}:\d{1,19}:(?:\d{1,19}(?:,\d{1,19}){0,1000})?")


@dataclass(frozen=True, slots=True)
class Scope:
    """Names of hosts, as patterns with *, and tags: a host has one of the names and all tags."""

    hosts: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def is_all(self) -> bool:
        """True if every host of the fleet is meant."""
        return not self.hosts and not self.tags


@dataclass(frozen=True, slots=True)
class HostPart:
    """A host that was asked. Ages are in seconds; None if it never sent its state.

    `age` is the time since the stored state was the host's own, `seen` that since it was there.
    `is_partial`: it was never compared, so that objects may be missing.
    """

    host: int
    name: str
    tags: tuple[str, ...]
    age: float | None
    seen: float | None
    backlog: int
    is_partial: bool
    is_silent: bool
    conflict: str
    vector_fault: str


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts that were asked, by their names' order."""

    parts: tuple[HostPart, ...]
    # all hosts of the fleet are meant
    is_all: bool = True

    @property
    def ids(self) -> list[int]:
        """The numbers of the hosts."""
        return [part.host for part in self.parts]

    @property
    def only(self) -> list[int] | None:
        """The numbers of the hosts, None for all: SQL is planned with each one of a list."""
        return None if self.is_all else self.ids

    @property
    def described(self) -> list[HostPart]:
        """The hosts whose whole state is stored: of others nothing can be said to be missing."""
        return [part for part in self.parts if not part.is_partial]

    def names(self, ids: Iterable[int]) -> tuple[str, ...]:
        """Return the names of hosts, in their order."""
        wanted = frozenset(ids)
        return tuple(part.name for part in self.parts if part.host in wanted)

    def split(self, ids: Collection[int]) -> OnHosts:
        """Return the hosts that have something, and those of a whole state that do not."""
        wanted = frozenset(ids)
        others = (part.host for part in self.described if part.host not in wanted)
        return OnHosts(self.names(wanted), self.names(others))

    @property
    def headline(self) -> str:
        """The number of hosts and the ages of their parts: `44 hosts; newest 3 s, ...`."""
        dated = sorted((part.age, part.name) for part in self.parts if part.age is not None)
        count = f"{len(self.parts):,} host{'' if len(self.parts) == 1 else 's'}"
        if not dated:
            return f"{count}; none has sent its state yet"
        newest, (oldest, name) = short_age(dated[0][0]), dated[-1]
        if len(dated) == 1:
            return f"{count}; its state is of {newest} ago"
        return f"{count}; newest {newest}, oldest {short_age(oldest)} ({name})"

    @property
    def remarks(self) -> list[str]:
        """Hosts that are silent, partial or in conflict, or whose vectors were refused."""
        groups = (
            ("silent", [part.name for part in self.parts if part.is_silent]),
            ("not sent whole yet", [part.name for part in self.parts if part.is_partial]),
            ("history in conflict", [part.name for part in self.parts if part.conflict]),
            ("false vectors", [part.name for part in self.parts if part.vector_fault]),
        )
        return [f"{what}: {name_lists.join_first(n, _MOST_NAMED)}" for what, n in groups if n]


class OnHosts(NamedTuple):
    """The names of hosts that have something, and of the others."""

    on: tuple[str, ...]
    not_on: tuple[str, ...]

    def __str__(self) -> str:
        """Return the words."""
        return self.words

    @property
    def words(self) -> str:
        """The hosts in words, with the shorter list of names."""
        count, total = len(self.on), len(self.on) + len(self.not_on)
        if not self.not_on:
            return (
                f"on all {total:,} hosts"
                if total > 1
                else f"on {self.on[0]}"
                if total
                else "on no host"
            )
        if not self.on:
            return "on no host"
        text = f"on {count:,} of {total:,} hosts"
        if len(self.not_on) < count:
            return f"{text}; not on {name_lists.join_first(self.not_on, _MOST_NAMED)}"
        return f"{text}: {name_lists.join_first(self.on, _MOST_NAMED)}"


class ChangedHosts(NamedTuple):
    """Names of hosts that changed, and the cursor with which to ask for later changes."""

    hosts: tuple[str, ...]
    cursor: str


class ListedHosts(NamedTuple):
    """Hosts as `list_hosts` returns them, and the cursor with which to ask for later changes."""

    hosts: list[HostOverview]
    cursor: str


def storable(text: str) -> str:
    """Return a text, cut as questions are, without what PostgreSQL's texts cannot hold."""
    return str(replace_unfit(text[:MAX_CHARACTERS]))


def short_age(seconds: float) -> str:
    """Return an age without `ago`: `3 s`."""
    return timestamps.ago(max(0.0, seconds)).removesuffix(" ago").replace("just now", "0 s")


async def find_hosts(connection: asyncpg.Connection, scope: Scope) -> Hosts:
    """Return the hosts of a scope; raises InvalidArgs if there is none."""
    rows = await connection.fetch(
        "SELECT host, name, tags, extract(epoch FROM now() - current_at)::float8 AS age,"
        " extract(epoch FROM now() - seen_at)::float8 AS seen, backlog,"
        " compared_at IS NULL AS is_partial, conflict, vector_fault"
        " FROM opdbus.host WHERE tags @> $1 ORDER BY name",
        [storable(tag) for tag in scope.tags],
    )
    patterns = [storable(name).lower() for name in scope.hosts]
    parts = tuple(
        HostPart(
            row["host"],
            row["name"],
            tuple(row["tags"]),
            row["age"],
            row["seen"],
            row["backlog"],
            row["is_partial"],
            row["seen"] is None or row["seen"] > SILENT_SECONDS,
            row["conflict"] or "",
            row["vector_fault"] or "",
        )
        for row in rows
        if not patterns or any(fnmatchcase(row["name"].lower(), each) for each in patterns)
    )
    if not parts:
        raise InvalidArgs(await _nobody(connection, scope))
    return Hosts(parts, scope.is_all)


async def _nobody(connection: asyncpg.Connection, scope: Scope) -> str:
    tags = await connection.fetch(
        "SELECT DISTINCT unnest(tags) AS tag FROM opdbus.host ORDER BY 1 LIMIT 20"
    )
    asked = [*(f"host:{name}" for name in scope.hosts), *(f"tag:{tag}" for tag in scope.tags)]
    if not asked:
        return "the fleet has no hosts: `op-dbus fleet add HOST` adds one"
    known = name_lists.join_first([row["tag"] for row in tags], _MOST_NAMED)
    having = f"; there are the tags {known}" if known and scope.tags else ""
    return f"the fleet has no host of {' '.join(asked)}{having}: `op-dbus fleet hosts` lists all"


async def find_host(connection: asyncpg.Connection, name: str) -> Hosts:
    """Return one host by its name; raises InvalidArgs, also for a pattern of several."""
    found = await find_hosts(connection, Scope((name,)))
    if len(found.parts) > 1:
        raise InvalidArgs(f"{name} means {len(found.parts)} hosts: name one of them")
    return found


async def hosts_changed_since(
    connection: asyncpg.Connection, cursor: str = "", scope: Scope | None = None
) -> ChangedHosts:
    """Return the hosts whose objects or history changed since a cursor, all without one.

    The cursor is a snapshot of the database: a transaction that was open when it was taken counts
    as later, so that no change is missed, whatever the order in which transactions end. That a host
    was merely seen is no change. After the database was restored into another server, or a cursor
    of another one is given, all hosts are returned. Raises InvalidArgs for what is no cursor.
    """
    if cursor and not _SNAPSHOT.fullmatch(cursor):
        raise InvalidArgs(f"{cursor!r} is no cursor: give the one that the last answer had")
    hosts = await find_hosts(connection, scope or Scope())
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        # the snapshot first: what is not in it comes with the next cursor
        now = await connection.fetchval("SELECT pg_current_snapshot()::text")
        is_known = cursor and await connection.fetchval(
            "SELECT pg_snapshot_xmax($1::text::pg_snapshot)"
            " <= pg_snapshot_xmax($2::text::pg_snapshot)",
            cursor,
            now,
        )
        rows = await connection.fetch(
            "SELECT host FROM opdbus.host WHERE host = ANY($1)"
            " AND ($2 = '' OR NOT pg_visible_in_snapshot(changed, $2::text::pg_snapshot))",
            hosts.ids,
            cursor if is_known else "",
        )
    return ChangedHosts(hosts.names(row["host"] for row in rows), now)


async def list_changed_hosts(
    connection: asyncpg.Connection, cursor: str = "", scope: Scope | None = None
) -> ListedHosts:
    """Return the overview of the hosts of `hosts_changed_since`, and the next cursor."""
    # the names first: hosts that change meanwhile come with the next cursor
    changed = await hosts_changed_since(connection, cursor, scope)
    names = frozenset(changed.hosts)
    found = await list_hosts(connection)
    return ListedHosts([host for host in found if host.name in names], changed.cursor)
