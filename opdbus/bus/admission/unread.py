"""Counts the bytes of replies that clients have not read yet, by connection, user and in total.

dbus-daemon reports them. dbus-broker does not: there, a client that answers a Ping has read all
that was sent to it before. A client that reads only while it waits for a reply never answers; what
it may have read is forgotten slowly, where all that waits for it is small or one reply.
"""

import asyncio
from functools import partial
from typing import Any, Final

from opdbus.bus.admission.accounting import Accounts, Scopes, User
from opdbus.bus.admission.limits import MAX_REPLY_BYTES, MAX_UNREAD, SMALL_BYTES
from opdbus.bus.async_cache import AsyncCache
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.errors import BusError
from opdbus.platform.tasks import at_most, start

_STATS: Final = "org.freedesktop.DBus.Debug.Stats.GetConnectionStats"
# Seconds between two queries of the bus, and that a client has to read: no signal reports it.
_QUERY_SECONDS, _READ_SECONDS = 0.02, 1.0
# Seconds that a check waits for the answer to a Ping, and that a client has to answer.
_PING_SECONDS, _ANSWER_SECONDS = 0.25, 2.0
# Unread bytes after which a client is pinged: early, so that one that answers never waits.
_PING_BYTES: Final = MAX_UNREAD["connection"] // 4
# Bytes that are forgotten in a second, for all connections of a user together.
_FORGOTTEN_BYTES: Final = 1 << 20


class UnreadBytes:
    """Upper bounds of unread bytes: as reported or proven last, plus all bytes sent since then."""

    def __init__(self, connection: Connection, accounts: Accounts) -> None:
        self._connection = connection
        self._accounts = accounts
        self._counts = accounts.quota("unread bytes of replies", MAX_UNREAD)
        self._checks: AsyncCache[None] = AsyncCache(lasts=lambda _: False)
        self._pings: AsyncCache[None] = AsyncCache(lasts=lambda _: False)
        # bytes sent since the pending ping of a client
        self._since_ping: dict[str, int] = {}
        # when bytes of a user were forgotten last
        self._forgot_at: dict[object, float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        # False until the bus has answered, and where it has no statistics
        self.is_reported = False
        # at once: later, the answer would come behind a flood of calls
        start(self._find_statistics(), self._tasks)

    def __getitem__(self, scope: str | None) -> int:
        """Return the count of a connection, or of all with None."""
        return self._counts[scope]

    def count(self, sender: str, size: int) -> None:
        """Add sent bytes to a client's count."""
        self._counts.add(self._accounts.scopes(sender), size)
        if sender in self._since_ping:
            self._since_ping[sender] += size
        elif not self.is_reported and self._counts[sender] > _PING_BYTES:
            start(self._pings.get(sender, "", partial(self._ping, sender)), self._tasks)

    def fits(self, sender: str, size: int) -> bool:
        """Return whether a reply may be sent now."""
        # small replies always fit, whatever others leave unread: the bus limits connections
        return self._counts[sender] + size <= SMALL_BYTES or self._counts.has_room(
            self._accounts.scopes(sender), size
        )

    def forget(self, sender: str) -> None:
        """Drop a closed connection."""
        self._correct(sender, -self._counts[sender])
        self._forgot_at.pop(sender, None)
        # a running check ends by itself: replies to the user's other connections wait for it as
        # well

    def is_checked(self, sender: str) -> bool:
        """Return whether a check of a client is running."""
        return self._checks.is_asked(sender)

    @property
    def checks(self) -> int:
        """The number of checks after which a client that has not read is refused."""
        if self.is_reported:
            return int(_READ_SECONDS / _QUERY_SECONDS)
        return int(_ANSWER_SECONDS / _PING_SECONDS)

    async def check(self, sender: str, *, may_forget: bool = False) -> bool:
        """Correct the count of a client and, near their limits, of its user and in total.

        With `may_forget`, some bytes are forgotten if the bus reports none and nothing is proven.
        Returns whether the client's count has fallen.
        """
        uid, asked, before = self._accounts.user_of(sender), {sender}, self._counts[sender]
        whose = []
        if self._counts[User(uid)] + MAX_REPLY_BYTES > MAX_UNREAD["user"]:
            whose += self._accounts.connections_of(uid)
        if self._counts[None] + MAX_REPLY_BYTES > MAX_UNREAD["total"]:
            if self.is_reported:
                asked.add(self._connection.name)
            else:
                whose += self._accounts.connections_of()
        asked |= {each for each in whose if self._counts[each] > SMALL_BYTES}
        ask = self._ask if self.is_reported else self._wait_for_proof
        # checks of one connection share an answer
        await asyncio.gather(*(self._checks.get(each, "", partial(ask, each)) for each in asked))
        if may_forget and not self.is_reported and self._counts[sender] >= before:
            self._forget_some(sender)
        return self._counts[sender] < before

    def describe(self, sender: str) -> str:
        """Return the counts of a client, its user and in total, with their limits."""
        return ", ".join(
            f"{self._counts[whose]} of {MAX_UNREAD[scope]} ({scope})"
            for scope, whose in self._accounts.scopes(sender).items()
        )

    async def _find_statistics(self) -> None:
        try:
            await self._connection.ask_bus(_STATS, "s", self._connection.name)
        except (RemoteError, BusError):
            return
        self.is_reported = True

    async def _ask(self, name: str) -> None:
        """Query the bus for a count."""
        is_ours = name == self._connection.name
        # bytes that the bus has not received yet
        unsent = self._connection.unsent if is_ours else self._connection.unsent_to(name)
        known = self._counts[None if is_ours else name] - unsent
        try:
            (stats,) = await self._connection.ask_bus(_STATS, "s", name)
            unread = int(stats["IncomingBytes" if is_ours else "OutgoingBytes"])
        except (RemoteError, BusError, KeyError):  # the client has left
            unread = 0
        if is_ours:
            self._counts.add({"total": None}, unread - known)
        elif self._counts[name]:
            self._correct(name, unread - known)
        # requests during the pause share this answer
        await asyncio.sleep(_QUERY_SECONDS)

    async def _wait_for_proof(self, sender: str) -> None:
        """Wait a while for a client's answer to a Ping."""
        async with at_most(_PING_SECONDS):
            await self._pings.get(sender, "", partial(self._ping, sender))

    def _forget_some(self, sender: str) -> None:
        now, scopes = asyncio.get_running_loop().time(), self._accounts.scopes(sender)
        user = scopes.get("user", sender)
        seconds = min(now - self._forgot_at.get(user, 0.0), 1.0)
        self._forgot_at[user] = now
        self._correct(sender, -min(self._counts[sender], int(seconds * _FORGOTTEN_BYTES)))

    async def _ping(self, sender: str) -> None:
        """Ping a client, and correct its count once it answers."""
        self._since_ping[sender] = 0
        try:
            if await self._connection.ping(sender):
                unread = min(self._since_ping[sender], self._counts[sender])
                self._correct(sender, unread - self._counts[sender])
            else:
                await asyncio.sleep(_PING_SECONDS)  # so that the bus is not asked all the time
        except BusError:
            await asyncio.sleep(_PING_SECONDS)
        finally:
            del self._since_ping[sender]

    def _correct(self, sender: str, more: int) -> None:
        """Adjust the counts of a client and its user, and the total unless the bus reports it."""
        scopes: Scopes = self._accounts.scopes(sender)
        if self.is_reported:
            scopes = {kind: scope for kind, scope in scopes.items() if kind != "total"}
        self._counts.add(scopes, more)
