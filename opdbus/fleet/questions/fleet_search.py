"""Search over all hosts: by words, by vectors of each model in use, and by conditions.

Ranks are merged, not scores, so that hosts with different models have an equal chance.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from opdbus.fleet.questions import identities, state_answers, vector_ranks, word_ranks
from opdbus.fleet.questions.fleet_conditions import (
    FEW_HOSTS,
    Asked,
    Content,
    TextFilter,
    find_contents,
    read_content,
    read_question,
    require_fields,
)
from opdbus.fleet.questions.fleet_scope import Hosts, Scope, find_hosts
from opdbus.fleet.questions.vector_ranks import Embed, NearText, Numerics
from opdbus.fleet.questions.where_found import Family, FoundObject, locate
from opdbus.fleet.questions.word_ranks import Corrected, WeightedTerms, WordRanks
from opdbus.index.query.spelling import Correction, apply_corrections
from opdbus.index.search import candidate_rating
from opdbus.index.search.candidate_rating import Candidate, Corpus
from opdbus.platform import name_lists, tasks
from opdbus.state.conditions import Condition
from opdbus.state.object import ObjectId

if TYPE_CHECKING:
    import asyncpg

# The constant of reciprocal rank fusion.
_RANK_OFFSET: Final = 60
# The best texts are ordered and rated as a host's own hits: see index.search.candidate_rating.
_RATED: Final = 24
# Of the others a text is weak, and left out, unless it has this share of the question's information
# in words, or its cosine is so many standard deviations above that of any text.
LEAST_SHARE: Final = 0.5
LEAST_ABOVE: Final = 5.0
# Words may be fewer, and cosines lower, where both agree.
_LEAST_OF_BOTH: Final = (0.25, 3.0)
_MOST_COMPARED: Final = 3
# So many objects whose names differ only in numbers are one hit.
_ALIKE: Final = 6


class Hit(NamedTuple):
    """An object that answers; `share` and `above` are of its best text (see `LEAST_SHARE`).

    `confidence` is the probability that the hit is right, as in a host's own search.
    """

    found: FoundObject
    score: float
    share: float
    above: float
    confidence: float


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """The hits, the best first; `total` counts all that are no weak hits."""

    hosts: Hosts
    asked: Asked
    hits: tuple[Hit, ...]
    total: int
    corrected: tuple[Corrected, ...] = ()
    # levels whose vectors were compared
    compared: tuple[str, ...] = ()
    # what the answer lacks, in sentences
    notes: tuple[str, ...] = ()
    # of a question such as `is cron masked`: the hosts that say yes, and those that say no
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Evidence for texts: ranks by words, and the nearest texts of all models."""

    terms: WeightedTerms
    words: WordRanks
    near: Mapping[bytes, tuple[int, NearText]]
    # the models and vectors of the question that were compared
    vectors: Sequence[tuple[Numerics, Sequence[float]]]
    compared: tuple[str, ...]
    notes: tuple[str, ...]


class _Rank(NamedTuple):
    score: float
    share: float
    above: float
    confidence: float


async def search(
    connection: asyncpg.Connection,
    question: str,
    *,
    embed: Embed | None = None,
    where: Sequence[Condition] = (),
    scope: Scope | None = None,
    limit: int = 10,
    offset: int = 0,
) -> SearchAnswer:
    """Answer a question over the hosts of a scope; `embed` computes its vectors.

    Without words, and for a question of state (see `state_answers`), all objects that meet the
    conditions are hits, those of most hosts first. Raises InvalidArgs for an unknown host, tag or
    field.
    """
    asked = await read_question(connection, question, where, scope)
    hosts = await find_hosts(connection, asked.scope)
    await require_fields(connection, where)
    only: dict[bytes, Content] | None = None
    if asked.conditions:
        contents = await find_contents(connection, asked.conditions, hosts.only)
        only = {each.digest: each for each in contents}
    if not asked.words:
        return await _all_that_meet(connection, asked, hosts, only or {}, (limit, offset))
    if state := await state_answers.find_states(connection, asked.words, hosts):
        met = {k: v for k, v in state.contents.items() if only is None or k in only}
        answer = await _all_that_meet(connection, asked, hosts, met, (limit, offset))
        return replace(answer, verdict=state.verdict)
    texts = await _filter_texts(connection, hosts, only)
    evidence = await _weigh(connection, asked.words, embed, texts)
    ranked = await _rate(connection, asked.words, hosts, evidence, only)
    families = await _families(connection, hosts, list(ranked), only)
    best: dict[Family, _Rank] = {}
    for family, texts_of in families.items():
        best[family] = max(ranked[digest] for digest in texts_of)
    ordered = sorted(best, key=lambda one: (-best[one].score, one))
    shown = ordered[offset : offset + limit]
    found = await locate(connection, hosts, shown, only)
    return SearchAnswer(
        hosts,
        asked,
        tuple(Hit(found[family], *best[family]) for family in shown if family in found),
        len(best),
        evidence.words.corrected,
        evidence.compared,
        evidence.notes,
    )


async def _all_that_meet(
    connection: asyncpg.Connection,
    asked: Asked,
    hosts: Hosts,
    only: Mapping[bytes, Content],
    window: tuple[int, int],
) -> SearchAnswer:
    """Return the objects that meet the conditions, those of most hosts first."""
    rows = await connection.fetch(
        "SELECT content, count(*) AS count FROM opdbus.object"
        " WHERE content = ANY($1) AND host = ANY($2) GROUP BY content",
        list(only),
        hosts.ids,
    )
    counts: Counter[ObjectId] = Counter()
    for row in rows:
        counts[only[row["content"]].identity.object_id] += row["count"]
    limit, offset = window
    ordered = sorted(counts, key=lambda one: (-counts[one], one))[offset : offset + limit]
    found = await locate(connection, hosts, [Family(one) for one in ordered], only)
    hits = tuple(Hit(each, 1.0, 1.0, 0.0, 1.0) for each in found.values())
    return SearchAnswer(hosts, asked, hits, len(counts))


async def _filter_texts(
    connection: asyncpg.Connection, hosts: Hosts, only: Mapping[bytes, Content] | None
) -> TextFilter:
    """Return what limits the texts: conditions and few hosts by their texts, many as they are."""
    if only is not None and hosts.is_all:
        return TextFilter(sorted({each.text for each in only.values()}))
    if only is None and (hosts.is_all or len(hosts.parts) > FEW_HOSTS):
        return TextFilter(hosts=hosts.only)
    rows = await connection.fetch(
        "SELECT DISTINCT content.text FROM opdbus.object JOIN opdbus.content"
        " ON content.digest = object.content WHERE object.host = ANY($1)"
        " AND ($2::bytea[] IS NULL OR object.content = ANY($2))",
        hosts.ids,
        None if only is None else list(only),
    )
    return TextFilter([row["text"] for row in rows])


async def _weigh(
    connection: asyncpg.Connection,
    words: str,
    embed: Embed | None,
    texts: TextFilter,
) -> _Evidence:
    numerics = await vector_ranks.numerics_in_use(connection)
    # the database looks for the words meanwhile
    embedding = asyncio.create_task(_embed(words, numerics, embed))
    try:
        terms = await word_ranks.weigh_terms(connection, words)
        by_words = await word_ranks.rank_by_words(connection, terms, texts)
        vectors = await embedding
    finally:
        await tasks.cancel([embedding])
    near: dict[bytes, tuple[int, NearText]] = {}
    for each in numerics:
        if each.name in vectors:
            found = await vector_ranks.rank_by_vector(connection, each, vectors[each.name], texts)
            for rank, text in enumerate(found):
                # a text that several models have read counts by the best of them
                near[text.digest] = min((rank, text), near.get(text.digest, (rank, text)))
    return _Evidence(
        terms,
        by_words,
        near,
        [(each, vectors[each.name]) for each in numerics if each.name in vectors],
        tuple(each.level for each in numerics if each.name in vectors),
        _describe_lack(numerics, vectors),
    )


async def _embed(
    words: str, numerics: Sequence[Numerics], embed: Embed | None
) -> Mapping[str, Sequence[float]]:
    return await embed(words, numerics) if embed and numerics else {}


def _describe_lack(
    numerics: Sequence[Numerics], vectors: Mapping[str, Sequence[float]]
) -> tuple[str, ...]:
    if not numerics:
        return ("only words were compared: the fleet has no vectors yet",)
    left = [each.level for each in numerics if each.name not in vectors]
    if not left:
        return ()
    levels = name_lists.join_first(sorted(set(left)), _MOST_COMPARED)
    if len(left) == len(numerics):
        return (f"only words were compared: nothing here computes vectors of {levels}",)
    return (f"vectors of {levels} were not compared: nothing here computes them",)


def _merge(evidence: _Evidence) -> dict[bytes, _Rank]:
    """Return the texts by reciprocal rank, the best first."""
    shares = {each.digest: (n, each.share) for n, each in enumerate(evidence.words.texts)}
    found = {}
    for digest in shares.keys() | evidence.near.keys():
        score = share = above = 0.0
        if digest in shares:
            rank, share = shares[digest]
            score += 1 / (_RANK_OFFSET + rank)
        if digest in evidence.near:
            rank, text = evidence.near[digest]
            above = text.above
            score += 1 / (_RANK_OFFSET + rank)
        found[digest] = _Rank(score, share, above, 0.0)
    return dict(sorted(found.items(), key=lambda item: (-item[1].score, item[0])))


def _is_weak(rank: _Rank) -> bool:
    both = rank.share >= _LEAST_OF_BOTH[0] and rank.above >= _LEAST_OF_BOTH[1]
    return not (rank.share >= LEAST_SHARE or rank.above >= LEAST_ABOVE or both)


async def _rate(
    connection: asyncpg.Connection,
    words: str,
    hosts: Hosts,
    evidence: _Evidence,
    only: Mapping[bytes, Content] | None,
) -> dict[bytes, _Rank]:
    """Return the texts that are no weak hits: the best rated as by a host, and then the others."""
    merged = _merge(evidence)
    best = [*merged][:_RATED]
    digests, candidates = await _candidates(connection, hosts, best, evidence, only)
    words = apply_corrections(words, [Correction(*each) for each in evidence.words.corrected])
    corpus = Corpus(
        dict(zip(evidence.terms.words, evidence.terms.counts, strict=True)), evidence.terms.texts
    )
    rated = candidate_rating.order(words, candidates, corpus)
    if not rated or rated[0].rating.is_weak:
        return {}
    found = {}
    for at, each in enumerate(rated):
        if not each.rating.is_weak:
            rank, own = merged[digests[each.place]], each.rating.confidence
            # scores of the others are lower
            found[digests[each.place]] = rank._replace(score=1 + 1 / (1 + at), confidence=own)
    least = min(each.confidence for each in found.values())
    for digest in [*merged][_RATED:]:
        if not _is_weak(merged[digest]):
            found[digest] = merged[digest]._replace(confidence=least)
    return found


async def _candidates(
    connection: asyncpg.Connection,
    hosts: Hosts,
    texts: Sequence[bytes],
    evidence: _Evidence,
    only: Mapping[bytes, Content] | None,
) -> tuple[list[bytes], list[Candidate]]:
    """Return the texts that count with a state each, and their cosines."""
    near = {digest: evidence.near[digest][1] for digest in texts if digest in evidence.near}
    lacking = [digest for digest in texts if digest not in near]
    for numerics, vector in evidence.vectors if lacking else ():
        found = await vector_ranks.rank_by_vector(connection, numerics, vector, TextFilter(lacking))
        near |= {each.digest: each for each in found if each.digest not in near}
    rows = await connection.fetch(
        "SELECT state.*, text.text AS said FROM unnest($1::bytea[]) AS asked (digest)"
        " JOIN opdbus.text USING (digest), LATERAL (SELECT content.digest, source, plugin, kind,"
        " name, coalesce(observed, declared) AS fields, content.text FROM opdbus.content"
        " WHERE content.text = asked.digest AND ($3::bytea[] IS NULL OR content.digest = ANY($3))"
        " AND EXISTS (SELECT FROM opdbus.object WHERE object.content = content.digest"
        " AND object.host = ANY($2)) LIMIT 1) AS state",
        list(texts),
        hosts.ids,
        None if only is None else list(only),
    )
    digests, candidates = [], []
    for row in rows:
        state = read_content(row)
        # without the digest
        compared = near[state.text][1:] if state.text in near else ()
        digests.append(state.text)
        candidates.append(Candidate(state.identity, state.properties, row["said"], *compared))
    return digests, candidates


async def _families(
    connection: asyncpg.Connection,
    hosts: Hosts,
    texts: Sequence[bytes],
    only: Mapping[bytes, Content] | None,
) -> dict[Family, set[bytes]]:
    """Return the objects of the hosts that have one of the texts, with their texts.

    Objects of many names that differ only in numbers, such as sessions, are one family.
    """
    rows = await connection.fetch(
        "SELECT text, plugin, kind, name, digest FROM opdbus.content WHERE text = ANY($1)"
        " AND ($3::bytea[] IS NULL OR digest = ANY($3))"
        " AND EXISTS (SELECT FROM opdbus.object WHERE object.content = content.digest"
        " AND object.host = ANY($2))",
        list(texts),
        hosts.ids,
        None if only is None else list(only),
    )
    alike: dict[ObjectId, dict[ObjectId, list[tuple[bytes, bytes]]]] = {}
    for text, plugin, kind, name, digest in rows:
        masked = ObjectId(plugin, kind, identities.mask_name(name))
        members = alike.setdefault(masked, {})
        members.setdefault(ObjectId(plugin, kind, name), []).append((text, digest))
    found: dict[Family, set[bytes]] = {}
    for members in alike.values():
        if len(members) >= _ALIKE:
            every = [pair for pairs in members.values() for pair in pairs]
            digests = tuple(sorted({digest for _, digest in every}))
            family = Family(min(members), len(members), digests)
            found[family] = {text for text, _ in every}
        else:
            found |= {Family(one): {text for text, _ in pairs} for one, pairs in members.items()}
    return found
