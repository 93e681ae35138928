"""The first stage of a search: static vectors of all objects, kept in memory only.

The static table computes them from the texts faster than they could be read from the database.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.engine.batching import Rank
from opdbus.engine.embedder import Embedder
from opdbus.errors import OpDbusError, ShuttingDown
from opdbus.index.catalogue.arrays import RoundedRows
from opdbus.index.database.store import Entry
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.vector_index import VectorIndex
from opdbus.serving.serving import Serving

log = structlog.get_logger()

STATIC: Final = "static"
# Levels with a model, which is slower than the static table.
_SLOW: Final = frozenset(("low", "medium", "high"))
# Texts that are read and encoded at a time.
_AT_A_TIME: Final = 4096
# Texts forgotten in one turn of the event loop: some milliseconds' work.
_FORGOTTEN: Final = 500
# Delay before another attempt after an error.
_RETRY_SECONDS: Final = 20.0


class FirstStage:
    """Static vectors of a state store's objects; `run` keeps them complete while needed."""

    def __init__(
        self, memory: StateStore, serving: Serving, is_worth_it: Callable[[], bool]
    ) -> None:
        self.index: VectorIndex | None = None
        # whether the static table failed at the last attempt
        self.is_broken = False
        self._memory = memory
        self._serving = serving
        self._is_worth_it = is_worth_it
        # set and replaced after each attempt to complete the vectors
        self._turn = asyncio.Event()

    @property
    def is_wanted(self) -> bool:
        """True if the model of the configured level is slower than the static table."""
        return self._serving.config.vector_level in _SLOW

    async def run(self) -> None:
        """Compute the vectors of new objects at once, until cancelled."""
        behind, view = self._memory.unstaged, self._memory.catalogue.view
        behind.set()
        while True:
            await behind.wait()
            version = view.version
            try:
                await self._catch_up()
                self.is_broken = False
            except OpDbusError as error:
                if isinstance(error, ShuttingDown) and self._serving.is_closed:
                    raise
                self.is_broken = True
                behind.clear()
                asyncio.get_running_loop().call_later(_RETRY_SECONDS, behind.set)
                log.warning("objects have no static vectors", reason=str(error))
            if version == view.version:
                behind.clear()
            self._turn.set()
            self._turn = asyncio.Event()

    async def ready(self, seconds: float) -> None:
        """Wait at most `seconds` until all objects stored by now have their static vectors."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # the running turn may have begun before the last objects were stored
                for _ in range(2):
                    if self._memory.unstaged.is_set():
                        await self._turn.wait()

    async def ask(self, question: str, priority: Rank) -> tuple[VectorIndex, NDArray[np.float32]]:
        """Embed a query; return the index to search and the vector (dimension,)."""
        found = await self._serving.embed([question], STATIC, priority=priority)
        if self.index is None or self.index.numerics != found.numerics:
            self.index = self._new(found.numerics, len(found.vectors[0]))
        return self.index, found.vectors[0]

    def vector(self, entry: Entry) -> tuple[VectorIndex, NDArray[np.float32]] | None:
        """Return the index and an entry's vector in it; None if it has none."""
        index = self.index
        vector = None if index is None else index.get(entry.text_digest)
        return None if index is None or vector is None else (index, vector)

    def count(self) -> int:
        """Return the number of objects whose entries all have static vectors."""
        index, catalogue = self.index, self._memory.catalogue
        return 0 if index is None else len(catalogue) - index.missing_object_count(catalogue.view)

    def _new(self, numerics: str, dimension: int) -> VectorIndex:
        texts = self._memory.catalogue.texts
        return VectorIndex(numerics, dimension, texts, RoundedRows(dimension))

    async def _catch_up(self) -> None:
        if not (self.is_wanted and self._is_worth_it()):
            self.index = None
            return
        embedder = await self._serving.embedder(STATIC)
        with embedder.held():
            if self.index is None or self.index.numerics != embedder.numerics:
                self.index = self._new(embedder.numerics, embedder.dimension)
            while missing := self.index.missing_texts(_AT_A_TIME):
                if not self._is_worth_it():
                    self.index = None
                    return
                if not await self._add(embedder, self.index, missing):
                    break  # the rest is being changed or removed
            await self._forget_gone(self.index)

    async def _add(self, embedder: Embedder, index: VectorIndex, digests: list[bytes]) -> int:
        """Embed texts; return the number of vectors added."""
        texts = await self._memory.texts(digests)
        rows = await embedder.tokenize([*texts.values()])
        return len(await index.add([*texts], await embedder.run(rows)))

    async def _forget_gone(self, index: VectorIndex) -> None:
        """Forget texts without objects, once they are about as many as the others."""
        texts = self._memory.catalogue.texts
        if 2 * texts.count_unused() > len(texts) + _AT_A_TIME:
            while unused := texts.unused(_FORGOTTEN):
                texts.forget(unused)
                await asyncio.sleep(0)
            await index.shrink()
