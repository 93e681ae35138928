"""Vectors of questions: from the daemon of this host, or without one from an engine in here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opdbus.api import Embedder
from opdbus.client import Client
from opdbus.config import Config
from opdbus.errors import OpDbusError
from opdbus.fleet.questions.daemon_vectors import ask_daemon
from opdbus.fleet.questions.vector_ranks import Numerics


class QuestionVectors:
    """Computes vectors of questions in the numerics that the fleet has and this host can compute.

    Engines stay open until `close`, for a process that asks more than once.
    """

    def __init__(self, settings: Config) -> None:
        self._settings = settings
        # by level; None where the model cannot be opened
        self._engines: dict[str, Embedder | None] = {}

    async def embed(
        self, words: str, numerics: Sequence[Numerics]
    ) -> Mapping[str, Sequence[float]]:
        """Return the vectors of a text by the names of numerics; an `Embed`."""
        found = await self._ask_daemon(words)
        # the daemon's engine is ready and of this host: another one would only cost memory
        if found.keys() & {each.name for each in numerics}:
            return found
        for each in numerics:
            if engine := await self._engine(each.level):
                name = engine.engine.numerics
                found[name] = (await engine.embed_async([words]))[0].tolist()
        return found

    async def close(self) -> None:
        """Free the engines."""
        for engine in filter(None, self._engines.values()):
            await engine.__aexit__()
        self._engines.clear()

    async def _ask_daemon(self, words: str) -> dict[str, Sequence[float]]:
        try:
            async with Client(self._settings.bus) as client:
                return dict(await ask_daemon(client, words))
        except OpDbusError:
            return {}  # no bus

    async def _engine(self, level: str) -> Embedder | None:
        if level not in self._engines:
            engine = Embedder(level, "cpu", model_dir=self._settings.model_dir)
            try:
                self._engines[level] = await engine.__aenter__()
            except OpDbusError:
                self._engines[level] = None
        return self._engines[level]
