"""Questions answered: hybrid, vector and lexical search, and what is like an object."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from opdbus import kinds, vocabulary
from opdbus.engine.batching import Rank
from opdbus.errors import ModelError, OpDbusError, ProviderError
from opdbus.index import lexical, literal, questions
from opdbus.index.catalogue import Catalogue, matches, thing_of
from opdbus.index.literal import Literal
from opdbus.index.matching import things
from opdbus.index.object_vectors import ObjectVectors
from opdbus.index.rerank import RERANKED, Reranker
from opdbus.index.search import (
    ALONE_WEIGHT,
    NAME_WEIGHT,
    Raised,
    Score,
    ceiling,
    named_kinds,
    named_values,
    rank,
)
from opdbus.index.store import Entry, Store
from opdbus.index.vector_index import VectorIndex
from opdbus.state.conditions import Condition
from opdbus.state.object import Thing

_LEXICAL_CANDIDATES = 1000
# What is left of a question of which all words were conditions.
_NO_WORDS = " \t\n?!.,;"
_UNRANKED = Score(0.0, 0.0, 0.0)
# An identifier that more entries than this have, such as a common port, names none of them.
_FEW = 5
# Things that lose so much where nobody asks for their sort are not raised by their names.
_LEAST_NAMED = -0.05
# Words are looked for in this much of a question: the rest of a longer one would stop the loop.
_QUESTION_CHARACTERS = 10_000


@dataclass(frozen=True, slots=True)
class Hit:
    """A thing that was found, why, and the first line of its text."""

    thing: Thing
    source: str
    score: Score
    snippet: str


@dataclass(frozen=True, slots=True)
class Page:
    """Which hits are wanted: those from `offset` on, at most `limit`, of things that match."""

    limit: int
    offset: int = 0
    wanted: Mapping[str, str] | None = None
    where: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class _Query:
    """All that decides an order: words, a vector and the engine that it is of, lexical matches."""

    question: str = ""
    # None where words do not count
    matches: "_Matches | None" = None
    vector: tuple[VectorIndex, NDArray[np.float32]] | None = None
    without: Thing | None = None
    # what meets the conditions; None where there are none
    within: frozenset[Thing] | None = None
    # of each comparison in the question, what meets it
    compared: Sequence[frozenset[Thing]] = ()


@dataclass(frozen=True, slots=True)
class _Matches:
    """What has words of a question, by id: shares of the highest score, and values.

    `question` is the part in which words were looked for, `terms` how many it has.
    """

    question: str
    terms: int = 0
    shares: Mapping[int, float] = field(default_factory=dict)
    literals: Sequence[Literal] = ()


class Finder:
    """Searches a memory; every answer is exact, over all objects that match the page."""

    def __init__(self, vectors: ObjectVectors, reranker: Reranker | None = None) -> None:
        self._vectors = vectors
        self._memory = vectors.memory
        self._reranker = reranker

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

        `mode` is one of search.MODES; hybrid and vector wait for the model. Where there is none, or
        none that works, a hybrid search is a lexical one. With a `level`, the best ones are put in
        order by that level's model. Conditions in the question join those of the page; where there
        is nothing else, what meets them is listed. Raises NoModel, ModelError, ProviderError.
        """
        asked = await questions.read(self._memory, question[:_QUESTION_CHARACTERS])
        page = replace(page, where=page.where + asked.conditions)
        if not asked.conditions and not asked.compared:
            asked = questions.Question(question)
        within = await self._within(page)
        if within is not None and not asked.words.strip(_NO_WORDS):
            return await self._list(page, within)
        query = await self._query(asked.words, mode, priority)
        query = replace(query, within=within, compared=asked.compared)
        return await self._hits(page, query, level, priority)

    async def _query(self, words: str, mode: str, priority: Rank) -> _Query:
        if mode == "lexical":
            return _Query(words, await self._matches(words))
        if mode == "vector":
            return _Query(words, vector=await self._vectors.ask(words, priority))
        # the model runs while the database reads, on threads of their own
        vector, matches = await asyncio.gather(self._asked(words, priority), self._matches(words))
        return _Query(words, matches, vector)

    async def _within(self, page: Page) -> frozenset[Thing] | None:
        """Return what meets the page's conditions, None if it has none."""
        return await things(self._memory, page.where) if page.where else None

    async def _list(self, page: Page, within: frozenset[Thing]) -> list[Hit]:
        """Return a page of things in listing order."""
        catalogue = self._memory.catalogue
        things = await asyncio.to_thread(catalogue.things, page.wanted or {})
        found = [thing for thing in things if thing in within and catalogue.has(thing)]
        part = found[page.offset : page.offset + page.limit]
        return await self._read([(catalogue.about(thing)[0], _UNRANKED) for thing in part])

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
        vector = await self._vectors.vector(thing)
        within = await self._within(page)
        return await self._hits(page, _Query(vector=vector, without=thing, within=within))

    async def _matches(self, question: str) -> _Matches:
        """Give the share of the highest possible BM25 score that each match has, and values."""
        question = question[:_QUESTION_CHARACTERS]
        objects = len(self._memory.catalogue.view.places)
        return await self._memory.archive.read(lambda store: _matches(store, question, objects))

    async def _hits(
        self, page: Page, query: _Query, level: str = "", priority: Rank = Rank.FEW
    ) -> list[Hit]:
        enough = max(page.offset + page.limit, RERANKED if level else 0)
        found = self._ranked(page, query, enough)
        if level and self._reranker:
            best = found[:RERANKED]
            contents = await self._memory.content([entry for entry, _ in best])
            order = await self._reranker.order(query.question, best, contents, level, priority)
            found = order + found[RERANKED:]
        return await self._read(found[page.offset : page.offset + page.limit])

    def _ranked(self, page: Page, query: _Query, enough: int) -> list[tuple[Entry, Score]]:
        view = self._memory.catalogue.view
        cosines = query.vector[0].cosines(query.vector[1], view) if query.vector else None
        shares = np.zeros(len(view.entries), np.float32)
        for number, share in (query.matches.shares if query.matches else {}).items():
            # an entry may have gone since the words were looked up
            if number in view.places:
                shares[view.places[number]] = share
        within = None if query.within is None else self._memory.catalogue.places(query.within)
        found: dict[Thing, tuple[Entry, Score]] = {}
        raised = None
        if query.matches is not None:
            raised = _raised(query.matches, query.compared, self._memory.catalogue)
        for index, score in rank(cosines, shares, within, raised):
            entry = view.entries[index]
            if entry is None:
                continue
            thing = thing_of(entry)
            if thing != query.without and matches(entry, page.wanted or {}):
                # a thing counts once, by its best entry
                found.setdefault(thing, (entry, score))
            if len(found) == enough:
                break
        return list(found.values())

    async def _read(self, found: Sequence[tuple[Entry, Score]]) -> list[Hit]:
        contents = await self._memory.content([entry for entry, _ in found])
        return [
            Hit(
                thing_of(entry),
                entry.identity.source,
                score,
                contents[entry.id].text.partition("\n")[0],
            )
            for entry, score in found
            if entry.id in contents
        ]


def _raised(
    matches: _Matches, compared: Sequence[frozenset[Thing]], catalogue: Catalogue
) -> Raised:
    """Raise what has the values, is of the sorts, or has the very name that words of it say."""
    view = catalogue.view
    entries = slice(len(view.entries))
    question = matches.question
    values = named_values(list(_having(matches, compared, catalogue)))
    asked = kinds.asked(question, lexical.STOP_WORDS)
    more = named_kinds(asked, view.kinds[entries], view.less[entries], values)
    # a word that is a value is no name besides
    for name in set(lexical.names(question)).difference(one.word for one in matches.literals):
        # packages, accounts, groups and the like have names of ordinary words
        places = [at for at in catalogue.named(name) if more[at] > _LEAST_NAMED]
        if asked.subject:
            # `processes of alice` are not the account
            places = [at for at in places if view.kinds[at] & asked.subject]
        more[places] += NAME_WEIGHT * lexical.certainty(name, matches.terms)
    # a question that is nothing but a name asks for what has it
    more[catalogue.named(question.strip())] += ALONE_WEIGHT
    return Raised(values, more)


def _having(
    matches: _Matches, compared: Sequence[frozenset[Thing]], catalogue: Catalogue
) -> Iterator[NDArray[np.bool_]]:
    """Yield which entries (entries,) have each value that a question names."""
    view = catalogue.view
    traits = view.traits[: len(view.entries)]
    for bits in vocabulary.asked(matches.question):
        meant = np.frombuffer(vocabulary.as_bytes(bits), np.uint64)
        yield np.any(traits & meant, axis=1)
    # entries may have gone since the words were looked up
    found = [[view.places[n] for n in one.entries if n in view.places] for one in matches.literals]
    found += [catalogue.places(things).tolist() for things in compared]
    for places in found:
        mask = np.zeros(len(traits), np.bool_)
        mask[places] = True
        yield mask


def _matches(store: Store, question: str, objects: int) -> _Matches:
    terms = lexical.terms(question)
    if not terms:
        return _Matches(question)
    counts = {term: store.words.count_matches(term) for term in terms}
    highest = ceiling([*counts.values()], objects)
    found = store.words.match(terms, _LEXICAL_CANDIDATES)
    shares = {entry: min(1.0, score / highest) for entry, score in found}
    shares |= dict.fromkeys(_named(store, terms), 1.0)
    return _Matches(question, len(terms), shares, literal.read(store, question, counts))


def _named(store: Store, terms: Sequence[str]) -> list[int]:
    """Find the few entries that have every identifier of a question: they are meant literally."""
    identifiers = [term for term in terms if lexical.is_identifier(term)]
    if not identifiers:
        return []
    having = store.words.match(identifiers, _FEW + 1, every=True)
    return [entry for entry, _ in having] if len(having) <= _FEW else []
