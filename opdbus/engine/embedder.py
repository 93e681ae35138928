"""The engine: opened on the first provider of a chain that can be proven, then texts to vectors."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from opdbus.engine import cpus
from opdbus.engine.proof import Probe, prove
from opdbus.engine.providers import candidates
from opdbus.engine.scheduler import Scheduler
from opdbus.engine.session import OnnxSession
from opdbus.engine.tokenizer import Tokenizer
from opdbus.errors import ProviderError
from opdbus.models import build

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from opdbus.config import Config, ProviderRequest
    from opdbus.engine.proof import Proof
    from opdbus.engine.providers import Provider
    from opdbus.engine.session import Session
    from opdbus.engine.tokenizer import Tokens
    from opdbus.models.folder import Model

    Open = Callable[[Path, Provider, int, int], Session]

log = structlog.get_logger()
QUEUE_LIMIT = 65536


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

    @property
    def dimension(self) -> int:
        """The length of every vector."""
        return self.model.shape.hidden

    @property
    def numerics(self) -> str:
        """What vectors depend on besides their text; vectors of other numerics never mix."""
        return self.model.numerics("float")

    async def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenize on a thread, off the event loop."""
        return await asyncio.to_thread(self._tokenizer.encode, texts)

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, on a thread."""
        return await asyncio.to_thread(self._tokenizer.count, texts)

    async def embed(self, texts: Sequence[str]) -> Embedding:
        """Give the vectors of texts, ahead of any bulk work.

        Raises LimitsExceeded if the queue has no room, ShuttingDown.
        """
        rows = await self.tokenize(texts)
        vectors = await self.scheduler.embed(rows)
        return Embedding(vectors, sum(row.truncated for row in rows))


@asynccontextmanager
async def open_embedder(
    model: Model, config: Config, opener: Open = open_onnx
) -> AsyncIterator[Embedder]:
    """Build the graph if need be, open and prove a session, and serve until closed.

    Raises ModelError and ProviderError.
    """
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
        yield Embedder(model, proven, tokenizer, scheduler)
