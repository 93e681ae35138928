"""States at a past time: the present states of hosts, with later changes undone."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opdbus.fleet.questions.fleet_scope import Hosts
from opdbus.history.change import FieldChange, undone
from opdbus.state.object import FILE, Identity, Json, ObjectId

if TYPE_CHECKING:
    import asyncpg

# Changes of these kinds have the fields that they changed.
_CHANGES: Final = ("appeared", "changed", "gone")
# Rows that are read at a time, and states that are kept for hosts that had the same.
_AT_A_TIME: Final = 5000
_MOST_KEPT: Final = 20_000


class HostObject(NamedTuple):
    """An object of one host."""

    host: int
    object_id: ObjectId


class Sides(NamedTuple):
    """An object's state: its source, and its fields as declared and as observed, or None."""

    source: str
    declared: Mapping[str, Json] | None
    observed: Mapping[str, Json] | None

    @property
    def fields(self) -> Mapping[str, Json]:
        """The fields, observed ones if there are any."""
        return self.observed if self.observed is not None else self.declared or {}

    def identity(self, one: ObjectId) -> Identity:
        """Return the identity of the object."""
        return Identity(self.source, *one)


@dataclass(frozen=True, slots=True)
class Past:
    """States at a time, `at`, in microseconds since 1970, that differ from those stored now.

    `states` has the objects that changed since then, None for those that were not there. `reaching`
    are the hosts whose history goes back so far. `unknown` objects have changes without values.
    """

    at: int
    reaching: Hosts
    states: Mapping[HostObject, Sides | None]
    unknown: frozenset[HostObject]
    # hosts whose history begins later or is not sent to its end, or which have none
    not_reaching: tuple[str, ...]


class PastObject(NamedTuple):
    """An object that changed since then: its present content, and its state then or None.

    Equal changes of equal contents give one `state`. `is_unknown`: values are not kept.
    """

    key: HostObject
    content: bytes | None
    state: Sides | None
    is_unknown: bool


class Reach(NamedTuple):
    """The hosts whose history goes back to a time, and the names of the others."""

    reaching: Hosts
    not_reaching: tuple[str, ...]


async def rewind(
    connection: asyncpg.Connection,
    hosts: Hosts,
    at: int,
    object_ids: Sequence[ObjectId] | None = None,
) -> Past:
    """Return the states at a time; with `object_ids`, only of these objects."""
    reach = await find_reaching(connection, hosts, at)
    states, unknown = dict[HostObject, Sides | None](), set[HostObject]()
    async with connection.transaction():
        async for each in undo_changes(connection, reach.reaching, at, object_ids):
            if each.is_unknown:
                unknown.add(each.key)
            else:
                states[each.key] = each.state
    return Past(at, reach.reaching, states, frozenset(unknown), reach.not_reaching)


async def find_reaching(connection: asyncpg.Connection, hosts: Hosts, at: int) -> Reach:
    """Return the hosts whose states at a time can be told."""
    rows = await connection.fetch(_REACHING, hosts.ids, at)
    # states are sent before the rows of a backlog, which therefore cannot be undone yet
    behind = {part.host for part in hosts.parts if part.backlog}
    reaching = {row["host"] for row in rows} - behind
    parts = tuple(part for part in hosts.parts if part.host in reaching)
    is_all = hosts.is_all and len(parts) == len(hosts.parts)
    return Reach(Hosts(parts, is_all), hosts.names(set(hosts.ids) - reaching))


# The first row is nearly always the oldest.
_REACHING: Final = """
SELECT host FROM opdbus.host WHERE host = ANY($1) AND ((
  SELECT at FROM opdbus.change WHERE (change.host, change.epoch) = (host.host, host.epoch)
  ORDER BY seq LIMIT 1) <= $2
OR EXISTS (
  SELECT FROM opdbus.change WHERE (change.host, change.epoch) = (host.host, host.epoch)
  AND at <= $2))
"""
_LATER: Final = """
SELECT change.host, change.source, change.plugin, change.kind, change.name, what, fields, content
FROM opdbus.change JOIN opdbus.host ON (host.host, host.epoch) = (change.host, change.epoch)
LEFT JOIN opdbus.object ON (object.host, object.plugin, object.kind, object.name)
  = (change.host, change.plugin, change.kind, change.name)
WHERE ($1::int[] IS NULL OR change.host = ANY($1)) AND at > $2 AND what = ANY($3) {only}
ORDER BY change.host, change.seq DESC
"""
_ONLY: Final = (
    "AND (change.plugin, change.kind, change.name) IN"
    " (SELECT * FROM unnest($4::text[], $5::text[], $6::text[]))"
)


async def undo_changes(
    connection: asyncpg.Connection,
    hosts: Hosts,
    at: int,
    object_ids: Sequence[ObjectId] | None = None,
) -> AsyncIterator[PastObject]:
    """Yield the objects that changed since a time, host by host; asks within a transaction.

    So many rows are read that memory is that of some hosts, not of all.
    """
    named = list(map(list, zip(*object_ids, strict=True))) if object_ids else []
    sql = _LATER.format(only=_ONLY if named else "")
    cursor = await connection.cursor(sql, hosts.only, at, list(_CHANGES), *named)
    undoing = _Undo(connection)
    left: list[asyncpg.Record] = []
    while rows := await cursor.fetch(_AT_A_TIME):
        left += rows
        last = left[-1]["host"]
        ready = [row for row in left if row["host"] != last]
        left = [row for row in left if row["host"] == last]
        for each in await undoing.undo(ready):
            yield each
    for each in await undoing.undo(left):
        yield each


class _Undo:
    """Undoes changes; what many hosts had alike is undone once."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._contents: dict[bytes, Sides] = {}
        self._undone: dict[tuple[Any, ...], tuple[Sides | None, bool]] = {}

    async def undo(self, rows: Sequence[asyncpg.Record]) -> list[PastObject]:
        """Return the objects of rows of whole hosts, each one's newest first."""
        changes: dict[HostObject, list[tuple[str, str, str | None]]] = defaultdict(list)
        contents: dict[HostObject, bytes | None] = {}
        for host, source, plugin, kind, name, what, fields, content in rows:
            key = HostObject(host, ObjectId(plugin, kind, name))
            changes[key].append((source, what, fields))
            contents[key] = content
        await self._read({digest for digest in contents.values() if digest})
        return [
            PastObject(key, contents[key], *self._state(contents[key], tuple(each)))
            for key, each in changes.items()
        ]

    def _state(
        self, content: bytes | None, changes: Sequence[tuple[str, str, str | None]]
    ) -> tuple[Sides | None, bool]:
        found = self._undone.get((content, *changes))
        if found is None:
            undoing = _Undoing(self._contents.get(content) if content else None)
            for source, what, fields in changes:
                undoing.undo(source, what, fields)
            found = (None, True) if undoing.is_unknown else (undoing.result(), False)
            self._undone[(content, *changes)] = found
        return found

    async def _read(self, digests: set[bytes]) -> None:
        if len(self._contents) > _MOST_KEPT or len(self._undone) > _MOST_KEPT:
            self._contents.clear()
            self._undone.clear()
        rows = await self._connection.fetch(
            "SELECT digest, source, declared, observed FROM opdbus.content WHERE digest = ANY($1)",
            list(digests - self._contents.keys()),
        )
        for digest, source, *sides in rows:
            self._contents[digest] = Sides(source, *(json.loads(s) if s else None for s in sides))


@dataclass
class _Undoing:
    """An object's state, from which changes are undone, the newest first."""

    state: Sides | None
    sides: dict[str, dict[str, Json] | None] = field(default_factory=dict)
    source: str = ""
    is_unknown: bool = False

    def __post_init__(self) -> None:
        if self.state:
            self.source = self.state.source
        for side in ("declared", "observed"):
            values = getattr(self.state, side) if self.state else None
            self.sides[side] = None if values is None else dict(values)

    def undo(self, source: str, what: str, fields: str | None) -> None:
        """Undo a change of a source; `fields` are (path, before, after) as JSON."""
        side = "declared" if source == FILE else "observed"
        if what == "appeared":
            # what other sources said of it before is unknown, but then they changed it too
            self.sides[side] = None
            return
        rows = json.loads(fields) if fields else [("", "", "")]
        if any(not path or not (before or after) for path, before, after in rows):
            self.is_unknown = True
            return
        self.source = source if self.source in ("", FILE) else self.source
        state = self.sides[side] or {}
        try:
            self.sides[side] = undone(state, [_field(state, *row) for row in rows])
        except (ValueError, KeyError):
            self.is_unknown = True

    def result(self) -> Sides | None:
        """Return the state that is left, None if there is none."""
        if self.sides["declared"] is None and self.sides["observed"] is None:
            return None
        return Sides(self.source, self.sides["declared"], self.sides["observed"])


def _field(state: Mapping[str, Json], path: str, before: str, after: str) -> FieldChange:
    """Return a change whose path is joined with dots, which keys may have too."""
    sides = [[json.loads(text)] if text else [] for text in (before, after)]
    keys = next(_ways(state, path, sides[1]), None)
    if keys is None:
        raise ValueError(path)
    return FieldChange(keys, *sides)


def _ways(state: Mapping[str, Json], path: str, after: Sequence[Json]) -> Iterator[tuple[str, ...]]:
    """Yield the keys that a path may mean, the likeliest first.

    After a change, a state has all of the keys, or all but the last if the field is gone; the value
    of the last one is `after`. Changes go into objects that have fields before and after them.
    """
    for at, letter in enumerate(path):
        below = state.get(path[:at]) if letter == "." else None
        if isinstance(below, dict) and below:
            for rest in _ways(below, path[at + 1 :], after):
                yield (path[:at], *rest)
    if (path in state) == bool(after) and (not after or state[path] == after[0]):
        yield (path,)
