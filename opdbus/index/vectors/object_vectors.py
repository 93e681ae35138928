"""The objects' vectors of the serving engine: loading, lookup, storing and comparison."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.engine.batching import Rank
from opdbus.errors import NoVector, ProviderError, StoreError
from opdbus.index.database.store import Entry, Store
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.embed_priority import EmbedPriorityQueue
from opdbus.index.vectors.quantized_rows import SignQuantizedVectors
from opdbus.index.vectors.vector_index import MANY, VectorIndex
from opdbus.platform.slices import slices
from opdbus.serving.serving import Serving
from opdbus.state.object import ObjectId

log = structlog.get_logger()

# Vectors stored at a time after the database could not be written.
_SAVED: Final = 1024
# Vectors read at a time.
_READ: Final = 4096


class ObjectVectors:
    """The vector indexes of engines, by their numerics; stored vectors are read on first use.

    An index belongs to numerics, not to an engine: several engines may share it. The serving engine
    is taken from `serving` at each call.
    """

    def __init__(self, memory: StateStore, serving: Serving) -> None:
        self.memory = memory
        self.serving = serving
        # why objects wait for their vectors longer than they should; empty while they do not
        self.fault = ""
        # texts without a vector that searches needed
        self.priority_queue = EmbedPriorityQueue()
        folder = memory.archive.folder
        # whether an earlier run left files of very many vectors, perhaps of the engine to be served
        self.has_earlier_files = folder is not None and any(folder.glob("*.rows"))
        self._indexes: dict[str, asyncio.Task[VectorIndex]] = {}

    async def index(self, numerics: str, dimension: int) -> VectorIndex:
        """Return the index of some numerics, read on first use; raises StoreError."""
        task = self._indexes.get(numerics)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = asyncio.create_task(self._read(numerics, dimension))
            self._indexes[numerics] = task
        return await asyncio.shield(task)

    def keep_only(self, index: VectorIndex) -> None:
        """Drop all other indexes; running searches keep the one that they use."""
        self._indexes = {index.numerics: self._indexes[index.numerics]}

    @property
    def current(self) -> VectorIndex | None:
        """The index of the serving engine, else of the last one that served; None until read."""
        embedder = self.serving.phase.embedder
        numerics = embedder.numerics if embedder else next(reversed(self._indexes), "")
        task = self._indexes.get(numerics)
        is_read = task and task.done() and not task.cancelled() and not task.exception()
        return task.result() if task and is_read else None

    async def ask(
        self, question: str, priority: Rank = Rank.FEW
    ) -> tuple[VectorIndex, NDArray[np.float32]]:
        """Embed a query; return the index to search and the vector (dimension,).

        Raises NoModel, ModelError, ProviderError, ShuttingDown.
        """
        found = await self.serving.embed([question], priority=priority)
        vector = found.vectors[0]
        return await self.index(found.numerics, len(vector)), vector

    async def vector(self, object_id: ObjectId) -> tuple[VectorIndex, NDArray[np.float32]]:
        """Return the index and an object's vector (dimension,) in it.

        Waits for the first engine; existing vectors remain available after it ends. Raises
        UnknownObject, NoVector, NoModel, ProviderError.
        """
        entry = self.memory.catalogue.representative_of(object_id)
        index = await self.current_index()
        vector = index.get(entry.text_digest)
        if vector is None:
            raise no_vector(entry)
        return index, vector

    async def current_index(self) -> VectorIndex:
        """Return the index of the serving engine, or the last one; wait for the first engine.

        Raises NoModel, ProviderError.
        """
        try:
            embedder = await self.serving.embedder()
        except ProviderError:
            if (index := self.current) is None:
                raise
            return index
        return await self.index(embedder.numerics, embedder.dimension)

    async def save(
        self, index: VectorIndex, digests: Sequence[bytes], vectors: NDArray[np.float32]
    ) -> None:
        """Store vectors, now or as soon as the database can be written.

        Vectors not stored are in `index.unsaved`; the caller adds all of them to the index.
        """
        archive = self.memory.archive

        def put(store: Store) -> None:
            store.put_vectors([*map(index.key, digests)], digests, vectors)

        if not archive.fault:
            with suppress(StoreError):
                await archive.write(put)
                return
        if not index.unsaved:
            archive.when_writable(self._mark_stale)
        index.unsaved.update(digests)

    async def _mark_stale(self) -> None:
        self.memory.stale.set()

    async def save_rest(self, index: VectorIndex) -> None:
        """Store the vectors in `index.unsaved`."""
        found = [(d, index.get(d)) for d in index.unsaved]
        rest = [(text_digest, vector) for text_digest, vector in found if vector is not None]
        index.unsaved.clear()
        for part in slices(rest, _SAVED):
            vectors = np.stack([vector for _, vector in part])
            await self.save(index, [text_digest for text_digest, _ in part], vectors)

    def missing_object_count(self) -> int:
        """Return the number of objects that still wait for a vector of the configured level."""
        if self.serving.config.vector_level == "none":
            return 0
        index = self.current
        catalogue = self.memory.catalogue
        return len(catalogue) if index is None else index.missing_object_count(catalogue.view)

    def distance(self, one: Entry | None, other: Entry | None) -> float:
        """Return the cosine distance of two entries; NaN if an entry or a vector is missing."""
        index = self.current
        first = index.get(one.text_digest) if index and one else None
        second = index.get(other.text_digest) if index and other else None
        if first is None or second is None:
            return float("nan")
        return max(0.0, 1.0 - float(first @ second))

    async def _read(self, numerics: str, dimension: int) -> VectorIndex:
        texts = self.memory.catalogue.texts
        folder = self.memory.archive.folder
        index = VectorIndex(numerics, dimension, texts, folder=folder)
        if index.path and len(texts) > MANY:
            with suppress(OSError):
                index.adopt(await asyncio.to_thread(SignQuantizedVectors, index.path, dimension))
                await index.shrink()
        if folder:
            _remove_others(folder, index.path)
        missing = index.missing_texts(len(texts))
        for part in slices(missing, _READ):
            found = await self.memory.archive.read(partial(_read_vectors, index, part))
            await index.add(*found)
        log.info("vectors read", vectors=len(index))
        return index


def _remove_others(folder: Path, kept: Path | None) -> None:
    """Remove the files of other engines; the database has their vectors, too."""
    with suppress(OSError):
        for path in folder.iterdir():
            if kept is None or path.stem != kept.stem:
                path.unlink()


def _read_vectors(
    index: VectorIndex, digests: Sequence[bytes], store: Store
) -> tuple[list[bytes], NDArray[np.float32]]:
    """Return the digests with stored vectors, and the vectors (digests, dimension).

    Vectors of another size are damaged and left out.
    """
    by_key = {index.key(text_digest): text_digest for text_digest in digests}
    rows = [row for row in store.vectors_of([*by_key]) if len(row[1]) == 4 * index.dimension]
    matrix = np.frombuffer(b"".join(data for _, data in rows), "<f4")
    return [by_key[key] for key, _ in rows], matrix.reshape(len(rows), index.dimension)


def no_vector(entry: Entry) -> NoVector:
    """Return the error for an entry that has no vector yet."""
    name = "/".join(entry.identity[1:])
    return NoVector(f"{name} has no vector yet: wait for the signal Vectorized and ask again")
