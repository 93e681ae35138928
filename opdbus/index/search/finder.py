"""Search: hybrid, vector and lexical, and the objects similar to an object."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import accumulate, islice
from typing import Final, TypeAlias

import numpy as np

from opdbus.engine.batching import Rank
from opdbus.index.catalogue.catalogue import representative
from opdbus.index.catalogue.declarations import (
    DECLARED,
    NOTHING_DECLARED,
    Declaration,
    absence_of,
    mark_declared,
)
from opdbus.index.catalogue.entry_view import EntryRefs
from opdbus.index.database.store import Content, Entry, Store
from opdbus.index.query import (
    condition_matching,
    extremes,
    query_terms,
    question_patterns,
    state_questions,
)
from opdbus.index.query.query_parser import (
    ComparedValue,
    ParsedQuery,
    correct_query,
    embed_question,
    parse_query,
)
from opdbus.index.query.question_conditions import MAX_CHARACTERS
from opdbus.index.ranking import confidence
from opdbus.index.ranking.confidence import CERTAIN, RatedHit, rate, rate_similar
from opdbus.index.ranking.scores import Boosts, Score, Similarity, rank
from opdbus.index.search import explanations, hit_features
from opdbus.index.search.hit_features import WordSimilarity
from opdbus.index.search.hits import Explanation, Hit, Query, SearchRequest
from opdbus.index.search.lexical_matches import (
    LexicalMatches,
    compute_boosts,
    entries_having,
    read_matches,
)
from opdbus.index.search.rerank import RERANKED, Reranker
from opdbus.index.search.state_lists import find_state_verdict
from opdbus.index.search.verdicts import Verdict, find_verdict
from opdbus.index.vectors import second_stage
from opdbus.index.vectors.first_stage import STATIC
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.second_stage import Ask, RankedHits, Vector, prefetch_embedding
from opdbus.index.vectors.two_stage_search import TwoStageSearch
from opdbus.language import vocabulary
from opdbus.language.object_text import first_line
from opdbus.platform.slices import each
from opdbus.state.conditions import Condition
from opdbus.state.fields import split
from opdbus.state.object import FILE, Json, ObjectId

# Characters that remain of a question whose words were all conditions.
_NO_WORDS: Final = " \t\n?!.,;"
_UNRANKED: Final = Score(0.0, 0.0, 0.0)
# Entries in one turn of the event loop.
_FEW: Final = 200
# Declared fields in a hit.
_MOST_DECLARED: Final = 16

# reorders what was found
Order: TypeAlias = Callable[[RankedHits], Awaitable[RankedHits]]


class Finder:
    """Search over all objects of a store that match a request.

    With two stages, searches do not wait for the vectors of the level.
    """

    def __init__(
        self,
        vectors: ObjectVectors,
        reranker: Reranker | None = None,
        two_stage: TwoStageSearch | None = None,
    ) -> None:
        self._vectors = vectors
        self._memory = vectors.memory
        self._reranker = reranker
        self._two_stage = two_stage
        self._words: WordSimilarity | None = None

    def count_first_stage(self) -> int:
        """Return the number of objects that two-stage search covers."""
        return self._two_stage.first.count() if self._two_stage else 0

    async def search(
        self,
        question: str,
        request: SearchRequest,
        mode: str = "hybrid",
        level: str = "",
        *,
        priority: Rank = Rank.FEW,
    ) -> list[Hit]:
        """Return the objects that best answer a question, best first.

        `mode` is one of scores.MODES; hybrid and vector wait for the model, unless a search
        has two stages. Without a working model a hybrid search is lexical. With a `level`, that
        level's model reorders the best hits. Conditions in the question are added to those of the
        request; if the question has nothing else, the objects that meet them are listed. Only the
        first query_parser.MAX_CHARACTERS of the question are read. Raises NoModel, ModelError,
        ProviderError.
        """
        question = state_questions.state_in_adjectives(question[:MAX_CHARACTERS])
        asked = await parse_query(self._memory, question)
        request = replace(request, where=request.where + asked.conditions)
        if not asked.conditions and not asked.compared:
            asked = ParsedQuery(question)
        if request.where and not asked.words.strip(_NO_WORDS):
            return await self._list(request)
        two_stage = self._two_stage if self._two_stage and self._two_stage.is_used() else None

        async def embed(words: str) -> Vector | None:
            if mode == "lexical":
                return None
            if two_stage:
                return await two_stage.ask(words, priority)
            if mode == "vector":
                return await self._vectors.ask(words, priority)
            return await embed_question(self._vectors, words, priority)

        async with prefetch_embedding(embed, asked.words) as ask:
            query = await self._query(asked, request)
            words, stage = query.question, STATIC if two_stage else self._level
            if level or not two_stage or mode == "lexical":
                order = partial(self._rerank, words, level, priority) if level else None
                return await self._hits(
                    request, await self._compare(query, mode, ask, stage), order
                )
            own = self._vectors.ask
            async with two_stage.start_embedding(lambda _ends: own(words, priority)) as asking:
                query = await self._compare(query, mode, ask, stage)
                return await self._hits(
                    request, query, partial(two_stage.second.order, asking=asking)
                )

    async def verdict(self, question: str) -> Verdict | None:
        """Return the answer to a question of yes or no, or for all objects in a bad state.

        None if it is neither, or no answer is certain.
        """
        listed = await find_state_verdict(self._memory, question)
        return listed or await find_verdict(self._memory, question)

    async def compares_values(self, question: str) -> bool:
        """Return whether a question compares values: `fullest disk`, `used_percent>50`."""
        asked = await parse_query(self._memory, question[:MAX_CHARACTERS])
        is_ordered = any(one.operator[:1] in {"<", ">"} for one in asked.conditions)
        return is_ordered or bool(asked.compared) or extremes.has_superlative(asked.words)

    async def hits_of(
        self,
        question: str,
        object_ids: Sequence[ObjectId],
        request: SearchRequest,
        *,
        is_weak: bool = False,
    ) -> list[Hit]:
        """Return objects that decide the answer to a question as hits, in their order."""
        catalogue = self._memory.catalogue
        there = [one for one in object_ids if catalogue.has(one)][: request.limit]
        rows = [(catalogue.representative_of(one), _UNRANKED) for one in there]
        rating = [CERTAIN._replace(is_weak=is_weak)] * len(rows)
        return await self._read(request, Query(question), rows, rating, {})

    async def similar(self, object_id: ObjectId, request: SearchRequest) -> list[Hit]:
        """Return the objects most similar to an object, without that object.

        Raises UnknownObject, NoVector, NoModel.
        """
        object_id = self._memory.declarations.one(object_id)
        query = Query(without=object_id, within=await self._matching_entries(request))
        entry = self._memory.catalogue.representative_of(object_id)
        two_stage = self._two_stage
        if two_stage and two_stage.is_used() and (own := await two_stage.first_vector(entry)):
            async with two_stage.start_embedding(
                partial(two_stage.second.own_vector, entry)
            ) as asking:
                query = replace(query, similarity=self._similarity(query, own, STATIC))
                return await self._hits(
                    request, query, partial(two_stage.second.order, asking=asking)
                )
        vector = await self._vectors.vector(object_id)
        query = replace(query, similarity=self._similarity(query, vector, self._level))
        return await self._hits(request, query)

    @property
    def _level(self) -> str:
        return self._vectors.serving.config.vector_level

    async def _matching_entries(self, request: SearchRequest) -> EntryRefs | None:
        """Return the entries that match a request, in order of places; None without conditions."""
        if not request.where and not request.wanted:
            return None
        met = await condition_matching.found(self._memory, request.where) if request.where else None
        return self._memory.catalogue.among(request.wanted or {}, met)

    async def _query(self, asked: ParsedQuery, request: SearchRequest) -> Query:
        """Return the query for a parsed question: corrected, with the entries to search."""
        asked, within = await asyncio.gather(
            correct_query(self._vectors, asked), self._matching_entries(request)
        )
        form = question_patterns.of(asked.words)
        most = await extremes.find_extremes(self._memory, asked.words, within)
        # the fullest disk need not be full
        if len(form.values) > 1 or (form.values and not most):
            is_strict = await self._is_strict(form)
            within = await asyncio.to_thread(
                self._restrict_to_all_values, asked.words, within, is_strict=is_strict
            )
            most = await extremes.find_extremes(self._memory, asked.words, within)
        query = Query(
            asked.words, within=within, compared=asked.compared, corrected=asked.corrected
        )
        if most:
            # the words stay in the question: `disk` alone would be taken for a name
            found = ComparedValue(most.words, self._memory.catalogue.refs_of(most.object_ids))
            return replace(query, compared=(*asked.compared, found), most=most)
        return query

    async def _is_strict(self, form: question_patterns.Form) -> bool:
        """Return whether nothing answers where no object has the values of a question.

        So it is for a single value, if objects have its fields: `which files were changed`.
        """
        if form.is_strict or len(form.values) > 1:
            return form.is_strict
        wanted = [Condition(name, "~", "") for name in vocabulary.fields(form.values[0])]
        found = [
            await condition_matching.found(self._memory, [one], only_first=True) for one in wanted
        ]
        return all(len(one.ids) for one in found)

    def _restrict_to_all_values(
        self, question: str, within: EntryRefs | None, *, is_strict: bool
    ) -> EntryRefs | None:
        """Restrict entries to those with all values of a question that asks for several together.

        Without such entries they stay as they are, unless the question `is_strict`. Declared values
        of an observed object do not count. May be called on any thread.
        """
        view, declarations = self._memory.catalogue.view, self._memory.declarations
        form, end = question_patterns.of(question), view.end
        masks = [entries_having(bits, view.traits[:end]) for bits in form.values]
        if form.holders:
            masks.append(view.kind_masks[:end] & form.holders != 0)
        places = np.flatnonzero(reduce(np.logical_and, masks) & (view.ids[:end] != 0))
        ids = view.ids[places]
        if not len(places) and not is_strict:
            return within
        is_kept = np.isin(ids, ids if within is None else within.ids)
        for at, entry in enumerate(map(view.at, places.tolist())):
            is_declared = entry is not None and entry.identity.source == FILE
            if entry is None or (is_declared and declarations.observed(entry.identity.object_id)):
                is_kept[at] = False
        return EntryRefs(places[is_kept], ids[is_kept])

    async def _compare(self, query: Query, mode: str, ask: Ask, stage: str) -> Query:
        """Add similarity by vectors of a stage, lexical matches and boosts."""

        async def compare() -> Similarity | None:
            found = await ask(query.question)
            return self._similarity(query, found, stage) if found else None

        if mode == "vector":
            return replace(query, similarity=await compare())
        await self._memory.words.ready()
        words, catalogue = self._memory.words.lookup, self._memory.catalogue

        def match(store: Store) -> tuple[LexicalMatches, Boosts]:
            matches = read_matches(store, words, query.question, catalogue.view)
            boosts = compute_boosts(matches, query.compared, catalogue)
            return matches.at(query.places), boosts.at(query.places)

        # words are looked up while the model runs
        (matches, boosts), similarity = await asyncio.gather(
            self._memory.archive.read(match), compare()
        )
        return replace(query, matches=matches, boosts=boosts, similarity=similarity)

    def _similarity(self, query: Query, found: Vector, stage: str) -> Similarity:
        index, vector = found
        return index.similarity(vector, self._memory.catalogue.view, stage, query.places)

    async def _rerank(
        self, question: str, level: str, priority: Rank, found: RankedHits
    ) -> RankedHits:
        if self._reranker is None:
            return found
        best = found[:RERANKED]
        contents = await self._memory.content([entry for entry, _ in best])
        order = await self._reranker.order(question, best, contents, level, priority)
        return [*order, *found[RERANKED:]]

    async def _list(self, request: SearchRequest) -> list[Hit]:
        """Return a page of objects in listing order, observed ones first."""
        catalogue, query = (
            self._memory.catalogue,
            Query(within=await self._matching_entries(request)),
        )

        def listed() -> list[ObjectId]:
            found = catalogue.object_ids({}, query.within)
            return sorted(found, key=lambda object_id: not catalogue.is_observed(object_id))

        object_ids = await asyncio.to_thread(listed)
        part = object_ids[request.offset : request.offset + request.limit]
        rows = [(catalogue.representative_of(one), _UNRANKED) for one in part if catalogue.has(one)]
        return await self._read(request, query, rows, [CERTAIN] * len(rows), {})

    async def _hits(
        self, request: SearchRequest, query: Query, order: Order | None = None
    ) -> list[Hit]:
        """Return a page of hits; `order` reorders the best rows."""
        last = request.offset + request.limit
        compared = second_stage.COMPARED if order else hit_features.OVERLAPPED
        found = await self._rank(query, max(last, compared))
        if order:
            found = await order(found)
        contents: Mapping[int, Content] = {}
        if query.without is None:
            found, contents = await self._refine(query, found)
        # rated over at least COMPARED rows, so that a hit's score does not depend on the page size
        scores = [score for _, score in found[: max(last, confidence.COMPARED)]]
        if query.without:
            rating = rate_similar(scores)
        elif len(scores) <= _FEW:
            rating = rate(scores, query.mode)
        else:
            rating = await asyncio.to_thread(rate, scores, query.mode)
        if query.without is None:
            rating = _weaken_other_numbers(query.question, found, rating, contents)
            found, rating = self._move_absent_last(found, rating, contents)
        part = slice(request.offset, last)
        return await self._read(request, query, found[part], rating[part], contents)

    async def _refine(
        self, query: Query, found: RankedHits
    ) -> tuple[RankedHits, Mapping[int, Content]]:
        """Reorder the best rows by what is read of them; return these rows and their contents.

        Adds term overlap, superlatives, confidence features and mismatches.
        """
        question, best = query.question, found[: hit_features.OVERLAPPED]
        contents = await self._memory.content([entry for entry, _ in best])
        if query.matches:
            found = hit_features.order_by_overlap(question, query.matches.missing, found, contents)
            if query.most:
                found = extremes.order(query.most, found)
        if self._words is None:
            self._words = await asyncio.to_thread(hit_features.ours)
        best = [row for row in found[: confidence.COMPARED] if row[0].id in contents]
        view = self._memory.catalogue.view
        has_kind = hit_features.has_asked_kind(question, view.kind_masks[: view.end])
        rows = hit_features.add_features(self._words, question, best, contents, has_kind=has_kind)
        return [*rows, *found[confidence.COMPARED :]], contents

    async def _rank(self, query: Query, enough: int) -> RankedHits:
        """Return the best `enough` rows, one for each object.

        An observed object is also found by what is declared of it, but not by fields with another
        observed value: no term of the question may be in such a field, and no value that it names
        may depend on one.
        """
        best, declared_rows = await self._best(query, enough)
        if not declared_rows:
            return best
        declarations, terms = self._memory.declarations, query_terms.terms(query.question)
        declared = await declarations.read([entry.identity.object_id for entry, _ in declared_rows])
        sides = [
            declared.get(entry.identity.object_id, NOTHING_DECLARED) for entry, _ in declared_rows
        ]
        wrong = [
            " ".join(f"{' '.join(split(name))} {value}" for name, (value, _) in one.items())
            for one in (side.differing for side in sides)
        ]
        is_wrong = await asyncio.to_thread(explanations.having, wrong, terms)
        rows = [*best]
        for at, (row, side) in enumerate(zip(declared_rows, sides, strict=True)):
            entry = row[0]
            # values that are declared but not observed
            traits = int.from_bytes(entry.traits, "little") & ~int.from_bytes(
                self._shown_entry(entry).traits, "little"
            )
            is_untrue = any(bits & traits for bits in vocabulary.values_in(query.question))
            is_right = side.unobserved and at not in is_wrong and not is_untrue
            if not side.differing or is_right or self._is_only_declared(query, entry):
                rows.append(row)
        rows.sort(key=lambda row: -row[1].total)
        ones = await each(lambda row: declarations.one(row[0].identity.object_id), rows)
        found: dict[ObjectId, tuple[Entry, Score]] = {}
        for one, row in zip(ones, rows, strict=True):
            found.setdefault(one, row)
        return [*found.values()][:enough]

    def _is_only_declared(self, query: Query, declared: Entry) -> bool:
        """Return whether the query's entries include the object only by its declared entry."""
        if query.within is None:
            return False
        one = self._memory.declarations.one(declared.identity.object_id)
        entries = self._memory.catalogue.entries(one)
        return not any(entry.id in query.within.ids for entry in entries if entry != declared)

    async def _best(self, query: Query, enough: int) -> tuple[RankedHits, RankedHits]:
        """Return the best `enough` rows, and declared entries of observed objects."""
        declarations, view = self._memory.declarations, self._memory.catalogue.view
        within, declared_rows = query.within, list[tuple[Entry, Score]]()
        found: dict[ObjectId, tuple[Entry, Score]] = {}
        lexical_scores = None if query.matches is None else query.matches.scores
        ids = view.ids if within is None else within.ids
        is_left_out = hit_features.exclusion_rule(query.question)
        ranking = rank(query.similarity, lexical_scores, query.boosts, ids)
        for count, (number, score) in enumerate(ranking, 1):
            if not count % _FEW:
                await asyncio.sleep(0)
            entry = view.at(number if within is None else within.places.item(number))
            # another entry may have taken its place since
            if entry is None or (within is not None and entry.id != within.ids[number]):
                continue
            object_id = entry.identity.object_id
            if query.without is None and is_left_out(object_id, score):
                continue
            if entry.identity.source == FILE and declarations.observed(object_id):
                declared_rows += (
                    [(entry, score)] if len(declared_rows) < hit_features.OVERLAPPED else []
                )
            elif object_id != query.without:
                # keep the best-scoring entry of each object
                found.setdefault(object_id, (entry, score))
            if len(found) == enough:
                break
        return list(found.values()), declared_rows if query.without is None else []

    def _move_absent_last(
        self, found: RankedHits, rating: list[RatedHit], contents: Mapping[int, Content]
    ) -> tuple[RankedHits, list[RatedHit]]:
        """Move weak hits last, and absent and missing declared objects to the end of their class.

        Lower confidences so that none exceeds the one before it.
        """
        declarations, rows = self._memory.declarations, [*zip(found, rating, strict=False)]

        def is_absent(entry: Entry) -> bool:
            if entry.identity.source == FILE and declarations.is_missing(entry.identity.object_id):
                return True
            content = contents.get(entry.id)
            return content is not None and bool(absence_of(declarations, entry, content))

        absent = {row[0].id for row, _ in rows if is_absent(row[0])}
        weak = [one.is_weak for one in rating]
        if not absent and weak == sorted(weak):
            return found, rating
        rows.sort(key=lambda row: (row[1].is_weak, row[0][0].id in absent))
        confidences = accumulate((one.confidence for _, one in rows), min)
        ratings = [RatedHit(c, one.is_weak) for (_, one), c in zip(rows, confidences, strict=True)]
        return [row for row, _ in rows], ratings

    async def _read(
        self,
        request: SearchRequest,
        query: Query,
        found: RankedHits,
        rating: Sequence[RatedHit],
        known: Mapping[int, Content],
    ) -> list[Hit]:
        """Return the hits of a page; entries whose content is gone are left out."""
        entries = await each(self._shown_entry, [entry for entry, _ in found])
        sides = await self._sides(entries)
        new = [entry for entry in entries if entry.id not in known]
        contents = {**known, **(await self._memory.content(new) if new else {})}
        there = [
            (entry, score, mark, sides.get(entry.identity.object_id, NOTHING_DECLARED))
            for entry, (_, score), mark in zip(entries, found, rating, strict=True)
            if entry.id in contents
        ]

        def explain() -> list[tuple[str, Explanation | None]]:
            rows: list[tuple[str, Explanation | None]] = []
            for entry, score, _, side in there:
                # the fields that may have matched
                fields = self._memory.merge_properties([entry], contents)
                asked, why = explanations.find_asked(fields, query.question), None
                if side.unobserved:
                    fields = fields | {DECLARED: dict(side.unobserved)}
                if request.is_explained:
                    why = explanations.explain(entry, fields, score, query, request.where)
                rows.append((asked, why))
            return rows

        is_asked = bool(query.question) or request.is_explained
        rows = await asyncio.to_thread(explain) if is_asked else [("", None)] * len(there)

        def hit(
            row: tuple[tuple[Entry, Score, RatedHit, Declaration], tuple[str, Explanation | None]],
        ) -> Hit:
            (entry, score, mark, side), (asked, why) = row
            content, observed = contents[entry.id], dict[str, Json]()
            if entry.identity.source == FILE:
                declared: dict[str, Json] = json.loads(content.properties)
            else:
                declared = {name: value for name, (value, _) in side.differing.items()}
                declared |= side.unobserved
                observed = {
                    n: value for n, (_, value) in side.differing.items() if value is not None
                }
            text = first_line(content.text)
            if asked and asked not in text and entry.identity.source != FILE:
                text = f"{text}; {asked}"
            text = mark_declared(self._memory.declarations, entry, content, text)
            declared = dict(islice(declared.items(), _MOST_DECLARED))
            source = entry.identity.source
            return Hit(entry.identity.object_id, source, score, mark, text, why, declared, observed)

        return await each(hit, [*zip(there, rows, strict=True)])

    def _shown_entry(self, entry: Entry) -> Entry:
        """Return the entry shown for a found one: the observed entry of its object, if any."""
        if entry.identity.source != FILE:
            return entry
        entries = self._memory.catalogue.entries(
            self._memory.declarations.one(entry.identity.object_id)
        )
        return representative(entries) if entries else entry

    async def _sides(self, entries: Sequence[Entry]) -> Mapping[ObjectId, Declaration]:
        """Return the declarations of those of some entries' objects that are observed."""
        declarations = self._memory.declarations
        observed = [one.identity.object_id for one in entries if one.identity.source != FILE]
        declaring = await each(declarations.declares, observed)
        declared = {
            one: other.identity.object_id
            for one, other in zip(observed, declaring, strict=True)
            if other
        }
        found = await declarations.read([*declared.values()])
        return {one: found[other] for one, other in declared.items() if other in found}


def _weaken_other_numbers(
    question: str, found: RankedHits, rating: list[RatedHit], contents: Mapping[int, Content]
) -> list[RatedHit]:
    """Mark hits as weak of which a field that the question gives a number for has another one."""
    other = {
        number
        for number, content in contents.items()
        if hit_features.has_other_number(question, content)
    }
    return [
        one._replace(is_weak=True) if entry.id in other else one
        for (entry, _), one in zip(found, rating, strict=False)
    ]
