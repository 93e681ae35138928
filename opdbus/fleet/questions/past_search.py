"""Search in the states of a past time, by conditions and words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from opdbus.fleet.questions import word_ranks
from opdbus.fleet.questions.fleet_conditions import (
    Asked,
    Content,
    TextFilter,
    find_contents,
    read_contents,
    read_question,
    require_fields,
)
from opdbus.fleet.questions.fleet_past import HostObject, Past, rewind
from opdbus.fleet.questions.fleet_scope import Hosts, OnHosts, Scope, find_hosts
from opdbus.fleet.questions.fleet_search import LEAST_SHARE
from opdbus.fleet.questions.where_found import read_texts
from opdbus.language.object_text import render
from opdbus.state.conditions import AllOf, Condition
from opdbus.state.object import ObjectId, StateObject

if TYPE_CHECKING:
    import asyncpg


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


class _Found(NamedTuple):
    object_id: ObjectId
    text: str
    share: float


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
    past = await rewind(connection, hosts, at)
    terms = await word_ranks.weigh_terms(connection, asked.words)
    found: dict[ObjectId, list[tuple[int, _Found]]] = defaultdict(list)
    for host, each in await _unchanged(connection, asked, past, terms):
        found[each.object_id].append((host, each))
    wanted = AllOf(asked.conditions)
    weights = dict(zip(terms.words, terms.weights, strict=True))
    for key, state in past.states.items():
        if state is None:
            continue
        identity = state.identity(key.object_id)
        if wanted.conditions and not wanted.hold(identity, state.fields):
            continue
        text = render(StateObject(identity, state.fields)).text
        # without words that tell something, each object answers as well as any other
        share = word_ranks.share_in(text, weights) if any(weights.values()) else 1.0
        if not asked.words or share >= LEAST_SHARE:
            found[key.object_id].append((key.host, _Found(key.object_id, text, share)))
    hits = [_hit(rows, past.reaching) for rows in found.values()]
    hits.sort(key=lambda each: (-round(each.share, 3), -len(each.where.on), each.object_id))
    return PastAnswer(
        hosts,
        asked,
        at,
        tuple(hits[:limit]),
        len(hits),
        past.not_reaching,
        len(past.unknown),
    )


def _hit(rows: Sequence[tuple[int, _Found]], hosts: Hosts) -> PastHit:
    best = max((each for _, each in rows), key=lambda each: each.share)
    return PastHit(best.object_id, best.text, hosts.split([host for host, _ in rows]), best.share)


async def _unchanged(
    connection: asyncpg.Connection, asked: Asked, past: Past, terms: word_ranks.WeightedTerms
) -> list[tuple[int, _Found]]:
    """Return the present answers that did not change since then, with their hosts."""
    only: dict[bytes, Content] | None = None
    if asked.conditions:
        ids = None if past.reaching.is_all else past.reaching.ids
        contents = await find_contents(connection, asked.conditions, ids)
        only = {each.digest: each for each in contents}
    shares: dict[bytes, float] = {}
    if asked.words:
        texts = None if only is None else sorted({each.text for each in only.values()})
        ranks = await word_ranks.rank_by_words(connection, terms, TextFilter(texts))
        shares = {r.digest: r.share for r in ranks.texts if r.share >= LEAST_SHARE}
    rows = await connection.fetch(
        "SELECT object.host, object.content FROM opdbus.object"
        " JOIN opdbus.content ON content.digest = object.content"
        " WHERE object.host = ANY($1) AND ($2::bytea[] IS NULL OR content.text = ANY($2))"
        " AND ($3::bytea[] IS NULL OR content.digest = ANY($3))",
        past.reaching.ids,
        list(shares) if asked.words else None,
        None if only is None else list(only),
    )
    digests = sorted({row["content"] for row in rows})
    known: Mapping[bytes, Content] = only or await read_contents(connection, digests)
    texts_of = await read_texts(connection, {known[d].text for d in digests if d in known})
    found = []
    for host, digest in rows:
        content = known[digest]
        one = content.identity.object_id
        key = HostObject(host, one)
        if key not in past.states and key not in past.unknown:
            share = shares.get(content.text, 1.0)
            found.append((host, _Found(one, texts_of.get(content.text, ""), share)))
    return found
