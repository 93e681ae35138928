"""Lifecycle of one level's engine: opening, serving, replacement when lost, closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from copy import copy
from typing import Final, NamedTuple, TypeAlias

import structlog

from opdbus.config import Config
from opdbus.engine.embedder import Embedder
from opdbus.engine.provider_chain import Fallback
from opdbus.errors import Internal, OpDbusError, ShuttingDown, read_log
from opdbus.platform.tasks import at_most, cancel, pauses, start
from opdbus.serving.states import Event, Phase, State

# opens the engine of a level, with lost providers last; see `open_embedder`
Open: TypeAlias = Callable[..., AbstractAsyncContextManager[Embedder]]

log = structlog.get_logger()

# Wait for calls that still hold a lost engine, before its memory is freed.
_PATIENCE_SECONDS: Final = 2.0
# Delays before a lost provider is tried again: it may have been reset, or its memory freed.
RETRY_SECONDS: Final = (30.0, 60.0, 120.0, 300.0, 600.0)


class OpenEngine(NamedTuple):
    """An engine, and the stack that closes it."""

    embedder: Embedder
    stack: AsyncExitStack


class Level:
    """The engine of one level under one configuration, from its first opening to its closing.

    Opening starts at once; unless `graded`, precisions are graded while fp32 serves. A lost engine
    is replaced by the next provider of the chain, and that one by a better one once it is proven. A
    level is over after a failure if it never served or is not one that `retries_forever`.
    `on_phase` is called after each transition.
    """

    def __init__(
        self,
        name: str,
        config: Config,
        open_engine: Open,
        *,
        retries_forever: bool,
        graded: bool,
        retry_seconds: Sequence[float],
        on_phase: Callable[[Level], None],
    ) -> None:
        self.name = name
        self.config = config
        self.phase = Phase(State.LOADING)
        self._open_engine = open_engine
        self._retries_forever = retries_forever
        self._graded = graded
        self._retry_seconds = retry_seconds
        self._on_phase = on_phase
        self._settled = asyncio.Event()
        self._drain = False
        self._closing: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._live())

    @property
    def is_over(self) -> bool:
        """True if this level will serve no more: the next caller needs a new one."""
        return self._task.done() or self.phase.state is State.CLOSED

    async def embedder(self) -> Embedder:
        """Return the engine that serves; wait while one is opened.

        Raises the error that kept it from opening, and ShuttingDown once the level is closed.
        """
        while True:
            await self._settled.wait()
            if self.phase.error:
                # a copy, because an exception that is raised repeatedly would collect frames
                raise copy(self.phase.error)
            if self.phase.embedder and not self._notice_loss():
                return self.phase.embedder

    async def close(self, *, drain: bool) -> None:
        """Close the engine; with `drain`, only after the calls that hold it have ended."""
        if self.phase.state is not State.CLOSED:
            self._move(Event.CLOSED, "closed", error=ShuttingDown())
        self._drain = drain
        self._task.cancel()
        if not drain:
            for task in self._closing:
                task.cancel()
        await asyncio.wait({self._task, *self._closing})

    # state transitions

    def _move(
        self,
        event: Event,
        reason: str,
        embedder: Embedder | None = None,
        error: OpDbusError | None = None,
    ) -> None:
        self.phase = self.phase.after(event, reason, embedder, error)
        if self.phase.state is State.LOADING:
            self._settled.clear()
        else:
            self._settled.set()
        self._on_phase(self)

    def _serve(self, embedder: Embedder, reason: str) -> None:
        event = Event.FELL_BACK if embedder.fell_back else Event.PROVEN
        self._move(event, reason, embedder)

    def _notice_loss(self) -> bool:
        """Return true if the engine is lost; the first call to notice makes the transition."""
        embedder = self.phase.embedder
        if embedder is None or not embedder.fault:
            return embedder is None
        log.error("provider lost", provider=embedder.provider, reason=embedder.fault)
        self._move(Event.LOST, embedder.fault)
        return True

    # lifecycle of the engine

    async def _live(self) -> None:
        # Only `close` cancels. The exception would keep the engine alive through its traceback.
        with suppress(asyncio.CancelledError):
            await self._serve_on()

    async def _serve_on(self) -> None:
        """Open an engine, serve until it is lost or a better one is proven, and repeat."""
        opened = await self._open_with_retries((), once=True)
        reason, lost = "proven at start", None
        try:
            while opened:
                self._serve(opened.embedder, reason)
                better = await self._wait_for_better(opened.embedder, lost)
                if better:
                    # closed once the calls that hold it have ended
                    start(_close(opened, None), self._closing)
                    opened, better = better, None
                    reason, lost = "it is proven, and better", None
                else:
                    self._notice_loss()
                    reason = opened.embedder.fault
                    lost = Fallback(opened.embedder.provider, reason, "lost")
                    # the next engine may need its memory
                    await _close(opened, _PATIENCE_SECONDS)
                    opened = None
                    opened = await self._open_with_retries((lost,), once=not self._retries_forever)
        finally:
            if opened:
                await _close(opened, None if self._drain else 0.0)

    async def _open_with_retries(
        self, lost: Sequence[Fallback], *, once: bool
    ) -> OpenEngine | None:
        """Open an engine, and retry after each failure; with `once`, return None instead."""
        for delay in pauses(self._retry_seconds):
            found = await self._attempt(lost)
            if isinstance(found, OpenEngine):
                return found
            self._move(Event.REFUSED, str(found), error=found)
            if once:
                break
            log.error("no provider left", level=self.name, reason=str(found), again_in_s=delay)
            await asyncio.sleep(delay)
        return None

    async def _wait_for_better(
        self, embedder: Embedder, lost: Fallback | None
    ) -> OpenEngine | None:
        """Wait until the engine is lost (None) or a better one is proven.

        A better engine runs on the provider that was lost before, on servers that could not be
        reached, or in the precision that passed the gate.
        """
        if embedder.is_provisional:
            return await self._grade_and_open(embedder)
        is_replacement = embedder.is_stand_in or (
            lost is not None and embedder.provider != lost.provider
        )
        if not is_replacement:
            await embedder.lost()
            return None
        for delay in pauses(self._retry_seconds):
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await embedder.lost()
                    return None
            found = await self._attempt(())
            if isinstance(found, OpDbusError):
                log.info("provider still lost", reason=str(found))
            elif _place(found.embedder) != _place(embedder):
                return found
            else:
                await found.stack.aclose()
        return None

    async def _grade_and_open(self, embedder: Embedder) -> OpenEngine | None:
        """Grade precisions while the engine serves, and open the best; None if it is lost."""
        self._graded = True
        attempt = asyncio.create_task(self._attempt(()))
        lost = asyncio.create_task(embedder.lost())
        try:
            await asyncio.wait({attempt, lost}, return_when=asyncio.FIRST_COMPLETED)
            found = None if lost.done() else attempt.result()
        finally:
            await cancel([lost, attempt])
        if found is None or isinstance(found, OpenEngine):
            return found
        log.error("precisions not graded", level=self.name, reason=str(found))
        embedder.is_provisional = False
        self._serve(embedder, "precisions could not be graded")
        return await self._wait_for_better(embedder, None)

    async def _attempt(self, lost: Sequence[Fallback]) -> OpenEngine | OpDbusError:
        """Open an engine once; return any failure as an error that callers can be given."""
        try:
            async with AsyncExitStack() as stack:
                opening = self._open_engine(self.config, self.name, lost, graded=self._graded)
                embedder = await stack.enter_async_context(opening)
                return OpenEngine(embedder, stack.pop_all())
        except OpDbusError as error:
            return error
        except Exception as error:  # a defect of ours or of a runtime: callers must not wait for it
            log.exception("engine not opened", level=self.name)
            return Internal(f"the engine could not be opened: {error!r}; {read_log()}")


def _place(embedder: Embedder) -> tuple[str, str]:
    return embedder.provider, embedder.precision


async def _close(opened: OpenEngine, patience: float | None) -> None:
    """Close an engine once no call holds it, or after `patience` seconds (None: no limit)."""
    try:
        async with at_most(patience):
            await opened.embedder.drained()
    finally:
        await opened.stack.aclose()
