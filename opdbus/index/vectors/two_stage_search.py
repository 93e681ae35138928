"""Two-stage search, which answers before all objects have vectors of the configured level."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from opdbus.engine.batching import Rank
from opdbus.index.database.store import Entry
from opdbus.index.vectors.first_stage import FirstStage
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.second_stage import PendingEmbedding, SecondStage, Vector
from opdbus.index.vectors.vector_index import MANY
from opdbus.platform.tasks import cancel
from opdbus.serving.states import State

# Of very many objects, one in this many may lack its vector before static vectors are made again.
_SHARE: Final = 100


class TwoStageSearch:
    """The two stages of a search, and the decision to use them; `run` keeps the first complete.

    `always` uses both stages even if every object has its vector. A search waits at most `seconds`
    for missing vectors.
    """

    def __init__(self, vectors: ObjectVectors, seconds: float, *, always: bool = False) -> None:
        self.first = FirstStage(vectors.memory, vectors.serving, self._is_worth_it)
        self.second = SecondStage(vectors)
        self._vectors = vectors
        self._seconds = seconds
        self._always = always

    async def run(self) -> None:
        """Keep the static vectors complete until cancelled, then close the second stage."""
        try:
            await self.first.run()
        finally:
            await self.second.close()

    def is_used(self) -> bool:
        """Return whether a search now uses two stages.

        One stage is exact once every object has its vector. With more than MANY objects, one stage
        is also better once more objects have their vector than have a static one.
        """
        if not self.first.is_wanted or self.first.is_broken:
            return False
        if self._always:
            return True
        missing, objects = self._missing_object_count(), len(self._vectors.memory.catalogue)
        is_better = objects <= MANY or self.first.count() >= objects - missing
        return missing > 0 and is_better

    def _is_worth_it(self) -> bool:
        """Return whether static vectors are worth their memory.

        With more than MANY objects, they are only while many lack a vector of the level.
        """
        objects = len(self._vectors.memory.catalogue)
        if self._always or objects <= MANY:
            return True
        return not self._may_be_stored() and self._missing_object_count() > objects // _SHARE

    def _may_be_stored(self) -> bool:
        """Return whether the level's vectors may be stored, and are not read yet.

        Making static vectors of very many objects meanwhile would delay the start.
        """
        vectors = self._vectors
        state = vectors.serving.phase.state
        return vectors.has_earlier_files and vectors.current is None and state is not State.FAILED

    def _missing_object_count(self) -> float:
        """Return the number of objects without a vector of the serving engine.

        Infinite while no engine serves or its index is not read.
        """
        vectors = self._vectors
        index = vectors.current
        if vectors.serving.phase.embedder is None or index is None:
            return math.inf
        return index.missing_object_count(vectors.memory.catalogue.view)

    @asynccontextmanager
    async def start_embedding(
        self, work: Callable[[float], Awaitable[Vector]]
    ) -> AsyncIterator[PendingEmbedding]:
        """Start `work`, which embeds a query by the level, and cancel it when the search ends.

        `work` gets the deadline of the search in the event loop's time.
        """
        ends = asyncio.get_running_loop().time() + self._seconds
        task = asyncio.ensure_future(work(ends))
        try:
            yield PendingEmbedding(task, ends)
        finally:
            await cancel([task])

    async def ask(self, question: str, priority: Rank) -> Vector:
        """Return the static index and a query's static vector (dimension,).

        Objects stored in the last moments may be missing in the index if there are very many.
        """
        await self.first.ready(self._seconds)
        return await self.first.ask(question, priority)

    async def first_vector(self, entry: Entry) -> Vector | None:
        """Return the static index, as `ask` does, and an entry's vector; None if it has none."""
        await self.first.ready(self._seconds)
        return self.first.vector(entry)
