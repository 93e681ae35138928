"""Link of the gateway to the fleet's database: a few connections, made by the first question."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar, cast

from opdbus.errors import AccessDenied, ConfigError, DatabaseUnreachable, OpDbusError, TimedOut
from opdbus.fleet.questions.daemon_vectors import ask_daemon
from opdbus.platform import pip

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

    import asyncpg
    from asyncpg.pool import PoolConnectionProxy

    from opdbus.fleet.questions.vector_ranks import Embed, Numerics
    from opdbus.gateway.daemon_link import DaemonLink

T = TypeVar("T")
R = TypeVar("R")
NO_FLEET: Final = (
    "no fleet is set up here: OP_DBUS_FLEET_DATABASE names its database, and"
    " OP_DBUS_FLEET_PASSWORD_FILE a file with a reader's password; docs/fleet.md says more"
)
# Connections at most, and seconds that a question waits for one and holds it.
MOST_CONNECTIONS: Final = 4
WAIT_SECONDS: Final = 5.0
MOST_SECONDS: Final = 20.0
_CLOSE_SECONDS: Final = 3.0


class FleetLink:
    """Asks the fleet's database; `close` ends its connections. `embed` computes vectors.

    Questions run in a thread of their own: those that compare all hosts compute for a second, in
    which the gateway goes on to answer others.
    """

    def __init__(
        self,
        url: str,
        password: str | None,
        embed: Embed | None = None,
        *,
        seconds: float = MOST_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._url, self._password, self._embed = url, password, embed
        self._seconds, self._wait_seconds = seconds, wait_seconds
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pool: asyncpg.Pool | None = None
        # of the newest question; empty before the first one
        self.state = "not asked yet"

    async def ask(
        self,
        question: Callable[[asyncpg.Connection, Embed], Awaitable[T]],
        then: Callable[[T], R],
    ) -> R:
        """Return what `then` makes of a question's answer, both in the thread.

        The question gets a connection, and a function for its vectors. Raises DatabaseUnreachable,
        TimedOut, and what they raise.
        """
        own = asyncio.get_running_loop()

        async def embed(words: str, wanted: Sequence[Numerics]) -> Mapping[str, Sequence[float]]:
            asked = asyncio.run_coroutine_threadsafe(self._compute(words, wanted), own)
            return await asyncio.wrap_future(asked)

        try:
            answer = await asyncio.wrap_future(self._start(self._ask_and(question, embed, then)))
        except DatabaseUnreachable as error:
            self.state = f"away: {error}"
            raise
        self.state = "answers"
        return answer

    async def close(self) -> None:
        """End the connections, and the thread."""
        if self._loop and self._thread:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await asyncio.wrap_future(self._start(self._close_pool()))
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)
            self._loop.close()
            self._loop = self._thread = self._pool = None

    def _start(self, work: Coroutine[None, None, T]) -> Future[T]:
        if not self._loop:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="fleet", daemon=True
            )
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _ask_and(
        self,
        question: Callable[[asyncpg.Connection, Embed], Awaitable[T]],
        embed: Embed,
        then: Callable[[T], R],
    ) -> R:
        return then(await self._ask(question, embed))

    async def _ask(
        self, question: Callable[[asyncpg.Connection, Embed], Awaitable[T]], embed: Embed
    ) -> T:
        try:
            from opdbus.fleet import postgres
        except ModuleNotFoundError as error:
            raise DatabaseUnreachable(pip.is_missing(error, "fleet")) from None

        if not self._pool:
            self._pool = postgres.make_pool(
                self._url, self._password, MOST_CONNECTIONS, self._seconds
            )
            await self._pool
        pool, connection = self._pool, await self._acquire(self._pool)
        try:
            async with asyncio.timeout(self._seconds):
                with postgres.translate_errors(self._url):
                    return await question(cast("asyncpg.Connection", connection), embed)
        except TimeoutError:
            raise TimedOut(
                f"the fleet's database has not answered within {self._seconds:g} s: ask for less"
            ) from None
        except (AccessDenied, ConfigError) as error:
            raise DatabaseUnreachable(str(error)) from None
        finally:
            # one that cannot be reset is closed, and what it answered is an answer
            with suppress(OpDbusError), postgres.translate_errors(self._url):
                await pool.release(connection, timeout=_CLOSE_SECONDS)

    async def _compute(
        self, words: str, wanted: Sequence[Numerics]
    ) -> Mapping[str, Sequence[float]]:
        """Return vectors, in the loop of who asks."""
        return await self._embed(words, wanted) if self._embed else {}

    async def _acquire(self, pool: asyncpg.Pool) -> PoolConnectionProxy[asyncpg.Record]:
        """Return a connection; raises DatabaseUnreachable."""
        try:
            return await pool.acquire(timeout=self._wait_seconds)
        except TimeoutError:
            raise DatabaseUnreachable(
                f"no connection to the fleet's database within {self._wait_seconds:g} s: it does"
                f" not answer, or {MOST_CONNECTIONS} other questions are running"
            ) from None
        except (AccessDenied, ConfigError) as error:
            raise DatabaseUnreachable(str(error)) from None

    async def _close_pool(self) -> None:
        if self._pool:
            self._pool.terminate()


def embed_by_daemon(link: DaemonLink) -> Embed:
    """Return the function that asks the daemon of this host for the vectors of questions."""

    async def embed(words: str, _wanted: Sequence[Numerics]) -> Mapping[str, Sequence[float]]:
        try:
            return await ask_daemon(await link.client(), words)
        except OpDbusError:
            return {}  # no bus

    return embed
