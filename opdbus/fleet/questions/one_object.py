"""One object on all hosts: its states now or at a past time, and conditions on whole hosts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.errors import InvalidArgs, UnknownObject
from opdbus.fleet.questions.fleet_conditions import (
    Content,
    find_contents,
    is_named,
    read_contents,
    require_fields,
    require_name,
)
from opdbus.fleet.questions.fleet_past import HostObject, Past, rewind
from opdbus.fleet.questions.fleet_scope import Hosts, OnHosts, Scope, find_hosts, storable
from opdbus.fleet.questions.where_found import DifferingField, differing_fields
from opdbus.index.query.question_conditions import find_conditions
from opdbus.platform import name_lists
from opdbus.state import conditions
from opdbus.state.conditions import Condition
from opdbus.state.object import Json, ObjectId, canonical

if TYPE_CHECKING:
    import asyncpg

# (plugin, kind) preferred for a name that objects of several kinds have, the first one first.
_LIKELIEST: Final = (("systemd", "unit"), ("packages", "package"), ("users", "account"))
_NAMED: Final = (
    "SELECT DISTINCT plugin, kind, name FROM opdbus.{} WHERE lower(name) = ANY($1)"
    " OR ($2 AND lower(name) = $3 AND lower(kind) = $4 AND lower(plugin) = $5)"
)
_MOST_NAMES: Final = 3
_WHERE: Final = re.compile(r"\bwhere\b", re.IGNORECASE)
_NOT: Final = re.compile(r"\s*(?:not|no|without)\s+", re.IGNORECASE)


class StateOn(NamedTuple):
    """A state as JSON, the hosts that have it, and its source."""

    state: Mapping[str, Json]
    source: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ObjectAnswer:
    """An object's states, that of most hosts first, and the fields in which hosts differ.

    `at` is the time, in microseconds since 1970, 0 for now; `not_reaching` are then the hosts whose
    history does not go back so far, `unknown` those where values are not kept. `others` are further
    objects with the name that was asked for.
    """

    hosts: Hosts
    object_id: ObjectId
    where: OnHosts
    states: tuple[StateOn, ...]
    differing: tuple[DifferingField, ...]
    at: int = 0
    not_reaching: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    others: tuple[ObjectId, ...] = ()


@dataclass(frozen=True, slots=True)
class HostTest:
    """A condition on a host: it has such an object (`PLUGIN KIND NAME where ...`), or not."""

    text: str
    is_negative: bool
    where: tuple[Condition, ...]
    # a pattern with *; "" for any
    name: str = ""


class TestResult(NamedTuple):
    """A condition on hosts, and the hosts that meet it."""

    text: str
    met: OnHosts


@dataclass(frozen=True, slots=True)
class WhichHosts:
    """The hosts that meet all conditions, and those that meet each."""

    hosts: Hosts
    met: OnHosts
    tests: tuple[TestResult, ...]


async def show(
    connection: asyncpg.Connection, name: str, *, scope: Scope | None = None, at: int = 0
) -> ObjectAnswer:
    """Return an object by PLUGIN/KIND/NAME or a shorter name; raises UnknownObject."""
    hosts = await find_hosts(connection, scope or Scope())
    first, *others = await _resolve(connection, name, is_past=bool(at))
    rows = await connection.fetch(
        "SELECT host, content FROM opdbus.object WHERE (plugin, kind, name) = ($1, $2, $3)"
        " AND ($4::int[] IS NULL OR host = ANY($4))",
        *first,
        hosts.only,
    )
    known = await read_contents(connection, sorted({row["content"] for row in rows}))
    states = {row["host"]: _state(known[row["content"]]) for row in rows}
    past = await rewind(connection, hosts, at, [first]) if at else None
    if past:
        states = _before(states, past, first)
    shown = past.reaching if past else hosts
    if not states and not (past and past.unknown):
        raise UnknownObject(f"no host of these has {'/'.join(first)}{' then' if at else ''}")
    groups: dict[str, list[int]] = defaultdict(list)
    for host, (fields, _) in states.items():
        groups[canonical(fields)].append(host)
    ordered = sorted(groups.values(), key=lambda ids: (-len(ids), ids))
    return ObjectAnswer(
        shown,
        first,
        shown.split(list(states)),
        tuple(StateOn(*states[ids[0]], shown.names(ids)) for ids in ordered),
        differing_fields([(states[ids[0]][0], ids) for ids in ordered], shown),
        at,
        past.not_reaching if past else (),
        hosts.names(each.host for each in past.unknown) if past else (),
        tuple(others),
    )


def _state(content: Content) -> tuple[Mapping[str, Json], str]:
    return content.properties, content.identity.source


def _before(
    states: Mapping[int, tuple[Mapping[str, Json], str]], past: Past, one: ObjectId
) -> dict[int, tuple[Mapping[str, Json], str]]:
    """Return the states then, of the hosts whose history reaches so far."""
    found = {host: states[host] for host in past.reaching.ids if host in states}
    for host in past.reaching.ids:
        key = HostObject(host, one)
        if key in past.unknown:
            found.pop(host, None)
        elif key in past.states:
            then = past.states[key]
            found.pop(host, None)
            if then:
                found[host] = then.fields, then.source
    return found


async def _resolve(connection: asyncpg.Connection, name: str, *, is_past: bool) -> list[ObjectId]:
    """Return the objects with a name, the likeliest first; raises UnknownObject."""
    lower = storable(name).lower()
    parts = lower.split("/", 2)
    whole = len(parts) == 3
    given = [
        *([lower, f"{lower}.service"], whole, parts[-1]),
        *((parts[1], parts[0]) if whole else ("", "")),
    ]
    rows = await connection.fetch(_NAMED.format("content"), *given)
    if is_past and not rows:
        # gone from all hosts
        rows = await connection.fetch(_NAMED.format("change"), *given)
    found = sorted(ObjectId(*row) for row in rows)
    exact = [one for one in found if "/".join(one).lower() == lower]
    if not found:
        raise UnknownObject(
            f"no host has an object {name}: `op-dbus fleet search` finds it by other words"
        )
    likely = {kind: rank for rank, kind in enumerate(_LIKELIEST)}
    return exact or sorted(found, key=lambda one: (likely.get(one[:2], len(likely)), one))


async def which_hosts(
    connection: asyncpg.Connection, tests: Sequence[str], scope: Scope | None = None
) -> WhichHosts:
    """Return the hosts that meet all conditions, each on some object of theirs.

    Raises InvalidArgs for `not NAME` if no host of the fleet has such an object: a name that is
    mistyped is on no host either.
    """
    if not any(test.strip() for test in tests):
        raise InvalidArgs("give a condition such as 'unit nginx.service where active_state=active'")
    hosts = await find_hosts(connection, scope or Scope())
    left, results = {part.host for part in hosts.described}, list[TestResult]()
    for text in tests:
        test = await parse_test(connection, text)
        if test.name and (test.is_negative or " " in test.name):
            await require_name(connection, test.name, test.where)
        having = await _having(connection, test, hosts)
        met = {part.host for part in hosts.described} - having if test.is_negative else having
        results.append(TestResult(text, hosts.split(met)))
        left &= met
    return WhichHosts(hosts, hosts.split(left), tuple(results))


async def parse_test(connection: asyncpg.Connection, text: str) -> HostTest:
    """Parse `[not] [PLUGIN/KIND/NAME | [KIND] [NAME]] [where CONDITIONS]`; raises InvalidArgs."""
    text = storable(text)
    negative = _NOT.match(text)
    head, *given = _WHERE.split(text[negative.end() :] if negative else text, maxsplit=1)
    where = [*conditions.parse(given[0])] if given else []
    for each in reversed(find_conditions(head)):
        where.insert(0, each.condition)
        head = head[: each.start] + head[each.end :]
    words = head.split()
    kind, name = "", ""
    if len(words) == 1 and words[0].count("/") >= 2 and not words[0].startswith("/"):
        plugin, kind, name = words[0].split("/", 2)
        where.insert(0, Condition("plugin", "=", plugin.lower()))
    elif words:
        is_kind = await connection.fetchval(
            "SELECT EXISTS (SELECT FROM opdbus.content WHERE kind = $1)", words[0].lower()
        )
        kind = words.pop(0).lower() if is_kind else ""
        name = " ".join(words)
    if kind:
        where.insert(0, Condition("kind", "=", kind.lower()))
    if not where and not name:
        raise InvalidArgs(f"{text!r} names no kind, no object and no condition")
    await require_fields(connection, where)
    return HostTest(text, bool(negative), tuple(where), name)


async def _having(connection: asyncpg.Connection, test: HostTest, hosts: Hosts) -> set[int]:
    contents = await find_contents(connection, test.where, name=test.name)
    digests = [each.digest for each in contents if is_named(each, test.name)]
    rows = await connection.fetch(
        "SELECT DISTINCT host FROM opdbus.object WHERE content = ANY($1)"
        " AND ($2::int[] IS NULL OR host = ANY($2))",
        digests,
        hosts.only,
    )
    return {row["host"] for row in rows}


def name_others(answer: ObjectAnswer) -> str:
    """Return the further objects with the same name, as a remark; "" if there are none."""
    names = ["/".join(one) for one in answer.others]
    return f"also: {name_lists.join_first(names, _MOST_NAMES)}" if names else ""
