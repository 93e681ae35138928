"""States at a past time: the present states of hosts, with later changes undone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.fleet.questions.fleet_scope import Hosts
from opdbus.history.change import FieldChange, undone
from opdbus.state.object import FILE, Identity, Json, ObjectId

if TYPE_CHECKING:
    import asyncpg

# Changes of these kinds have the fields that they changed.
_CHANGES: Final = ("appeared", "changed", "gone")


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


async def rewind(
    connection: asyncpg.Connection,
    hosts: Hosts,
    at: int,
    object_ids: Sequence[ObjectId] | None = None,
) -> Past:
    """Return the states at a time; with `object_ids`, only of these objects."""
    begins = await connection.fetch(
        "SELECT host.host, (SELECT min(change.at) FROM opdbus.change"
        " WHERE change.host = host.host AND change.epoch = host.epoch) AS at"
        " FROM opdbus.host WHERE host = ANY($1)",
        hosts.ids,
    )
    # states are sent before the rows of a backlog, which therefore cannot be undone yet
    behind = {part.host for part in hosts.parts if part.backlog}
    reaching = {row["host"] for row in begins if row["at"] is not None and row["at"] <= at} - behind
    parts = tuple(part for part in hosts.parts if part.host in reaching)
    named = list(map(list, zip(*object_ids, strict=True))) if object_ids else [[], [], []]
    rows = await connection.fetch(
        "SELECT change.host, change.source, plugin, kind, change.name, what, fields"
        " FROM opdbus.change JOIN opdbus.host ON host.host = change.host"
        " AND host.epoch = change.epoch"
        " WHERE change.host = ANY($1) AND at > $2 AND what = ANY($3)"
        " AND ($4 OR (plugin, kind, change.name) IN"
        " (SELECT * FROM unnest($5::text[], $6::text[], $7::text[])))"
        " ORDER BY change.host, change.seq DESC",
        sorted(reaching),
        at,
        list(_CHANGES),
        object_ids is None,
        *named,
    )
    changed = {_key(row) for row in rows}
    present = await _present(connection, changed)
    undoing = {key: _Undoing(present.get(key)) for key in changed}
    for row in rows:
        undoing[_key(row)].undo(row["source"], row["what"], row["fields"])
    return Past(
        at,
        Hosts(parts, hosts.is_all and len(parts) == len(hosts.parts)),
        {key: each.result() for key, each in undoing.items() if not each.is_unknown},
        frozenset(key for key, each in undoing.items() if each.is_unknown),
        hosts.names(set(hosts.ids) - reaching),
    )


def _key(row: asyncpg.Record) -> HostObject:
    return HostObject(row["host"], ObjectId(row["plugin"], row["kind"], row["name"]))


async def _present(
    connection: asyncpg.Connection, wanted: set[HostObject]
) -> dict[HostObject, Sides]:
    if not wanted:
        return {}
    rows = await connection.fetch(
        "SELECT object.host, c.plugin, c.kind, c.name, c.source, c.declared, c.observed"
        " FROM unnest($1::int[], $2::text[], $3::text[], $4::text[])"
        " AS asked (host, plugin, kind, name)"
        " JOIN opdbus.object USING (host, plugin, kind, name)"
        " JOIN opdbus.content AS c ON c.digest = object.content",
        *map(list, zip(*((each.host, *each.object_id) for each in wanted), strict=True)),
    )
    return {
        _key(row): Sides(
            row["source"],
            *(json.loads(row[key]) if row[key] else None for key in ("declared", "observed")),
        )
        for row in rows
    }


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
