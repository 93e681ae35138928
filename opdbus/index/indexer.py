"""The loop that gives every object its vector: at most one batch is ever computed twice."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.engine.embedder import Embedder
from opdbus.errors import NoModel, OpDbusError, ShuttingDown, StoreError
from opdbus.index.events import Vectorized
from opdbus.index.object_vectors import ObjectVectors
from opdbus.index.sentence_vectors import SentenceVectors
from opdbus.index.store import Entry
from opdbus.index.vector_index import VectorIndex
from opdbus.tasks import pauses, until_first_ends

log = structlog.get_logger()

# Texts tokenized at a time: enough to find rows of equal length, few enough to hold in memory.
_WINDOW = 8192

# Vectors stored at a time that could not be stored before.
_SAVED: Final = 1024
# How long what failed is left alone, the first time, the second, and so on.
_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0)


class Indexer:
    """Computes what is pending, and commits batch by batch.

    `on_progress` gets the number of texts that still wait, after each batch; `on_fault` a sentence
    when vectorizing failed, and "" when it works again.
    """

    def __init__(
        self,
        vectors: ObjectVectors,
        on_fault: Callable[[str], None] = lambda _sentence: None,
        on_progress: Callable[[int], None] = lambda _waiting: None,
        retry_seconds: Sequence[float] = _RETRY_SECONDS,
    ) -> None:
        self._vectors = vectors
        self._memory = vectors.memory
        self._serving = vectors.serving
        self._on_fault = on_fault
        self._on_progress = on_progress
        self._sentences = SentenceVectors(vectors)
        self._waiting = 0
        self._retry_seconds = retry_seconds

    async def run(self) -> None:
        """Work whenever the memory is stale or another engine serves, until cancelled."""
        self._memory.stale.set()
        await until_first_ends(self._follow(), self._work(), self._sentences.run())

    async def _follow(self) -> None:
        async with aclosing(self._serving.changes()) as changes:
            async for phase in changes:
                if phase.embedder:
                    self._memory.stale.set()

    async def _work(self) -> None:
        delays = pauses(self._retry_seconds)
        while True:
            await self._memory.stale.wait()
            self._memory.stale.clear()
            try:
                await self._catch_up(await self._serving.embedder())
            except NoModel:
                continue  # until a level is configured that has one
            except ShuttingDown:
                if self._serving.is_closed:
                    raise
                self._memory.stale.set()  # only this engine: another one took its place
            except OpDbusError as error:
                delay = next(delays)
                log.error("not vectorized", reason=str(error), again_in_s=delay)  # noqa: TRY400 -- a sentence, no traceback
                self._on_fault(f"objects wait for their vectors: {error}")
                asyncio.get_running_loop().call_later(delay, self._memory.stale.set)
            else:
                delays = pauses(self._retry_seconds)
                self._on_fault("")

    async def _catch_up(self, embedder: Embedder) -> None:
        with embedder.held():
            index = await self._vectors.index(embedder.numerics, embedder.dimension)
            self._vectors.keep_only(index)
            await self._save_rest(index)
            computed = 0
            while True:
                generation = self._memory.generation
                # on a thread: 100,000 objects take some time
                if not (pending := await asyncio.to_thread(self._vectors.pending, index)):
                    break
                if self._serving.phase.embedder is not embedder:
                    return  # its successor has begun to serve, which makes the memory stale
                self._set_waiting(len(pending))
                done = await self._embed(embedder, index, pending[:_WINDOW])
                computed += done
                if not done:
                    return  # all of it is being changed right now, which makes the memory stale
        self._set_waiting(0)
        self._memory.forget_texts()
        await self._tell_moved(index)
        await self._prune(index)
        objects = len(self._memory.catalogue)
        reused = max(0, objects - computed)
        self._memory.notify(Vectorized(generation, embedder.level, computed, reused))
        log.info("vectorized", computed=computed, reused=reused)
        self._memory.unembedded.set()

    async def _embed(self, embedder: Embedder, index: VectorIndex, pending: Sequence[Entry]) -> int:
        """Embed texts, some batches at a time; each part is committed before the next is begun."""
        texts = await self._memory.texts(pending)
        # without those of objects that were changed or removed meanwhile
        there = [entry for entry in pending if entry.text_digest in texts]
        rows = await embedder.tokenize([texts[entry.text_digest] for entry in there])
        computed = 0
        for part in _parts([len(row) for row in rows], embedder.batch_tokens):
            # thousands may come and go while the parts before are computed
            wanted = [i for i in part if self._is_wanted(there[i])]
            if wanted:
                vectors = await embedder.run([rows[i] for i in wanted])
                digests = [there[i].text_digest for i in wanted]
                await self._save(index, digests, vectors)
                index.add(digests, vectors)
            computed += len(wanted)
            self._set_waiting(self._waiting - len(part))
        return computed

    def _is_wanted(self, entry: Entry) -> bool:
        """Return whether an object still has the text that it had."""
        now = self._memory.catalogue.get(entry.identity)
        return now is not None and now.text_digest == entry.text_digest

    async def _save(
        self, index: VectorIndex, digests: Sequence[bytes], vectors: NDArray[np.float32]
    ) -> None:
        """Store vectors, now or as soon as the database can be written; they serve meanwhile."""
        archive = self._memory.archive
        keys = [index.key(text_digest) for text_digest in digests]
        if not archive.fault:
            with suppress(StoreError):
                await archive.write(lambda store: store.put_vectors(keys, digests, vectors))
                return
        if not index.unsaved:
            archive.when_writable(self._again)
        index.unsaved.update(digests)

    async def _again(self) -> None:
        self._memory.stale.set()

    async def _save_rest(self, index: VectorIndex) -> None:
        """Store the vectors that could not be stored before."""
        found = [(d, index.get(d)) for d in index.unsaved]
        rest = [(text_digest, vector) for text_digest, vector in found if vector is not None]
        index.unsaved.clear()
        for part in (rest[n : n + _SAVED] for n in range(0, len(rest), _SAVED)):
            vectors = np.stack([vector for _, vector in part])
            await self._save(index, [text_digest for text_digest, _ in part], vectors)

    async def _tell_moved(self, index: VectorIndex) -> None:
        """Tell history how far texts moved that changed, before the old vectors are forgotten."""
        waiting = self._memory.moved
        rows = [waiting.popleft() for _ in range(len(waiting))]
        found = [(row, index.get(old), index.get(new)) for row, old, new in rows]
        moved = [
            (max(0.0, 1.0 - float(old @ new)), row)
            for row, old, new in found
            if old is not None and new is not None
        ]
        if moved and not self._memory.archive.fault:
            with suppress(StoreError):
                await self._memory.archive.write(lambda store: store.put_moved(moved))

    async def _prune(self, index: VectorIndex) -> None:
        """Forget the vectors of texts that are gone: one that comes back is computed anew."""
        if not self._memory.archive.fault:
            with suppress(StoreError):
                pruned = await self._memory.archive.write(lambda store: store.prune_vectors())
                index.drop(pruned)

    def _set_waiting(self, count: int) -> None:
        self._waiting = count
        self._on_progress(count)


def _parts(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Split indexes of texts into parts of about so many tokens, the longest texts first.

    The scheduler makes the batches: here, texts of about the same length are only kept together.
    """
    part: list[int] = []
    room = tokens
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if part and lengths[index] > room:
            yield part
            part, room = [], tokens
        part.append(index)
        room -= lengths[index]
    if part:
        yield part
