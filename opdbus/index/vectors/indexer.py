"""The loop that computes the missing vectors of all objects and stores them batch by batch."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from itertools import compress
from typing import Final

import structlog

from opdbus.engine.embedder import Embedder
from opdbus.engine.tokenizer import Rows
from opdbus.errors import NoModel, OpDbusError, ShuttingDown, StoreError
from opdbus.index.database.store import Store
from opdbus.index.state_store.events import Vectorized
from opdbus.index.vectors.first_stage import STATIC
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.index.vectors.sentence_vectors import SentenceVectors
from opdbus.index.vectors.vector_index import VectorIndex
from opdbus.platform import gc_tuning
from opdbus.platform.slices import slices
from opdbus.platform.tasks import pauses, until_first_ends

log = structlog.get_logger()

# Texts tokenized at a time: enough to group rows of equal length, few enough for memory.
_WINDOW = 8192
# Texts taken from the priority queue at a time.
_ASKED: Final = 8
# Texts forgotten, and pairs of vectors compared, at a time: some milliseconds' work.
_FORGOTTEN: Final = 500
_COMPARED: Final = 512
# Texts of one turn from which on it is logged as info, as the first vectors of an index are.
_NOTABLE: Final = 100
# Delays after successive failures, the last one repeated.
_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0)


class Indexer:
    """The loop that embeds pending texts and commits each batch: a kill loses at most one.

    `on_progress` gets the number of objects that still wait, after each batch. `on_fault` gets a
    sentence when embedding failed, and "" when it works again.
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
        self._retry_seconds = retry_seconds
        # the index whose first vectors were logged
        self._logged: VectorIndex | None = None
        # whether vectors left by earlier runs were pruned
        self._is_pruned = False

    async def run(self) -> None:
        """Embed whenever the state store is stale or another engine serves, until cancelled."""
        self._memory.stale.set()
        await until_first_ends(self._follow(), self._work(), self._sentences.run())

    async def _follow(self) -> None:
        async with aclosing(self._serving.watch_phases()) as changes:
            async for phase in changes:
                if phase.embedder:
                    self._memory.stale.set()
                # the need for static vectors depends on those of the level
                self._memory.unstaged.set()

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
                self._memory.stale.set()  # another engine has replaced this one
            except OpDbusError as error:
                delay = next(delays)
                log.error("not vectorized", reason=str(error), again_in_s=delay)  # noqa: TRY400 -- a sentence, no traceback
                self._on_fault(f"objects wait for their vectors: {error}")
                asyncio.get_running_loop().call_later(delay, self._memory.stale.set)
            else:
                delays = pauses(self._retry_seconds)
                self._on_fault("")

    async def _catch_up(self, embedder: Embedder) -> None:
        if embedder.is_provisional:
            return  # its successor may have other numerics, and makes the store stale
        with embedder.held():
            index = await self._vectors.index(embedder.numerics, embedder.dimension)
            self._vectors.keep_only(index)
            self._memory.unstaged.set()
            await self._vectors.save_rest(index)
            computed = 0
            while True:
                generation = self._memory.generation
                if not (missing := index.missing_texts(_WINDOW)):
                    break
                if self._serving.phase.embedder is not embedder:
                    return  # its successor serves, and has made the store stale
                self._report(index)
                computed += await self._embed(embedder, index, missing)
                if index.missing_texts(1) == missing[:1]:
                    return  # all of these are being changed, which makes the store stale
        self._report(index)
        await self._tell_moved(index)
        await self._prune(index)
        objects = len(self._memory.catalogue)
        reused = max(0, objects - computed)
        self._memory.notify(Vectorized(generation, embedder.level, computed, reused))
        # a busy host changes a few objects at a time all day: hundreds of lines that say little
        is_notable = computed >= (_NOTABLE if index is self._logged else 1)
        say = log.info if is_notable else log.debug
        say("vectorized", computed=computed, reused=reused)
        self._logged = index if is_notable else self._logged
        self._memory.unembedded.set()
        # static vectors may no longer be worth their memory
        self._memory.unstaged.set()
        if computed >= _NOTABLE:
            # their texts and tokens were read and are forgotten
            await asyncio.to_thread(gc_tuning.trim)

    async def _embed(self, embedder: Embedder, index: VectorIndex, pending: Sequence[bytes]) -> int:
        """Embed texts in parts, each committed before the next begins; return their number."""
        # without texts of objects that were changed or removed meanwhile
        texts = await self._memory.texts(pending)
        there = [*texts]
        rows = await embedder.tokenize([*texts.values()])
        computed = 0
        lengths = rows.lengths.tolist()
        for part in await asyncio.to_thread(_parts, lengths, embedder.batch_tokens):
            computed += await self._embed_asked(embedder, index)
            if embedder.level != STATIC:
                # during a bulk load, static vectors come first
                await self._memory.archive.no_bulk_load.wait()
            # objects may have changed during the earlier parts
            wanted = [*compress(part, index.needs_vector([there[i] for i in part]))]
            taken = await asyncio.to_thread(rows.take, wanted)
            await self._run(embedder, index, [there[i] for i in wanted], taken)
            computed += len(wanted)
            self._report(index)
        return computed

    async def _embed_asked(self, embedder: Embedder, index: VectorIndex) -> int:
        """Embed the texts in the priority queue, the most requested first; return their number."""
        computed = 0
        while asked := self._vectors.priority_queue.take(
            _ASKED, lambda one: index.needs_vector([one])[0]
        ):
            texts = await self._memory.texts(asked)
            rows = await embedder.tokenize([*texts.values()])
            await self._run(embedder, index, [*texts], rows)
            computed += len(texts)
        return computed

    async def _run(
        self, embedder: Embedder, index: VectorIndex, digests: Sequence[bytes], rows: Rows
    ) -> None:
        """Compute the vectors of texts, store them, and add them to the index."""
        if digests:
            vectors = await embedder.run(rows)
            await self._vectors.save(index, digests, vectors)
            await index.add(digests, vectors)

    async def _tell_moved(self, index: VectorIndex) -> None:
        """Store the distances of changed texts in history, before old vectors are forgotten."""
        waiting = self._memory.moved
        rows = [waiting.popleft() for _ in range(len(waiting))]
        moved: list[tuple[float, int]] = []
        for part in slices(rows, _COMPARED):
            moved += await asyncio.to_thread(_text_distances, index, part)
        if moved and not self._memory.archive.fault:
            with suppress(StoreError):
                await self._memory.archive.write(lambda store: store.put_moved(moved))

    async def _prune(self, index: VectorIndex) -> None:
        """Forget the vectors of texts that no object has any more."""
        archive, texts = self._memory.archive, self._memory.catalogue.texts
        if archive.fault:
            return
        with suppress(StoreError):
            if not self._is_pruned:
                # left by earlier runs or other engines; in parts, since other writes wait for each
                for byte in range(256):
                    await archive.write(partial(Store.prune_vectors, first=byte))
                self._is_pruned = True
            while unused := texts.unused(_FORGOTTEN):
                pruned = [*await archive.write(partial(Store.forget_vectors, digests=unused))]
                texts.forget(unused)
                # those that are used again meanwhile are embedded anew
                index.drop(compress(pruned, texts.are_used(texts.find_each(pruned))))
            await index.shrink()

    def _report(self, index: VectorIndex) -> None:
        """Report the number of objects that wait for vectors."""
        self._on_progress(index.missing_object_count(self._memory.catalogue.view))


def _text_distances(
    index: VectorIndex, rows: Sequence[tuple[int, bytes, bytes]]
) -> list[tuple[float, int]]:
    """Return (cosine distance, row) of each changed text whose old and new vectors exist."""
    get = index.get_on_thread
    found = [(row, get(old), get(new)) for row, old, new in rows]
    return [
        (max(0.0, 1.0 - float(old @ new)), row)
        for row, old, new in found
        if old is not None and new is not None
    ]


def _parts(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Split indexes of texts into parts of at most about `tokens` tokens, longest texts first.

    The scheduler makes the batches; a part only groups texts of about the same length.
    """
    parts: list[list[int]] = []
    room = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if not parts or lengths[index] > room:
            parts.append([])
            room = tokens
        parts[-1].append(index)
        room -= lengths[index]
    return parts
