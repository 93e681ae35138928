"""Search: hybrid, vector and lexical, and the objects similar to an object."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from typing import Final, NamedTuple, ParamSpec, TypeAlias, TypeVar

import numpy as np

from opdbus.engine.batching import Rank
from opdbus.errors import ModelError, OpDbusError, ProviderError
from opdbus.index.catalogue.catalogue import object_id_of, representative
from opdbus.index.catalogue.declarations import (
    DECLARED,
    NOTHING_DECLARED,
    Declaration,
    absence_of,
    marked,
)
from opdbus.index.catalogue.entry_view import EntryRefs as Met
from opdbus.index.database.store import Content, Entry, Store
from opdbus.index.query import (
    condition_matching,
    extremes,
    query_parser,
    query_terms,
    question_patterns,
)
from opdbus.index.ranking import confidence
from opdbus.index.ranking.confidence import CERTAIN, RatedHit, like, rate
from opdbus.index.ranking.scores import Score, rank
from opdbus.index.search import (
    explanations,
    mismatches,
    related_answers,
    term_overlap,
    word_similarity,
)
from opdbus.index.search.hits import Hit, Page, Query, Why
from opdbus.index.search.lexical_matches import compute_boosts, having_all, read
from opdbus.index.search.rerank import RERANKED, Reranker
from opdbus.index.search.word_similarity import WordSimilarity
from opdbus.index.vectors import second_stage
from opdbus.index.vectors.first_stage import STATIC
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.second_stage import Ask, Found, Vector, prefetch_embedding
from opdbus.index.vectors.two_stage_search import Cascade
from opdbus.language import vocabulary
from opdbus.language.object_text import first_line
from opdbus.platform.slices import batches, each
from opdbus.state.fields import split
from opdbus.state.object import FILE, Json, ObjectId

# Characters that remain of a question whose words were all conditions.
_NO_WORDS = " \t\n?!.,;"
_UNRANKED = Score(0.0, 0.0, 0.0)
# Up to this many entries are ranked on the event loop: a thread would cost more.
_ON_LOOP = 200_000

# Entries in one turn of the event loop.
_FEW: Final = 200
# Declared fields in a hit.
_MOST_DECLARED: Final = 16

P = ParamSpec("P")
T = TypeVar("T")
# reorders what was found
Order: TypeAlias = Callable[[Found], Awaitable[Found]]


class _Ranked(NamedTuple):
    """The best rows in order, and separately declared entries of objects that are also observed."""

    best: Found
    declared: Found


class Finder:
    """Search over all objects of a store that match a page.

    With a cascade, searches do not wait for the vectors of the level.
    """

    def __init__(
        self,
        vectors: ObjectVectors,
        reranker: Reranker | None = None,
        cascade: Cascade | None = None,
    ) -> None:
        self._vectors = vectors
        self._memory = vectors.memory
        self._reranker = reranker
        self._cascade = cascade
        self._words: WordSimilarity | None = None

    def staged(self) -> int:
        """Return the number of objects that two-stage search covers."""
        return self._cascade.first.count() if self._cascade else 0

    async def search(
        self,
        question: str,
        page: Page,
        mode: str = "hybrid",
        level: str = "",
        *,
        priority: Rank = Rank.FEW,
    ) -> list[Hit]:
        """Return the objects that best answer a question, best first.

        `mode` is one of scores.MODES; hybrid and vector wait for the model, unless there is a
        cascade. Without a working model a hybrid search is lexical. With a `level`, that level's
        model reorders the best hits. Conditions in the question are added to those of the page; if
        the question has nothing else, the objects that meet them are listed. Only the first
        query_parser.MAX_CHARACTERS of the question are read. Raises NoModel, ModelError,
        ProviderError.
        """
        question = question[: query_parser.MAX_CHARACTERS]
        asked = await query_parser.read(self._memory, question)
        page = replace(page, where=page.where + asked.conditions)
        if not asked.conditions and not asked.compared:
            asked = query_parser.ParsedQuery(question)
        if page.where and not asked.words.strip(_NO_WORDS):
            return await self._list(page, Query(within=await self._within(page)))
        cascade = self._cascade if self._cascade and self._cascade.is_used() else None
        first = partial(self._first(mode, cascade), priority=priority)
        async with prefetch_embedding(first, asked.words) as ask:
            corrected = query_parser.corrected(self._vectors, asked)
            asked, within = await asyncio.gather(corrected, self._within(page))
            if question_patterns.of(asked.words).values:
                within = await asyncio.to_thread(self._having_all, asked.words, within)
            query = await self._query(asked, within)
            if level or not cascade or mode == "lexical":
                order = partial(self._reranked, asked.words, level, priority) if level else None
                query = await self._filled(query, mode, ask, STATIC if cascade else self._level)
                return await self._hits(page, query, order)
            own = self._vectors.ask
            async with cascade.asking(lambda _ends: own(asked.words, priority)) as asking:
                query = await self._filled(query, mode, ask, STATIC)
                return await self._hits(page, query, partial(cascade.second.order, asking=asking))

    def _first(self, mode: str, cascade: Cascade | None) -> Callable[..., Awaitable[Vector | None]]:
        """Return the function that computes the vector to search with; it may return None."""
        if mode == "lexical":
            return _unasked
        if cascade:
            return cascade.ask
        return self._vectors.ask if mode == "vector" else self._asked

    @property
    def _level(self) -> str:
        return self._vectors.serving.config.vector_level

    async def _query(self, asked: query_parser.ParsedQuery, within: Met | None) -> Query:
        """Return the query for a parsed question, with the objects of its superlative."""
        compared: Sequence[query_parser.ComparedValue] = asked.compared
        object_ids: Sequence[ObjectId] = ()
        below: Sequence[ObjectId] = ()
        if most := await extremes.find(self._memory, asked.words, within):
            words, object_ids, below = most
            # the words stay in the question: `disk` alone would be taken for a name
            compared = [
                *compared,
                query_parser.ComparedValue(words, self._memory.catalogue.found(object_ids)),
            ]
        return Query(
            asked.words,
            within=within,
            compared=compared,
            most=object_ids,
            below=below,
            corrected=asked.corrected,
        )

    async def _filled(self, query: Query, mode: str, ask: Ask, stage: str) -> Query:
        """Add similarity by vectors of a stage and lexical matches, as the mode requires."""

        async def likened() -> Query:
            found = await ask(query.question)
            return await self._likened(query, found, stage) if found else query

        if mode == "vector":
            return await likened()
        # words are looked up while the model runs
        matched, like = await asyncio.gather(self._matched(query), likened())
        return replace(matched, similarity=like.similarity)

    async def _likened(self, query: Query, found: Vector, stage: str) -> Query:
        """Add the similarity of entries with a vector."""
        (index, vector), view = found, self._memory.catalogue.view
        similarity = await self._worked(index.similarity, vector, view, stage, query.places)
        return replace(query, similarity=similarity)

    async def _worked(self, work: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Call `work`, on a thread if there are more than `_ON_LOOP` entries."""
        if len(self._memory.catalogue.view.entries) <= _ON_LOOP:
            return work(*given, **named)
        return await asyncio.to_thread(work, *given, **named)

    async def _reranked(self, question: str, level: str, priority: Rank, found: Found) -> Found:
        if self._reranker is None:
            return found
        best = found[:RERANKED]
        contents = await self._memory.content([entry for entry, _ in best])
        order = await self._reranker.order(question, best, contents, level, priority)
        return [*order, *found[RERANKED:]]

    async def _within(self, page: Page) -> Met | None:
        """Return the entries that match a page, in order of places; None without conditions."""
        if not page.where and not page.wanted:
            return None
        met = await condition_matching.found(self._memory, page.where) if page.where else None
        return await self._worked(self._memory.catalogue.among, page.wanted or {}, met)

    def _having_all(self, question: str, within: Met | None) -> Met | None:
        """Restrict entries to those with all values of a question that asks for several together.

        Declared values of an observed object do not count. May be called on any thread.
        """
        view, declarations = self._memory.catalogue.view, self._memory.declarations
        met = having_all(question_patterns.of(question), view)
        if met is None:
            return within
        is_kept = np.isin(met.ids, met.ids if within is None else within.ids)
        for at, entry in enumerate(map(view.at, met.places.tolist())):
            is_wish = entry is not None and entry.identity.source == FILE
            if entry is None or (is_wish and declarations.observed(object_id_of(entry))):
                is_kept[at] = False
        return Met(met.places[is_kept], met.ids[is_kept])

    async def _list(self, page: Page, query: Query) -> list[Hit]:
        """Return a page of objects in listing order, observed ones first."""
        catalogue = self._memory.catalogue

        def listed() -> list[ObjectId]:
            found = catalogue.object_ids({}, query.within)
            return sorted(found, key=lambda object_id: not catalogue.is_observed(object_id))

        object_ids = await asyncio.to_thread(listed)
        part = object_ids[page.offset : page.offset + page.limit]
        rows = [
            (catalogue.first(object_id), _UNRANKED)
            for object_id in part
            if catalogue.has(object_id)
        ]
        return await self._read(page, query, rows, [CERTAIN] * len(rows), {})

    async def _asked(self, question: str, priority: Rank) -> Vector | None:
        """Return the vector of a question, None without a working engine."""
        try:
            return await self._vectors.ask(question, priority)
        except OpDbusError as error:
            if isinstance(error, ModelError | ProviderError) or self._vectors.serving.phase.error:
                return None
            raise

    async def similar(self, object_id: ObjectId, page: Page) -> list[Hit]:
        """Return the objects most similar to an object, without that object.

        Raises UnknownObject, NoVector, NoModel.
        """
        object_id = self._memory.declarations.one(object_id)
        within = await self._within(page)
        query = Query(without=object_id, within=within)
        entry = self._memory.catalogue.first(object_id)
        cascade = self._cascade
        if cascade and cascade.is_used() and (own := await cascade.first_vector(entry)):
            async with cascade.asking(partial(cascade.second.own, entry)) as asking:
                query = await self._likened(query, own, STATIC)
                return await self._hits(page, query, partial(cascade.second.order, asking=asking))
        query = await self._likened(query, await self._vectors.vector(object_id), self._level)
        return await self._hits(page, query)

    async def _matched(self, query: Query) -> Query:
        """Add the lexical matches of a query and the boosts from them."""
        memory, question = self._memory, query.question
        await memory.words.ready()
        words, catalogue = memory.words.lookup, memory.catalogue

        def look(store: Store) -> Query:
            matches = read(store, words, question, catalogue.view)
            boost_plan = compute_boosts(matches, query.compared, catalogue, query.places)
            return replace(query, matches=matches.at(query.places), boost_plan=boost_plan)

        return await memory.archive.read(look)

    async def _hits(self, page: Page, query: Query, order: Order | None = None) -> list[Hit]:
        """Return a page of hits; `order` reorders the best rows."""
        last = page.offset + page.limit
        ranked = max(last, second_stage.COMPARED if order else term_overlap.COMPARED)
        found = await self._settled(query, ranked)
        if order:
            found = await order(found)
        contents: Mapping[int, Content] = {}
        if query.without is None:
            contents = await self._memory.content([e for e, _ in found[: term_overlap.COMPARED]])
            if query.matches:
                missing = query.matches.missing
                found = term_overlap.order(query.question, missing, found, contents)
                found = extremes.order(query.most, query.below, found)
                asked = query.question, found, contents, query.within
                found = await related_answers.order(self._memory, *asked)
                if joined := [
                    entry for entry, _ in found[: related_answers.MOST] if entry.id not in contents
                ]:
                    contents = {**contents, **await self._memory.content(joined)}
            found = await self._evident(query.question, found, contents)
        # rated over at least COMPARED rows, so that a hit's score does not depend on the page size
        scores = [score for _, score in found[: max(last, confidence.COMPARED)]]
        judging = (
            partial(rate, scores, query.mode) if query.without is None else partial(like, scores)
        )
        rating = judging() if len(scores) <= _FEW else await asyncio.to_thread(judging)
        if query.without is None:
            found, rating = self._absent_last(found, rating, contents)
        part = slice(page.offset, last)
        return await self._read(page, query, found[part], rating[part], contents)

    async def _evident(self, question: str, found: Found, contents: Mapping[int, Content]) -> Found:
        """Add confidence features and mismatches to the best rows; drop those without content."""
        if self._words is None:
            self._words = await asyncio.to_thread(word_similarity.ours)
        best = [row for row in found[: confidence.COMPARED] if row[0].id in contents]
        has_kind = mismatches.has_asked_kind(question, self._memory.catalogue.view)
        match_features = self._words.match_features(
            question, [contents[entry.id] for entry, _ in best]
        )
        rows = []
        for (entry, score), known in zip(best, match_features, strict=True):
            other = mismatches.find_mismatches(
                question, entry, contents[entry.id], has_kind=has_kind
            )
            rows.append((entry, replace(score, match_features=known, mismatch=other)))
        return [*rows, *found[confidence.COMPARED :]]

    async def _settled(self, query: Query, enough: int) -> Found:
        """Return the best `enough` rows, one for each object.

        An observed object is also found by what is declared of it, but not by fields with another
        observed value: no term of the question may be in such a field, and no value that it names
        may depend on one.
        """
        ranked = await self._ranked(query, enough)
        if not ranked.declared:
            return ranked.best
        declarations = self._memory.declarations
        declared = await declarations.read([object_id_of(entry) for entry, _ in ranked.declared])
        known = [
            declared.get(object_id_of(entry), NOTHING_DECLARED) for entry, _ in ranked.declared
        ]
        terms, wrong = query_terms.terms(query.question), [*map(_differing, known)]
        is_wrong = await asyncio.to_thread(explanations.having, wrong, terms)
        kept = [
            row
            for at, (row, one) in enumerate(zip(ranked.declared, known, strict=True))
            if not one.differing
            or (one.unobserved and at not in is_wrong and not self._is_untrue(query, row[0]))
            or self._is_outside(query, row[0])
        ]
        found: dict[ObjectId, tuple[Entry, Score]] = {}
        rows = sorted([*ranked.best, *kept], key=lambda row: -row[1].total)
        ones = await each(lambda row: declarations.one(object_id_of(row[0])), rows)
        for one, row in zip(ones, rows, strict=True):
            found.setdefault(one, row)
        return list(found.values())[:enough]

    def _is_untrue(self, query: Query, declared: Entry) -> bool:
        """Return whether a question names a value that is declared but not observed."""
        traits = int.from_bytes(self._standing(declared).traits, "little")
        others = int.from_bytes(declared.traits, "little") & ~traits
        return any(bits & others for bits in vocabulary.asked(query.question))

    def _is_outside(self, query: Query, declared: Entry) -> bool:
        """Return whether the query's entries include the object only by its declared entry."""
        if query.within is None:
            return False
        one = self._memory.declarations.one(object_id_of(declared))
        entries = self._memory.catalogue.entries(one)
        return not any(entry.id in query.within.ids for entry in entries if entry != declared)

    async def _ranked(self, query: Query, enough: int) -> _Ranked:
        """Return the best `enough` rows, and declared entries of observed objects."""
        declarations = self._memory.declarations
        declared: list[tuple[Entry, Score]] = []
        shares = None if query.matches is None else query.matches.shares
        view, within = self._memory.catalogue.view, query.within
        found: dict[ObjectId, tuple[Entry, Score]] = {}
        ids = view.ids if within is None else within.ids
        is_left_out = mismatches.left_out(query.question)
        ranking = batches(rank(query.similarity, shares, query.boost_plan, ids), min(enough, _FEW))
        # declarations change on the event loop, so they are read there
        while len(found) < enough and (part := await self._worked(next, ranking, ())):
            for number, score in part:
                entry = view.entries[number if within is None else within.places.item(number)]
                # another entry may have taken its place since
                if entry is None or (within is not None and entry.id != within.ids[number]):
                    continue
                object_id = object_id_of(entry)
                if query.without is None and is_left_out(object_id, score):
                    continue
                if entry.identity.source == FILE and declarations.observed(object_id):
                    declared += [(entry, score)] if len(declared) < term_overlap.COMPARED else []
                elif object_id != query.without:
                    # keep the best-scoring entry of each object
                    found.setdefault(object_id, (entry, score))
                if len(found) == enough:
                    break
            await asyncio.sleep(0)
        return _Ranked(list(found.values()), declared if query.without is None else [])

    async def _read(
        self,
        page: Page,
        query: Query,
        found: Found,
        rating: Sequence[RatedHit],
        known: Mapping[int, Content],
    ) -> list[Hit]:
        entries = await each(self._standing, [entry for entry, _ in found])
        found = [(entry, score) for entry, (_, score) in zip(entries, found, strict=True)]
        sides = await self._sides(entries)
        new = [entry for entry, _ in found if entry.id not in known]
        contents = {**known, **(await self._memory.content(new) if new else {})}
        there = [
            (*row, mark) for row, mark in zip(found, rating, strict=True) if row[0].id in contents
        ]
        whys: Sequence[Why | None] = [None] * len(there)
        if page.is_explained:
            whys = await asyncio.to_thread(
                lambda: [
                    explanations.explain(
                        entry, self._explained(entry, sides, contents), score, query, page.where
                    )
                    for entry, score, _ in there
                ]
            )

        def hit(row: tuple[tuple[Entry, Score, RatedHit], Why | None]) -> Hit:
            (entry, score, mark), why = row
            return Hit(
                object_id_of(entry),
                entry.identity.source,
                score,
                mark,
                self._marked(entry, contents[entry.id]),
                why,
                *_declared_and_observed(entry, sides, contents),
            )

        return await each(hit, [*zip(there, whys, strict=True)])

    def _marked(self, entry: Entry, content: Content) -> str:
        return marked(self._memory.declarations, entry, content, first_line(content.text))

    def _absent_last(
        self, found: Found, rating: list[RatedHit], contents: Mapping[int, Content]
    ) -> tuple[Found, list[RatedHit]]:
        """Move absent and missing declared objects to the end of their class, strong or weak.

        Lower chances so that none exceeds the one before it.
        """
        declarations, rows = self._memory.declarations, [*zip(found, rating, strict=False)]

        def is_absent(entry: Entry) -> bool:
            if entry.identity.source == FILE and declarations.is_missing(object_id_of(entry)):
                return True
            content = contents.get(entry.id)
            return content is not None and bool(absence_of(declarations, entry, content))

        absent = {row[0].id for row, _ in rows if is_absent(row[0])}
        if not absent:
            return found, rating
        rows.sort(key=lambda row: (row[1].is_weak, row[0][0].id in absent))
        chances = accumulate((each.chance for _, each in rows), min)
        marks = [
            replace(one, chance=chance) for (_, one), chance in zip(rows, chances, strict=True)
        ]
        return [row for row, _ in rows], marks

    def _standing(self, entry: Entry) -> Entry:
        """Return the entry shown for a found one: the observed entry of its object, if any."""
        if entry.identity.source != FILE:
            return entry
        entries = self._memory.catalogue.entries(self._memory.declarations.one(object_id_of(entry)))
        return representative(entries) if entries else entry

    async def _sides(self, entries: Sequence[Entry]) -> Mapping[ObjectId, Declaration]:
        """Return the declarations of those of some entries' objects that are observed."""
        declarations = self._memory.declarations
        observed = [object_id_of(one) for one in entries if one.identity.source != FILE]
        declaring = await each(declarations.declares, observed)
        declared = {one: other for one, other in zip(observed, declaring, strict=True) if other}
        found = await declarations.read([*map(object_id_of, declared.values())])
        return {
            one: found[object_id]
            for one, other in declared.items()
            if (object_id := object_id_of(other)) in found
        }

    def _explained(
        self, entry: Entry, sides: Mapping[ObjectId, Declaration], contents: Mapping[int, Content]
    ) -> dict[str, Json]:
        """Return the fields that may have matched; unobserved ones are under `DECLARED`."""
        fields = self._memory.merge_properties([entry], contents)
        side = sides.get(object_id_of(entry))
        return fields | {DECLARED: dict(side.unobserved)} if side and side.unobserved else fields


def _differing(declared: Declaration) -> str:
    """Return the declared fields with another observed value, as words."""
    pairs = ((" ".join(split(name)), sides[0]) for name, sides in declared.differing.items())
    return " ".join(f"{name} {value}" for name, value in pairs)


def _declared_and_observed(
    entry: Entry, sides: Mapping[ObjectId, Declaration], contents: Mapping[int, Content]
) -> tuple[Mapping[str, Json], Mapping[str, Json]]:
    """Return the `declared` and `observed` fields of a Hit."""
    if entry.identity.source == FILE:
        fields: dict[str, Json] = json.loads(contents[entry.id].properties)
        return dict(islice(fields.items(), _MOST_DECLARED)), {}
    side = sides.get(object_id_of(entry), NOTHING_DECLARED)
    declared = {name: value for name, (value, _) in side.differing.items()} | dict(side.unobserved)
    observed = {name: value for name, (_, value) in side.differing.items() if value is not None}
    return dict(islice(declared.items(), _MOST_DECLARED)), observed


async def _unasked(_question: str, priority: Rank) -> None:
    """Return no vector, for lexical search."""
