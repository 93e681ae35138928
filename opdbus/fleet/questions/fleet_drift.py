"""Drift over all hosts, grouped by object and fields."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opdbus.errors import InvalidArgs
from opdbus.fleet.questions.fleet_conditions import require_kinds
from opdbus.fleet.questions.fleet_scope import Hosts, OnHosts, Scope, find_hosts, storable
from opdbus.fleet.questions.where_found import ValueOn
from opdbus.state.object import ObjectId

if TYPE_CHECKING:
    import asyncpg

SEVERITIES: Final = ("info", "notice", "warning", "error")


class DriftedField(NamedTuple):
    """A field that is not as declared: values as JSON, with the hosts that have each."""

    field: str
    severity: str
    declared: tuple[ValueOn, ...]
    observed: tuple[ValueOn, ...]


@dataclass(frozen=True, slots=True)
class DriftGroup:
    """An object that drifted in the same fields on one or more hosts.

    `first` and `last` are the times since when, in seconds since 1970.
    """

    object_id: ObjectId
    what: str
    severity: str
    where: OnHosts
    first: int
    last: int
    fields: tuple[DriftedField, ...]


@dataclass(frozen=True, slots=True)
class DriftAnswer:
    """The drift, the worst and most widespread first."""

    hosts: Hosts
    drift: tuple[DriftGroup, ...]
    # hosts with any drift of this severity
    drifted: tuple[str, ...]


async def find_drift(
    connection: asyncpg.Connection,
    *,
    severity: str = "info",
    scope: Scope | None = None,
    plugin: str = "",
    kind: str = "",
) -> DriftAnswer:
    """Return the drift of at least a severity; raises InvalidArgs."""
    if severity not in SEVERITIES:
        raise InvalidArgs(f"{severity!r} is no severity: give one of {', '.join(SEVERITIES)}")
    hosts = await find_hosts(connection, scope or Scope())
    await require_kinds(connection, [plugin], ["plugin"])
    await require_kinds(connection, [kind], ["kind"])
    rows = await connection.fetch(
        "SELECT host, plugin, kind, name, class, severity, since, fields FROM opdbus.drift"
        " WHERE host = ANY($1) AND severity = ANY($2) AND ($3 = '' OR plugin = $3)"
        " AND ($4 = '' OR kind = $4)",
        hosts.ids,
        list(SEVERITIES[SEVERITIES.index(severity) :]),
        storable(plugin),
        storable(kind),
    )
    groups: dict[tuple[ObjectId, str, tuple[str, ...]], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        fields = json.loads(row["fields"])
        one = ObjectId(row["plugin"], row["kind"], row["name"])
        key = one, row["class"], tuple(sorted(str(each[0]) for each in fields))
        groups[key].append({**row, "fields": fields})
    found = [_group(one, what, group, hosts) for (one, what, _), group in groups.items()]
    found.sort(
        key=lambda each: (
            -SEVERITIES.index(each.severity),
            -len(each.where.on),
            each.object_id,
        )
    )
    return DriftAnswer(hosts, tuple(found), hosts.names(row["host"] for row in rows))


def _group(
    object_id: ObjectId, what: str, rows: Sequence[Mapping[str, Any]], hosts: Hosts
) -> DriftGroup:
    sides: dict[str, list[dict[str, list[int]]]] = {}
    severities: dict[str, str] = {}
    for row in rows:
        for path, declared, observed, *severity in row["fields"]:
            both = sides.setdefault(path, [{}, {}])
            for side, value in zip(both, (declared, observed), strict=True):
                side.setdefault(value or "", []).append(row["host"])
            severities[path] = _worst([severities.get(path, "info"), *severity])
    fields = tuple(
        DriftedField(path, severities[path], *(_values(side, hosts) for side in both))
        for path, both in sides.items()
    )
    return DriftGroup(
        object_id,
        what,
        _worst([row["severity"] for row in rows]),
        hosts.split([row["host"] for row in rows]),
        min(row["since"] for row in rows),
        max(row["since"] for row in rows),
        fields,
    )


def _values(side: Mapping[str, list[int]], hosts: Hosts) -> tuple[ValueOn, ...]:
    ordered = sorted(side.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(ValueOn(value, hosts.names(ids)) for value, ids in ordered)


def _worst(severities: Sequence[str]) -> str:
    known = [each for each in severities if each in SEVERITIES]
    return max(known, key=SEVERITIES.index, default="info")
