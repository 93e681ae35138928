"""Reranking of the best hits by the vectors of another level that a caller names."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.batching import Rank
from opdbus.index.database.store import Content, Entry
from opdbus.index.ranking.scores import Score
from opdbus.serving.serving import Serving

# Hits on one screen; a large model takes tens of milliseconds for each on a CPU.
RERANKED: Final = 24
# Cached vectors: 12 MB of MPNet's.
_KEPT: Final = 4096


class Reranker:
    """Orders hits by another level's vectors, computed on first use and cached."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._vectors: OrderedDict[tuple[str, bytes], NDArray[np.float32]] = OrderedDict()

    async def order(
        self,
        question: str,
        found: Sequence[tuple[Entry, Score]],
        contents: Mapping[int, Content],
        level: str,
        priority: Rank = Rank.FEW,
    ) -> list[tuple[Entry, Score]]:
        """Return entries and scores in the order of the level, best first.

        Entries without content are dropped. Raises InvalidArgs, NoModel, ModelError, ProviderError.
        """
        # the caller may use an alias
        level = (await self._serving.embedder(level)).level
        there = [(entry, score) for entry, score in found if entry.id in contents]
        texts = {entry.text_digest: contents[entry.id].text for entry, _ in there}
        numerics, asked, known = await self._embedded(question, texts, level, priority)
        for key, vector in known.items():
            self._vectors[numerics, key] = vector
            self._vectors.move_to_end((numerics, key))
        while len(self._vectors) > _KEPT:
            self._vectors.popitem(last=False)
        rows = [
            (entry, score.with_cosine(float(known[entry.text_digest] @ asked), level))
            for entry, score in there
        ]
        return sorted(rows, key=lambda row: -row[1].total)

    async def _embedded(
        self, question: str, texts: Mapping[bytes, str], level: str, priority: Rank
    ) -> tuple[str, NDArray[np.float32], dict[bytes, NDArray[np.float32]]]:
        """Return the numerics, the question's vector, and the texts' vectors by digest."""
        while True:
            numerics = (await self._serving.embedder(level)).numerics
            kept = {key: self._vectors.get((numerics, key)) for key in texts}
            known = {key: vector for key, vector in kept.items() if vector is not None}
            new = [key for key in texts if key not in known]
            asking = [question, *map(texts.__getitem__, new)]
            found = await self._serving.embed(asking, level, priority=priority)
            # otherwise another engine has started, whose vectors do not mix with the cached ones
            if found.numerics == numerics:
                vectors = found.vectors
                return numerics, vectors[0], known | dict(zip(new, vectors[1:], strict=True))
