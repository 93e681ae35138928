"""Owner of all engines: the configured level, other levels on demand, and their changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Sequence,
)
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import Any, Final, Self

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.config import Config
from opdbus.engine.batching import BatchMetrics, Rank
from opdbus.engine.embedder import Embedder, Embedding
from opdbus.engine.opening import open_level
from opdbus.engine.tokenizer import Rows
from opdbus.errors import NoModel, OpDbusError, ProviderLost, ShuttingDown
from opdbus.models.level_table import find_level
from opdbus.platform.metrics import Family, Histogram
from opdbus.platform.tasks import cancel
from opdbus.serving.level import RETRY_SECONDS, Level, Open
from opdbus.serving.states import Phase, State
from opdbus.settings.parsing import provider_label

log = structlog.get_logger()

# The metrics of batches.
_OF_BATCHES: Final[Sequence[tuple[str, Callable[[BatchMetrics], float | Histogram]]]] = (
    ("tokens_total", lambda batches: batches.tokens),
    ("padding_tokens_total", lambda batches: batches.padding),
    ("batch_size", lambda batches: batches.texts_a_batch),
    ("batch_tokens", lambda batches: batches.tokens_a_batch),
    ("queue_duration_seconds", lambda batches: batches.queue_seconds),
    ("inference_duration_seconds", lambda batches: batches.run_seconds),
)
# Memory limit of loaded levels, unless a setting gives another.
MAX_LOADED_BYTES: Final = 1 << 30


class Serving:
    """Owner of all engines: opens, switches, replaces and closes them; an async context manager.

    This class decides which levels are open; `level.py` and the table in `states.py` decide the
    state of a level's engine. Callers request an engine for each piece of work and do not keep it.
    """

    def __init__(
        self,
        config: Config,
        open_engine: Open = open_level,
        retry_seconds: Sequence[float] = RETRY_SECONDS,
    ) -> None:
        self.config = config
        self._open_engine = open_engine
        self._retry_seconds = retry_seconds
        # by name, the least recently used first
        self._levels: dict[str, Level] = {}
        self._watchers: set[asyncio.Queue[Phase]] = set()
        # one change of settings at a time
        self._switch_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        # (provider passed over, provider that serves instead, class of the reason)
        self._fallbacks: Counter[tuple[str, str, str]] = Counter()
        # true once nothing more is served
        self.is_closed = False

    async def __aenter__(self) -> Self:
        """Return at once; `start` opens the first engine."""
        return self

    async def __aexit__(self, *_error: object) -> None:
        """Close every engine; callers that wait for one get ShuttingDown."""
        self.is_closed = True
        levels = list(self._levels.values())
        await asyncio.gather(*(level.close(drain=False) for level in levels))
        await cancel(self._tasks)

    # state

    @property
    def phase(self) -> Phase:
        """The current phase of the configured level."""
        if self.config.vector_level == "none":
            return Phase(State.READY, error=_no_model())
        level = self._levels.get(self.config.vector_level)
        return level.phase if level else Phase(State.LOADING)

    @property
    def loaded(self) -> dict[str, Embedder]:
        """The engines that serve now, by level."""
        phases = {name: level.phase for name, level in self._levels.items()}
        return {name: phase.embedder for name, phase in phases.items() if phase.embedder}

    def phase_of(self, name: str) -> Phase | None:
        """Return the phase of a level; None for one that no call has asked for yet."""
        level = self._levels.get(name)
        return level.phase if level else None

    async def watch_phases(self) -> AsyncGenerator[Phase]:
        """Yield every phase of the configured level from now on, without gaps."""
        queue: asyncio.Queue[Phase] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    def metrics(self) -> Iterator[Family]:
        """Yield the metrics of the engines."""
        engines = {(name,): engine for name, engine in self.loaded.items()}
        proven = {
            (*level, provider_label(engine.provider), engine.precision, "true"): 1
            for level, engine in engines.items()
        }
        wanted = self.config.vector_level
        if wanted != "none" and (wanted,) not in engines:
            proven[wanted, "none", "none", "false"] = 1
        yield Family("provider_info", proven)
        fell_back = {level: int(engine.fell_back) for level, engine in engines.items()}
        yield Family("provider_fell_back", fell_back)
        yield Family("provider_fallbacks_total", self._fallbacks)
        runners = {level: engine.scheduler for level, engine in engines.items()}
        yield Family("texts_total", {level: one.texts for level, one in runners.items()})
        yield Family("queue_texts", {level: one.depth for level, one in runners.items()})
        counted = [(level, one.batches) for level, one in runners.items() if one.batches]
        for name, value in _OF_BATCHES:
            yield Family(name, {level: value(batches) for level, batches in counted})

    # work

    async def embedder(self, level: str = "") -> Embedder:
        """Return a level's engine, opening it if needed; "" is the configured level.

        Enter `held()` before the next await, or it may be closed. Raises InvalidArgs, NoModel,
        ModelError, ProviderError, ShuttingDown.
        """
        while True:
            wanted = self._get_or_create_level(level)
            try:
                return await wanted.embedder()
            except ShuttingDown:
                # This level was closed, perhaps only because another one replaced it.
                if self.is_closed:
                    raise

    def refuse_while_loading(self, name: str) -> None:
        """Raise NoModel while a level loads, which begins now if nothing has asked for it.

        Raises the error of a level that could not be opened, once: the next call opens it again.
        """
        wanted = self._level_name(name)
        level = self._levels.get(wanted)
        if level and level.is_over and level.phase.error and not self.is_closed:
            del self._levels[wanted]
            raise copy(level.phase.error)
        if self._get_or_create_level(wanted).phase.state is State.LOADING:
            raise NoModel(f"the level {wanted} is loading: ask again in a moment")

    async def embed(
        self,
        texts: Sequence[str],
        level: str = "",
        *,
        truncate: bool = True,
        priority: Rank = Rank.FEW,
    ) -> Embedding:
        """Return the vectors of texts; retry on the next engine if the provider is lost.

        Raises the errors of `embedder` and `Embedder.embed`.
        """
        while True:
            embedder = await self.embedder(level)
            try:
                return await embedder.embed(texts, truncate=truncate, priority=priority)
            except ProviderLost:
                continue
            except ShuttingDown:
                if self.is_closed:
                    raise

    def lease(self, embedder: Embedder) -> Lease:
        """Return a lease of an engine for work of several steps; a context manager."""
        return Lease(embedder, self.embedder)

    # changes of configuration

    async def start(self) -> None:
        """Open the configured level; raises ModelError and ProviderError if that fails."""
        if self.config.vector_level == "none":
            return
        try:
            await self.embedder()
        except OpDbusError:
            async with self._switch_lock:
                # a switch that began meanwhile may have opened another engine
                if self.phase.embedder is None:
                    raise

    async def switch(self, config: Config) -> None:
        """Apply other settings: open and prove a new engine, then swap.

        The old engines keep serving meanwhile. Calls that hold the old engine finish on it. Raises
        ModelError and ProviderError; then nothing has changed. Cancelling the caller does not
        interrupt the switch.
        """
        await asyncio.shield(self._spawn(self._switch(config)))

    async def _switch(self, config: Config) -> None:
        async with self._switch_lock:
            name = config.vector_level
            levels: dict[str, Level] = {}
            if name != "none":
                # the old engines keep serving meanwhile
                level = levels[name] = self._create_level(name, config, graded=True)
                try:
                    await level.embedder()
                except BaseException:
                    await level.close(drain=False)
                    raise
            replaced, self._levels, self.config = self._levels, levels, config
            for level in replaced.values():
                self._retire(level)
            self._publish(f"switched to {config.execution_provider}")

    def _level_name(self, name: str) -> str:
        """Return a level's name, the configured one's for ""; raises NoModel and InvalidArgs."""
        configured = self.config.vector_level
        if configured == "none":
            raise _no_model()
        return find_level(name or configured).name

    def _get_or_create_level(self, name: str) -> Level:
        """Return a level; make a new one if there is none or it has ended."""
        configured, wanted = self.config.vector_level, self._level_name(name)
        if self.is_closed:
            raise ShuttingDown
        level = self._levels.pop(wanted, None)
        if level is None or level.is_over:
            # The configured level starts without grading: all objects wait for its vectors.
            level = self._create_level(wanted, self.config, graded=wanted != configured)
        self._levels[wanted] = level
        return level

    def _create_level(self, name: str, config: Config, *, graded: bool) -> Level:
        return Level(
            name,
            config,
            self._open_engine,
            retries_forever=name == config.vector_level,
            graded=graded,
            retry_seconds=self._retry_seconds,
            on_phase=self._on_phase,
        )

    def _on_phase(self, level: Level) -> None:
        """Publish the phase of a level; ignore levels that are still tried by a switch."""
        if (embedder := level.phase.embedder) and embedder.fell_back:
            serves = provider_label(embedder.provider)
            self._fallbacks.update(
                (provider_label(passed.provider), serves, passed.reason_class)
                for passed in embedder.proven.fallbacks
                if passed.provider != embedder.provider
            )
        if self._levels.get(level.name) is not level:
            return
        if level.name == self.config.vector_level:
            self._publish()
        if level.phase.embedder:
            self._make_room(level)

    def _make_room(self, newest: Level) -> None:
        """Unload the least recently used levels past the limit, never the configured one."""
        limit = self.config.max_loaded_bytes or MAX_LOADED_BYTES
        used_bytes = sum(embedder.weight_bytes for embedder in self.loaded.values())
        for name, embedder in self.loaded.items():
            if used_bytes <= limit:
                return
            if name not in {newest.name, self.config.vector_level}:
                used_bytes -= embedder.weight_bytes
                log.info("level unloaded", level=name, reason="OP_DBUS_MAX_LOADED_BYTES")
                self._retire(self._levels.pop(name))

    def _retire(self, level: Level) -> None:
        """Close a level once no call holds its engine, or immediately at shutdown."""
        self._spawn(self._drain_and_close(level))

    async def _drain_and_close(self, level: Level) -> None:
        try:
            await level.close(drain=True)
        except asyncio.CancelledError:
            await level.close(drain=False)
            raise

    def _publish(self, reason: str = "") -> None:
        phase = replace(self.phase, reason=reason or self.phase.reason)
        for queue in self._watchers:
            queue.put_nowait(phase)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, in case no caller waits any more


def _no_model() -> NoModel:
    return NoModel("the level is none, which has no vectors: set OP_DBUS_VECTOR_LEVEL")


class Lease:
    """Keeps an engine open; if the engine is lost, continues on its replacement.

    `current_engine` returns the engine that a level uses now.
    """

    def __init__(
        self, embedder: Embedder, current_engine: Callable[[str], Awaitable[Embedder]]
    ) -> None:
        self._embedder = embedder
        self._current_engine = current_engine
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
                await self._fail_over(embedder)

    async def _fail_over(self, lost: Embedder) -> None:
        if self._embedder is lost:
            # released now, so that it is closed sooner
            self._held.close()
        found = await self._current_engine(lost.level)
        if found.numerics != lost.numerics:
            raise ProviderLost(
                f"{lost.provider} stopped working, and {found.provider} computes in another"
                " precision: repeat the whole request"
            )
        if self._embedder is lost:
            self._held.enter_context(found.held())
            self._embedder = found
