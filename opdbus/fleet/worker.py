"""A worker: computes the vectors that the fleet lacks, and looks at those that hosts sent.

Any number may run, on any machine with the model; each may be killed at any moment.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

import asyncpg
import structlog

from opdbus.config import Config
from opdbus.engine.opening import open_level, require_level
from opdbus.errors import DatabaseUnreachable, ModelError, ProviderError
from opdbus.fleet import fleet_level, postgres, vector_audit, vector_store
from opdbus.fleet.housekeeping import Housekeeping
from opdbus.platform import tasks

if TYPE_CHECKING:
    from opdbus.engine.embedder import Embedder
    from opdbus.fleet.fleet_level import FleetLevel
    from opdbus.fleet.vector_store import Model

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_IDLE_SECONDS: Final = 1.0
# Between two walks over all that might be looked at again, or removed.
_AUDIT_SECONDS: Final = 600.0
_HOUSEKEEPING_SECONDS: Final = 3600.0
# Every so many rounds a step of these walks comes first, or a busy fleet would never have one.
_WALK_ROUNDS: Final = 10
# The queue comes first so long after a lock was not to be had: a host may hold that on its own row,
# which only looking at vectors of hosts needs.
_LOCKED_SECONDS: Final = 30.0
_RETRY_SECONDS: Final = (1.0, 2.0, 5.0, 10.0, 30.0)
# Transactions that PostgreSQL ended, since another one was in the way: they are done again.
_IN_THE_WAY: Final = (
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.SerializationError,
)


class Worker:
    """A process's worker. Without a level, it follows the one that the fleet wants."""

    def __init__(self, config: Config, url: str, password: str | None, level: str = "") -> None:
        self._config = config
        self._url = url
        self._password = password
        self._level = level
        self._engine: Embedder | None = None
        self._model: Model
        self._stack = AsyncExitStack()
        self._audit = vector_audit.Audit()
        self._housekeeping: Housekeeping
        # when each walk goes on, by time.monotonic
        self._rests = [0.0, 0.0]
        self._rounds = 0
        self._queue_first_until = 0.0
        self._ended = 0
        self._missing = ""

    async def run(self, *, once: bool = False) -> None:
        """Work until SIGTERM, which ends it after its batch; `once`: until nothing is left to do.

        A database that does not answer is waited for. Raises ConfigError, ModelError,
        ProviderError, AccessDenied.
        """
        async with self._stack, tasks.signals(asyncio.Event()) as stopped:
            pauses = tasks.pauses(_RETRY_SECONDS)
            while not stopped.is_set():
                try:
                    async with postgres.connected(self._url, self._password) as connection:
                        await self._begin(connection)
                        pauses = tasks.pauses(_RETRY_SECONDS)
                        await self._work(connection, stopped, once=once)
                        return
                except DatabaseUnreachable as error:
                    if once:
                        raise
                    await self._wait_for_database(error, pauses, stopped)

    async def _wait_for_database(
        self, error: Exception, pauses: Iterator[float], stopped: asyncio.Event
    ) -> None:
        pause = next(pauses) * random.uniform(0.5, 1.0)  # noqa: S311 -- so that workers spread
        log.warning("database away", error=str(error), retry_seconds=round(pause, 1))
        async with tasks.at_most(pause):
            await stopped.wait()

    async def _begin(self, connection: asyncpg.Connection) -> None:
        await postgres.require_schema(connection)
        await vector_store.prepare(connection)
        self._housekeeping = Housekeeping(connection)
        fleet = await fleet_level.read_level(connection)
        level = self._level or fleet.wanted_level or self._config.vector_level
        engine = self._engine if self._engine and self._engine.level == level else None
        await self._use(connection, engine or await self._open(level))

    async def _open(self, level: str) -> "Embedder":
        """Open an engine in the place of the one before."""
        config = fleet_level.settings_of(self._config, level)
        await self._stack.aclose()
        self._engine = None
        began = time.monotonic()
        self._engine = await self._stack.enter_async_context(open_level(config, level))
        log.info(
            "engine ready",
            level=level,
            provider=self._engine.provider,
            precision=self._engine.precision,
            seconds=round(time.monotonic() - began, 1),
        )
        return self._engine

    async def _use(self, connection: asyncpg.Connection, engine: "Embedder") -> None:
        self._model = await vector_store.register(connection, engine)
        self._rests = [0.0, 0.0]
        await fleet_level.want(connection, self._model, first=True)

    async def _work(
        self, connection: asyncpg.Connection, stopped: asyncio.Event, *, once: bool
    ) -> None:
        while not stopped.is_set():
            try:
                is_done = not await self._round(connection)
            except _IN_THE_WAY as error:
                log.debug("again", reason=str(error))
                if isinstance(error, asyncpg.LockNotAvailableError):
                    self._queue_first_until = time.monotonic() + _LOCKED_SECONDS
                await asyncio.sleep(random.uniform(0.05, 0.5))  # noqa: S311 -- not a secret
                continue
            if is_done:
                self._tell()
                if once:
                    return
                async with tasks.at_most(_IDLE_SECONDS):
                    await stopped.wait()
        self._tell()

    async def _round(self, connection: asyncpg.Connection) -> bool:
        """Do the most urgent piece of work; return False if there is none."""
        fleet = await fleet_level.read_level(connection)
        if fleet.wanted != self._model.numerics:
            await self._follow(connection, fleet)
        if time.monotonic() < self._queue_first_until and await self._embed(connection):
            return True
        self._rounds += 1
        if self._rounds % _WALK_ROUNDS == 0 and await self._walk(connection):
            return True
        if await vector_audit.examine_offers(connection, self._model):
            return True
        if await self._embed(connection):
            return True
        if await fleet_level.serve_wanted(connection):
            # the vectors of the level before may be removed now
            self._rests = [0.0, 0.0]
            return True
        return await self._walk(connection)

    async def _embed(self, connection: asyncpg.Connection) -> bool:
        """Compute a batch of the queue; return False if it is empty."""
        ended = await vector_store.embed_tasks(connection, self._model)
        self._ended += ended
        return ended > 0

    async def _walk(self, connection: asyncpg.Connection) -> bool:
        """Do a step of a walk, the audit first; return False while they rest."""
        walks: list[tuple[Callable[[], Awaitable[bool]], float]] = [
            (partial(self._audit.step, connection, self._model), _AUDIT_SECONDS),
            (self._housekeeping.step, _HOUSEKEEPING_SECONDS),
        ]
        for number, (step, pause) in enumerate(walks):
            if time.monotonic() >= self._rests[number]:
                if not await step():
                    self._rests[number] = time.monotonic() + pause
                return True
        return False

    async def _follow(self, connection: asyncpg.Connection, fleet: "FleetLevel") -> None:
        """Open the model that the fleet wants, unless the level is given or cannot be had here."""
        if self._level or fleet.wanted_name == self._missing:
            return
        reason = "its engine computes other numerics here: set OP_DBUS_PRECISION"
        if self._model.engine.level != fleet.wanted_level:
            config = fleet_level.settings_of(self._config, fleet.wanted_level)
            try:
                await asyncio.to_thread(require_level, config)
            except (ModelError, ProviderError) as error:
                reason = str(error)
            else:
                await self._use(connection, await self._open(fleet.wanted_level))
        if fleet.wanted != self._model.numerics:
            self._missing = fleet.wanted_name
            log.warning("level not computed here", level=fleet.wanted_level, reason=reason)

    def _tell(self) -> None:
        if self._ended:
            log.info("queue empty", texts=self._ended)
            self._ended = 0
