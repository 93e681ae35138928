"""The engine: a proven model that turns texts into vectors."""

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

from opdbus.engine.batching import FEW, BatchMetrics, Rank
from opdbus.engine.tokenizer import AT_ONCE, Rows, Token, split_by_size
from opdbus.errors import ShuttingDown, Truncated
from opdbus.settings.parsing import REMOTE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opdbus.engine.provider_chain import ProvenSessions
    from opdbus.models.folder import Model

    T = TypeVar("T")

# One thread may be busy with a very long text while the other serves.
_TOKENIZER_THREADS: Final = 2
# Bounds of the number of texts of a stream that are embedded together.
_LEAST_WINDOW: Final = 2048
_MOST_WINDOW: Final = 16384
# Up to this many characters, tokenizing at once is faster than waiting for a thread.
_SOON: Final = 1024
# Number of recent calls of few texts whose median wait is reported.
_REMEMBERED: Final = 100
# Vectors of 16-bit floats are as near to fp32's as those of another fp32 engine, so they share a
# numerics class. Vectors of int8 are not and never mix with them.
_CLASS: Final = {"int8": "int8", "int8-blocks": "int8"}


@dataclass(frozen=True, slots=True)
class Embedding:
    """Vectors (texts, dimension), float32 of length 1, and the number of truncated texts.

    Vectors may be compared only if their `numerics` are equal. `lengths` has each text's number of
    tokens that were read, `cut` the indexes of truncated texts, `engine` the engine that served.
    """

    vectors: NDArray[np.float32]
    truncated: int
    numerics: str
    lengths: Sequence[int] = ()
    cut: Sequence[int] = ()
    engine: Embedder | None = None


class Splitter(Protocol):
    """Tokenizer interface: texts to rows, cut at the model's limit; safe from any thread."""

    def encode(self, texts: Sequence[str]) -> Rows:
        """Return one row for each text."""

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts."""

    def list_tokens(self, texts: Sequence[str]) -> list[list[Token]]:
        """Return all tokens of whole texts."""


class Runner(Protocol):
    """Interface from rows to vectors: a `Scheduler`, or `Instant` for a static table."""

    fault: str

    @property
    def batches(self) -> BatchMetrics | None:
        """Counters of batches; None if there are no batches."""

    @property
    def texts(self) -> int:
        """Number of texts whose vectors were computed."""

    @property
    def depth(self) -> int:
        """Number of texts that wait or run."""

    @property
    def budget(self) -> int:
        """Current token limit of a batch."""

    @property
    def lanes(self) -> int:
        """Number of batches that run at a time."""

    async def embed(self, rows: Any, rank: Rank = Rank.FEW) -> NDArray[np.float32]:  # noqa: ANN401 -- its own engine's rows
        """Return the vectors (rows, dimension) of rows."""

    async def lost(self) -> None:
        """Wait until the model has stopped working."""

    def join(self) -> None:
        """Block until no thread runs the model."""


class Embedder:
    """A proven model, from texts to rows and from rows to vectors; made by `opening.py`."""

    def __init__(
        self,
        model: Model,
        proven: ProvenSessions,
        tokenizer: Splitter,
        scheduler: Runner,
        threads: int = _TOKENIZER_THREADS,
    ) -> None:
        self.model = model
        self.proven = proven
        self.scheduler = scheduler
        self.splitter = tokenizer
        # Not asyncio's default threads, which the database and the shutdown need.
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokenizer")
        self._closed = False
        self._waits: deque[float] = deque(maxlen=_REMEMBERED)
        self._holders = 0
        # true if an engine of another precision may soon replace this one
        self.is_provisional = proven.is_provisional
        self._released = asyncio.Event()

    def close(self) -> None:
        """Drop the texts that wait to be tokenized, without waiting for those in progress."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        return self.model.shape.hidden

    @property
    def level(self) -> str:
        """Name of the level that this engine serves."""
        return self.model.level

    @property
    def max_tokens(self) -> int:
        """Number of tokens past which texts are cut."""
        return self.model.shape.max_tokens

    @property
    def provider(self) -> str:
        """Name of the provider that was proven."""
        return self.proven.provider.name

    @property
    def precision(self) -> str:
        """Number format that the model runs in."""
        return self.proven.proof.precision

    @property
    def fell_back(self) -> bool:
        """True if a requested provider was passed over for this one."""
        return any(each.provider != self.provider for each in self.proven.fallbacks)

    @property
    def is_stand_in(self) -> bool:
        """True if a server was passed over for this one, which may be reached later."""
        passed = (each.provider for each in self.proven.fallbacks)
        return any(name.startswith(REMOTE) and name != self.provider for name in passed)

    @property
    def batch_tokens(self) -> int:
        """Number of tokens that all lanes together run at a time, as of now."""
        return self.scheduler.budget * self.scheduler.lanes

    @property
    def latency(self) -> float:
        """Seconds from few texts to their vectors: median of the last calls; 0 before the first."""
        return median(self._waits) if self._waits else 0.0

    @property
    def window(self) -> int:
        """Best number of texts to embed together: enough of each length to fill batches."""
        return max(_LEAST_WINDOW, min(_MOST_WINDOW, self.batch_tokens // 4))

    @property
    def weight_bytes(self) -> int:
        """Approximate memory of the weights, in bytes."""
        return self.proven.weight_bytes

    @property
    def fault(self) -> str:
        """Reason why the provider stopped working; empty while it works."""
        return self.scheduler.fault

    async def lost(self) -> None:
        """Wait until the provider has stopped working."""
        await self.scheduler.lost()

    @cached_property
    def numerics(self) -> str:
        """Identifier of the computation; vectors with equal numerics are comparable."""
        return self.model.numerics(_CLASS.get(self.proven.proof.precision, "float"))

    async def tokenize(self, texts: Sequence[str]) -> Rows:
        """Tokenize on a thread, or on the event loop if the texts are short.

        Many texts take several turns, so that other calls get theirs in between. Raises
        ShuttingDown.
        """
        encode = self.splitter.encode
        if not self._closed and sum(map(len, texts)) <= _SOON:
            return encode(texts)
        # texts that are not ASCII take many times as long
        most = AT_ONCE if all(map(str.isascii, texts)) else AT_ONCE // 8
        parts = [await self._on_thread(encode, part) for part in split_by_size(texts, most)]
        # joining the vectors of 8,000 texts takes some milliseconds
        return (
            parts[0] if len(parts) == 1 else await asyncio.to_thread(type(parts[0]).joined, parts)
        )

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, on a thread; raises ShuttingDown."""
        return await self._on_thread(self.splitter.count, texts)

    async def list_tokens(self, texts: Sequence[str]) -> list[list[Token]]:
        """Return all tokens of whole texts, by a thread; raises ShuttingDown."""
        return await self._on_thread(self.splitter.list_tokens, texts)

    async def embed(
        self, texts: Sequence[str], *, truncate: bool = True, priority: Rank = Rank.FEW
    ) -> Embedding:
        """Return the vectors of texts, ahead of any bulk work.

        Raises Truncated if a text must be cut and `truncate` is false, LimitsExceeded if the queue
        has no room, ProviderLost, ShuttingDown.
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
        lengths = rows.lengths.tolist()
        return Embedding(vectors, len(cut), self.numerics, lengths, cut, self)

    async def run(self, rows: Rows) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) of tokenized texts, with bulk priority.

        Raises ProviderLost, ShuttingDown.
        """
        return await self.scheduler.embed(rows, Rank.BULK)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the engine from being closed during the context."""
        self._holders += 1
        try:
            yield
        finally:
            self._holders -= 1
            self._released.set()

    @property
    def is_held(self) -> bool:
        """True if the engine is in use."""
        return self._holders > 0

    async def drained(self) -> None:
        """Wait until nobody holds the engine."""
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
                # This task was not cancelled: `close` dropped the text.
                raise ShuttingDown from None
            raise
