"""Hosts unlike their peers, and objects that a host lacks and most of its peers have.

Both work on the digests of states without identities (`content.shape`): a state is compared with
those of the same object on the other hosts of the group, and no body is read but those that the
answer shows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.errors import InvalidArgs
from opdbus.fleet.questions.fleet_conditions import read_contents
from opdbus.fleet.questions.fleet_scope import (
    Hosts,
    OnHosts,
    Scope,
    find_host,
    find_hosts,
)
from opdbus.fleet.questions.where_found import DifferingField, differing_fields
from opdbus.state.object import ObjectId

if TYPE_CHECKING:
    from uuid import UUID

    import asyncpg

# Fewer hosts have no usual state.
_LEAST_HOSTS: Final = 3
# The share of the hosts that must agree, and the largest share of a state that few hosts have.
_AGREE: Final = 0.75
_FEW: Final = 0.1
# What a host has and few others have tells less than what it lacks or has otherwise: hosts serve
# different purposes. Each further one of a kind on a host tells less again.
_WEIGHT_OF_MORE: Final = 0.5
# A host is odd from so many bits, and so many median deviations above the median host.
_LEAST_BITS: Final = 3.0
_LEAST_DEVIATIONS: Final = 4.0
# The least deviation, in bits.
_LEAST_SPREAD: Final = 1.0
# Findings of a host that have their fields.
_MOST_SHOWN: Final = 10


class Group(NamedTuple):
    """A state of an object without identities, the hosts that have it, and one of its contents."""

    hosts: frozenset[int]
    content: bytes


@dataclass(frozen=True, slots=True)
class Oddity:
    """An object that makes a host odd.

    `what` is `other` (most hosts have it otherwise), `missing` or `extra`. `having` is the number
    of hosts that are as this one, `agreeing` that of those which agree otherwise, of `total`.
    """

    object_id: ObjectId
    what: str
    having: int
    agreeing: int
    total: int
    bits: float
    # what differs from the usual state: the values here first, then the usual ones
    fields: tuple[DifferingField, ...] = ()


@dataclass(frozen=True, slots=True)
class OddHost:
    """A host, how odd it is in bits, and the objects that make it so, the oddest first.

    `stands_out`: it is much odder than the median host of the group.
    """

    name: str
    score: float
    stands_out: bool
    oddities: tuple[Oddity, ...]

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of oddities by what they are."""
        return Counter(each.what for each in self.oddities)


@dataclass(frozen=True, slots=True)
class OddAnswer:
    """The hosts that have something odd, the oddest first; `usual` is the median host's score.

    `standing_out` is the number of those that stand out.
    """

    hosts: Hosts
    odd: tuple[OddHost, ...]
    usual: float
    standing_out: int


class MissingObject(NamedTuple):
    """An object that most hosts have, and those that have it and do not."""

    object_id: ObjectId
    where: OnHosts


@dataclass(frozen=True, slots=True)
class MissingAnswer:
    """Objects that hosts lack and most others have; those that nearly all have come first."""

    hosts: Hosts
    missing: tuple[MissingObject, ...]


async def take_census(
    connection: asyncpg.Connection, ids: Sequence[int] | None, objects: Iterable[ObjectId]
) -> dict[ObjectId, list[Group]]:
    """Return the states of some objects of the hosts, of all for None, each with its hosts."""
    wanted = sorted(set(objects))
    if not wanted:
        return {}
    rows = await connection.fetch(
        "SELECT c.plugin, c.kind, c.name, c.shape, held.hosts, held.content FROM ("
        " SELECT content, array_agg(host) AS hosts FROM opdbus.object"
        " JOIN unnest($2::text[], $3::text[], $4::text[]) AS asked (plugin, kind, name)"
        " USING (plugin, kind, name) WHERE $1::int[] IS NULL OR host = ANY($1)"
        " GROUP BY content) AS held"
        " JOIN opdbus.content AS c ON c.digest = held.content ORDER BY held.content",
        ids,
        *map(list, zip(*wanted, strict=True)),
    )
    found: dict[ObjectId, dict[UUID, tuple[list[int], bytes]]] = {}
    for plugin, kind, name, shape, hosts, content in rows:
        groups = found.setdefault(ObjectId(plugin, kind, name), {})
        known = groups.get(shape)
        if known is None:
            groups[shape] = (hosts, content)
        else:
            known[0].extend(hosts)
    return {
        one: [Group(frozenset(hosts), content) for hosts, content in groups.values()]
        for one, groups in found.items()
    }


# $1: the hosts, $2: their number, $3: the most hosts that are few, $4: the least that agree,
# $5: how many hosts are shown. Every host has addresses and sessions, each its own: what has the
# name, but for numbers and identities, of something that most hosts have makes no host odd. Points
# are bits times 2^40, so that sums are exact; what a host lacks counts as the sum of all such
# objects, less those that it has.
_ODD: Final = """
WITH {pairs}held AS MATERIALIZED (
  SELECT content, count(*) AS hosts FROM {objects} GROUP BY content
), counted AS (
  SELECT held.content, held.hosts, c.plugin, c.kind, c.name, c.name_pattern,
    sum(held.hosts) OVER (PARTITION BY c.plugin, c.kind, c.name)::int8 AS holding,
    sum(held.hosts) OVER (PARTITION BY c.plugin, c.kind, c.name, c.shape)::int8 AS alike
  FROM held JOIN opdbus.content AS c ON c.digest = held.content
), state AS (
  SELECT *, max(alike) OVER (PARTITION BY plugin, kind, name) AS agreeing FROM counted
), mark AS MATERIALIZED (
  SELECT content, plugin, kind, name, name_pattern, hosts, holding, alike, agreeing,
    agreeing >= $4 AND alike <= $3 AS is_other,
    holding >= $4 AND $2 - holding BETWEEN 1 AND $3 AS is_lacked,
    holding <= $3 AS is_rare
  FROM state
), pattern AS MATERIALIZED (
  SELECT plugin, kind, name_pattern, row_number() OVER () AS pattern FROM mark WHERE holding < $4
  GROUP BY 1, 2, 3 HAVING sum(hosts) >= $4 AND bool_or(is_rare)
), usual AS MATERIALIZED (
  SELECT plugin, kind, name_pattern FROM pattern WHERE pattern IN (
    SELECT pattern FROM {objects}
    JOIN (SELECT content, pattern FROM mark JOIN pattern USING (plugin, kind, name_pattern)
      WHERE holding < $4) AS of_pattern USING (content)
    GROUP BY pattern HAVING count(DISTINCT host) >= $4)
), telling AS MATERIALIZED (
  SELECT content, plugin, kind, name, holding, alike, agreeing, is_other, is_lacked,
    is_rare AS is_extra, dense_rank() OVER (ORDER BY plugin, kind) AS of_kind,
    CASE WHEN is_other THEN (ln($2 / alike::float8) / ln(2) * 2 ^ 40)::int8 ELSE 0 END
      AS other_points,
    CASE WHEN is_lacked THEN (ln($2 / ($2 - holding)::float8) / ln(2) * 2 ^ 40)::int8 ELSE 0 END
      AS lacking_points,
    (ln($2 / holding::float8) / ln(2) * 2 ^ 40 * {more})::int8 AS extra_points
  FROM mark WHERE is_other OR is_lacked OR (is_rare AND NOT EXISTS (
    SELECT FROM usual WHERE (usual.plugin, usual.kind, usual.name_pattern)
      = (mark.plugin, mark.kind, mark.name_pattern)))
), lacked AS MATERIALIZED (
  SELECT DISTINCT plugin, kind, name, holding, lacking_points FROM telling WHERE is_lacked
), score AS MATERIALIZED (
  SELECT host, sum(points) AS points FROM (
    SELECT unnest($1::int[]) AS host,
      coalesce((SELECT sum(lacking_points) FROM lacked), 0) AS points
    UNION ALL
    SELECT host, sum(other_points - lacking_points) FROM {objects}
    JOIN (SELECT content, other_points, lacking_points FROM telling WHERE is_other OR is_lacked)
      AS one USING (content)
    GROUP BY host
    UNION ALL
    SELECT host, sum(extra_points / place) FROM (
      SELECT host, extra_points,
        row_number() OVER (PARTITION BY host, of_kind ORDER BY extra_points DESC) AS place
      FROM {objects}
      JOIN (SELECT content, of_kind, extra_points FROM telling WHERE is_extra) AS one
        USING (content)) AS placed
    GROUP BY host
  ) AS part GROUP BY host
), shown AS MATERIALIZED (
  SELECT host FROM score WHERE points > 0 ORDER BY points DESC, host LIMIT $5
), own AS MATERIALIZED (
  SELECT host, plugin, kind, name, content FROM opdbus.object
  WHERE host = ANY(ARRAY(SELECT host FROM shown))
)
SELECT host, (points / 2 ^ 40)::float8 AS score, '' AS what, '' AS plugin, '' AS kind, '' AS name,
  0 AS holding, 0 AS agreeing
FROM score
UNION ALL
SELECT own.host, 0, CASE WHEN is_other THEN 'other' ELSE 'extra' END, telling.plugin,
  telling.kind, telling.name, CASE WHEN is_other THEN alike ELSE telling.holding END,
  CASE WHEN is_other THEN agreeing ELSE $2 - telling.holding END
FROM own JOIN telling USING (content)
WHERE is_other OR is_extra
UNION ALL
SELECT shown.host, 0, 'missing', plugin, kind, name, $2 - holding, holding
FROM shown CROSS JOIN lacked
WHERE NOT EXISTS (SELECT FROM own WHERE (own.host, own.plugin, own.kind, own.name)
  = (shown.host, lacked.plugin, lacked.kind, lacked.name))
"""
# All objects are read at each use: that is quicker than to look up contents in each partition,
# as PostgreSQL would without OFFSET. Without the hosts, it need not plan with each one's number.
_ALL_OBJECTS: Final = "(SELECT host, content FROM opdbus.object OFFSET 0) AS object"
# The objects of some hosts are kept.
_PAIRS: Final = (
    "pair AS MATERIALIZED (SELECT host, content FROM opdbus.object WHERE host = ANY($1)), "
)


async def find_odd(
    connection: asyncpg.Connection, scope: Scope | None = None, most: int = 10
) -> OddAnswer:
    """Return the hosts unlike the others of the scope; raises InvalidArgs for fewer than three."""
    hosts = await _group(connection, scope)
    ids = [part.host for part in hosts.described]
    is_all = hosts.is_all and len(ids) == len(hosts.parts)
    scores, shown = await _find_oddities(connection, ids, most, is_all=is_all)
    usual = median(scores.values())
    spread = max(median(abs(score - usual) for score in scores.values()), _LEAST_SPREAD)
    least = max(_LEAST_BITS, usual + _LEAST_DEVIATIONS * spread)
    filled = await _read_fields(connection, hosts, None if is_all else ids, shown)
    names = {part.host: part.name for part in hosts.parts}
    return OddAnswer(
        hosts,
        tuple(OddHost(names[h], scores[h], scores[h] >= least, filled[h]) for h in shown),
        usual,
        sum(score >= least for score in scores.values()),
    )


async def _group(connection: asyncpg.Connection, scope: Scope | None) -> Hosts:
    hosts = await find_hosts(connection, scope or Scope())
    names = [part.name for part in hosts.described]
    if len(names) < _LEAST_HOSTS:
        instead = f"; `op-dbus fleet compare {' '.join(names)}` compares them"
        raise InvalidArgs(
            f"{len(names)} hosts have no usual state: at least {_LEAST_HOSTS} are needed that have"
            f" sent all their objects{instead if len(names) == _LEAST_HOSTS - 1 else ''}"
        )
    return hosts


async def _find_oddities(
    connection: asyncpg.Connection, ids: Sequence[int], most: int, *, is_all: bool
) -> tuple[dict[int, float], dict[int, list[Oddity]]]:
    """Return the scores of all hosts, and the oddities of the oddest without fields."""
    total = len(ids)
    # all in the database: hosts have very many pairs of objects and states
    rows = await connection.fetch(
        _ODD.format(
            more=_WEIGHT_OF_MORE,
            pairs="" if is_all else _PAIRS,
            objects=_ALL_OBJECTS if is_all else "pair",
        ),
        list(ids),
        total,
        max(1, int(total * _FEW)),
        math.ceil(_AGREE * total),
        most,
    )
    # without those that were added meanwhile
    scores = dict.fromkeys(ids, 0.0)
    scores |= {
        row["host"]: row["score"] for row in rows if row["host"] in scores and not row["what"]
    }
    found: dict[int, list[Oddity]] = defaultdict(list)
    for host, _, what, plugin, kind, name, having, agreeing in rows:
        if what and host in scores:
            one, bits = ObjectId(plugin, kind, name), math.log2(total / having)
            found[host].append(Oddity(one, what, having, agreeing, total, bits))
    return scores, {
        host: sorted(found[host], key=lambda each: (-each.bits, each.object_id))
        for host in sorted(found, key=lambda host: (-scores[host], host))
    }


async def _read_fields(
    connection: asyncpg.Connection,
    hosts: Hosts,
    ids: Sequence[int] | None,
    shown: Mapping[int, Sequence[Oddity]],
) -> dict[int, tuple[Oddity, ...]]:
    """Return the oddities with the fields of the first ones that differ from the usual state."""
    filling = {
        host: [each for each in oddities[:_MOST_SHOWN] if each.what == "other"]
        for host, oddities in shown.items()
    }
    wanted = (each.object_id for oddities in filling.values() for each in oddities)
    census = await take_census(connection, ids, wanted)
    pairs: dict[tuple[int, ObjectId], tuple[Group, Group]] = {}
    for host, oddities in filling.items():
        for each in oddities:
            groups = census.get(each.object_id, ())
            own = next((group for group in groups if host in group.hosts), None)
            # without one, it changed while we read
            if own:
                usual = max(groups, key=lambda group: len(group.hosts))
                pairs[host, each.object_id] = own, usual
    digests = sorted({group.content for pair in pairs.values() for group in pair})
    known = await read_contents(connection, digests)

    def filled(host: int, each: Oddity) -> Oddity:
        pair = pairs.get((host, each.object_id))
        if not pair or not all(group.content in known for group in pair):
            return each
        states = [(known[group.content].properties, sorted(group.hosts)) for group in pair]
        fields = differing_fields(states, hosts)
        return Oddity(
            each.object_id, each.what, each.having, each.agreeing, each.total, each.bits, fields
        )

    return {host: tuple(filled(host, each) for each in rows) for host, rows in shown.items()}


async def find_missing(
    connection: asyncpg.Connection, scope: Scope | None = None, host: str = ""
) -> MissingAnswer:
    """Return what most others of the scope have and a host lacks, or any host without one."""
    own = (await find_host(connection, host)).ids if host else []
    hosts = await find_hosts(connection, scope or Scope())
    ids = sorted({*(part.host for part in hosts.described), *own})
    if len(ids) < _LEAST_HOSTS:
        raise InvalidArgs(f"{len(ids)} hosts are too few to say what is usual: 3 are needed")
    if own and own[0] not in hosts.ids:
        # the host need not have the tag of those with which it is compared
        hosts = await find_hosts(connection, Scope())
        hosts = Hosts(tuple(part for part in hosts.parts if part.host in ids), is_all=False)
    rows = await connection.fetch(
        "SELECT plugin, kind, name, ARRAY(SELECT unnest($1::int[]) EXCEPT"
        " SELECT host FROM opdbus.object"
        " WHERE (object.plugin, object.kind, object.name) = (wide.plugin, wide.kind, wide.name))"
        " AS lacking FROM (SELECT plugin, kind, name FROM opdbus.object"
        " WHERE $5::int[] IS NULL OR host = ANY($5)"
        " GROUP BY 1, 2, 3 HAVING count(*) BETWEEN $2 AND $3 AND NOT bool_or(host = $4)) AS wide",
        ids,
        math.ceil(_AGREE * (len(ids) - 1)),
        len(ids) - 1,
        own[0] if own else -1,
        None if hosts.is_all and len(ids) == len(hosts.parts) else ids,
    )
    every = frozenset(ids)
    found = [
        MissingObject(ObjectId(plugin, kind, name), hosts.split(every.difference(lacking)))
        for plugin, kind, name, lacking in rows
    ]
    found = [each for each in found if each.where.not_on]
    found.sort(key=lambda each: (len(each.where.not_on), each.object_id))
    return MissingAnswer(hosts, tuple(found))
