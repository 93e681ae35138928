"""Objects of the fleet with the hosts that have them: grouped by text, and by differing values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.fleet.questions import identities
from opdbus.fleet.questions.fleet_conditions import Content, read_contents
from opdbus.fleet.questions.fleet_scope import Hosts, OnHosts
from opdbus.state.object import Json, ObjectId, canonical

if TYPE_CHECKING:
    import asyncpg

# Differing fields of an object, and their values, that an answer has.
_MOST_FIELDS: Final = 8
_MOST_VALUES: Final = 6


class TextOn(NamedTuple):
    """A text, and the hosts of whose object it is."""

    text: str
    where: OnHosts


class ValueOn(NamedTuple):
    """A value of a field as JSON ("" if there is no such field), and the hosts that have it."""

    value: str
    hosts: tuple[str, ...]


class DifferingField(NamedTuple):
    """A field in which hosts differ, with its commonest values and the number of all."""

    field: str
    values: tuple[ValueOn, ...]
    distinct: int


@dataclass(frozen=True, slots=True)
class FoundObject:
    """An object, and the hosts that have it; texts and values where hosts differ.

    `alike` is the number of objects that this one stands for, whose names differ in numbers only.
    """

    object_id: ObjectId
    where: OnHosts
    texts: tuple[TextOn, ...]
    differing: tuple[DifferingField, ...]
    alike: int = 1

    @property
    def text(self) -> str:
        """The text that most hosts have."""
        return self.texts[0].text if self.texts else ""


class Family(NamedTuple):
    """An object, or the first of several whose names differ only in numbers, and their contents."""

    object_id: ObjectId
    alike: int = 1
    contents: tuple[bytes, ...] = ()


class _Held(NamedTuple):
    content: bytes
    hosts: tuple[int, ...]


async def locate(
    connection: asyncpg.Connection,
    hosts: Hosts,
    families: Sequence[Family],
    only: Mapping[bytes, Content] | None = None,
) -> dict[Family, FoundObject]:
    """Return objects with the hosts that have them; with `only`, in one of these states."""
    held = await _held(connection, hosts, families, only)
    wanted = {each.content for group in held.values() for each in group}
    known = only or await read_contents(connection, sorted(wanted))
    texts = await read_texts(connection, {known[digest].text for digest in wanted})
    return {
        family: _found(family, held[family], hosts, known, texts)
        for family in families
        if family in held
    }


async def _held(
    connection: asyncpg.Connection,
    hosts: Hosts,
    families: Sequence[Family],
    only: Mapping[bytes, Content] | None,
) -> dict[Family, list[_Held]]:
    """Return the contents of each family with their hosts."""
    single = {family.object_id: family for family in families if not family.contents}
    several = {digest: family for family in families for digest in family.contents}
    found: dict[Family, list[_Held]] = defaultdict(list)
    if single:
        rows = await connection.fetch(
            "SELECT object.plugin, object.kind, object.name, object.content,"
            " array_agg(object.host) AS hosts"
            " FROM unnest($1::text[], $2::text[], $3::text[]) AS asked (plugin, kind, name)"
            " JOIN opdbus.object ON (object.plugin, object.kind, object.name)"
            " = (asked.plugin, asked.kind, asked.name)"
            " WHERE $4::int[] IS NULL OR object.host = ANY($4) GROUP BY 1, 2, 3, 4",
            *map(list, zip(*single, strict=True)),
            hosts.only,
        )
        for row in rows:
            if only is None or row["content"] in only:
                one = ObjectId(row["plugin"], row["kind"], row["name"])
                found[single[one]].append(_Held(row["content"], tuple(row["hosts"])))
    if several:
        for content, ids in (await find_holders(connection, hosts, list(several))).items():
            found[several[content]].append(_Held(content, tuple(ids)))
    return found


async def find_holders(
    connection: asyncpg.Connection, hosts: Hosts, contents: Sequence[bytes]
) -> dict[bytes, list[int]]:
    """Return the numbers of the hosts that have each content; one that none has is left out."""
    rows = await connection.fetch(
        "SELECT content, array_agg(host) AS hosts FROM opdbus.object"
        " WHERE content = ANY($1) AND ($2::int[] IS NULL OR host = ANY($2)) GROUP BY content",
        contents,
        hosts.only,
    )
    return {row["content"]: row["hosts"] for row in rows}


async def read_texts(connection: asyncpg.Connection, digests: Iterable[bytes]) -> dict[bytes, str]:
    """Return texts by their digests."""
    rows = await connection.fetch(
        "SELECT digest, text FROM opdbus.text WHERE digest = ANY($1)", sorted(digests)
    )
    return {row["digest"]: row["text"] for row in rows}


def _found(
    family: Family,
    held: Sequence[_Held],
    hosts: Hosts,
    known: Mapping[bytes, Content],
    texts: Mapping[bytes, str],
) -> FoundObject:
    by_text: dict[str, list[int]] = defaultdict(list)
    for each in held:
        by_text[texts.get(known[each.content].text, "")] += each.hosts
    ordered = sorted(by_text.items(), key=lambda item: (-len(item[1]), item[0]))
    every = [host for each in held for host in each.hosts]
    states = [(known[each.content].properties, each.hosts) for each in held]
    return FoundObject(
        family.object_id,
        hosts.split(every),
        tuple(TextOn(text, hosts.split(ids)) for text, ids in ordered),
        # objects of different names may differ in anything
        differing_fields(states, hosts) if family.alike == 1 else (),
        family.alike,
    )


def differing_fields(
    states: Sequence[tuple[Mapping[str, Json], Sequence[int]]], hosts: Hosts
) -> tuple[DifferingField, ...]:
    """Return the fields in which hosts' states differ, without identities; fewest values first."""
    if len(states) < 2:
        return ()
    values: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    flat = [(dict(identities.telling_values(fields)), ids) for fields, ids in states]
    for path in sorted({path for fields, _ in flat for path in fields}):
        for fields, ids in flat:
            values[path][canonical(fields[path]) if path in fields else ""] += ids
    found = []
    for path, groups in values.items():
        if len(groups) > 1 and len({identities.mask(value) for value in groups}) > 1:
            ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
            named = tuple(ValueOn(value, hosts.names(ids)) for value, ids in ordered)
            found.append(DifferingField(path, named[:_MOST_VALUES], len(ordered)))
    return tuple(sorted(found, key=lambda each: (each.distinct, each.field))[:_MOST_FIELDS])
