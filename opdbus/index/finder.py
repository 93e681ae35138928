"""Questions answered: hybrid, vector and lexical search, and what is like an object."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.batching import Rank
from opdbus.errors import ModelError, OpDbusError, ProviderError
from opdbus.index import (
    calibration,
    common_words,
    explaining,
    matching,
    questions,
    second_stage,
    word_vectors,
)
from opdbus.index.calibration import CERTAIN, Judged, judge, like
from opdbus.index.cascade import Cascade
from opdbus.index.catalogue import thing_of
from opdbus.index.first_stage import STATIC
from opdbus.index.hits import Hit, Page, Query, Why
from opdbus.index.matches import NONE, Matches, raise_by, read
from opdbus.index.object_vectors import ObjectVectors
from opdbus.index.rerank import RERANKED, Reranker
from opdbus.index.search import Score, rank
from opdbus.index.second_stage import Found
from opdbus.index.store import Content, Entry
from opdbus.index.vector_index import VectorIndex
from opdbus.index.view import Found as Met
from opdbus.index.word_vectors import WordVectors
from opdbus.state.object import Thing
from opdbus.text import first_line

# What is left of a question of which all words were conditions.
_NO_WORDS = " \t\n?!.,;"
_UNRANKED = Score(0.0, 0.0, 0.0)
# Words are looked for in this much of a question: the rest of a longer one would stop the loop.
_QUESTION_CHARACTERS = 10_000


# puts what was found in order
Order: TypeAlias = Callable[[Found], Awaitable[Found]]


class Finder:
    """Searches a memory; every answer is over all objects that match the page.

    With a cascade, searches need not wait for the vectors of the level.
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
        self._words: WordVectors | None = None

    def staged(self) -> int:
        """Return how many things a search in two stages finds."""
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
        """Find the things that best answer a question, best first.

        `mode` is one of search.MODES; hybrid and vector wait for the model, unless there is a
        cascade. Where there is no model, or none that works, a hybrid search is a lexical one. With
        a `level`, the best ones are put in order by that level's model. Conditions in the question
        join those of the page; where there is nothing else, what meets them is listed. Raises
        NoModel, ModelError, ProviderError.
        """
        asked = await questions.read(self._memory, question[:_QUESTION_CHARACTERS])
        page = replace(page, where=page.where + asked.conditions)
        if not asked.conditions and not asked.compared:
            asked = questions.Question(question)
        asked = await questions.corrected(self._vectors, asked)
        within = await self._within(page)
        if within is not None and not asked.words.strip(_NO_WORDS):
            return await self._list(page, Query(within=within))
        query = Query(
            asked.words, within=within, compared=asked.compared, corrected=asked.corrected
        )
        order: Order | None = None
        if level:
            order = partial(self._reranked, asked.words, level, priority)
        cascade = self._cascade
        if mode == "lexical" or not cascade or not cascade.is_used():
            return await self._hits(page, await self._filled(query, mode, priority), order)
        if order:
            return await self._hits(page, await self._staged(cascade, query, mode, priority), order)
        ask = self._vectors.ask
        async with cascade.asking(lambda _ends: ask(asked.words, priority)) as asking:
            query = await self._staged(cascade, query, mode, priority)
            return await self._hits(page, query, partial(cascade.second.order, asking=asking))

    async def _filled(self, query: Query, mode: str, priority: Rank) -> Query:
        """Add the vector of a question, and what has its words."""
        stage = self._vectors.serving.config.vector_level
        if mode == "lexical":
            return replace(query, matches=await self._matches(query.question))
        if mode == "vector":
            vector = await self._vectors.ask(query.question, priority)
            return replace(query, vector=vector, stage=stage)
        # the model runs while the database reads, on threads of their own
        asked, matches = self._asked(query.question, priority), self._matches(query.question)
        found = await asyncio.gather(asked, matches)
        return replace(query, vector=found[0], matches=found[1], stage=stage)

    async def _staged(self, cascade: Cascade, query: Query, mode: str, priority: Rank) -> Query:
        """Add the static vector of a question, and what has its words."""
        query = replace(query, stage=STATIC)
        if mode == "vector":
            return replace(query, vector=await cascade.ask(query.question, priority))
        asked, matches = cascade.ask(query.question, priority), self._matches(query.question)
        found = await asyncio.gather(asked, matches)
        return replace(query, vector=found[0], matches=found[1])

    async def _reranked(self, question: str, level: str, priority: Rank, found: Found) -> Found:
        if self._reranker is None:
            return found
        best = found[:RERANKED]
        contents = await self._memory.content([entry for entry, _ in best])
        order = await self._reranker.order(question, best, contents, level, priority)
        return [*order, *found[RERANKED:]]

    async def _within(self, page: Page) -> Met | None:
        """Return what meets the page's conditions, None if it has none."""
        return await matching.found(self._memory, page.where) if page.where else None

    async def _list(self, page: Page, query: Query) -> list[Hit]:
        """Return a page of things in listing order."""
        catalogue, found = self._memory.catalogue, self._places(page, query)
        places = catalogue.view.taken() if found is None else found
        things = await asyncio.to_thread(lambda: sorted({*catalogue.view.things(places)}))
        part = things[page.offset : page.offset + page.limit]
        rows = [(catalogue.about(thing)[0], _UNRANKED) for thing in part if catalogue.has(thing)]
        return await self._read(page, query, rows, [CERTAIN] * len(rows), {})

    async def _asked(
        self, question: str, priority: Rank
    ) -> tuple[VectorIndex, NDArray[np.float32]] | None:
        """Return the question's vector, None where no engine can be had: words are left."""
        try:
            return await self._vectors.ask(question, priority)
        except OpDbusError as error:
            if isinstance(error, ModelError | ProviderError) or self._vectors.serving.phase.error:
                return None
            raise

    async def similar(self, thing: Thing, page: Page) -> list[Hit]:
        """Find the things that are most like a thing, itself left out.

        Raises UnknownObject, NoVector, NoModel.
        """
        within = await self._within(page)
        query = Query(without=thing, within=within)
        entry = self._memory.catalogue.about(thing)[0]
        cascade = self._cascade
        if cascade and cascade.is_used() and (own := await cascade.first_vector(entry)):
            async with cascade.asking(partial(cascade.second.own, entry)) as asking:
                query = replace(query, vector=own, stage=STATIC)
                return await self._hits(page, query, partial(cascade.second.order, asking=asking))
        vector = await self._vectors.vector(thing)
        stage = self._vectors.serving.config.vector_level
        return await self._hits(page, replace(query, vector=vector, stage=stage))

    async def _matches(self, question: str) -> Matches:
        """Give the share of the highest possible BM25 score that each match has, and values."""
        memory, question = self._memory, question[:_QUESTION_CHARACTERS]
        await memory.words.ready()
        words, view = memory.words.lookup, memory.catalogue.view
        return await memory.archive.read(lambda store: read(store, words, question, view))

    async def _hits(self, page: Page, query: Query, order: Order | None = None) -> list[Hit]:
        """Return a page of what was found; an `order` is that of the best."""
        last = page.offset + page.limit
        ranked = max(last, second_stage.COMPARED if order else common_words.COMPARED)
        found: Found = self._ranked(page, query, ranked)
        if order:
            found = await order(found)
        contents: Mapping[int, Content] = {}
        if query.without is None:
            contents = await self._memory.content([e for e, _ in found[: common_words.COMPARED]])
            if query.matches:
                missing = query.matches.missing
                found = common_words.order(query.question, missing, found, contents)
            found = await self._evident(query.question, found, contents)
        # a hit has the same score on a page of any size
        scores = [score for _, score in found[: max(last, calibration.COMPARED)]]
        judged = judge(scores, query.mode) if query.without is None else like(scores)
        part = slice(page.offset, last)
        return await self._read(page, query, found[part], judged[part], contents)

    async def _evident(self, question: str, found: Found, contents: Mapping[int, Content]) -> Found:
        """Add to the best what the words of a question and of each say of each other."""
        if self._words is None:
            self._words = await asyncio.to_thread(word_vectors.ours)
        best = [row for row in found[: calibration.COMPARED] if row[0].id in contents]
        evidence = self._words.evidence(question, [contents[entry.id] for entry, _ in best])
        rows = [
            (entry, replace(score, evidence=each))
            for (entry, score), each in zip(best, evidence, strict=True)
        ]
        return [*rows, *found[calibration.COMPARED :]]

    def _ranked(self, page: Page, query: Query, enough: int) -> list[tuple[Entry, Score]]:
        view = self._memory.catalogue.view
        # what comes after is of these only
        within = self._places(page, query)
        cosines, exact, background = None, None, None
        if query.vector:
            index, vector = query.vector
            cosines = index.cosines(vector, view, within)
            exact, background = index.exact(vector, view, within), index.background(vector)
        shares = (query.matches or NONE).shares_of(len(view.entries), within)
        found: dict[Thing, tuple[Entry, Score]] = {}
        raised = None
        if query.matches is not None:
            raised = raise_by(query.matches, query.compared, self._memory.catalogue, within)
        ranked = rank(cosines, shares, raised, query.stage, exact, background)
        for number, score in ranked:
            entry = view.entries[number if within is None else int(within[number])]
            if entry is None:
                continue
            thing = thing_of(entry)
            if thing != query.without:
                # a thing counts once, by its best entry
                found.setdefault(thing, (entry, score))
            if len(found) == enough:
                break
        return list(found.values())

    def _places(self, page: Page, query: Query) -> NDArray[np.intp] | None:
        """Return the places of what is asked for, in order; None if that is all."""
        view = self._memory.catalogue.view
        within = None if query.within is None else np.sort(view.there(query.within))
        if not page.wanted:
            return within
        wanted = view.meeting(page.wanted)
        return wanted if within is None else np.intersect1d(wanted, within)

    async def _read(
        self,
        page: Page,
        query: Query,
        found: Found,
        judged: Sequence[Judged],
        known: Mapping[int, Content],
    ) -> list[Hit]:
        new = [entry for entry, _ in found if entry.id not in known]
        contents = {**known, **(await self._memory.content(new) if new else {})}
        there = [
            (*row, mark) for row, mark in zip(found, judged, strict=True) if row[0].id in contents
        ]
        whys: Sequence[Why | None] = [None] * len(there)
        joined = self._memory.joined
        if page.is_explained:
            whys = await asyncio.to_thread(
                lambda: [
                    explaining.why(entry, joined([entry], contents), score, query, page.where)
                    for entry, score, _ in there
                ]
            )
        return [
            Hit(
                thing_of(entry),
                entry.identity.source,
                score,
                mark,
                first_line(contents[entry.id].text),
                reason,
            )
            for (entry, score, mark), reason in zip(there, whys, strict=True)
        ]
