"""Opening of a level's engine: a model on a provider, or a static table without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Any, Final

from opdbus.engine import cpus, discovery, static_encoder
from opdbus.engine.batching import Budget, Rank
from opdbus.engine.embedder import Embedder
from opdbus.engine.host import HERE, Host
from opdbus.engine.provider import Placement, Provider
from opdbus.engine.provider_chain import Chain, ProvenSessions, require_provider
from opdbus.engine.scheduler import Scheduler
from opdbus.engine.sessions import open_session
from opdbus.engine.static_encoder import StaticEncoder
from opdbus.engine.tokenizer import Tokenizer
from opdbus.models import folder
from opdbus.models.level_table import LEVELS, ON_PROVIDERS
from opdbus.models.static_table import StaticTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opdbus.config import Config
    from opdbus.engine.provider_chain import Fallback, Open
    from opdbus.models.folder import Model

# Not a row of the provider table: nothing else runs a static table or uses numpy.
_NUMPY: Final = Provider(
    "cpu:numpy",
    "numpy",
    "op-dbus",
    discovery.find_processor,
    dialects={},
    options=lambda _placement: {},
    runtime="numpy",
    is_cpu=True,
)
# More threads than this wait for each other.
_MOST_THREADS: Final = 8
# Token budget of a batch for storing: some thousand texts.
_TOGETHER: Final = 1 << 16


class Instant:
    """`Runner` of a static table: nothing waits, and nothing can be lost."""

    batches: Final = None
    depth: Final = 0
    budget: Final = _TOGETHER
    lanes: Final = 1

    def __init__(self) -> None:
        self.fault = ""
        self.texts = 0

    async def embed(self, rows: Any, _rank: Rank = Rank.FEW) -> NDArray[np.float32]:  # noqa: ANN401 -- the encoder's
        """Return the vectors (rows, dimension) of encoded texts."""
        vectors: NDArray[np.float32] = rows.vectors
        self.texts += len(vectors)
        return vectors

    async def lost(self) -> None:
        """Wait forever: a table cannot be lost."""
        await asyncio.Event().wait()

    def join(self) -> None:
        """Return at once: there are no threads."""


def open_table(model: Model, threads: int | None) -> Embedder:
    """Read and prove a table, in less than 0.1 s; raises ModelError and ProofFailed."""
    encoder = StaticEncoder(StaticTable.read(model.folder, model.shape.max_tokens))
    proof = static_encoder.prove_static(encoder)
    size = model.weights.stat().st_size
    proven = ProvenSessions((), _NUMPY, HERE.processor(), proof, (), Placement(), size)
    # number of threads that encode texts in parallel
    side_by_side = min(threads or cpus.usable(), _MOST_THREADS)
    return Embedder(model, proven, encoder, Instant(), side_by_side)


QUEUE_LIMIT: Final = 65536


def require_level(config: Config, host: Host = HERE) -> None:
    """Check the configured level as far as possible without opening it; blocks.

    Raises ModelError if the model's files are missing, ProviderError if no provider can run it.
    """
    if config.vector_level == "none":
        return
    level = LEVELS[config.vector_level]
    folder.find_model(level, config)
    if level.name in ON_PROVIDERS:
        require_provider(config, host)


def make_scheduler(
    proven: ProvenSessions,
    dimension: int,
    batch_tokens: int | None,
    limit: int = QUEUE_LIMIT,
    cut: Callable[[str], str] = str,
) -> Scheduler:
    """Return the queue of proven sessions, with lanes and batches as their provider has them.

    `cut` cuts a text that is too long for the model, for a server.
    """
    if proven.server:
        # the server batches by itself: as many texts as it accepts, of any length
        budget = Budget(proven.server.room, fixed=proven.server.room)
        lanes = [proven.server.run] * proven.placement.lanes
        return Scheduler(lanes, whole_texts=cut, dimension=dimension, budget=budget, limit=limit)
    row = proven.provider
    budget = Budget(
        row.most_tokens,
        fixed=batch_tokens,
        rows=1 if proven.proof.precision in row.single else row.most_rows,
        whole=row.whole_batches,
    )
    return Scheduler(
        [session.run for session in proven.sessions for _ in range(proven.placement.lanes)],
        solo=proven.solo.run if proven.solo else None,
        dimension=dimension,
        budget=budget,
        limit=limit,
    )


@asynccontextmanager
async def open_level(
    config: Config,
    level: str,
    lost: Sequence[Fallback] = (),
    *,
    graded: bool = True,
    opener: Open = open_session,
    host: Host = HERE,
) -> AsyncIterator[Embedder]:
    """Load and open a level's model, closed at exit; raises ModelError, ProviderError."""
    model = await asyncio.to_thread(folder.load_model, LEVELS[level], config)
    async with open_embedder(model, config, opener, host, lost, graded=graded) as embedder:
        yield embedder


@asynccontextmanager
async def open_embedder(
    model: Model,
    config: Config,
    opener: Open = open_session,
    host: Host = HERE,
    lost: Sequence[Fallback] = (),
    *,
    graded: bool = True,
) -> AsyncIterator[Embedder]:
    """Build the graph if needed, open and prove sessions, and serve until closed.

    Providers in `lost` are tried last. Without `graded`, fp32 serves if precisions have no grades
    yet. Raises ModelError and ProviderError.
    """
    if model.format.is_table:
        with closing(await asyncio.to_thread(open_table, model, config.threads)) as embedder:
            yield embedder
        return
    tokenizer = await asyncio.to_thread(Tokenizer.of, model)
    proven = await Chain(model, config, opener, host, graded).choose(lost)
    limit = config.queue_limit or QUEUE_LIMIT
    size, cut = model.shape.hidden, tokenizer.cut
    async with make_scheduler(proven, size, config.batch_tokens, limit, cut) as scheduler:
        with closing(proven), closing(Embedder(model, proven, tokenizer, scheduler)) as embedder:
            yield embedder
