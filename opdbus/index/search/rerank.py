"""The best of what was found, in the order of another level that a caller names."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.batching import Rank
from opdbus.index.database.store import Content, Entry
from opdbus.index.ranking.scores import Score
from opdbus.serving.serving import Serving

# As many hits as people look at; a large model takes tens of milliseconds for each on a CPU.
RERANKED: Final = 24
# Vectors that are kept for the next question: 12 MB of MPNet's.
_KEPT: Final = 4096


class Reranker:
    """Orders hits by the vectors of another level, which are computed when first needed."""

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
        """Give entries in a new order, best first, of entries with their scores.

        Raises InvalidArgs, NoModel, ModelError, ProviderError.
        """
        # it may be asked for by another name
        level = (await self._serving.embedder(level)).level
        there = [(entry, score) for entry, score in found if entry.id in contents]
        texts = {entry.text_digest: contents[entry.id].text for entry, _ in there}
        numerics, asked, known = await self._embedded(question, texts, level, priority)
        self._keep(numerics, known)
        rows = [
            (entry, score.by(float(known[entry.text_digest] @ asked), level))
            for entry, score in there
        ]
        return sorted(rows, key=lambda row: -row[1].total)

    async def _embedded(
        self, question: str, texts: Mapping[bytes, str], level: str, priority: Rank
    ) -> tuple[str, NDArray[np.float32], dict[bytes, NDArray[np.float32]]]:
        """Return numerics, the question's vector, and those of texts: kept ones, or new ones."""
        while True:
            numerics = (await self._serving.embedder(level)).numerics
            kept = {key: self._vectors.get((numerics, key)) for key in texts}
            known = {key: vector for key, vector in kept.items() if vector is not None}
            new = [key for key in texts if key not in known]
            asking = [question, *map(texts.__getitem__, new)]
            found = await self._serving.embed(asking, level, priority=priority)
            # else an engine whose vectors do not mix with the kept ones took its place meanwhile
            if found.numerics == numerics:
                vectors = found.vectors
                return numerics, vectors[0], known | dict(zip(new, vectors[1:], strict=True))

    def _keep(self, numerics: str, known: Mapping[bytes, NDArray[np.float32]]) -> None:
        for key, vector in known.items():
            self._vectors[numerics, key] = vector
            self._vectors.move_to_end((numerics, key))
        while len(self._vectors) > _KEPT:
            self._vectors.popitem(last=False)
