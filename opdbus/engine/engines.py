"""The engines that are loaded: the configured level's, others on demand, switched and replaced."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

import structlog

from opdbus.engine.batching import Rank
from opdbus.engine.chain import Fallback
from opdbus.engine.embedder import open_embedder
from opdbus.engine.host import HERE, Host
from opdbus.engine.runtimes import open_session
from opdbus.errors import InvalidArgs, NoModel, OpDbusError, ProviderLost, ShuttingDown
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
    from types import TracebackType
    from typing import Any, Self, TypeVar

    import numpy as np
    from numpy.typing import NDArray

    from opdbus.config import Config
    from opdbus.engine.chain import Open
    from opdbus.engine.embedder import Embedder, Embedding
    from opdbus.engine.tokenizer import Tokens

    T = TypeVar("T")

log = structlog.get_logger()

# What levels beside the configured one may hold loaded, unless a setting says otherwise.
MAX_LOADED_BYTES: Final = 1 << 30
# How long those who hold a lost engine are waited for.
_PATIENCE_SECONDS: Final = 2.0
# When a provider that was lost is tried again: it may have been reset, or its memory freed.
_RETRY_SECONDS: Final = (30.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(eq=False, slots=True)
class _Slot:
    """A level's engine, or the wait for it; `stack` closes it."""

    level: str
    embedder: asyncio.Future[Embedder]
    stack: AsyncExitStack


class Lease:
    """An engine that stays open while it is worked with, or its successor if it is lost."""

    def __init__(self, engines: Engines, embedder: Embedder, held: ExitStack) -> None:
        self._engines = engines
        self._embedder = embedder
        self._held = held

    @property
    def max_tokens(self) -> int:
        """The tokens past which texts are cut."""
        return self._embedder.model.shape.max_tokens

    async def tokenize(self, texts: Sequence[str]) -> list[Tokens]:
        """Tokenize off the event loop; raises ShuttingDown."""
        return await self._embedder.tokenize(texts)

    async def embed(self, rows: Sequence[Tokens]) -> NDArray[np.float32]:
        """Give the vectors (rows, dimension) of tokenized texts, after everyone's single texts.

        Raises ProviderLost if the engine was lost and another one's vectors would not mix with
        those that it gave, ShuttingDown.
        """
        while True:
            embedder = self._embedder
            try:
                return await embedder.scheduler.embed(rows, bulk=True)
            except ProviderLost:
                found = await self._engines.successor(embedder)
                if self._embedder is embedder:
                    self._held.close()
                    self._held.enter_context(found.held())
                    self._embedder = found


async def _nothing(_embedder: Embedder | None, _reason: str) -> None:
    return None


class Engines:
    """Use as a context; `start` opens the configured level, the others are opened when asked for.

    `on_change` is awaited with the configured level's new engine, before the old one is closed, or
    with None when it was lost and another one is sought.
    """

    def __init__(
        self,
        config: Config,
        on_change: Callable[[Embedder | None, str], Awaitable[None]] = _nothing,
        opener: Open = open_session,
        host: Host = HERE,
        retry_seconds: Sequence[float] = _RETRY_SECONDS,
    ) -> None:
        self.config = config
        self.on_change = on_change
        self._opener = opener
        self._host = host
        self._retry_seconds = retry_seconds
        # by level, the least recently used first
        self._slots: dict[str, _Slot] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._one_switch = asyncio.Lock()
        self._is_closed = False
        # why the configured level has no engine, and nothing is left to try but to wait
        self.fault: OpDbusError | None = None

    async def __aenter__(self) -> Self:
        """Open nothing yet."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close every engine; what waits for one is told that we are stopping."""
        self._is_closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slot in list(self._slots.values()):
            if not slot.embedder.done():
                slot.embedder.set_exception(ShuttingDown())
                slot.embedder.exception()
            await slot.stack.aclose()

    async def start(self) -> Embedder:
        """Open the configured level; raises ModelError and ProviderError."""
        embedder = await self.get(self.config.vector_level)
        await self._tell(self.config.vector_level, embedder, "proven at start")
        return embedder

    @property
    def loaded(self) -> dict[str, Embedder]:
        """Give the engines that serve now, by level."""
        return {
            level: slot.embedder.result()
            for level, slot in self._slots.items()
            if slot.embedder.done() and not slot.embedder.exception()
        }

    async def get(self, level: str = "") -> Embedder:
        """Give a level's engine, opening it if need be; "" is the configured level.

        Raises InvalidArgs, NoModel, ModelError, ProviderError, ShuttingDown.
        """
        wanted = self._named(level)
        if self._is_closed:
            raise ShuttingDown
        slot = self._slots.pop(wanted, None)
        if slot is None:
            slot = _Slot(wanted, asyncio.get_running_loop().create_future(), AsyncExitStack())
            self._background(self._open(slot))
        self._slots[wanted] = slot
        return await asyncio.shield(slot.embedder)

    async def embed(
        self,
        texts: Sequence[str],
        level: str = "",
        *,
        truncate: bool = True,
        priority: Rank = Rank.FEW,
    ) -> Embedding:
        """Give the vectors of texts; a provider that is lost meanwhile costs time, not the call.

        Raises what `get` and `Embedder.embed` raise.
        """
        while True:
            embedder = await self.get(level)
            try:
                return await embedder.embed(texts, truncate=truncate, priority=priority)
            except ProviderLost:
                await asyncio.sleep(0)  # the loss is told on the loop, and may be still to come
            except ShuttingDown:
                # perhaps only this engine, which was retired between these two lines
                if self._is_closed:
                    raise

    @contextmanager
    def lease(self, embedder: Embedder) -> Iterator[Lease]:
        """Keep an engine for work of several steps."""
        with ExitStack() as held:
            held.enter_context(embedder.held())
            yield Lease(self, embedder, held)

    async def successor(self, lost: Embedder) -> Embedder:
        """Give the engine that took the place of a lost one, to go on with what was begun.

        Raises ProviderLost if its vectors would not mix with those of the other.
        """
        await asyncio.sleep(0)  # the loss is told on the loop, and may be still to come
        found = await self.get(lost.model.level)
        if found.numerics != lost.numerics:
            raise ProviderLost(
                f"{lost.proven.provider.name} stopped working, and {found.proven.provider.name}"
                " computes in another precision: ask for all of it again"
            )
        return found

    async def switch(self, config: Config) -> Embedder:
        """Serve with other settings: build and prove beside the old engine, then swap.

        Requests that the old engine has are finished by it. Raises ModelError and ProviderError;
        then all is as it was. A caller who leaves does not stop it halfway.
        """
        return await asyncio.shield(self._background(self._switch(config)))

    async def _switch(self, config: Config) -> Embedder:
        async with self._one_switch:
            level = config.vector_level
            stack = AsyncExitStack()
            embedder = await self._opened(config, level, stack, ())
            old = list(self._slots.values())
            self.config = config
            self._slots = {level: self._serving(level, embedder, stack)}
            await self._tell(level, embedder, f"switched to {config.execution_provider}")
            for slot in old:
                self._background(self._retire(slot))
            return embedder

    def _named(self, level: str) -> str:
        configured = self.config.vector_level
        if configured == "none":
            raise NoModel("the level is none, which has no vectors: set OP_DBUS_VECTOR_LEVEL")
        wanted = {"med": "medium", "": configured}.get(level, level)
        if wanted not in LEVELS:
            raise InvalidArgs(f"there is no level {level!r}; there are {', '.join(LEVELS)}")
        return wanted

    def _serving(self, level: str, embedder: Embedder, stack: AsyncExitStack) -> _Slot:
        future: asyncio.Future[Embedder] = asyncio.get_running_loop().create_future()
        future.set_result(embedder)
        slot = _Slot(level, future, stack)
        embedder.scheduler.on_lost = lambda error: self._lost(slot, error)
        return slot

    async def _open(self, slot: _Slot) -> None:
        """Open a slot's engine, and make room for it."""
        try:
            embedder = await self._opened(self.config, slot.level, slot.stack, ())
        except Exception as error:  # noqa: BLE001 -- whoever waits must hear of it, whatever it is
            self._slots.pop(slot.level, None)
            if not slot.embedder.done():
                slot.embedder.set_exception(error)
                slot.embedder.exception()  # retrieved, in case nobody waits any more
            return
        embedder.scheduler.on_lost = lambda error: self._lost(slot, error)
        slot.embedder.set_result(embedder)
        self._make_room(slot)

    async def _opened(
        self, config: Config, level: str, stack: AsyncExitStack, lost: Sequence[Fallback]
    ) -> Embedder:
        model = await asyncio.to_thread(folder.load, LEVELS[level], config)
        opening = open_embedder(model, config, self._opener, self._host, lost)
        return await stack.enter_async_context(opening)

    def _make_room(self, newest: _Slot) -> None:
        """Retire the least recently used levels past the limit, never the configured one."""
        limit = self.config.max_loaded_bytes or MAX_LOADED_BYTES
        held = sum(embedder.proven.weight_bytes for embedder in self.loaded.values())
        for level, embedder in list(self.loaded.items()):
            if held <= limit:
                return
            if level in {newest.level, self.config.vector_level}:
                continue
            held -= embedder.proven.weight_bytes
            log.info("level unloaded", level=level, reason="OP_DBUS_MAX_LOADED_BYTES")
            self._background(self._retire(self._slots.pop(level)))

    async def _retire(self, slot: _Slot) -> None:
        """Close an engine when all that it was asked for is done."""
        with suppress(OpDbusError):
            embedder = await asyncio.shield(slot.embedder)
            await embedder.drained()
        await slot.stack.aclose()

    # a provider that stops working

    def _lost(self, slot: _Slot, error: ProviderLost) -> None:
        """Put a wait in the place of an engine that died, and look for another."""
        if self._slots.get(slot.level) is not slot or self._is_closed:
            return
        embedder = slot.embedder.result()
        log.error("provider lost", provider=embedder.proven.provider.name, reason=str(error))
        waiting = _Slot(slot.level, asyncio.get_running_loop().create_future(), AsyncExitStack())
        self._slots[slot.level] = waiting
        self._background(self._replace(slot, waiting, embedder, error))

    async def _replace(
        self, dead: _Slot, waiting: _Slot, embedder: Embedder, error: ProviderLost
    ) -> None:
        """Open the next provider of the chain, or the same one anew, until one can be had."""
        await self._tell(waiting.level, None, str(error))
        # whoever holds it meets the loss at once; its memory may be needed for the next one
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await embedder.drained()
        await dead.stack.aclose()
        lost = Fallback(embedder.proven.provider.name, str(error))
        for delay in self._delays():
            found = await self._attempt(waiting, lost)
            if found is not None:
                break
            await asyncio.sleep(delay)
            if self._slots.get(waiting.level) is not waiting:
                return  # switched meanwhile
        else:
            return
        slot = self._serving(waiting.level, found, waiting.stack)
        self._slots[slot.level] = slot
        if not waiting.embedder.done():
            waiting.embedder.set_result(found)
        await self._tell(slot.level, found, str(error))
        if found.proven.provider.name != lost.provider:
            self._background(self._try_again(slot))

    async def _attempt(self, waiting: _Slot, lost: Fallback) -> Embedder | None:
        """Open an engine in the place of a lost one; whoever waits is told why there is none."""
        try:
            return await self._opened(self.config, waiting.level, waiting.stack, (lost,))
        except OpDbusError as fault:
            log.error("no provider left", level=waiting.level, reason=str(fault))  # noqa: TRY400 -- a sentence, no traceback
            if not waiting.embedder.done():
                waiting.embedder.set_exception(fault)
                waiting.embedder.exception()
                if waiting.level == self.config.vector_level:
                    self.fault = fault
                    await self._tell(waiting.level, None, str(fault))
            return None

    def _delays(self) -> Iterator[float]:
        """Give the pauses between attempts, the last one again and again."""
        return chain(self._retry_seconds, repeat(self._retry_seconds[-1]))

    async def _try_again(self, slot: _Slot) -> None:
        """Go back to the better provider as soon as it can be proven again."""
        for delay in self._delays():
            await asyncio.sleep(delay)
            # else it was switched meanwhile, or lost again
            if self._slots.get(slot.level) is not slot or await self._climb(slot):
                return

    async def _climb(self, slot: _Slot) -> bool:
        stack, current = AsyncExitStack(), slot.embedder.result().proven.provider.name
        async with self._one_switch:
            try:
                found = await self._opened(self.config, slot.level, stack, ())
            except OpDbusError as error:
                log.info("provider still lost", reason=str(error))
                return False
            if found.proven.provider.name == current or self._slots.get(slot.level) is not slot:
                await stack.aclose()
                return False
            self._slots[slot.level] = self._serving(slot.level, found, stack)
            await self._tell(slot.level, found, "it can be proven again")
            self._background(self._retire(slot))
            return True

    async def _tell(self, level: str, embedder: Embedder | None, reason: str) -> None:
        if level == self.config.vector_level:
            if embedder:
                self.fault = None
            await self.on_change(embedder, reason)

    def _background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, in case nobody waits any more
