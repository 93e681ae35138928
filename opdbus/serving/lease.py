"""Lease that keeps an engine open for work of several steps, such as a file of texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from opdbus.errors import ProviderLost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opdbus.engine.embedder import Embedder
    from opdbus.engine.tokenizer import Rows


class Lease:
    """Lease of an engine, which stays open; if it is lost, its successor takes its place.

    `serving` returns the engine that a level uses now.
    """

    def __init__(self, embedder: Embedder, serving: Callable[[str], Awaitable[Embedder]]) -> None:
        self._embedder = embedder
        self._serving = serving
        self._held = ExitStack()

    def __enter__(self) -> Self:
        """Hold the engine."""
        self._held.enter_context(self._embedder.held())
        return self

    def __exit__(self, *_error: object) -> None:
        """Release the engine or its successor."""
        self._held.close()

    @property
    def max_tokens(self) -> int:
        """Number of tokens past which texts are cut."""
        return self._embedder.max_tokens

    async def tokenize(self, texts: Sequence[str]) -> Rows:
        """Tokenize off the event loop; raises ShuttingDown."""
        return await self._embedder.tokenize(texts)

    async def embed(self, rows: Rows) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) of tokenized texts, at the lowest priority.

        Raises ShuttingDown, and ProviderLost if the engine was lost and its successor's vectors
        would not be comparable with the earlier ones.
        """
        while True:
            embedder = self._embedder
            try:
                return await embedder.run(rows)
            except ProviderLost:
                await self._succeed(embedder)

    async def _succeed(self, lost: Embedder) -> None:
        if self._embedder is lost:
            # released now, so that it is closed sooner
            self._held.close()
        found = await self._serving(lost.level)
        if found.numerics != lost.numerics:
            raise ProviderLost(
                f"{lost.provider} stopped working, and {found.provider} computes in another"
                " precision: ask for all of it again"
            )
        if self._embedder is lost:
            self._held.enter_context(found.held())
            self._embedder = found
