"""Connections of an object: the objects that its fields name, and those that name it."""

import asyncio
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from opdbus.history.row_filter import Filter, Row
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.changes import history_reader
from opdbus.index.query import condition_matching, config_mentions
from opdbus.index.query.config_mentions import Mentions
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.conditions import Condition
from opdbus.state.object import Json, ObjectId

# The plugin and kind of an object.
Sort: TypeAlias = tuple[str, str]

UNIT: Final = ("systemd", "unit")
PACKAGE: Final = ("packages", "package")
_LISTENER: Final = ("net", "listener")
_FILE: Final = ("files", "file")
_MOUNT: Final = ("mounts", "mount")
_ACCOUNT: Final = ("users", "account")
_GROUP: Final = ("users", "group")


class Relation(NamedTuple):
    """A field of objects of one kind that names objects of another, in a list or with commas."""

    of: Sort
    field: str
    to: Sort


RELATIONS: Final = (
    *(Relation(UNIT, field, UNIT) for field in ("triggers", "triggered_by", "unit", "following")),
    *(Relation(UNIT, field, UNIT) for field in ("requires", "wants")),
    Relation(UNIT, "package", PACKAGE),
    Relation(UNIT, "where", _MOUNT),
    Relation(UNIT, "fragment_path", _FILE),
    Relation(UNIT, "drop_ins", _FILE),
    Relation(UNIT, "user", _ACCOUNT),
    # found by the control group of the process
    Relation(_LISTENER, "unit", UNIT),
    Relation(_FILE, "unit", UNIT),
    Relation(_FILE, "package", PACKAGE),
    Relation(("net", "address"), "interface", ("net", "interface")),
    Relation(("net", "route"), "interface", ("net", "interface")),
    Relation(("login1", "session"), "user", _ACCOUNT),
    # members include accounts whose primary group it is
    Relation(_GROUP, "members", _ACCOUNT),
)
# Objects that name the same object of these kinds are connected, too. Accounts are left out: one
# user runs too many unrelated units.
_SHARED: Final = (PACKAGE,)
MOST: Final = 1000


# Reads the mentions of a unit from its name, its fields, and its package's configuration files.
Look: TypeAlias = Callable[[str, Mapping[str, Json], Collection[str]], Awaitable[Mentions]]


async def nothing_more(_: str, __: Mapping[str, Json], ___: Collection[str]) -> Mentions:
    """Return no mentions: for a store without access to the host's files."""
    return Mentions()


@dataclass(frozen=True, slots=True)
class Connections:
    """Objects connected by fields, and the mentions of a unit's configuration."""

    object_ids: frozenset[ObjectId]
    mentions: Mentions = Mentions()  # noqa: RUF009 -- it is frozen

    def __contains__(self, object_id: object) -> bool:
        """Return whether an object is connected, whether or not it exists."""
        return object_id in self.object_ids or (
            isinstance(object_id, ObjectId) and self.mentions.has(object_id)
        )

    def among(self, known: Iterable[ObjectId]) -> frozenset[ObjectId]:
        """Return the connected objects, and those of `known` that are mentioned; at most `MOST`."""
        named = {object_id for object_id in known if self.mentions.has(object_id)} - self.object_ids
        return self.object_ids | frozenset(sorted(named)[: MOST - len(self.object_ids)])


async def around(memory: StateStore, object_id: ObjectId, look: Look = nothing_more) -> Connections:
    """Return the connections of an object; by fields, at most `MOST`.

    `look` reads the mentions of a unit.
    """
    fields = await fields_of(memory, object_id)
    named = {*_named(object_id, fields)}
    found = {object_id, *named}
    for other in (object_id, *(each for each in sorted(named) if each[:2] in _SHARED)):
        async for naming in _naming(memory, other):
            found |= naming
            if len(found) > MOST:
                break
    if object_id[:2] == _FILE:
        # takes too long for the event loop among 100,000 objects
        found |= await asyncio.to_thread(_units_of, memory.catalogue, object_id)
    told = Mentions()
    if object_id[:2] == UNIT:
        files = [each.name for each in sorted(found) if each[:2] == _FILE]
        told = await look(object_id.name, fields, files)
    return Connections(frozenset([object_id, *sorted(found - {object_id})[: MOST - 1]]), told)


def _units_of(catalogue: Catalogue, file: ObjectId) -> set[ObjectId]:
    """Return the units whose name a file, or a folder above it, has; callable on any thread."""
    units = (object_id for object_id in catalogue.known() if object_id[:2] == UNIT)
    return {unit for unit in units if config_mentions.of_names(unit.name).has(file)}


async def earlier(memory: StateStore, object_id: ObjectId) -> frozenset[ObjectId]:
    """Return the ports that were a unit's by history: closed ports have no fields that name it."""
    if object_id[:2] != UNIT:
        return frozenset()
    ports = [each for each in await history_reader.object_ids(memory) if each[:2] == _LISTENER]
    wanted = Filter(object_ids=ports, where=[Condition("unit", "~", object_id.name)])
    rows = await history_reader.first(memory, wanted, MOST)
    return frozenset(ObjectId(*row.identity[1:]) for row in rows if object_id.name in _units(row))


def _units(row: Row) -> Iterator[str]:
    """Yield the units that a row names, before or after the change."""
    for path, *sides in row.fields:
        if path == ["unit"]:
            for values in sides:
                yield from _names(values[0] if values else None)


async def named(memory: StateStore, object_id: ObjectId) -> list[ObjectId]:
    """Return the objects that the fields of an object name."""
    return [*_named(object_id, await fields_of(memory, object_id))]


async def fields_of(memory: StateStore, object_id: ObjectId) -> Mapping[str, Json]:
    """Return the joined fields of an object, {} if it does not exist."""
    if not memory.catalogue.has(object_id):
        return {}
    entries = memory.catalogue.about(object_id)
    return memory.merge_properties(entries, await memory.content(entries))


async def naming(memory: StateStore, field: str, object_id: ObjectId) -> list[ObjectId]:
    """Return the units that name a unit in a field, sorted; of at most `MOST` candidates."""
    # "~": the field may list several names
    found = sorted(
        await condition_matching.object_ids(memory, [Condition(field, "~", object_id.name.lower())])
    )
    units = [each for each in found[:MOST] if each[:2] == UNIT]
    return [
        each
        for each in units
        if object_id.name in _names((await fields_of(memory, each)).get(field))
    ]


def units_in(fields: Mapping[str, Json], *names: str) -> list[ObjectId]:
    """Return the distinct units that the given fields name."""
    return list(
        dict.fromkeys(ObjectId(*UNIT, name) for key in names for name in _names(fields.get(key)))
    )


def _named(object_id: ObjectId, fields: Mapping[str, Json]) -> Iterator[ObjectId]:
    """Yield the objects that the fields of an object name."""
    for relation in RELATIONS:
        if relation.of == object_id[:2]:
            for name in _names(fields.get(relation.field)):
                yield ObjectId(*relation.to, name)


async def _naming(memory: StateStore, object_id: ObjectId) -> AsyncIterator[set[ObjectId]]:
    """Yield, for each relation to its kind, the objects that name an object in that field."""
    fields = {relation.field for relation in RELATIONS if relation.to == object_id[:2]}
    for field in sorted(fields):
        # "~": the field may list several names
        conditions = [Condition(field, "~", object_id.name.lower())]
        candidates = sorted(await condition_matching.object_ids(memory, conditions))
        sorts = {r.of for r in RELATIONS if (r.to, r.field) == (object_id[:2], field)}
        wanted = [each for each in candidates[:MOST] if each[:2] in sorts]
        yield {each for each in wanted if object_id in _named(each, await fields_of(memory, each))}


def _names(value: Json) -> Sequence[str]:
    if isinstance(value, list):
        return [name for name in value if isinstance(name, str)]
    return value.split(", ") if isinstance(value, str) and value else []
