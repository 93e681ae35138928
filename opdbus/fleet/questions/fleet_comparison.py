"""Two hosts side by side: objects that one of them has, and fields in which the others differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.errors import InvalidArgs
from opdbus.fleet.questions import identities
from opdbus.fleet.questions.fleet_conditions import Content, read_contents, require_kinds
from opdbus.fleet.questions.fleet_scope import Hosts, find_host, storable
from opdbus.state.object import Json, ObjectId, canonical

if TYPE_CHECKING:
    import asyncpg

# Last keys of fields that tell most, the first one first.
_TELLING: Final = {
    key: rank
    for rank, key in enumerate(
        "active_state sub_state version enabled unit_file_state load_state state".split()
    )
}


class FieldPair(NamedTuple):
    """A field by its dotted path, and its two values as JSON; "" where it is missing."""

    field: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class Difference:
    """An object that differs: `where` is `first`, `second` or `both`, with the fields if both.

    Its name on the second host is `other`, where the names differ in an identity, such as an
    address. `usual` is the share of the fleet's hosts that are as one of the two: what nearly all
    others have tells more than what is a host's own.
    """

    object_id: ObjectId
    where: str
    usual: float
    fields: tuple[FieldPair, ...] = ()
    other: str = ""


@dataclass(frozen=True, slots=True)
class KindDifferences:
    """The differing objects of a kind, the most telling first."""

    plugin: str
    kind: str
    differences: tuple[Difference, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of differences by where the objects are."""
        return Counter(each.where for each in self.differences)


@dataclass(frozen=True, slots=True)
class ComparisonAnswer:
    """The kinds in which two hosts differ, the most telling first.

    `equal` objects have one state; `identities` more differ only in what any two hosts differ.
    """

    hosts: Hosts
    first: str
    second: str
    kinds: tuple[KindDifferences, ...]
    equal: int
    identities: int


class _Pair(NamedTuple):
    object_id: ObjectId
    first: bytes | None
    second: bytes | None
    other: str = ""


async def compare(
    connection: asyncpg.Connection, first: str, second: str, kinds: Sequence[str] = ()
) -> ComparisonAnswer:
    """Compare two hosts; `kinds` are the only ones, as KIND or PLUGIN. Raises InvalidArgs."""
    hosts = [await find_host(connection, name) for name in (first, second)]
    if hosts[0].ids == hosts[1].ids:
        raise InvalidArgs(f"{first} and {second} are one host: name two")
    for each in hosts:
        if each.parts[0].is_partial:
            raise InvalidArgs(f"{each.parts[0].name} has not sent all its objects yet")
    await require_kinds(connection, kinds, ["kind", "plugin"])
    rows = await connection.fetch(
        "SELECT plugin, kind, name, a.content AS first, b.content AS second"
        " FROM (SELECT * FROM opdbus.object WHERE host = $1) AS a"
        " FULL JOIN (SELECT * FROM opdbus.object WHERE host = $2) AS b USING (plugin, kind, name)"
        " WHERE cardinality($3::text[]) = 0 OR kind = ANY($3) OR plugin = ANY($3)",
        hosts[0].ids[0],
        hosts[1].ids[0],
        [storable(kind) for kind in kinds],
    )
    if kinds and not rows:
        raise InvalidArgs(f"neither host has objects of {' or '.join(kinds)}")
    pairs = [
        _Pair(ObjectId(row["plugin"], row["kind"], row["name"]), row["first"], row["second"])
        for row in rows
        if row["first"] != row["second"]
    ]
    names = [[each.parts[0].name] for each in hosts]
    pairs = _join_by_identity(pairs, names)
    digests = sorted({digest for each in pairs for digest in each[1:3] if digest})
    known = await read_contents(connection, digests)
    usual = await _shares(connection, digests)
    found, same = list[Difference](), 0
    for pair in pairs:
        if difference := _differ(pair, known, usual, names):
            found.append(difference)
        else:
            same += 1
    equal = sum(row["first"] == row["second"] for row in rows)
    both = Hosts(hosts[0].parts + hosts[1].parts, is_all=False)
    return ComparisonAnswer(both, names[0][0], names[1][0], _by_kind(found), equal, same)


def _join_by_identity(pairs: Sequence[_Pair], names: Sequence[Sequence[str]]) -> list[_Pair]:
    """Join objects of one host each whose names differ only in an identity, such as an address."""
    sides: list[dict[ObjectId, list[_Pair]]] = [defaultdict(list), defaultdict(list)]
    found = [pair for pair in pairs if pair.first and pair.second]
    for pair in sorted(pairs, key=lambda each: each.object_id):
        if not (pair.first and pair.second):
            side = 0 if pair.first else 1
            masked = identities.mask(pair.object_id.name, names[side])
            sides[side][pair.object_id._replace(name=masked)].append(pair)
    for one_name in sides[0].keys() | sides[1].keys():
        ones, others = sides[0].get(one_name, []), sides[1].get(one_name, [])
        joined = min(len(ones), len(others)) if "*" in one_name.name else 0
        found += [
            _Pair(one.object_id, one.first, other.second, other.object_id.name)
            for one, other in zip(ones[:joined], others[:joined], strict=True)
        ]
        found += [*ones[joined:], *others[joined:]]
    return found


async def _shares(connection: asyncpg.Connection, digests: Sequence[bytes]) -> dict[bytes, float]:
    """Return the share of the fleet's hosts that have each content."""
    rows = await connection.fetch(
        "SELECT content, count(*)::float8 / greatest(1, (SELECT count(*) FROM opdbus.host"
        " WHERE current_at IS NOT NULL)) AS share FROM opdbus.object WHERE content = ANY($1)"
        " GROUP BY content",
        list(digests),
    )
    return {row["content"]: min(1.0, row["share"]) for row in rows}


def _differ(
    pair: _Pair,
    known: Mapping[bytes, Content],
    usual: Mapping[bytes, float],
    names: Sequence[Sequence[str]],
) -> Difference | None:
    share = max(usual.get(digest, 0.0) for digest in pair[1:3] if digest)
    if not pair.first or not pair.second:
        return Difference(pair.object_id, "first" if pair.first else "second", share)
    if pair.first not in known or pair.second not in known:
        return None  # removed while we read
    sides = [dict(_values(known[digest])) for digest in (pair.first, pair.second)]
    fields = [
        FieldPair(path, values[0], values[1])
        for path in sorted(sides[0].keys() | sides[1].keys())
        if (values := [side.get(path, "") for side in sides])
        and not identities.same_values(path, (values[0], values[1]), names)
    ]
    fields.sort(key=lambda each: (_rank(each.field), each.field))
    if not fields:
        return None
    return Difference(pair.object_id, "both", share, tuple(fields), pair.other)


def _values(content: Content) -> list[tuple[str, str]]:
    return [(p, canonical(value)) for p, value in identities.telling_values(content.properties)]


def _rank(path: str) -> int:
    return _TELLING.get(path.rpartition(".")[2], len(_TELLING))


def _telling(each: Difference) -> tuple[Json, ...]:
    rank = min(map(_rank, (field.field for field in each.fields)), default=len(_TELLING))
    return -round(each.usual, 1), each.where != "both", rank, each.object_id


def _by_kind(found: Sequence[Difference]) -> tuple[KindDifferences, ...]:
    groups: dict[tuple[str, str], list[Difference]] = defaultdict(list)
    for each in sorted(found, key=_telling):
        groups[each.object_id.plugin, each.object_id.kind].append(each)
    # the kind of the most telling difference first
    return tuple(KindDifferences(*kind, tuple(rows)) for kind, rows in groups.items())
