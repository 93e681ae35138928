"""Contender infinity, through its own asynchronous engine on torch."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from child import At, Facts

PACKAGES = ("infinity_emb", "sentence-transformers", "transformers", "optimum", "torch")


class _Engines:
    """One engine at a time, because its batch size is fixed when it is made."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._engine: Any = None
        self._batch = 0

    def at(self, batch: int) -> Any:  # noqa: ANN401 -- an Embed
        """Start an engine with this batch size, unless it runs already."""
        if batch != self._batch:
            self._loop.run_until_complete(self._start(batch))
        return self._embed

    def _embed(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 -- arrays
        return self._loop.run_until_complete(self._engine.embed(sentences=list(texts)))[0]

    def settings(self) -> str:
        """Return the backend; not every kind of model can become a BetterTransformer."""
        self.at(1)
        modules = self._engine._model_replicas[0].modules()
        better = any("BetterTransformer" in type(module).__name__ for module in modules)
        return "torch, BetterTransformer" if better else "torch"

    async def _start(self, batch: int) -> None:
        from infinity_emb import AsyncEmbeddingEngine, EngineArgs

        if self._engine is not None:
            await self._engine.astop()
            # otherwise the models of all batch sizes would count as its memory
            self._engine = None
            gc.collect()
        arguments = EngineArgs(
            model_name_or_path=str(self._folder),
            engine="torch",
            device="cpu",
            batch_size=batch,
            model_warmup=False,
        )
        self._engine, self._batch = AsyncEmbeddingEngine.from_args(arguments), batch
        await self._engine.astart()


def load(folder: Path, _: Path, threads: int, __: dict[str, str]) -> tuple[At, Facts]:
    """Load the model unchanged: the engine makes its own batches, sorted by length."""
    import torch

    torch.set_num_threads(threads)
    engines = _Engines(folder)
    facts = {"precision": "float32", "threads": str(threads), "settings": engines.settings()}
    return engines.at, facts
