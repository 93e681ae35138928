"""Search in the states of a past time, by conditions and words."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.fleet.questions import word_ranks
from opdbus.fleet.questions.fleet_conditions import (
    Asked,
    Content,
    TextFilter,
    find_contents,
    read_question,
    require_fields,
)
from opdbus.fleet.questions.fleet_past import Sides, find_reaching, undo_changes
from opdbus.fleet.questions.fleet_scope import Hosts, OnHosts, Scope, find_hosts
from opdbus.fleet.questions.fleet_search import LEAST_SHARE
from opdbus.fleet.questions.where_found import find_holders, read_texts
from opdbus.language.object_text import render
from opdbus.state.conditions import AllOf, Condition
from opdbus.state.object import ObjectId, StateObject

if TYPE_CHECKING:
    import asyncpg

# Past states that are kept for hosts that had the same.
_MOST_KEPT: Final = 20_000


class PastHit(NamedTuple):
    """An object that answered then: its text, and the hosts that had it."""

    object_id: ObjectId
    text: str
    where: OnHosts
    share: float


@dataclass(frozen=True, slots=True)
class PastAnswer:
    """The hits at a time in microseconds since 1970, those of most hosts first; all are counted.

    `not_reaching` names the hosts whose history begins later or is not sent to its end: the hits
    are those of the others.
    `unknown` is the number of objects whose values then are not kept.
    """

    hosts: Hosts
    asked: Asked
    at: int
    hits: tuple[PastHit, ...]
    total: int
    not_reaching: tuple[str, ...]
    unknown: int


@dataclass(slots=True)
class _Held:
    """A content of now: the digest of its text, its share, and how many hosts had it then too."""

    text: bytes
    share: float
    count: int


@dataclass(slots=True)
class _Tally:
    """Hosts that had an object: those with contents of now, without `lost`, and `added` ones."""

    contents: dict[bytes, _Held] = field(default_factory=dict)
    lost: array[int] = field(default_factory=lambda: array("i"))
    added: array[int] = field(default_factory=lambda: array("i"))
    # the best of the added ones
    share: float = -1.0
    text: str = ""

    @property
    def count(self) -> int:
        """The number of hosts."""
        return sum(each.count for each in self.contents.values()) + len(self.added)

    @property
    def best(self) -> tuple[float, str | bytes]:
        """The best share, and its text or the digest of it."""
        now = [(each.share, each.text) for each in self.contents.values() if each.count > 0]
        share, digest = max(now, default=(-1.0, b""))
        return (share, digest) if share >= self.share else (self.share, self.text)


async def search_past(
    connection: asyncpg.Connection,
    question: str,
    at: int,
    *,
    where: Sequence[Condition] = (),
    scope: Scope | None = None,
    limit: int = 10,
) -> PastAnswer:
    """Answer a question by the states at a time; vectors are of present texts and not compared."""
    asked = await read_question(connection, question, where, scope)
    hosts = await find_hosts(connection, asked.scope)
    await require_fields(connection, where)
    reach = await find_reaching(connection, hosts, at)
    terms = await word_ranks.weigh_terms(connection, asked.words)
    matcher = _Matcher(asked, dict(zip(terms.words, terms.weights, strict=True)))
    unknown = 0
    async with connection.transaction():
        found = await _present(connection, asked, reach.reaching, terms)
        async for each in undo_changes(connection, reach.reaching, at):
            unknown += each.is_unknown
            one = each.key.object_id
            tally = found.get(one)
            if tally and each.content and each.content in tally.contents:
                tally.contents[each.content].count -= 1
                tally.lost.append(each.key.host)
            match = matcher.match(one, each.state) if each.state else None
            if match:
                tally = found.setdefault(one, _Tally())
                tally.added.append(each.key.host)
                tally.share, tally.text = max((tally.share, tally.text), match)
    rated = [(one, tally.best[0], tally.count) for one, tally in found.items()]
    rated = [each for each in rated if each[2] > 0]
    rated.sort(key=lambda each: (-round(each[1], 3), -each[2], each[0]))
    shown = {one: found[one] for one, _, _ in rated[:limit]}
    hits = await _hits(connection, reach.reaching, shown)
    return PastAnswer(hosts, asked, at, hits, len(rated), reach.not_reaching, unknown)


class _Matcher:
    """Decides whether past states answer; equal ones, which many hosts had, once."""

    def __init__(self, asked: Asked, weights: Mapping[str, float]) -> None:
        self._wanted = AllOf(asked.conditions)
        self._has_words = bool(asked.words)
        self._weights = weights
        # with the state, so that its id is not another one's
        self._known: dict[tuple[ObjectId, int], tuple[Sides, tuple[float, str] | None]] = {}

    def match(self, one: ObjectId, state: Sides) -> tuple[float, str] | None:
        """Return the share of the question that a state has, and its text; None if no answer."""
        known = self._known.get((one, id(state)))
        if not known:
            if len(self._known) > _MOST_KEPT:
                self._known.clear()
            known = self._known[one, id(state)] = state, self._match(one, state)
        return known[1]

    def _match(self, one: ObjectId, state: Sides) -> tuple[float, str] | None:
        identity = state.identity(one)
        if self._wanted.conditions and not self._wanted.hold(identity, state.fields):
            return None
        text = render(StateObject(identity, state.fields)).text
        # without words that tell something, each object answers as well as any other
        tells = any(self._weights.values())
        share = word_ranks.share_in(text, self._weights) if tells else 1.0
        return (share, text) if not self._has_words or share >= LEAST_SHARE else None


async def _present(
    connection: asyncpg.Connection, asked: Asked, hosts: Hosts, terms: word_ranks.WeightedTerms
) -> dict[ObjectId, _Tally]:
    """Return the present answers, with the number of hosts of each content."""
    only: dict[bytes, Content] | None = None
    if asked.conditions:
        contents = await find_contents(connection, asked.conditions, hosts.only)
        only = {each.digest: each for each in contents}
    shares: dict[bytes, float] = {}
    if asked.words:
        texts = None if only is None else sorted({each.text for each in only.values()})
        ranks = await word_ranks.rank_by_words(connection, terms, TextFilter(texts))
        shares = {r.digest: r.share for r in ranks.texts if r.share >= LEAST_SHARE}
    rows = await connection.fetch(
        "SELECT plugin, kind, name, digest, text, count FROM ("
        " SELECT content AS digest, count(*) AS count FROM opdbus.object"
        " WHERE ($1::int[] IS NULL OR host = ANY($1))"
        " AND ($2::bytea[] IS NULL OR content = ANY($2)) GROUP BY content"
        ") AS held JOIN opdbus.content USING (digest)",
        hosts.only,
        await _digests(connection, list(shares) if asked.words else None, only),
    )
    found: dict[ObjectId, _Tally] = defaultdict(_Tally)
    for plugin, kind, name, digest, text, count in rows:
        tally = found[ObjectId(plugin, kind, name)]
        tally.contents[digest] = _Held(text, shares.get(text, 1.0), count)
    return found


async def _digests(
    connection: asyncpg.Connection,
    texts: Sequence[bytes] | None,
    only: Mapping[bytes, Content] | None,
) -> list[bytes] | None:
    """Return the digests of the contents in `only` with one of the texts; None for all."""
    if texts is None:
        return None if only is None else list(only)
    rows = await connection.fetch("SELECT digest FROM opdbus.content WHERE text = ANY($1)", texts)
    return [digest for (digest,) in rows if only is None or digest in only]


async def _hits(
    connection: asyncpg.Connection, hosts: Hosts, shown: Mapping[ObjectId, _Tally]
) -> tuple[PastHit, ...]:
    contents = [digest for tally in shown.values() for digest in tally.contents]
    holders = await find_holders(connection, hosts, contents)
    best = {one: tally.best for one, tally in shown.items()}
    texts = await read_texts(connection, {b for _, b in best.values() if isinstance(b, bytes)})
    hits = []
    for one, tally in shown.items():
        on = {host for digest in tally.contents for host in holders.get(digest, ())}
        on = on.difference(tally.lost).union(tally.added)
        share, text = best[one]
        if isinstance(text, bytes):
            text = texts.get(text, "")
        hits.append(PastHit(one, text, hosts.split(on), share))
    return tuple(hits)
