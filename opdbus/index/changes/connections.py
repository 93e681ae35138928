"""Connections of an object: the objects that its fields name, and those that name it."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from opdbus.history.row_filter import Filter
from opdbus.index.changes import history_reader
from opdbus.index.query import condition_matching, config_mentions
from opdbus.index.query.config_mentions import Mentions
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.conditions import Condition
from opdbus.state.object import UNIT, Json, ObjectId

PACKAGE: Final = ("packages", "package")
LISTENER: Final = ("net", "listener")
MOUNT: Final = ("mounts", "mount")
_FILE: Final = ("files", "file")
_ACCOUNT: Final = ("users", "account")


class Relation(NamedTuple):
    """A field of objects of one kind that names objects of another, in a list or with commas."""

    of: tuple[str, str]
    field: str
    to: tuple[str, str]


RELATIONS: Final = (
    *(Relation(UNIT, field, UNIT) for field in ("triggers", "triggered_by", "unit", "following")),
    *(Relation(UNIT, field, UNIT) for field in ("requires", "wants")),
    Relation(UNIT, "package", PACKAGE),
    Relation(UNIT, "where", MOUNT),
    Relation(UNIT, "fragment_path", _FILE),
    Relation(UNIT, "drop_ins", _FILE),
    Relation(UNIT, "user", _ACCOUNT),
    # found by the control group of the process
    Relation(LISTENER, "unit", UNIT),
    Relation(_FILE, "unit", UNIT),
    Relation(_FILE, "package", PACKAGE),
    Relation(("net", "address"), "interface", ("net", "interface")),
    Relation(("net", "route"), "interface", ("net", "interface")),
    Relation(("login1", "session"), "user", _ACCOUNT),
    # members include accounts whose primary group it is
    Relation(("users", "group"), "members", _ACCOUNT),
)
# Objects that name the same object of these kinds are connected, too. Accounts are left out: one
# user runs too many unrelated units.
_SHARED: Final = (PACKAGE,)
MOST: Final = 1000


# Reads the mentions of a unit from its name, its fields, and its package's configuration files.
ReadMentions: TypeAlias = Callable[[str, Mapping[str, Json], Collection[str]], Awaitable[Mentions]]


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


async def around(
    memory: StateStore, object_id: ObjectId, look: ReadMentions = nothing_more
) -> Connections:
    """Return the connections of an object; by fields, at most `MOST`.

    `look` reads the mentions of a unit.
    """
    fields = await fields_of(memory, object_id)
    named = {*_named_objects(object_id, fields)}
    found = {object_id, *named}
    for other in (object_id, *(each for each in sorted(named) if each[:2] in _SHARED)):
        # the objects that name it, by each field of relations to its kind
        for field in sorted({each.field for each in RELATIONS if each.to == other[:2]}):
            of = {r.of for r in RELATIONS if (r.to, r.field) == (other[:2], field)}
            for each in await _candidates(memory, field, other):
                if each[:2] in of and other in _named_objects(each, await fields_of(memory, each)):
                    found.add(each)
            if len(found) > MOST:
                break
    if object_id[:2] == _FILE:

        def units() -> set[ObjectId]:
            """Return the units whose name the file, or a folder above it, has."""
            every = (each for each in memory.catalogue.all_object_ids() if each[:2] == UNIT)
            return {each for each in every if config_mentions.of_names(each.name).has(object_id)}

        # takes too long for the event loop among 100,000 objects
        found |= await asyncio.to_thread(units)
    mentions = Mentions()
    if object_id[:2] == UNIT:
        files = [each.name for each in sorted(found) if each[:2] == _FILE]
        mentions = await look(object_id.name, fields, files)
    others = sorted(found - {object_id})[: MOST - 1]
    return Connections(frozenset([object_id, *others]), mentions)


async def earlier(memory: StateStore, object_id: ObjectId) -> frozenset[ObjectId]:
    """Return the ports that were a unit's by history: closed ports have no fields that name it."""
    if object_id[:2] != UNIT:
        return frozenset()
    ports = [each for each in await history_reader.object_ids(memory) if each[:2] == LISTENER]
    wanted = Filter(object_ids=ports, where=[Condition("unit", "~", object_id.name)])
    rows = await history_reader.first_rows(memory, wanted, MOST)
    return frozenset(
        row.identity.object_id
        for row in rows
        for path, *sides in row.fields
        for side in sides
        if path == ["unit"] and object_id.name in _names_of(side[0] if side else None)
    )


async def fields_of(memory: StateStore, object_id: ObjectId) -> Mapping[str, Json]:
    """Return the joined fields of an object, {} if it does not exist."""
    if not memory.catalogue.has(object_id):
        return {}
    entries = memory.catalogue.require_entries(object_id)
    return memory.merge_properties(entries, await memory.content(entries))


async def _candidates(memory: StateStore, field: str, object_id: ObjectId) -> list[ObjectId]:
    """Return the first `MOST` objects that may name an object in a field."""
    # "~": the field may list several names
    conditions = [Condition(field, "~", object_id.name.lower())]
    return sorted(await condition_matching.object_ids(memory, conditions))[:MOST]


def _named_objects(object_id: ObjectId, fields: Mapping[str, Json]) -> Iterator[ObjectId]:
    """Yield the objects that the fields of an object name."""
    for relation in RELATIONS:
        if relation.of == object_id[:2]:
            for name in _names_of(fields.get(relation.field)):
                yield ObjectId(*relation.to, name)


def _names_of(value: Json) -> Sequence[str]:
    if isinstance(value, list):
        return [name for name in value if isinstance(name, str)]
    return value.split(", ") if isinstance(value, str) and value else []
