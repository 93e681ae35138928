"""Conditions over the contents of all hosts: SQL narrows, Python decides as on one host.

A content is stored once however many hosts have it, so that it is read and decided once.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from opdbus.errors import InvalidArgs
from opdbus.fleet.questions.fleet_scope import Scope, storable
from opdbus.index.query.question_conditions import find_conditions
from opdbus.platform import name_lists
from opdbus.platform.slices import slices
from opdbus.state import fields
from opdbus.state.conditions import BOOLEANS, AllOf, Condition, pattern
from opdbus.state.object import Identity, Json

if TYPE_CHECKING:
    import asyncpg

_SCOPE: Final = re.compile(r"(?<!\S)(host|tag):(\"[^\"]+\"|'[^']+'|[^\s\"']+)", re.IGNORECASE)
_AT_THE_END: Final = "?!.,;)"
# opdbus.terms has values up to this length.
_LONGEST_TERM: Final = 100
_AT_A_TIME: Final = 2000
_FEW: Final = 50
# Observed values take precedence over declared ones, as on one host.
# The keys of all fields with their words.
FieldNames: TypeAlias = Sequence[tuple[str, Sequence[str]]]
_CONTENT: Final = (
    "SELECT digest, source, plugin, kind, name, coalesce(observed, declared) AS fields, text"
    " FROM opdbus.content"
)
_KINDS: Final = frozenset({"kind", "plugin"})
# Where kinds and plugins are looked for, and how much alike a name must be to be meant.
_WITH_KINDS: Final = ("content", "drift", "change")
_CLOSE: Final = 0.7
_MOST_NAMED: Final = 8
_EXISTS: Final = "SELECT EXISTS (SELECT FROM opdbus.{} WHERE {})"
_NAMES: Final = "SELECT DISTINCT unnest(ARRAY[{}]) AS name FROM opdbus.content ORDER BY name"
# Contents of so many hosts are selected in SQL; of more, all contents are read.
FEW_HOSTS: Final = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """A question's words, the conditions taken out of it, and the hosts that it is about."""

    words: str
    conditions: tuple[Condition, ...]
    scope: Scope


class Content(NamedTuple):
    """A state that one or more hosts have; `text` is the digest of its text."""

    digest: bytes
    identity: Identity
    properties: Mapping[str, Json]
    text: bytes


def take_scope(question: str, hosts: Sequence[str] = (), tags: Sequence[str] = ()) -> Asked:
    """Take `host:NAME` and `tag:NAME` out of a question; further ones are given."""
    found: dict[str, list[str]] = {"host": [*hosts], "tag": [*tags]}
    question = storable(question)
    for match in _SCOPE.finditer(question):
        found[match[1].lower()].append(match[2].strip("\"'").rstrip(_AT_THE_END))
    words = _SCOPE.sub("", question)
    return Asked(words, (), Scope(tuple(found["host"]), tuple(found["tag"])))


class TextFilter(NamedTuple):
    """The texts that count: these, or those that one of these hosts has; None for no filter."""

    texts: Sequence[bytes] | None = None
    hosts: Sequence[int] | None = None


# The condition of `TextFilter.hosts` on a column `digest`; $ stands for the parameter. With EXISTS,
# PostgreSQL would first read all that these hosts have, for the few texts that are looked at.
ON_HOSTS: Final = (
    "($::int[] IS NULL OR (SELECT true FROM opdbus.content JOIN opdbus.object"
    " ON object.content = content.digest WHERE content.text = near.digest"
    " AND object.host = ANY($) LIMIT 1))"
)


async def read_question(
    connection: asyncpg.Connection,
    question: str,
    where: Sequence[Condition] = (),
    scope: Scope | None = None,
) -> Asked:
    """Take scope and conditions out of a question, as on one host; `where` has further ones.

    FIELD:VALUE is a condition only if an object of some host has the field.
    """
    given = scope or Scope()
    asked = take_scope(question, given.hosts, given.tags)
    words, taken = asked.words, list[Condition]()
    for each in reversed(find_conditions(words)):
        probe = each.probe
        if not probe or await _is_met(connection, probe):
            taken.insert(0, each.condition)
            words = words[: each.start] + words[each.end :]
    # of fields that no object has, a question may speak
    await require_fields(connection, [each for each in taken if each.field.lower() in _KINDS])
    return Asked(" ".join(words.split()), (*where, *taken), asked.scope)


async def _is_met(connection: asyncpg.Connection, probe: Condition) -> bool:
    if probe.value == "":
        return bool(await _fitting(connection, probe.field))
    return bool(await find_contents(connection, [probe], most=1))


async def require_kinds(
    connection: asyncpg.Connection,
    names: Sequence[str],
    columns: Sequence[str],
    *,
    any_case: bool = False,
) -> None:
    """Raise InvalidArgs for a kind or plugin that no host has now or in its history.

    `columns` are those that may have the name: kind, plugin or both; in `any_case`, as conditions
    are met.
    """
    called = " or ".join(columns)
    for name in filter(None, map(storable, names)):
        is_it = " OR ".join(f"{column} = $1" for column in columns)
        if any_case:
            is_it = " OR ".join(f"lower({column}) = lower($1)" for column in columns)
        # in turn: histories are long, and few names are of the past only
        for table in _WITH_KINDS:
            if await connection.fetchval(_EXISTS.format(table, is_it), name):
                break
        else:
            rows = await connection.fetch(_NAMES.format(", ".join(columns)))
            raise InvalidArgs(f"no host has a {called} {name}{_advise(name, rows)}")


def _advise(name: str, rows: Sequence[asyncpg.Record]) -> str:
    """Return which of the names, one in each row, are close; else the first of them."""
    names = [row[0] for row in rows]
    if near := get_close_matches(name.lower(), names, 3, _CLOSE):
        return f": did you mean {' or '.join(near)}?"
    return f"; there are {name_lists.join_first(names, _MOST_NAMED)}" if names else ""


async def require_name(
    connection: asyncpg.Connection, name: str, conditions: Sequence[Condition] = ()
) -> None:
    """Raise InvalidArgs if no object of any host has a name and is of a kind.

    Of the conditions, only those on plugin and kind count.
    """
    kinds = [each for each in conditions if each.field.lower() in _KINDS]
    contents = await find_contents(connection, kinds, name=name)
    digests = [each.digest for each in contents if is_named(each, name)]
    sql = "SELECT EXISTS (SELECT FROM opdbus.object WHERE content = ANY($1))"
    if await connection.fetchval(sql, digests):
        return
    called = " ".join([*(str(each.value) for each in kinds), name])
    words = [name.lower(), *name.lower().split()]
    rows = await connection.fetch(
        "SELECT DISTINCT word FROM (SELECT name AS word FROM opdbus.content"
        " UNION SELECT kind FROM opdbus.content) AS known WHERE abs(length(word) - $1) < 12",
        len(name),
    )
    known = sorted(row["word"] for row in rows)
    near = [one for word in words for one in get_close_matches(word, known, 2, _CLOSE)]
    advice = f": did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    raise InvalidArgs(f"no host has an object {called}{advice}")


def is_named(content: Content, name: str) -> bool:
    """Return whether a content found by a name has it, also a name with *."""
    return "*" not in name or fnmatchcase(content.identity.name.lower(), name.lower())


async def require_fields(connection: asyncpg.Connection, conditions: Sequence[Condition]) -> None:
    """Raise InvalidArgs for a condition on a field, kind or plugin that no host has."""
    for each in conditions:
        if each.field.lower() in _KINDS and each.operator == "=" and each.text:
            await require_kinds(connection, [each.text], [each.field.lower()], any_case=True)
        if each.field.lower() not in fields.IDENTITY and not await _fitting(connection, each.field):
            raise InvalidArgs(
                f"no object of the fleet has a field {each.field}; values that change by"
                " themselves, such as use in percent, stay on their hosts"
            )


async def _fitting(connection: asyncpg.Connection, name: str) -> list[str]:
    return _fit(await read_field_names(connection), name)


async def read_field_names(connection: asyncpg.Connection) -> FieldNames:
    """Return the keys of all fields, each with its words."""
    rows = await connection.fetch("SELECT name FROM opdbus.field")
    return [(row["name"], fields.split(row["name"])) for row in rows]


def _fit(known: FieldNames, name: str) -> list[str]:
    """Return the keys in lower case of which a field with this name has one.

    A field's path ends in the words of its name, or is in a list with that name: then a key ends in
    the last word. A key without words is passed over by `fields.fit`.
    """
    last = fields.split(name)[-1:]
    return [key.lower() for key, words in known if not words or words[-1:] == last]


async def find_contents(
    connection: asyncpg.Connection,
    conditions: Sequence[Condition],
    ids: Sequence[int] | None = None,
    most: int = 0,
    name: str = "",
) -> list[Content]:
    """Return the contents that meet all conditions, of all hosts or of a few (`ids`).

    `name` is that of the objects, without `.service` or with *, then of those that may match.
    Some may be on no host, or on others than these: `objects_of` tells.
    """
    return await find_any(connection, [conditions], ids, most, name)


async def find_any(
    connection: asyncpg.Connection,
    alternatives: Sequence[Sequence[Condition]],
    ids: Sequence[int] | None = None,
    most: int = 0,
    name: str = "",
) -> list[Content]:
    """Return the contents that meet all conditions of one of some alternatives."""
    wanted, clauses, values = list[AllOf](), list[str](), list[object]()
    known = await read_field_names(connection) if any(map(_has_fields, alternatives)) else ()
    for conditions in alternatives:
        narrow = [_narrow(known, each) for each in conditions]
        if None not in narrow:
            wanted.append(AllOf(conditions))
            pairs = [pair for each in narrow for pair in each or ()]
            clauses.append(" AND ".join(["TRUE", *(_with_value(*each, values) for each in pairs)]))
    if not wanted:
        return []
    where = ["TRUE"]
    if "*" in name:
        longest = pattern(max(name.split("*"), key=len))
        where.append(_with_value("name ILIKE $", longest, values))
    elif name:
        called = [name.lower(), f"{name.lower()}.service"]
        where.append(_with_value("lower(name) = ANY($)", called, values))
    if ids is not None and len(ids) <= FEW_HOSTS:
        held = "digest IN (SELECT content FROM opdbus.object WHERE host = ANY($))"
        where.append(_with_value(held, list(ids), values))
    # with OR, PostgreSQL would read the whole table
    sql = " UNION ALL ".join(f"{_CONTENT} WHERE {' AND '.join([*where, one])}" for one in clauses)
    found: dict[bytes, Content] = {}
    async with aclosing(_read_rows(connection, sql, values, _FEW if most else _AT_A_TIME)) as rows:
        async for row in rows:
            content = read_content(row)
            if any(_holds(each, content) for each in wanted):
                found[content.digest] = content
                if most and len(found) >= most:
                    break
    return list(found.values())


def _has_fields(conditions: Sequence[Condition]) -> bool:
    return any(each.field.lower() not in fields.IDENTITY for each in conditions)


def _with_value(clause: str, value: object, values: list[object]) -> str:
    """Return a clause with the number of its value, which is added to the values."""
    values.append(value)
    return clause.replace("$", f"${len(values)}")


async def _read_rows(
    connection: asyncpg.Connection, sql: str, values: Sequence[object], few: int
) -> AsyncGenerator[asyncpg.Record]:
    """Yield the rows of a query; more than a few are read by parts, in a transaction."""
    rows = await connection.fetch(f"{sql} LIMIT {few}", *values)
    if len(rows) < few:
        for row in rows:
            yield row
        return
    async with connection.transaction(readonly=True):
        async for row in connection.cursor(sql, *values, prefetch=_AT_A_TIME):
            yield row


def _holds(wanted: AllOf, content: Content) -> bool:
    return not wanted.conditions or wanted.hold(content.identity, content.properties)


def read_content(row: asyncpg.Record) -> Content:
    """Return a row with digest, source, plugin, kind, name, fields and text."""
    identity = Identity(*(row[key] for key in fields.IDENTITY))
    properties = json.loads(row["fields"]) if row["fields"] else {}
    return Content(row["digest"], identity, properties, row["text"])


async def read_contents(
    connection: asyncpg.Connection, digests: Sequence[bytes]
) -> dict[bytes, Content]:
    """Return contents by their digests."""
    found: dict[bytes, Content] = {}
    for part in slices(digests, _AT_A_TIME):
        rows = await connection.fetch(
            f"{_CONTENT} WHERE digest = ANY($1)",
            list(part),
        )
        found |= {row["digest"]: read_content(row) for row in rows}
    return found


def _narrow(known: FieldNames, asked: Condition) -> Sequence[tuple[str, object]] | None:
    """Return clauses with a value each; a content that meets the condition meets all of them.

    None if no content meets it, since none has such a field.
    """
    column = asked.field.lower()
    if column in fields.IDENTITY:
        return [(f"{column} ILIKE $", pattern(asked.part))] if asked.part else []
    if not (keys := _fit(known, asked.field)):
        return None
    values = [asked.text] if asked.text else []
    if asked.operator == "=" and asked.value in BOOLEANS:
        values = [word for word, is_on in BOOLEANS.items() if is_on is BOOLEANS[asked.value]]
    if values and all(map(_is_term, values)):
        return [("terms && $::text[]", [f"{key}={value}" for key in keys for value in values])]
    clauses: list[tuple[str, object]] = [("terms && $::text[]", keys)]
    if asked.part:
        clauses.append(("coalesce(observed, declared)::text ILIKE $", pattern(asked.part)))
    return clauses


def _is_term(value: str) -> bool:
    """Return whether a value is among `opdbus.terms` as it is, whatever lower case means there."""
    return value.isascii() and value.isprintable() and len(value) <= _LONGEST_TERM
