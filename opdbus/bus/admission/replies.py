"""Sends replies, but none to clients that do not read theirs.

Unread replies stay in dbus-daemon and count against their sender: past 127 MiB it reads nothing
more from this service, and no client is answered. dbus-broker counts them against their receiver,
and disconnects one past its limit.
"""

import asyncio
from collections import deque
from typing import Any, Final, NamedTuple

from opdbus.bus.admission.accounting import Accounts
from opdbus.bus.admission.limits import MAX_UNREAD, MAX_WAITING, SMALL_BYTES
from opdbus.bus.admission.unread import UnreadBytes
from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.message_socket import Written
from opdbus.bus.transport.messages import Call
from opdbus.errors import LimitsExceeded, OpDbusError
from opdbus.platform.tasks import start

# Error replies that are sent in one step: about a millisecond of work.
_ERRORS_AT_A_TIME: Final = 16
# Memory of a queued error besides its text.
_ERROR_BYTES: Final = 256


class _Error(NamedTuple):
    """An error reply that is encoded when it is sent."""

    serial: int
    name: str
    text: str


class _Waiting(NamedTuple):
    """A queued reply, or None for a call that waits; only errors have no future to settle."""

    reply: Written | _Error | None
    size: int
    ready: asyncio.Future[None] | None = None

    @property
    def is_pending(self) -> bool:
        """True unless the call was cancelled."""
        return self.ready is None or not self.ready.done()


class Replies:
    """Admits replies by the unread bytes of connections, users and all clients together."""

    def __init__(self, connection: Connection, accounts: Accounts) -> None:
        self._connection = connection
        self._accounts = accounts
        self._unread = UnreadBytes(connection, accounts)
        self._held = accounts.quota("bytes of unread replies", MAX_WAITING)
        self._queues: dict[str, deque[_Waiting]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    def is_behind(self, sender: str) -> bool:
        """Return whether a client has too many unread bytes, so that its calls must wait."""
        return sender in self._queues or not self._unread.fits(sender, 0)

    async def wait_until_read(self, sender: str) -> None:
        """Wait until a client has read enough; raise LimitsExceeded if it reads nothing."""
        await self._wait_in_queue(sender, None)

    async def send(self, sender: str, reply: Written) -> None:
        """Send a reply once the client has read enough; raise LimitsExceeded if it does not."""
        size = len(reply.data)
        if sender not in self._queues and self._unread.fits(sender, size) and self._is_clear(size):
            self._send(sender, reply)
            return
        # the same scopes at the end: the client may leave meanwhile, and its user be dropped
        with self._held.reserve(self._accounts.scopes(sender), size):
            await self._wait_in_queue(sender, reply)

    def send_error(self, call: Call, error: OpDbusError) -> None:
        """Send an error reply once the client has read enough.

        It is dropped where the bus reports that the client reads nothing. Where the bus reports
        nothing, none is dropped: those that cannot be held are sent.
        """
        sender, reply = call.sender, _Error(call.serial, error.dbus_name, str(error))
        if self._unread.is_reported:
            if self.may_send_error(sender):
                self._send(sender, reply)
            return
        size, scopes = len(reply.text) + _ERROR_BYTES, self._accounts.scopes(sender)
        is_first = sender not in self._queues and self._unread[sender] <= SMALL_BYTES
        if is_first or not self._held.has_room(scopes, size):
            self._send(sender, reply)
        else:
            self._held.add(scopes, size)
            self._enqueue(sender, _Waiting(reply, size))

    def may_send_error(self, sender: str) -> bool:
        """Return whether to send an error reply; a client that never reads gets none in the end."""
        mine, all_ = self._unread[sender], self._unread[None]
        if mine > SMALL_BYTES // 2 and not self._unread.is_checked(sender):
            # checked early, so that clients that read get all of theirs
            start(self._unread.check(sender), self._tasks)
        return mine <= SMALL_BYTES or (
            mine <= 2 * MAX_UNREAD["connection"] and all_ <= MAX_UNREAD["total"]
        )

    def forget(self, sender: str) -> None:
        """Drop a closed connection, and the replies that wait for it."""
        self._unread.forget(sender)
        queue = self._queues.pop(sender, deque())
        for waiting in queue:
            if waiting.ready:
                waiting.ready.cancel()
            else:
                self._held.add(self._accounts.scopes(sender), -waiting.size)
        queue.clear()

    def _is_clear(self, size: int) -> bool:
        """Return whether a reply can be sent without a long delay of later ones."""
        return size <= SMALL_BYTES or self._connection.unsent <= SMALL_BYTES

    def _send(self, sender: str, reply: Written | _Error | None) -> None:
        if isinstance(reply, Written):
            self._unread.count(sender, len(reply.data))
            self._connection.send(reply)
        elif reply:
            self._unread.count(sender, self._connection.send_error(sender, *reply))

    async def _wait_in_queue(self, sender: str, reply: Written | None) -> None:
        """Wait behind the client's other replies until this one is sent."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enqueue(sender, _Waiting(reply, len(reply.data) if reply else 0, ready))
        await ready

    def _enqueue(self, sender: str, waiting: _Waiting) -> None:
        if sender not in self._queues:
            self._queues[sender] = deque()
            start(self._send_waiting(sender), self._tasks)
        self._queues[sender].append(waiting)

    async def _send_waiting(self, sender: str) -> None:
        """Send a client's queued replies as it reads; refuse the calls if it stops reading."""
        queue = self._queues[sender]
        try:
            while queue:
                await self._send_in_order(sender, queue)
                await self._refuse_calls(sender, queue)
        finally:
            # also after an error: queue entries left here would block every later call
            if self._queues.get(sender) is queue:
                del self._queues[sender]
            await self._refuse_calls(sender, queue)

    async def _refuse_calls(self, sender: str, queue: deque[_Waiting]) -> None:
        """Refuse all waiting calls; only error replies are left in the queue."""
        refused = [waiting.ready for waiting in queue if waiting.ready]
        errors = [waiting for waiting in queue if not waiting.ready]
        queue.clear()
        queue.extend(errors)
        counts = self._unread.describe(sender)
        for ready in refused:
            if not ready.done():
                ready.set_exception(
                    LimitsExceeded(
                        f"too many bytes of replies wait to be read: {counts}; read yours, or ask"
                        " again later"
                    )
                )
                # pause: each refusal is an error reply, and other clients wait meanwhile
                await asyncio.sleep(0)

    async def _send_in_order(self, sender: str, queue: deque[_Waiting]) -> None:
        """Send replies until none is left, or the client has read nothing for a while."""
        checks = errors = 0
        while queue and checks < self._unread.checks:
            waiting = queue[0]
            if waiting.is_pending and not self._is_clear(waiting.size):
                await self._connection.wait_flushed()
            elif waiting.is_pending and not self._unread.fits(sender, waiting.size):
                is_modest = waiting.size <= SMALL_BYTES or len(queue) == 1
                has_read = await self._unread.check(sender, may_forget=is_modest)
                # a client that reads, or may have read, is not refused
                checks = 0 if has_read else checks + 1
            else:
                queue.popleft()
                if not waiting.is_pending:  # the call was cancelled
                    continue
                self._send(sender, waiting.reply)
                checks = 0
                if waiting.ready:
                    waiting.ready.set_result(None)
                    continue
                self._held.add(self._accounts.scopes(sender), -waiting.size)
                errors += 1
                if errors % _ERRORS_AT_A_TIME == 0:
                    await asyncio.sleep(0)
