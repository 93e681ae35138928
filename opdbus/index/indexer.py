"""The loop that gives every object its vector: at most one batch is ever computed twice."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np
import structlog

from opdbus.engine.batching import plan
from opdbus.errors import OpDbusError, ShuttingDown, StoreError
from opdbus.index.catalogue import thing_of
from opdbus.index.events import Vectorized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from opdbus.engine.tokenizer import Tokens
    from opdbus.index.embedded import Engine
    from opdbus.index.memory import Memory
    from opdbus.index.store import Entry
    from opdbus.state.object import Thing

log = structlog.get_logger()

# Texts tokenized at a time: enough to find rows of equal length, few enough to hold in memory.
_WINDOW = 8192

# Vectors stored at a time that could not be stored before.
_SAVED: Final = 1024
# How long what failed is left alone, the first time, the second, and so on.
_RETRY_SECONDS: Final = (1.0, 5.0, 20.0, 60.0)


class Indexer:
    """Computes what is pending, commits batch by batch, and tells of drift.

    `on_progress` gets the number of texts that still wait, after each batch.
    """

    def __init__(
        self,
        memory: Memory,
        drift_threshold: float,
        on_fault: Callable[[str], None] = lambda _sentence: None,
        on_progress: Callable[[int], None] = lambda _waiting: None,
        retry_seconds: Sequence[float] = _RETRY_SECONDS,
    ) -> None:
        self._memory = memory
        self._threshold = drift_threshold
        self._on_fault = on_fault
        self._on_progress = on_progress
        self._waiting = 0
        self._retry_seconds = retry_seconds
        self._told: dict[Thing, tuple[str, str]] = {}

    async def run(self) -> None:
        """Work whenever the memory is stale, until cancelled; what fails is tried again.

        `on_fault` is told what failed, and "" when it no longer does.
        """
        failures = 0
        while True:
            await self._memory.stale.wait()
            self._memory.stale.clear()
            engine = await self._memory.engine()
            try:
                with engine.embedder.held():
                    await self._catch_up(engine)
            except ShuttingDown:
                if self._memory.ready is engine:
                    raise
                # another engine took its place meanwhile
                self._memory.stale.set()
            except OpDbusError as error:
                delay = self._retry_seconds[min(failures, len(self._retry_seconds) - 1)]
                failures += 1
                log.error("not vectorized", reason=str(error), again_in_s=delay)  # noqa: TRY400 -- a sentence, no traceback
                self._on_fault(f"objects wait for their vectors: {error}")
                asyncio.get_running_loop().call_later(delay, self._memory.stale.set)
            else:
                failures = 0
                self._on_fault("")

    async def _catch_up(self, engine: Engine) -> None:
        computed = 0
        await self._save_rest(engine)
        while (pending := self._memory.pending()) and self._memory.ready is engine:
            self._set_waiting(len(pending))
            done = await self._embed(engine, pending[:_WINDOW])
            computed += done
            if not done:
                return  # all of it is being changed right now, which makes the memory stale again
        self._set_waiting(0)
        objects = sum(1 for _ in self._memory.catalogue)
        reused = max(0, objects - computed)
        level = engine.embedder.model.level
        self._memory.notify(Vectorized(self._memory.generation, level, computed, reused))
        log.info("vectorized", computed=computed, reused=reused)
        await self._tell_drift()
        await self._prune(engine)

    async def _embed(self, engine: Engine, pending: Sequence[Entry]) -> int:
        """Embed texts in batches of equal length, each committed before the next is begun."""
        contents = await self._memory.content(pending)
        # a text that was changed meanwhile must not be kept under the digest of the old one
        there = [
            entry
            for entry in pending
            if entry.id in contents and contents[entry.id].text_digest == entry.text_digest
        ]
        rows = await engine.embedder.tokenize([contents[entry.id].text for entry in there])
        scheduler = engine.embedder.scheduler
        for chunk in plan([len(row) for row in rows], scheduler.budget * scheduler.lanes):
            await self._embed_chunk(engine, [there[i] for i in chunk], [rows[i] for i in chunk])
        return len(there)

    async def _embed_chunk(
        self, engine: Engine, entries: Sequence[Entry], rows: Sequence[Tokens]
    ) -> None:
        vectors = await engine.embedder.scheduler.embed(rows, bulk=True)
        digests = [entry.text_digest for entry in entries]
        await self._save(engine, digests, vectors)
        engine.vectors.add(digests, vectors)
        self._set_waiting(self._waiting - len(entries))

    async def _save(
        self, engine: Engine, digests: Sequence[bytes], vectors: NDArray[np.float32]
    ) -> None:
        """Store vectors, now or as soon as the database can be written; they serve meanwhile."""
        archive = self._memory.archive
        keys = [engine.key(text_digest) for text_digest in digests]
        if not archive.fault:
            with suppress(StoreError):
                await archive.write(lambda store: store.put_vectors(keys, digests, vectors))
                return
        if not engine.unsaved:
            archive.when_writable(self._again)
        engine.unsaved.update(digests)

    async def _again(self) -> None:
        self._memory.stale.set()

    async def _save_rest(self, engine: Engine) -> None:
        """Store the vectors that could not be stored before."""
        found = [(d, engine.vectors.get(d)) for d in engine.unsaved]
        rest = [(text_digest, vector) for text_digest, vector in found if vector is not None]
        engine.unsaved.clear()
        for part in (rest[n : n + _SAVED] for n in range(0, len(rest), _SAVED)):
            vectors = np.stack([vector for _, vector in part])
            await self._save(engine, [text_digest for text_digest, _ in part], vectors)

    async def _prune(self, engine: Engine) -> None:
        """Forget the vectors of texts that are gone: one that comes back is computed anew."""
        if not self._memory.archive.fault:
            with suppress(StoreError):
                pruned = await self._memory.archive.write(lambda store: store.prune_vectors())
                engine.vectors.drop(pruned)

    def _set_waiting(self, count: int) -> None:
        self._waiting = count
        self._on_progress(count)

    async def _tell_drift(self) -> None:
        """Send Drifted for each thing that newly differs from its declaration too much."""
        pairs = self._memory.catalogue.pairs({})
        seen = {thing_of(pair[0]): (pair[0].fingerprint, pair[1].fingerprint) for pair in pairs}
        told = {thing: prints for thing, prints in self._told.items() if seen.get(thing) == prints}
        new = [pair for pair in pairs if thing_of(pair[0]) not in told]
        for drift in await self._memory.drift(new):
            if math.isnan(drift.distance):
                continue  # a vector is missing, so this cannot be known yet
            told[drift.thing] = seen[drift.thing]
            if drift.distance > self._threshold:
                self._memory.notify(drift)
        self._told = told
