"""The second stage of a search: the best hits of the first, ordered by the level's vectors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.batching import Rank
from opdbus.engine.embedder import Embedder
from opdbus.errors import OpDbusError
from opdbus.index.database.store import Entry
from opdbus.index.ranking.scores import Score
from opdbus.index.vectors.object_vectors import ObjectVectors, no_vector
from opdbus.index.vectors.vector_index import VectorIndex
from opdbus.platform.tasks import cancel, start

Vector: TypeAlias = tuple[VectorIndex, NDArray[np.float32]]
RankedHits: TypeAlias = Sequence[tuple[Entry, Score]]
# embeds a query
Ask: TypeAlias = Callable[[str], Awaitable[Vector | None]]

# Hits whose missing vectors are computed during a search: as many as people look at.
COMPUTED: Final = 24
# Hits that are compared by existing vectors; fewer lose answers of the second stage.
COMPARED: Final = 100
# Texts in flight for each lane of the scheduler, so that no lane idles.
_AT_HAND: Final = 2


@dataclass(frozen=True, slots=True)
class PendingEmbedding:
    """The future vector of a query, and the deadline of the search in the event loop's time."""

    vector: Awaitable[Vector]
    ends: float


@asynccontextmanager
async def prefetch_embedding(ask: Ask, words: str) -> AsyncIterator[Ask]:
    """Begin to embed a query, `words`, whose spelling may still be corrected.

    Yields a function that returns the vector of the final query: the begun one if the query is
    unchanged.
    """
    task = asyncio.ensure_future(ask(words))
    # let the model start before the lexical search
    await asyncio.sleep(0)
    try:
        yield lambda question: task if question == words else ask(question)
    finally:
        await cancel([task])


class SecondStage:
    """Ordering of hits by the level's vectors; missing ones are computed while there is time."""

    def __init__(self, vectors: ObjectVectors) -> None:
        self._vectors = vectors
        self._tasks: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Cancel running computations."""
        await cancel(self._tasks)

    async def own_vector(self, entry: Entry, ends: float) -> Vector:
        """Return the index and an entry's vector, computed if missing until the time `ends`.

        Raises NoVector.
        """
        if embedder := self._vectors.serving.phase.embedder:
            index = await self._vectors.index(embedder.numerics, embedder.dimension)
            if entry.text_digest not in index:
                await self._compute(index, [entry], ends)
            if (vector := index.get(entry.text_digest)) is not None:
                return index, vector
        raise no_vector(entry)

    async def order(self, found: RankedHits, asking: PendingEmbedding) -> RankedHits:
        """Return the hits: those compared by the level's vectors, best first, then the others.

        Without an engine or the query's vector, the order stays, and the best hits' texts get
        priority.
        """
        best, rest = found[:COMPUTED], found[COMPUTED:]
        # do not wait for a model that is still loading
        if self._vectors.serving.phase.embedder is None:
            return [*self._prioritize(best), *rest]
        current = self._vectors.current
        is_known = current is not None and not current.entries_without_vector(
            entry for entry, _ in best
        )
        try:
            # if no vector is missing, wait for the query's vector as an exact search does
            async with asyncio.timeout_at(None if is_known else asking.ends):
                index, vector = await asking.vector
        except (TimeoutError, OpDbusError):
            return [*self._prioritize(best), *rest]
        if missing := index.entries_without_vector(entry for entry, _ in best):
            await self._compute(index, missing, asking.ends)
        # while one of the best has no vector, less likely hits must not come before it
        depth = COMPUTED if index.entries_without_vector(entry for entry, _ in best) else COMPARED
        return [*self._order_by_cosine(found[:depth], index, vector), *found[depth:]]

    def _order_by_cosine(
        self, found: RankedHits, index: VectorIndex, vector: NDArray[np.float32]
    ) -> RankedHits:
        known = {entry.text_digest: index.get(entry.text_digest) for entry, _ in found}
        vectors = {key: own for key, own in known.items() if own is not None}
        others = [row for row in found if row[0].text_digest not in vectors]
        if not vectors:
            return self._prioritize(others)
        products = np.stack([*vectors.values()]) @ vector
        cosines = dict(zip(vectors, products.tolist(), strict=True))
        level = self._vectors.serving.config.vector_level
        baseline = index.baseline(vector)
        best = [
            (entry, score.with_cosine(cosines[entry.text_digest], level, baseline))
            for entry, score in found
            if entry.text_digest in cosines
        ]
        return [*sorted(best, key=lambda row: -row[1].total), *self._prioritize(others)]

    def _prioritize(self, found: RankedHits) -> RankedHits:
        """Return hits unchanged, and give their texts priority in the embedding loop."""
        self._vectors.priority_queue.add(entry.text_digest for entry, _ in found)
        return found

    async def _compute(self, index: VectorIndex, entries: Sequence[Entry], ends: float) -> None:
        """Compute vectors, and wait until the time `ends`; texts begun by then are finished."""
        task = start(self._work(index, entries, ends), self._tasks)
        await asyncio.wait([task], timeout=ends - asyncio.get_running_loop().time())

    async def _work(self, index: VectorIndex, entries: Sequence[Entry], ends: float) -> None:
        embedder = self._vectors.serving.phase.embedder
        if embedder is None or embedder.numerics != index.numerics:
            return
        with embedder.held(), suppress(OpDbusError):
            keys = list(dict.fromkeys(entry.text_digest for entry in entries))
            found = await self._vectors.memory.texts(keys)
            keys = [key for key in keys if key in found]
            made = await _embed_until(embedder, index, {key: found[key] for key in keys}, ends)
            if made:
                await self._vectors.save(index, [*made], np.stack([*made.values()]))


async def _embed_until(
    embedder: Embedder, index: VectorIndex, texts: Mapping[bytes, str], ends: float
) -> dict[bytes, NDArray[np.float32]]:
    """Embed texts one by one in their order until the time `ends`; add and return the vectors."""
    left, clock = iter(texts.items()), asyncio.get_running_loop().time
    made: dict[bytes, NDArray[np.float32]] = {}

    async def lane() -> None:
        with suppress(OpDbusError):
            for key, text in left:
                if clock() >= ends:
                    return
                # another search or the embedding loop may have been faster
                if key in index:
                    continue
                vectors = (await embedder.embed([text], priority=Rank.MANY)).vectors
                await index.add([key], vectors)
                made[key] = vectors[0]

    await asyncio.gather(*(lane() for _ in range(_AT_HAND * embedder.scheduler.lanes)))
    return made
