"""An engine kept open for work of several steps, such as a file of texts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from opdbus.errors import ProviderLost

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opdbus.engine.embedder import Embedder
    from opdbus.engine.tokens import Rows


class Lease:
    """An engine that is not closed while it is leased; if it is lost, its successor.

    `serving` returns the engine of a level that serves now.
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
        """Let go of the engine, or of its successor."""
        self._held.close()

    @property
    def max_tokens(self) -> int:
        """The number of tokens past which texts are cut."""
        return self._embedder.max_tokens

    async def tokenize(self, texts: Sequence[str]) -> Rows:
        """Tokenize off the event loop; raises ShuttingDown."""
        return await self._embedder.tokenize(texts)

    async def embed(self, rows: Rows) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) of tokenized texts, at the lowest priority.

        Raises ShuttingDown, and ProviderLost where the engine was lost and the vectors of its
        successor would not mix with those that it gave.
        """
        while True:
            embedder = self._embedder
            try:
                return await embedder.run(rows)
            except ProviderLost:
                await self._succeed(embedder)

    async def _succeed(self, lost: Embedder) -> None:
        if self._embedder is lost:
            # it is closed the sooner
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
