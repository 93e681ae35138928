"""Questions answered: hybrid, vector and lexical search, and what is like an object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from opdbus.index import lexical
from opdbus.index.catalogue import Thing, thing_of
from opdbus.index.search import rank

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opdbus.index.memory import Engine, Memory
    from opdbus.index.search import Score
    from opdbus.index.store import Entry

_LEXICAL_CANDIDATES = 1000


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


class Finder:
    """Searches a memory; every answer is exact, over all objects that match the page."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def search(self, question: str, page: Page, mode: str = "hybrid") -> list[Hit]:
        """Find the things that best answer a question, best first.

        `mode` is one of search.MODES; hybrid and vector wait for the model. Raises NoModel.
        """
        matches = await self._matches(question) if mode != "vector" else {}
        if mode == "lexical":
            return await self._hits(page, None, matches)
        engine = await self._memory.engine()
        query = (await engine.embedder.embed([question])).vectors[0]
        return await self._hits(page, (engine, query), matches)

    async def similar(self, thing: Thing, page: Page) -> list[Hit]:
        """Find the things that are most like a thing, itself left out.

        Raises UnknownObject, NoVector, NoModel.
        """
        query = await self._memory.vector(thing)
        engine = await self._memory.engine()
        return await self._hits(page, (engine, query), {}, without=thing)

    async def _matches(self, question: str) -> dict[int, float]:
        query = lexical.fts_query(question)
        if not query:
            return {}
        found = await self._memory.archive.read(lambda s: s.match(query, _LEXICAL_CANDIDATES))
        return dict(found)

    async def _hits(
        self,
        page: Page,
        asked: tuple[Engine, NDArray[np.float32]] | None,
        matches: Mapping[int, float],
        without: Thing | None = None,
    ) -> list[Hit]:
        entries = self._memory.catalogue.matching(page.wanted or {})
        cosines = _cosines(*asked, entries) if asked else None
        found: dict[Thing, tuple[Entry, Score]] = {}
        for index, score in rank([entry.id for entry in entries], cosines, matches):
            thing = thing_of(entries[index])
            if thing != without:
                # a thing counts once, by its best entry
                found.setdefault(thing, (entries[index], score))
            if len(found) == page.offset + page.limit:
                break
        return await self._read(list(found.values())[page.offset :])

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


def _cosines(
    engine: Engine, query: NDArray[np.float32], entries: Sequence[Entry]
) -> NDArray[np.float32]:
    """Give the cosine of each entry with the query, NaN where its vector is not computed."""
    scores = np.append(engine.vectors.scores(query), np.float32("nan"))
    # row -1, of an entry without a vector, is the NaN at the end
    cosines: NDArray[np.float32] = scores[[engine.vectors.row(e.text_digest) for e in entries]]
    return cosines
