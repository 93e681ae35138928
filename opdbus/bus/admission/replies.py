"""Replies on their way: none goes to who does not read, or to a user beyond a fair share.

What a caller does not read stays with dbus-daemon and counts against whoever sent it: past 127 MiB
it reads nothing more from us, and nobody is answered. So it is asked what it holds.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from opdbus.bus.admission.accounting import User, add, require_room
from opdbus.bus.admission.limits import (
    MAX_REPLY_BYTES,
    MAX_REPLY_RATE,
    MAX_UNREAD,
    MAX_WAITING,
    SMALL_BYTES,
)
from opdbus.bus.async_cache import AsyncCache
from opdbus.bus.transport.connection import RemoteError
from opdbus.errors import BusError, LimitsExceeded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from opdbus.bus.admission.accounting import Accounts
    from opdbus.bus.transport.connection import Connection
    from opdbus.bus.transport.send_queue import Written

_STATS: Final = "org.freedesktop.DBus.Debug.Stats.GetConnectionStats"
# So often, and no sooner after another, the bus is asked whether a caller has read: it tells nobody
# by itself. A caller who has read nothing all the while is not waited for.
_LOOKS: Final = 50
_LOOK_SECONDS: Final = 0.02
_MANY_USERS: Final = 256


class Replies:
    """Admits replies, by what callers have not read and by what users take a second.

    Counts are of bytes, and never too low: all that was unread when the bus was asked, and all
    that was sent since.
    """

    def __init__(
        self,
        connection: Connection,
        scopes: Accounts,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connection = connection
        self._scopes = scopes
        self._clock = clock
        self._unread = scopes.counter()
        self._waiting = scopes.counter()
        self._looks: AsyncCache[None] = AsyncCache(lasts=lambda _: False)
        self._taken: dict[int, tuple[float, float]] = {}
        self._queues: dict[str, deque[tuple[Written | None, asyncio.Future[None]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def is_behind(self, sender: str) -> bool:
        """Whether a caller has too much to read already to be worked for."""
        return sender in self._queues or not self._fits(sender, 0)

    async def caught_up(self, sender: str) -> None:
        """Wait until a caller has read enough; raises LimitsExceeded for who reads nothing."""
        await self._queued(sender, None)

    async def send(self, sender: str, reply: Written) -> None:
        """Send a reply once its caller has read enough; raises LimitsExceeded for who does not."""
        size = len(reply.data)
        self._require_rate(self._scopes.user_of(sender), size)
        if sender not in self._queues and self._fits(sender, size) and self._is_clear(size):
            self._send(sender, reply)
            return
        with self._held(sender, size):
            await self._queued(sender, reply)

    def may_tell(self, sender: str) -> bool:
        """Whether a caller may be sent an error: who reads nothing gets none in the end."""
        mine, all_ = self._unread[sender], self._unread[None]
        if mine > SMALL_BYTES // 2 and not self._looks.is_asked(sender):
            # in good time, so that those who do read always get theirs
            self._in_background(self._look(sender))
        return mine <= SMALL_BYTES or (
            mine <= 2 * MAX_UNREAD["connection"] and all_ <= MAX_UNREAD["total"]
        )

    def sent(self, sender: str, size: int) -> None:
        """Count what was sent."""
        add(self._unread, self._scopes.of(sender).values(), size)

    def forget(self, sender: str) -> None:
        """Drop what is known of a connection that is gone, and what waits for it."""
        self._count(sender, -self._unread[sender])
        queue = self._queues.pop(sender, deque())
        for _, ready in queue:
            ready.cancel()
        queue.clear()
        self._looks.forget(sender)

    def _count(self, sender: str, more: int) -> None:
        """Count for a caller and its user: for all, the bus knows better."""
        scopes = self._scopes.of(sender)
        del scopes["total"]
        add(self._unread, scopes.values(), more)

    def _fits(self, sender: str, size: int) -> bool:
        # who reads is answered whatever others leave unread: the bus allows few connections
        return self._unread[sender] + size <= SMALL_BYTES or all(
            self._unread[whose] + size <= MAX_UNREAD[scope]
            for scope, whose in self._scopes.of(sender).items()
        )

    def _unread_error(self, sender: str) -> LimitsExceeded:
        counts = ", ".join(
            f"{self._unread[whose]} of {MAX_UNREAD[scope]} ({scope})"
            for scope, whose in self._scopes.of(sender).items()
        )
        return LimitsExceeded(
            f"too many bytes of replies wait to be read: {counts}; read yours, or ask again later"
        )

    def _is_clear(self, size: int) -> bool:
        """Whether a reply would make nobody wait who comes after it: the bus takes its time."""
        return size <= SMALL_BYTES or self._connection.unsent <= SMALL_BYTES

    def _send(self, sender: str, reply: Written) -> None:
        self.sent(sender, len(reply.data))
        self._connection.send(reply)

    async def _queued(self, sender: str, reply: Written | None) -> None:
        """Wait behind a caller's other replies until this one is sent."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if sender in self._queues:
            self._queues[sender].append((reply, ready))
        else:
            self._queues[sender] = deque([(reply, ready)])
            self._in_background(self._send_waiting(sender))
        await ready

    async def _send_waiting(self, sender: str) -> None:
        """Send a caller's replies as the caller reads; refuse them all if that has stopped."""
        queue, looks = self._queues[sender], 0
        while queue and looks < _LOOKS:
            reply, ready = queue[0]
            size = len(reply.data) if reply else 0
            if not ready.done() and not self._is_clear(size):
                await self._connection.flushed()
            elif not ready.done() and not self._fits(sender, size):
                await self._look(sender)
                looks += 1
            else:
                queue.popleft()
                if ready.done():  # its caller has left
                    continue
                if reply:
                    self._send(sender, reply)
                ready.set_result(None)
                looks = 0
        self._queues.pop(sender, None)
        for _, ready in queue:
            if not ready.done():
                ready.set_exception(self._unread_error(sender))
                # not all at a stretch: each is an error to be sent, and others wait meanwhile
                await asyncio.sleep(0)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, sender: str) -> None:
        """See what is really unread: by a caller, and where it counts by its user and by all."""
        name, uid = self._connection.name, self._scopes.user_of(sender)
        asking = [self._looks.get(sender, "", partial(self._ask, sender))]
        if self._unread[User(uid)] + MAX_REPLY_BYTES > MAX_UNREAD["user"]:
            asking.append(self._looks.get(f"user {uid}", "", partial(self._ask_of_user, uid)))
        if self._unread[None] + MAX_REPLY_BYTES > MAX_UNREAD["total"]:
            asking.append(self._looks.get(name, "", partial(self._ask, name)))
        await asyncio.gather(*asking)

    async def _ask_of_user(self, uid: int) -> None:
        theirs = self._scopes.connections_of(uid)
        much = [sender for sender in theirs if self._unread[sender] > SMALL_BYTES]
        await asyncio.gather(*(self._looks.get(s, "", partial(self._ask, s)) for s in much))

    async def _ask(self, name: str) -> None:
        """Ask the bus; one that does not tell sees to slow readers itself, as dbus-broker does."""
        is_ours = name == self._connection.name
        # all of which the bus cannot know yet
        unsent = self._connection.unsent if is_ours else self._connection.unsent_to(name)
        known = self._unread[None if is_ours else name] - unsent
        try:
            (stats,) = await self._connection.ask_bus(_STATS, "s", name)
            unread = int(stats["IncomingBytes" if is_ours else "OutgoingBytes"])
        except (RemoteError, BusError, KeyError):
            unread = 0
        if is_ours:
            add(self._unread, [None], unread - known)
        elif name in self._unread:
            self._count(name, unread - known)
        # whoever asks meanwhile waits for this one to end, and has its answer already
        await asyncio.sleep(_LOOK_SECONDS)

    @contextmanager
    def _held(self, sender: str, size: int) -> Iterator[None]:
        """Count a reply that waits, which is memory of ours; raises LimitsExceeded for too much."""
        scopes = self._scopes.of(sender)
        require_room(self._waiting, scopes, size, MAX_WAITING, "bytes of unread replies")
        add(self._waiting, scopes.values(), size)
        try:
            yield
        finally:
            # the same that were counted: the caller may have left, and its user be forgotten
            add(self._waiting, scopes.values(), -size)

    def _require_rate(self, uid: int, size: int) -> None:
        """Take from what a user may be sent a second, of which one second's worth is saved up."""
        now = self._clock()
        saved, at = self._taken.get(uid, (float(MAX_REPLY_RATE), now))
        saved = min(MAX_REPLY_RATE, saved + (now - at) * MAX_REPLY_RATE) - size
        if saved < 0:
            raise LimitsExceeded(
                f"user {uid} was sent {MAX_REPLY_RATE >> 20} MiB of replies in this second, which"
                " is the limit: ask for less, or later"
            )
        self._taken[uid] = (saved, now)
        if len(self._taken) > _MANY_USERS:
            # a second later all is saved up again, as if nothing had been taken
            self._taken = {u: taken for u, taken in self._taken.items() if now - taken[1] < 1.0}
