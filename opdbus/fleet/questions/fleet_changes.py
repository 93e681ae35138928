"""Changes over all hosts, grouped: one sentence on many hosts is one line."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opdbus.fleet.questions import change_sayings, fleet_search, identities, word_ranks
from opdbus.fleet.questions.fleet_conditions import Asked, require_kinds, take_scope
from opdbus.fleet.questions.fleet_scope import Hosts, OnHosts, Scope, find_hosts, storable
from opdbus.fleet.questions.vector_ranks import Embed
from opdbus.history.change import FIRST
from opdbus.index.query import query_terms
from opdbus.state.object import ObjectId

if TYPE_CHECKING:
    import asyncpg

# Rows that are grouped: without a time, the newest ones.
_MOST_ROWS: Final = 100_000
_NEWEST_ROWS: Final = 10_000
# Objects near a question whose changes are answers too, and what that is worth beside words.
_NEAR_OBJECTS: Final = 20
_NEAR: Final = 0.5
# Words with which one asks for any change.
_ANY_CHANGE: Final = frozenset(
    "change changes changed happen happens happened new recently everywhere anything".split()
)
# A clock may be ahead so far, in microseconds; what is dated later is read only if asked for.
_AHEAD: Final = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Between:
    """A span of time in microseconds since 1970: from `since`, before `before`.

    0 is no limit, but for what is dated more than a day from now.
    """

    since: int = 0
    before: int = 0


@dataclass(frozen=True, slots=True)
class ChangeGroup:
    """A change that one or more hosts had: the sentence, and where and when it happened.

    `words` are those of `op-dbus changes` for the newest of its rows. Times are in microseconds
    since 1970, by the hosts' clocks. `share` says how much of the question's information the
    sentence has; it is 0 if the object is near the question.
    """

    sentence: str
    object_id: ObjectId
    what: str
    severity: str
    where: OnHosts
    first: int
    last: int
    count: int
    causes: tuple[str, ...]
    by: tuple[str, ...]
    share: float = 0.0
    words: str = ""


@dataclass(frozen=True, slots=True)
class ChangesAnswer:
    """The changes, the newest last; with a question, the best first. `total` counts all groups.

    First listings of hosts are counted only. `is_cut`: older rows were not read.
    """

    hosts: Hosts
    asked: Asked
    changes: tuple[ChangeGroup, ...]
    total: int
    listed: int
    listed_on: tuple[str, ...]
    is_cut: bool


class _Words(NamedTuple):
    """Words of a question with their weights, and the objects near it."""

    weights: Mapping[str, float]
    near: frozenset[ObjectId]


async def find_changes(
    connection: asyncpg.Connection,
    *,
    about: str = "",
    between: Between | None = None,
    scope: Scope | None = None,
    plugin: str = "",
    kind: str = "",
    limit: int = 50,
    embed: Embed | None = None,
) -> ChangesAnswer:
    """Return changes in a span of time; `about` is a question on them, also with host: and tag:."""
    given, span = scope or Scope(), between or Between()
    asked = take_scope(about, given.hosts, given.tags)
    asked = replace(asked, words=" ".join(asked.words.split()))
    hosts = await find_hosts(connection, asked.scope)
    await require_kinds(connection, [plugin], ["plugin"])
    await require_kinds(connection, [kind], ["kind"])
    terms = [term for term in query_terms.terms(asked.words) if term not in _ANY_CHANGE]
    narrow = [
        *(span.since, span.before or time.time_ns() // 1000 + _AHEAD, hosts.only),
        *(storable(plugin), storable(kind)),
    ]
    words = await _weigh(connection, asked, terms, embed) if terms else None
    rows = await _read_rows(connection, narrow, words, is_dated=bool(span.since or span.before))
    found = _group(rows, hosts, words)
    if words:
        least = fleet_search.LEAST_SHARE
        found = [each for each in found if each.share >= least or each.object_id in words.near]
        found.sort(key=lambda each: (-each.rank(words), -each.newest["last"]))
        shown = found[:limit]
    else:
        shown = found[:limit][::-1]
    lines = [(each.show(hosts), each.key) for each in shown]
    said = await change_sayings.read(
        connection, [(key, len(each.causes) < 2, each.count == 1) for each, key in lines]
    )
    changes = tuple(replace(each, words=said.get(key) or each.sentence) for each, key in lines)
    # they cost a count over all rows
    listed, listed_on = (0, ()) if words else await _first_listings(connection, narrow, hosts)
    most = _MOST_ROWS if span.since or span.before else _NEWEST_ROWS
    return ChangesAnswer(
        hosts,
        asked,
        changes,
        len(found),
        listed,
        listed_on,
        is_cut=sum(row["count"] for row in rows) >= most,
    )


_WITHIN: Final = (
    "FROM opdbus.change WHERE at >= $1 AND at < $2 AND ($3::int[] IS NULL OR host = ANY($3))"
    " AND ($4 = '' OR plugin = $4) AND ($5 = '' OR kind = $5)"
)
_HAS_WORDS: Final = (
    "opdbus.words(sentence) @@ (SELECT string_agg('(' || plainto_tsquery('english', word)::text"
    " || ')', ' | ')::tsquery FROM unnest($6::text[]) AS word)"
)
_IS_NEAR: Final = (
    "(plugin, kind, name) IN (SELECT * FROM unnest($7::text[], $8::text[], $9::text[]))"
)
_ABOUT: Final = (
    "WITH hit AS"
    " (({keys} AND {has_words} {newest}) UNION ({keys} AND {is_near} {newest}) {newest}),"
    " row AS (SELECT change.* FROM hit JOIN opdbus.change USING (host, epoch, seq)) "
)
_GROUPED: Final = (
    "SELECT sentence, plugin, kind, name, what, max(severity) AS severity, min(at) AS first,"
    " max(at) AS last, count(*) AS count, array_agg(DISTINCT host) AS hosts,"
    " max(ARRAY[at, host, epoch, seq]) AS newest, array_agg(DISTINCT cause) AS causes,"
    " array_agg(DISTINCT known->>'by') FILTER (WHERE known->>'by' <> '') AS by"
    " FROM row GROUP BY sentence, plugin, kind, name, what ORDER BY max(at) DESC"
)


async def _weigh(
    connection: asyncpg.Connection,
    asked: Asked,
    terms: Sequence[str],
    embed: Embed | None,
) -> _Words:
    rows = await connection.fetch(
        "SELECT word, (SELECT count(*) FROM (SELECT FROM opdbus.change"
        " WHERE opdbus.words(sentence) @@ plainto_tsquery('english', word) LIMIT 5000) AS few)"
        " AS count FROM unnest($1::text[]) AS word"
        " WHERE numnode(plainto_tsquery('english', word)) > 0",
        list(terms),
    )
    total = await connection.fetchval(
        "SELECT sum(greatest(reltuples, 0))::bigint FROM pg_class"
        " JOIN pg_inherits ON inhrelid = pg_class.oid WHERE inhparent = 'opdbus.change'::regclass"
    )
    total = max(total or 0, 100, *(row["count"] for row in rows)) if rows else 1
    weights = {row["word"]: math.log((total + 1) / (row["count"] + 0.5)) for row in rows}
    found = await fleet_search.search(
        connection, asked.words, embed=embed, scope=asked.scope, limit=_NEAR_OBJECTS
    )
    return _Words(weights, frozenset(hit.found.object_id for hit in found.hits))


async def _read_rows(
    connection: asyncpg.Connection,
    narrow: Sequence[object],
    words: _Words | None,
    *,
    is_dated: bool,
) -> list[Mapping[str, Any]]:
    """Return changes grouped by their sentences, the newest first."""
    most = _MOST_ROWS if is_dated else _NEWEST_ROWS
    read = f"{_WITHIN} AND cause <> '{FIRST}'"
    newest = f"ORDER BY at DESC LIMIT {most}"
    if not words:
        sql = f"WITH row AS (SELECT * {read} {newest}) {_GROUPED}"
        return [dict(row) for row in await connection.fetch(sql, *narrow)]
    near = sorted(words.near) or [ObjectId("", "", "")]
    values = [*narrow, list(words.weights), *map(list, zip(*near, strict=True))]
    # apart: for both at once, the words of every sentence would be computed
    keys = f"SELECT host, epoch, seq, at {read}"
    about = _ABOUT.format(keys=keys, has_words=_HAS_WORDS, is_near=_IS_NEAR, newest=newest)
    sql = about + _GROUPED
    return [dict(row) for row in await connection.fetch(sql, *values)]


class _Group(NamedTuple):
    """Rows that are one line, the newest of them, and what it has of a question."""

    rows: Sequence[Mapping[str, Any]]
    newest: Mapping[str, Any]
    sentence: str
    object_id: ObjectId
    share: float

    @property
    def key(self) -> change_sayings.RowKey:
        """The key of the newest row."""
        return change_sayings.RowKey(*self.newest["newest"][1:])

    def rank(self, words: _Words) -> float:
        """Return how well the group answers."""
        return self.share + (_NEAR if self.object_id in words.near else 0.0)

    def show(self, hosts: Hosts) -> ChangeGroup:
        """Return the line."""
        rows = self.rows
        return ChangeGroup(
            self.sentence,
            self.object_id,
            self.newest["what"],
            max(row["severity"] for row in rows),
            hosts.split({host for row in rows for host in row["hosts"]}),
            min(row["first"] for row in rows),
            self.newest["last"],
            sum(row["count"] for row in rows),
            tuple(sorted({cause for row in rows for cause in row["causes"] if cause})),
            tuple(sorted({by for row in rows for by in row["by"] or () if by})),
            self.share,
        )


def _group(rows: Sequence[Mapping[str, Any]], hosts: Hosts, words: _Words | None) -> list[_Group]:
    """Join rows whose sentences and names differ only in identities; the newest first."""
    names = {part.host: part.name for part in hosts.parts}
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        own = [names[host] for host in row["hosts"] if host in names]
        own = own if len(own) == 1 else []
        masked = (identities.mask(row[key], own) for key in ("sentence", "name"))
        groups[row["plugin"], row["kind"], row["what"], *masked].append(row)
    return [_of_rows(group, words) for group in groups.values()]


def _of_rows(rows: Sequence[Mapping[str, Any]], words: _Words | None) -> _Group:
    newest = max(rows, key=lambda row: row["newest"])
    object_id = ObjectId(newest["plugin"], newest["kind"], newest["name"])
    sentence = newest["sentence"] or f"{'/'.join(object_id)}: {newest['what']}, values erased"
    share = word_ranks.share_in(sentence, words.weights) if words else 0.0
    return _Group(rows, newest, sentence, object_id, share)


async def _first_listings(
    connection: asyncpg.Connection, narrow: Sequence[object], hosts: Hosts
) -> tuple[int, tuple[str, ...]]:
    sql = f"SELECT host, count(*) AS count {_WITHIN} AND cause = '{FIRST}' GROUP BY host"
    rows = await connection.fetch(sql, *narrow)
    return sum(row["count"] for row in rows), hosts.names(row["host"] for row in rows)
