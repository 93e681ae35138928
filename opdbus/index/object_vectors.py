"""The objects' vectors by the engine that serves: read from the database, asked for, compared."""

import asyncio

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.engine.batching import Rank
from opdbus.errors import NoVector, ProviderError
from opdbus.index.memory import Memory
from opdbus.index.store import Entry, Store
from opdbus.index.vector_index import VectorIndex
from opdbus.serving.serving import Serving
from opdbus.state.object import Thing

log = structlog.get_logger()


class ObjectVectors:
    """A vector index for what serves; the kept vectors are read when it is first asked for.

    Which engine serves is asked of `serving` each time: an index belongs to numerics, to no engine.
    """

    def __init__(self, memory: Memory, serving: Serving) -> None:
        self.memory = memory
        self.serving = serving
        # why objects wait for their vectors longer than they should; empty while they do not
        self.fault = ""
        self._indexes: dict[str, asyncio.Task[VectorIndex]] = {}

    async def index(self, numerics: str, dimension: int) -> VectorIndex:
        """Return the index of an engine's numerics; raises StoreError if it cannot be read."""
        task = self._indexes.get(numerics)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.create_task(self._read(numerics, dimension))
            self._indexes[numerics] = task
        return await asyncio.shield(task)

    def keep_only(self, index: VectorIndex) -> None:
        """Drop the indexes of engines that no longer serve; searches that use one keep it."""
        self._indexes = {index.numerics: self._indexes[index.numerics]}

    @property
    def current(self) -> VectorIndex | None:
        """The index of the engine that serves, or that served last if none does; None till read."""
        embedder = self.serving.phase.embedder
        numerics = embedder.numerics if embedder else next(reversed(self._indexes), "")
        task = self._indexes.get(numerics)
        is_read = task and task.done() and not task.cancelled() and not task.exception()
        return task.result() if task and is_read else None

    async def ask(
        self, question: str, priority: Rank = Rank.FEW
    ) -> tuple[VectorIndex, NDArray[np.float32]]:
        """Embed a question: the index to look in, and the vector (dimension,).

        Raises NoModel, ModelError, ProviderError, ShuttingDown.
        """
        found = await self.serving.embed([question], priority=priority)
        vector = found.vectors[0]
        return await self.index(found.numerics, len(vector)), vector

    async def vector(self, thing: Thing) -> tuple[VectorIndex, NDArray[np.float32]]:
        """Return a thing's vector (dimension,), and the index that it is in.

        Waits for the first engine; vectors that are there outlive it. Raises UnknownObject,
        NoVector, NoModel, ProviderError.
        """
        entry = self.memory.catalogue.about(thing)[0]
        index = await self._index()
        vector = index.get(entry.text_digest)
        if vector is None:
            raise NoVector(
                f"{'/'.join(thing)} has no vector yet: wait for the signal Vectorized and ask again"
            )
        return index, vector

    async def _index(self) -> VectorIndex:
        try:
            embedder = await self.serving.embedder()
        except ProviderError:
            if (index := self.current) is None:
                raise
            return index
        return await self.index(embedder.numerics, embedder.dimension)

    def pending(self, index: VectorIndex) -> list[Entry]:
        """Return one entry for each text that has no vector yet; for any thread."""
        lacking = index.lacking(self.memory.catalogue.view.all())
        return list({entry.text_digest: entry for entry in lacking}.values())

    def waiting(self) -> int:
        """Count the things that will get a vector and have none yet; for any thread."""
        if self.serving.config.vector_level == "none":
            return 0
        catalogue = self.memory.catalogue
        if (index := self.current) is None:
            return len(catalogue)
        return len({entry.identity[1:] for entry in index.lacking(catalogue.view.all())})

    def distance(self, one: Entry | None, other: Entry | None) -> float:
        """Return the cosine distance of two entries; NaN while one or a vector is missing."""
        index = self.current
        first = index.get(one.text_digest) if index and one else None
        second = index.get(other.text_digest) if index and other else None
        if first is None or second is None:
            return float("nan")
        return max(0.0, 1.0 - float(first @ second))

    async def _read(self, numerics: str, dimension: int) -> VectorIndex:
        index = VectorIndex(numerics, dimension)
        view = self.memory.catalogue.view

        def recall(store: Store) -> None:
            index.recall(store, {entry.text_digest for entry in view.all()})

        await self.memory.archive.read(recall)
        log.info("vectors read", vectors=len(index))
        return index
