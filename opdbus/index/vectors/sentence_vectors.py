"""The loop that embeds the sentences of history while no object waits for its vector."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.engine.embedder import Embedder
from opdbus.errors import NoModel, OpDbusError
from opdbus.index.database.store import Store
from opdbus.index.vectors.object_vectors import ObjectVectors

log = structlog.get_logger()

# Sentences embedded at a time: objects and queries wait at most for these.
_AT_A_TIME: Final = 32
# Sentences embedded in an hour; the rest is found by full-text search meanwhile.
AN_HOUR: Final = 2048
_HOUR_SECONDS: Final = 3600.0


class SentenceVectors:
    """The loop that embeds waiting sentences, the newest first, at most `an_hour` in an hour.

    `clock` returns seconds from any start.
    """

    def __init__(
        self,
        vectors: ObjectVectors,
        an_hour: int = AN_HOUR,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._vectors = vectors
        self._an_hour = an_hour
        self._clock = clock
        self._room = float(an_hour)
        self._asked_at = clock()

    async def run(self) -> None:
        """Embed whenever sentences wait, until cancelled; failures wait for the next turn."""
        due = self._vectors.memory.unembedded
        while True:
            await due.wait()
            due.clear()
            try:
                embedder = await self._vectors.serving.embedder()
                with embedder.held():
                    await self._catch_up(embedder)
            except NoModel:
                continue  # full-text search finds them
            except OpDbusError as error:
                log.warning("sentences of history not vectorized", reason=str(error))

    async def _catch_up(self, embedder: Embedder) -> None:
        archive = self._vectors.memory.archive
        index = await self._vectors.index(embedder.numerics, embedder.dimension)
        engine = index.numerics_key
        while not archive.fault and (room := self._room_now()):
            waiting = await archive.read(partial(_waiting, engine, room))
            if not waiting or self._vectors.missing_object_count():
                return  # the indexer sets `unembedded` again after the last object
            if self._vectors.serving.phase.embedder is not embedder:
                return
            self._room -= len(waiting)
            rows = await embedder.tokenize([text for _, text in waiting])
            vectors = await embedder.run(rows)
            numbers = [number for number, _ in waiting]
            await archive.write(partial(_put, engine, numbers, vectors))

    def _room_now(self) -> int:
        """Return the number of sentences that may be embedded next within the hourly limit."""
        now = self._clock()
        grown = self._room + (now - self._asked_at) * self._an_hour / _HOUR_SECONDS
        self._room, self._asked_at = min(float(self._an_hour), grown), now
        return min(_AT_A_TIME, int(self._room))


def _waiting(engine: bytes, limit: int, store: Store) -> list[tuple[int, str]]:
    return store.sentences.waiting(engine, limit)


def _put(engine: bytes, numbers: Sequence[int], vectors: NDArray[np.float32], store: Store) -> None:
    store.put_sentence_vectors(engine, numbers, vectors)
