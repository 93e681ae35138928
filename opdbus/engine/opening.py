"""Opening of a level's engine: a model on a provider, or a static table without one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Final

from opdbus.engine.budget import Budget
from opdbus.engine.chain import Chain, require_provider
from opdbus.engine.embedder import Embedder
from opdbus.engine.host import HERE, Host
from opdbus.engine.runtimes import open_session
from opdbus.engine.scheduler import Scheduler
from opdbus.engine.static_engine import open_table
from opdbus.engine.tokenizer import Tokenizer
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS, ON_PROVIDERS

if TYPE_CHECKING:
    from opdbus.config import Config
    from opdbus.engine.chain import Fallback, Open, Proven
    from opdbus.models.folder import Model

QUEUE_LIMIT: Final = 65536


def require(config: Config, host: Host = HERE) -> None:
    """Check the configured level as far as possible without opening it; blocks.

    Raises ModelError if the model's files are missing, ProviderError if no provider can run it.
    """
    if config.vector_level == "none":
        return
    level = LEVELS[config.vector_level]
    folder.find(level, config)
    if level.name in ON_PROVIDERS:
        require_provider(config, host)


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
    model = await asyncio.to_thread(folder.load, LEVELS[level], config)
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
    lanes = [session.run for session in proven.sessions for _ in range(proven.placement.lanes)]
    scheduler = Scheduler(
        lanes,
        solo=proven.solo.run if proven.solo else None,
        dimension=model.shape.hidden,
        budget=_budget(proven, config),
        limit=config.queue_limit or QUEUE_LIMIT,
    )
    async with scheduler:
        with closing(Embedder(model, proven, tokenizer, scheduler)) as embedder:
            yield embedder


def _budget(proven: Proven, config: Config) -> Budget:
    row = proven.provider
    return Budget(
        row.most_tokens,
        fixed=config.batch_tokens,
        rows=1 if proven.proof.precision in row.single else row.most_rows,
        whole=row.whole_batches,
    )
