"""Sends replies, but none to clients that do not read theirs.

Unread replies stay in dbus-daemon and count against their sender: past 127 MiB it reads nothing
more from this service, and no client is answered. So this module polls how much it holds.
"""

import asyncio
from collections import deque
from functools import partial
from typing import Final

from opdbus.bus.admission.accounting import Accounts, User
from opdbus.bus.admission.limits import (
    MAX_REPLY_BYTES,
    MAX_UNREAD,
    MAX_WAITING,
    SMALL_BYTES,
)
from opdbus.bus.async_cache import AsyncCache
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.message_socket import Written
from opdbus.errors import BusError, LimitsExceeded
from opdbus.platform.tasks import start

_STATS: Final = "org.freedesktop.DBus.Debug.Stats.GetConnectionStats"
# Number and interval in seconds of the queries whether a client has read: no signal reports it. A
# client that reads nothing in that time gets no more replies.
_CHECKS: Final = 50
_CHECK_SECONDS: Final = 0.02


class Replies:
    """Admits replies by the unread bytes of connections, users and all clients together.

    Counts are upper bounds: the unread bytes at the last query of the bus, plus all bytes sent
    since then.
    """

    def __init__(self, connection: Connection, accounts: Accounts) -> None:
        self._connection = connection
        self._accounts = accounts
        self._unread = accounts.quota("unread bytes of replies", MAX_UNREAD)
        self._held = accounts.quota("bytes of unread replies", MAX_WAITING)
        self._checks: AsyncCache[None] = AsyncCache(lasts=lambda _: False)
        self._queues: dict[str, deque[tuple[Written | None, asyncio.Future[None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_behind(self, sender: str) -> bool:
        """Return whether a client has too many unread bytes, so that its calls must wait."""
        return sender in self._queues or not self._fits(sender, 0)

    async def wait_until_read(self, sender: str) -> None:
        """Wait until a client has read enough; raise LimitsExceeded if it reads nothing."""
        await self._enqueue(sender, None)

    async def send(self, sender: str, reply: Written) -> None:
        """Send a reply once the client has read enough; raise LimitsExceeded if it does not."""
        size = len(reply.data)
        if sender not in self._queues and self._fits(sender, size) and self._is_clear(size):
            self._send(sender, reply)
            return
        # the same scopes at the end: the client may leave meanwhile, and its user be dropped
        with self._held.reserve(self._accounts.scopes(sender), size):
            await self._enqueue(sender, reply)

    def may_send_error(self, sender: str) -> bool:
        """Return whether to send an error reply; a client that never reads gets none in the end."""
        mine, all_ = self._unread[sender], self._unread[None]
        if mine > SMALL_BYTES // 2 and not self._checks.is_asked(sender):
            # checked early, so that clients that read get all of theirs
            start(self._check(sender), self._tasks)
        return mine <= SMALL_BYTES or (
            mine <= 2 * MAX_UNREAD["connection"] and all_ <= MAX_UNREAD["total"]
        )

    def count(self, sender: str, size: int) -> None:
        """Add sent bytes to a client's count."""
        self._unread.add(self._accounts.scopes(sender), size)

    def forget(self, sender: str) -> None:
        """Drop a closed connection, and the replies that wait for it."""
        self._correct(sender, -self._unread[sender])
        queue = self._queues.pop(sender, deque())
        for _, ready in queue:
            ready.cancel()
        queue.clear()
        # a running check ends by itself: replies to the user's other connections wait for it as
        # well

    def _correct(self, sender: str, more: int) -> None:
        """Adjust the counts of a client and its user; the total is set from the bus."""
        scopes = {**self._accounts.scopes(sender)}
        del scopes["total"]
        self._unread.add(scopes, more)

    def _fits(self, sender: str, size: int) -> bool:
        # small replies always fit, whatever others leave unread: the bus limits connections
        return self._unread[sender] + size <= SMALL_BYTES or self._unread.has_room(
            self._accounts.scopes(sender), size
        )

    def _unread_error(self, sender: str) -> LimitsExceeded:
        counts = ", ".join(
            f"{self._unread[whose]} of {MAX_UNREAD[scope]} ({scope})"
            for scope, whose in self._accounts.scopes(sender).items()
        )
        return LimitsExceeded(
            f"too many bytes of replies wait to be read: {counts}; read yours, or ask again later"
        )

    def _is_clear(self, size: int) -> bool:
        """Return whether a reply can be sent without a long delay of later ones."""
        return size <= SMALL_BYTES or self._connection.unsent <= SMALL_BYTES

    def _send(self, sender: str, reply: Written) -> None:
        self.count(sender, len(reply.data))
        self._connection.send(reply)

    async def _enqueue(self, sender: str, reply: Written | None) -> None:
        """Wait behind the client's other replies until this one is sent."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if sender in self._queues:
            self._queues[sender].append((reply, ready))
        else:
            self._queues[sender] = deque([(reply, ready)])
            start(self._send_waiting(sender), self._tasks)
        await ready

    async def _send_waiting(self, sender: str) -> None:
        """Send a client's queued replies as it reads; refuse them all if it stops reading."""
        queue = self._queues[sender]
        try:
            await self._send_in_order(sender, queue)
        finally:
            # also after an error: queue entries left here would block every later call
            self._queues.pop(sender, None)
            for _, ready in queue:
                if not ready.done():
                    ready.set_exception(self._unread_error(sender))
                    # pause: each refusal is an error reply, and other clients wait meanwhile
                    await asyncio.sleep(0)

    async def _send_in_order(
        self, sender: str, queue: deque[tuple[Written | None, asyncio.Future[None]]]
    ) -> None:
        """Send replies until none is left, or the client has read nothing for a while."""
        checks = 0
        while queue and checks < _CHECKS:
            reply, ready = queue[0]
            size = len(reply.data) if reply else 0
            if not ready.done() and not self._is_clear(size):
                await self._connection.wait_flushed()
            elif not ready.done() and not self._fits(sender, size):
                await self._check(sender)
                checks += 1
            else:
                queue.popleft()
                if ready.done():  # the call was cancelled
                    continue
                if reply:
                    self._send(sender, reply)
                ready.set_result(None)
                checks = 0

    async def _check(self, sender: str) -> None:
        """Query the unread bytes of a client and, near their limits, of its user and in total."""
        name, uid = self._connection.name, self._accounts.user_of(sender)
        asked = {sender}
        if self._unread[User(uid)] + MAX_REPLY_BYTES > MAX_UNREAD["user"]:
            theirs = self._accounts.connections_of(uid)
            asked |= {each for each in theirs if self._unread[each] > SMALL_BYTES}
        if self._unread[None] + MAX_REPLY_BYTES > MAX_UNREAD["total"]:
            asked.add(name)
        # checks of one connection share an answer
        await asyncio.gather(*(self._checks.get(s, "", partial(self._ask, s)) for s in asked))

    async def _ask(self, name: str) -> None:
        """Query the bus for a count; 0 without support: dbus-broker limits slow readers itself."""
        is_ours = name == self._connection.name
        # bytes that the bus has not received yet
        unsent = self._connection.unsent if is_ours else self._connection.unsent_to(name)
        known = self._unread[None if is_ours else name] - unsent
        try:
            (stats,) = await self._connection.ask_bus(_STATS, "s", name)
            unread = int(stats["IncomingBytes" if is_ours else "OutgoingBytes"])
        except (RemoteError, BusError, KeyError):
            unread = 0
        if is_ours:
            self._unread.add({"total": None}, unread - known)
        elif self._unread[name]:
            self._correct(name, unread - known)
        # requests during the pause share this answer
        await asyncio.sleep(_CHECK_SECONDS)
