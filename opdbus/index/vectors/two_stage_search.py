"""Searches in two stages, which answer before the level's own vectors are there."""

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

# Of very many objects, one of so many may lack its vector before all get static ones again.
_SHARE: Final = 100


class Cascade:
    """Whether a search has two stages, and both of them; `run` keeps the first one complete.

    `always` has them also where every object has its vector. A search waits at most so many seconds
    for vectors that are missing.
    """

    def __init__(self, vectors: ObjectVectors, seconds: float, *, always: bool = False) -> None:
        self.first = FirstStage(vectors.memory, vectors.serving, self._is_worth_it)
        self.second = SecondStage(vectors)
        self._vectors = vectors
        self._seconds = seconds
        self._always = always

    async def run(self) -> None:
        """Keep the static vectors complete, until cancelled."""
        try:
            await self.first.run()
        finally:
            await self.second.close()

    def is_used(self) -> bool:
        """Return whether a search now has two stages.

        One stage is exact as soon as every object has its vector; of very many, it is better than
        two as soon as more of them have one than have a static one.
        """
        if not self.first.is_wanted or self.first.is_broken:
            return False
        if self._always:
            return True
        waiting, objects = self._waiting(), len(self._vectors.memory.catalogue)
        is_better = objects <= MANY or self.first.count() >= objects - waiting
        return waiting > 0 and is_better

    def _is_worth_it(self) -> bool:
        """Return whether static vectors are worth their memory: not beside very many others."""
        objects = len(self._vectors.memory.catalogue)
        if self._always or objects <= MANY:
            return True
        return not self._may_be_stored() and self._waiting() > objects // _SHARE

    def _may_be_stored(self) -> bool:
        """Return whether the level's vectors are not read yet, and most of them may be stored.

        A restart took twice as long while static vectors of a million objects were made beside it.
        """
        vectors = self._vectors
        state = vectors.serving.phase.state
        return vectors.were_left and vectors.current is None and state is not State.FAILED

    def _waiting(self) -> float:
        """Return how many objects lack a vector of what serves; all of them if nothing does."""
        vectors = self._vectors
        index = vectors.current
        if vectors.serving.phase.embedder is None or index is None:
            return math.inf
        return index.waiting

    @asynccontextmanager
    async def asking(
        self, work: Callable[[float], Awaitable[Vector]]
    ) -> AsyncIterator[PendingEmbedding]:
        """Embed by the level while the first stage searches; stop when the search has ended.

        `work` is given the moment when the search is to be over.
        """
        ends = asyncio.get_running_loop().time() + self._seconds
        task = asyncio.ensure_future(work(ends))
        try:
            yield PendingEmbedding(task, ends)
        finally:
            await cancel([task])

    async def ask(self, question: str, priority: Rank) -> Vector:
        """Return a question's static vector, and the index of all objects that are stored.

        Those that came in the last moments may be missing where there are very many.
        """
        await self.first.ready(self._seconds)
        return await self.first.ask(question, priority)

    async def first_vector(self, entry: Entry) -> Vector | None:
        """Return an object's static vector, and the index of all objects as of `ask`."""
        await self.first.ready(self._seconds)
        return self.first.vector(entry)
