"""The engine: a model that was proven on a provider, from texts to vectors."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from opdbus.engine.batching import FEW, Rank
from opdbus.engine.tokenizer import AT_ONCE
from opdbus.engine.tokens import Rows, by_characters
from opdbus.errors import ShuttingDown, Truncated

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opdbus.engine.chain import Proven
    from opdbus.models.folder import Model

    T = TypeVar("T")

# One may be busy with a very long text while the other serves.
_TOKENIZER_THREADS: Final = 2
# Texts of a stream that are embedded together, more of them for a device with large batches.
_LEAST_WINDOW: Final = 2048
_MOST_WINDOW: Final = 16384
# So few characters are tokenized sooner than a thread has its turn, behind those of long texts.
_SOON: Final = 1024
# Of so many calls of few texts the median wait is told.
_REMEMBERED: Final = 100
# Vectors of 16-bit floats are as near to fp32's as those of another fp32 engine, for every use that
# this program has; those of int8 are not, and never mix with them.
_CLASS: Final = {"int8": "int8", "int8-blocks": "int8"}


@dataclass(frozen=True, slots=True)
class Embedding:
    """Vectors (texts, dimension), float32 of length 1, and how many texts were cut.

    `numerics` says with which other vectors they may be compared.
    """

    vectors: NDArray[np.float32]
    truncated: int
    numerics: str


class Splitter(Protocol):
    """Makes rows of texts, cut at the model's limit; safe to call from any thread."""

    def encode(self, texts: Sequence[str]) -> Rows:
        """Return a row for each text."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts."""


class Runner(Protocol):
    """Makes vectors of rows: a `Scheduler` in front of a model, or what needs none."""

    fault: str

    @property
    def texts(self) -> int:
        """Count the texts that got their vectors."""

    @property
    def depth(self) -> int:
        """Count the texts that wait or run."""

    @property
    def budget(self) -> int:
        """Most tokens a batch, as of now."""

    @property
    def lanes(self) -> int:
        """The batches that run at a time."""

    async def embed(self, rows: Any, rank: Rank = Rank.FEW) -> NDArray[np.float32]:  # noqa: ANN401 -- its own engine's rows
        """Return the vectors (rows, dimension) of rows."""

    async def lost(self) -> None:
        """Wait until the model has stopped working."""

    def join(self) -> None:
        """Block until no thread runs the model."""


class Embedder:
    """A proven model, from texts to rows and from rows to vectors; made in `opening.py`."""

    def __init__(
        self,
        model: Model,
        proven: Proven,
        tokenizer: Splitter,
        scheduler: Runner,
        threads: int = _TOKENIZER_THREADS,
    ) -> None:
        self.model = model
        self.proven = proven
        self.scheduler = scheduler
        self.splitter = tokenizer
        # not asyncio's own threads, which everything else needs: the database, the shutdown
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._closed = False
        self._waits: deque[float] = deque(maxlen=_REMEMBERED)
        self._holders = 0
        # whether an engine of another precision may soon take its place
        self.is_provisional = proven.is_provisional
        self._released = asyncio.Event()

    def close(self) -> None:
        """Drop the texts that wait to be tokenized, without waiting for those that are."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        return self.model.shape.hidden

    @property
    def level(self) -> str:
        """The level that this is the engine of."""
        return self.model.level

    @property
    def max_tokens(self) -> int:
        """The number of tokens past which texts are cut."""
        return self.model.shape.max_tokens

    @property
    def provider(self) -> str:
        """The provider that was proven."""
        return self.proven.provider.name

    @property
    def fell_back(self) -> bool:
        """Whether a provider that was asked for was passed over for this one."""
        return any(each.provider != self.provider for each in self.proven.fallbacks)

    @property
    def batch_tokens(self) -> int:
        """The tokens that all lanes together run at a time, as of now."""
        return self.scheduler.budget * self.scheduler.lanes

    @property
    def latency(self) -> float:
        """Seconds from few texts to their vectors, the median of the last calls; 0 before."""
        return median(self._waits) if self._waits else 0.0

    @property
    def window(self) -> int:
        """How many texts are best embedded together: enough of each length to fill batches."""
        return max(_LEAST_WINDOW, min(_MOST_WINDOW, self.batch_tokens // 4))

    @property
    def weight_bytes(self) -> int:
        """About how much memory the weights take."""
        return self.proven.weight_bytes

    @property
    def fault(self) -> str:
        """Why the provider stopped working; empty while it works."""
        return self.scheduler.fault

    async def lost(self) -> None:
        """Wait until the provider has stopped working."""
        await self.scheduler.lost()

    @cached_property
    def numerics(self) -> str:
        """What vectors depend on besides their text; vectors of other numerics never mix."""
        return self.model.numerics(_CLASS.get(self.proven.proof.precision, "float"))

    async def tokenize(self, texts: Sequence[str]) -> Rows:
        """Tokenize on a thread, off the event loop, unless that takes no time.

        Many texts take several turns, between which others have theirs. Raises ShuttingDown.
        """
        encode = self.splitter.encode
        if not self._closed and sum(map(len, texts)) <= _SOON:
            return encode(texts)
        # what is not plain takes a thread many times as long
        most = AT_ONCE if all(map(str.isascii, texts)) else AT_ONCE // 8
        parts = [await self._on_thread(encode, part) for part in by_characters(texts, most)]
        # to copy the vectors of 8,000 texts takes some milliseconds
        return (
            parts[0] if len(parts) == 1 else await asyncio.to_thread(type(parts[0]).joined, parts)
        )

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, on a thread; raises ShuttingDown."""
        return await self._on_thread(self.splitter.count, texts)

    async def embed(
        self, texts: Sequence[str], *, truncate: bool = True, priority: Rank = Rank.FEW
    ) -> Embedding:
        """Give the vectors of texts, ahead of any bulk work.

        Raises Truncated if a text must be cut and `truncate` does not allow it, LimitsExceeded if
        the queue has no room, ProviderLost, ShuttingDown.
        """
        began = time.perf_counter()
        with self.held():
            rows = await self.tokenize(texts)
            cut = rows.truncated.nonzero()[0].tolist()
            if cut and not truncate:
                raise Truncated(
                    f"{len(cut)} of {len(rows)} texts are longer than the"
                    f" {self.max_tokens} tokens that the model reads; the first is"
                    f" number {cut[0]}, counted from 0: shorten it, or allow `truncate`"
                )
            vectors = await self.scheduler.embed(rows, priority)
        if len(rows) <= FEW:
            self._waits.append(time.perf_counter() - began)
        return Embedding(vectors, len(cut), self.numerics)

    async def run(self, rows: Rows) -> NDArray[np.float32]:
        """Give the vectors (rows, dimension) of tokenized texts, after everyone's single texts.

        Raises ProviderLost, ShuttingDown.
        """
        return await self.scheduler.embed(rows, Rank.BULK)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the engine from being closed while it is worked with in several steps."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            self._released.set()

    @property
    def is_held(self) -> bool:
        """Whether somebody works with the engine."""
        return self._holders > 0

    async def drained(self) -> None:
        """Wait until nobody holds the engine any more."""
        while self._holders:
            self._released.clear()
            await self._released.wait()

    async def _on_thread(self, work: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
        if self._closed:
            raise ShuttingDown
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work, texts)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and not task.cancelling():
                # not we were cancelled: `close` dropped the text
                raise ShuttingDown from None
            raise
