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
from opdbus.fleet.questions import identities
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
    connection: asyncpg.Connection, ids: Sequence[int]
) -> dict[ObjectId, list[Group]]:
    """Return the states of all objects of the hosts, each with its hosts."""
    rows = await connection.fetch(
        "WITH held AS MATERIALIZED (SELECT content, array_agg(host) AS hosts FROM opdbus.object"
        " WHERE host = ANY($1) GROUP BY content)"
        " SELECT c.plugin, c.kind, c.name, c.shape, held.hosts, held.content"
        " FROM held JOIN opdbus.content AS c ON c.digest = held.content",
        list(ids),
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


async def find_odd(
    connection: asyncpg.Connection, scope: Scope | None = None, most: int = 10
) -> OddAnswer:
    """Return the hosts unlike the others of the scope; raises InvalidArgs for fewer than three."""
    hosts = await _group(connection, scope)
    ids = [part.host for part in hosts.described]
    census = await take_census(connection, ids)
    found = _find_oddities(census, ids)
    scores = {host: _score(found.get(host, ())) for host in ids}
    usual = median(scores.values())
    spread = max(median(abs(score - usual) for score in scores.values()), _LEAST_SPREAD)
    least = max(_LEAST_BITS, usual + _LEAST_DEVIATIONS * spread)
    odd = sorted((h for h in ids if scores[h]), key=lambda h: (-scores[h], h))
    shown = {
        host: sorted(found[host], key=lambda each: (-each.bits, each.object_id))
        for host in odd[:most]
    }
    filled = await _read_fields(connection, hosts, census, shown)
    names = {part.host: part.name for part in hosts.parts}
    return OddAnswer(
        hosts,
        tuple(OddHost(names[h], scores[h], scores[h] >= least, filled[h]) for h in shown),
        usual,
        sum(score >= least for score in scores.values()),
    )


async def _group(connection: asyncpg.Connection, scope: Scope | None) -> Hosts:
    hosts = await find_hosts(connection, scope or Scope())
    if len(hosts.described) < _LEAST_HOSTS:
        raise InvalidArgs(
            f"{len(hosts.described)} hosts have no usual state: at least {_LEAST_HOSTS} are needed"
            " that have sent all their objects"
        )
    return hosts


def _find_oddities(
    census: Mapping[ObjectId, Sequence[Group]], ids: Sequence[int]
) -> dict[int, list[Oddity]]:
    """Return the oddities of each host, without fields."""
    total, every = len(ids), frozenset(ids)
    few = max(1, int(total * _FEW))
    found: dict[int, list[Oddity]] = defaultdict(list)
    usual_names = _usual_names(census, total)
    for one, groups in census.items():
        biggest = max(groups, key=lambda each: len(each.hosts))
        agreeing = len(biggest.hosts)
        having = sum(len(each.hosts) for each in groups)
        lacking = total - having
        if agreeing >= _AGREE * total:
            for group in groups:
                if group is not biggest and len(group.hosts) <= few:
                    _add(
                        found, group.hosts, _oddity(one, "other", len(group.hosts), agreeing, total)
                    )
        if 0 < lacking <= few and having >= _AGREE * total:
            missing = every.difference(*(each.hosts for each in groups))
            _add(found, missing, _oddity(one, "missing", lacking, having, total))
        elif having <= few and _masked(one) not in usual_names:
            hosts = frozenset[int]().union(*(each.hosts for each in groups))
            _add(found, hosts, _oddity(one, "extra", having, total - having, total))
    return found


def _oddity(one: ObjectId, what: str, having: int, agreeing: int, total: int) -> Oddity:
    bits = math.log2(total / having)
    return Oddity(one, what, having, agreeing, total, bits)


def _add(found: dict[int, list[Oddity]], hosts: Iterable[int], oddity: Oddity) -> None:
    for host in hosts:
        found[host].append(oddity)


def _masked(one: ObjectId) -> ObjectId:
    return one._replace(name=identities.mask_name(one.name))


def _usual_names(census: Mapping[ObjectId, Sequence[Group]], total: int) -> set[ObjectId]:
    """Return the names, without numbers and identities, that most hosts have some object of.

    Every host has addresses and sessions, each its own: they make no host odd.
    """
    hosts: dict[ObjectId, set[int]] = defaultdict(set)
    for one, groups in census.items():
        if sum(len(each.hosts) for each in groups) < _AGREE * total:
            known = hosts[_masked(one)]
            for each in groups:
                known |= each.hosts
    return {one for one, having in hosts.items() if len(having) >= _AGREE * total}


def _score(oddities: Iterable[Oddity]) -> float:
    """Return the sum of the bits; further extra objects of a kind count less and less."""
    score, extra = 0.0, Counter[tuple[str, str]]()
    for each in oddities:
        if each.what == "extra":
            kind = each.object_id[:2]
            extra[kind] += 1
            score += each.bits * _WEIGHT_OF_MORE / extra[kind]
        else:
            score += each.bits
    return score


async def _read_fields(
    connection: asyncpg.Connection,
    hosts: Hosts,
    census: Mapping[ObjectId, Sequence[Group]],
    shown: Mapping[int, Sequence[Oddity]],
) -> dict[int, tuple[Oddity, ...]]:
    """Return the oddities with the fields of the first ones that differ from the usual state."""
    pairs: dict[tuple[int, ObjectId], tuple[Group, Group]] = {}
    for host, oddities in shown.items():
        for each in oddities[:_MOST_SHOWN]:
            if each.what == "other":
                groups = census[each.object_id]
                own = next(group for group in groups if host in group.hosts)
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
        "SELECT plugin, kind, name, array_agg(host) AS hosts FROM opdbus.object"
        " WHERE host = ANY($1) GROUP BY 1, 2, 3 HAVING count(*) BETWEEN $2 AND $3"
        " AND NOT $4 = ANY(array_agg(host))",
        ids,
        math.ceil(_AGREE * (len(ids) - 1)),
        len(ids) - 1,
        own[0] if own else -1,
    )
    found = [
        MissingObject(ObjectId(row["plugin"], row["kind"], row["name"]), hosts.split(row["hosts"]))
        for row in rows
    ]
    found = [each for each in found if each.where.not_on]
    found.sort(key=lambda each: (len(each.where.not_on), each.object_id))
    return MissingAnswer(hosts, tuple(found))
