"""The engine: opened on the first provider of a chain that can be proven, then texts to vectors."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from opdbus.engine import cpus
from opdbus.engine.proof import Probe, prove
from opdbus.engine.providers import candidates
from opdbus.engine.scheduler import Scheduler
from opdbus.engine.session import OnnxSession
from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import ProviderError, ShuttingDown, Truncated
from opdbus.models import build

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path
    from typing import TypeVar

    import numpy as np
    from numpy.typing import NDArray

    from opdbus.config import Config, ProviderRequest
    from opdbus.engine.proof import Proof
    from opdbus.engine.providers import Provider
    from opdbus.engine.session import Session
    from opdbus.engine.tokenizer import Tokens
    from opdbus.models.folder import Model

    Open = Callable[[Path, Provider, int, int], Session]
    T = TypeVar("T")

log = structlog.get_logger()
QUEUE_LIMIT = 65536
# One may be busy with a very long text while the other serves.
_TOKENIZER_THREADS: Final = 2


@dataclass(frozen=True, slots=True)
class Fallback:
    """A provider that was asked for and not used, and why."""

    provider: str
    reason: str


@dataclass(frozen=True, slots=True)
class Proven:
    """A session that passed its proof, on which provider and hardware, and what was passed over."""

    session: Session
    provider: Provider
    hardware: str
    proof: Proof
    fallbacks: tuple[Fallback, ...]


@dataclass(frozen=True, slots=True)
class Embedding:
    """Vectors (texts, dimension), float32 of length 1, and how many texts were cut."""

    vectors: NDArray[np.float32]
    truncated: int


def open_onnx(graph: Path, provider: Provider, threads: int, device: int) -> Session:
    """Open the real thing; the default of `choose`, where tests pass doubles."""
    return OnnxSession(graph, provider, threads=threads, device=device)


def require_any(request: ProviderRequest, device: int) -> None:
    """Look whether any provider of the request could run here, before work is done for it.

    Raises ProviderError with every reason.
    """
    reasons = []
    for provider in candidates(request.names):
        try:
            provider.require(device)
        except ProviderError as error:
            reasons.append(str(error))
        else:
            return
    raise ProviderError("; ".join(reasons))


def choose(
    request: ProviderRequest, built: build.Built, config: Config, opener: Open = open_onnx
) -> Proven:
    """Open and prove a session on the first provider of the request that can be had.

    Blocks for about a second: call it on a thread. Raises ProviderError with every reason.
    """
    probe = Probe.read(built.proof)
    threads = config.threads or cpus.usable()
    fallbacks: list[Fallback] = []
    for provider in candidates(request.names):
        try:
            provider.require(config.gpu_device)
            session = opener(built.graph, provider, threads, config.gpu_device)
            proof = prove(session, provider.runtime_name, probe)
        except ProviderError as error:
            fallbacks.append(Fallback(provider.name, str(error)))
            log.warning("provider refused", provider=provider.name, reason=str(error))
            continue
        hardware = provider.hardware(config.gpu_device)
        return Proven(session, provider, hardware, proof, tuple(fallbacks))
    raise ProviderError("; ".join(fallback.reason for fallback in fallbacks))


class Embedder:
    """A proven session behind a tokenizer and a scheduler; made by `open_embedder`."""

    def __init__(
        self, model: Model, proven: Proven, tokenizer: Tokenizer, scheduler: Scheduler
    ) -> None:
        self.model = model
        self.proven = proven
        self.scheduler = scheduler
        self._tokenizer = tokenizer
        # not asyncio's own threads, which everything else needs: the database, the shutdown
        self._threads = ThreadPoolExecutor(_TOKENIZER_THREADS, thread_name_prefix="tokenizer")
        self._closed = False

    def close(self) -> None:
        """Drop the texts that wait to be tokenized, without waiting for those that are."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        return self.model.shape.hidden

    @property
    def numerics(self) -> str:
        """What vectors depend on besides their text; vectors of other numerics never mix."""
        return self.model.numerics("float")

    async def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenize on a thread, off the event loop; raises ShuttingDown."""
        return await self._on_thread(self._tokenizer.encode, texts)

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, on a thread; raises ShuttingDown."""
        return await self._on_thread(self._tokenizer.count, texts)

    async def embed(self, texts: Sequence[str], *, truncate: bool = True) -> Embedding:
        """Give the vectors of texts, ahead of any bulk work.

        Raises Truncated if a text must be cut and `truncate` does not allow it, LimitsExceeded if
        the queue has no room, ShuttingDown.
        """
        rows = await self.tokenize(texts)
        cut = [number for number, row in enumerate(rows) if row.truncated]
        if cut and not truncate:
            raise Truncated(
                f"{len(cut)} of {len(rows)} texts are longer than the"
                f" {self.model.shape.max_tokens} tokens that the model reads; the first is number"
                f" {cut[0]}, counted from 0: shorten it, or allow `truncate`"
            )
        return Embedding(await self.scheduler.embed(rows), len(cut))

    async def _on_thread(self, work: Callable[[Sequence[str]], T], texts: Sequence[str]) -> T:
        if self._closed:
            raise ShuttingDown
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, texts)


@asynccontextmanager
async def open_embedder(
    model: Model, config: Config, opener: Open = open_onnx
) -> AsyncIterator[Embedder]:
    """Build the graph if need be, open and prove a session, and serve until closed.

    Raises ModelError and ProviderError.
    """
    await asyncio.to_thread(require_any, config.execution_provider, config.gpu_device)
    built = await build.ensure(model, config.state_dir / "graphs")
    proven = await asyncio.to_thread(choose, config.execution_provider, built, config, opener)
    tokenizer = await asyncio.to_thread(Tokenizer, model.tokenizer, model.shape.max_tokens)
    scheduler = Scheduler(
        proven.session.run,
        dimension=model.shape.hidden,
        budget=config.batch_tokens or proven.provider.batch_tokens,
        limit=config.queue_limit or QUEUE_LIMIT,
    )
    async with scheduler:
        embedder = Embedder(model, proven, tokenizer, scheduler)
        try:
            yield embedder
        finally:
            embedder.close()
