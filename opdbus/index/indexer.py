"""The loop that gives every object its vector: at most one batch is ever computed twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from opdbus.engine.batching import plan
from opdbus.errors import OpDbusError
from opdbus.index.catalogue import thing_of
from opdbus.index.memory import Drifted, Vectorized
from opdbus.state.object import FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.engine.tokenizer import Tokens
    from opdbus.index.catalogue import Thing
    from opdbus.index.memory import Engine, Memory
    from opdbus.index.store import Entry

log = structlog.get_logger()

# Texts tokenized at a time: enough to find rows of equal length, few enough to hold in memory.
_WINDOW = 8192


class Indexer:
    """Computes what is pending, commits batch by batch, and tells of drift."""

    def __init__(self, memory: Memory, drift_threshold: float) -> None:
        self._memory = memory
        self._threshold = drift_threshold
        self._told: dict[Thing, tuple[str, str]] = {}

    async def run(self) -> None:
        """Work whenever the memory is stale, until cancelled."""
        engine = await self._memory.engine()
        while True:
            await self._memory.stale.wait()
            self._memory.stale.clear()
            await self._catch_up(engine)

    async def _catch_up(self, engine: Engine) -> None:
        computed = 0
        while pending := self._memory.pending()[:_WINDOW]:
            computed += await self._embed(engine, pending)
        objects = sum(1 for _ in self._memory.catalogue)
        reused = max(0, objects - computed)
        level = engine.embedder.model.level
        self._memory.notify(Vectorized(self._memory.generation, level, computed, reused))
        log.info("vectorized", computed=computed, reused=reused)
        await self._tell_drift()
        # What goes from the database goes from memory: a text that comes back is computed anew.
        pruned = await self._memory.archive.write(lambda store: store.prune_vectors())
        engine.vectors.drop(pruned)

    async def _embed(self, engine: Engine, pending: Sequence[Entry]) -> int:
        """Embed texts in batches of equal length, each committed before the next is begun."""
        contents = await self._memory.content(pending)
        there = [entry for entry in pending if entry.id in contents]
        rows = await engine.embedder.tokenize([contents[entry.id].text for entry in there])
        for chunk in plan([len(row) for row in rows], engine.embedder.scheduler.budget):
            await self._embed_chunk(engine, [there[i] for i in chunk], [rows[i] for i in chunk])
        return len(there)

    async def _embed_chunk(
        self, engine: Engine, entries: Sequence[Entry], rows: Sequence[Tokens]
    ) -> None:
        vectors = await engine.embedder.scheduler.embed(rows, bulk=True)
        digests = [entry.text_digest for entry in entries]
        keys = [engine.key(text_digest) for text_digest in digests]
        await self._memory.archive.write(lambda store: store.put_vectors(keys, digests, vectors))
        engine.vectors.add(digests, vectors)

    async def _tell_drift(self) -> None:
        """Send Drifted for each thing that newly differs from its declaration too much."""
        told = {}
        for entry in list(self._memory.catalogue):
            if entry.identity.source == FILE:
                continue
            thing = thing_of(entry)
            declared, *observed = self._memory.catalogue.about(thing)
            if declared.identity.source != FILE:
                continue
            told[thing] = (declared.fingerprint, observed[0].fingerprint)
            if self._told.get(thing) != told[thing]:
                await self._compare(thing)
        self._told = told

    async def _compare(self, thing: Thing) -> None:
        try:
            drift = await self._memory.drift(thing)
        except OpDbusError:
            return  # withdrawn meanwhile
        if drift and drift.distance > self._threshold:
            self._memory.notify(Drifted(thing, drift.distance, drift.fields))
