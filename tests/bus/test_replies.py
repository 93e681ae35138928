"""Replies and clients that do not read them, on a real bus."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from harness.running import PATIENCE_SECONDS, Bus, work_of

from opdbus.bus.admission.accounting import Accounts
from opdbus.bus.admission.limits import MAX_UNREAD, SMALL_BYTES
from opdbus.bus.admission.replies import Replies
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.messages import Call
from opdbus.errors import LimitsExceeded

MIB = 1 << 20


class Service:
    """A service that answers with as many bytes as it is asked for, where that is admitted."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.accounts = Accounts()
        self.replies = Replies(connection, self.accounts)
        self.refused: list[str] = []
        self.users: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        connection.on_call = self._take

    def _take(self, call: Call) -> None:
        task = asyncio.create_task(self._answer(call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: Call) -> None:
        (size,) = call.body
        try:
            self.accounts.identify(call.sender, self.users.get(call.sender, 1000))
            await self.replies.wait_until_read(call.sender)
            reply = self.connection.encode_reply(call, "ay", [bytes(size)])
            await self.replies.send(call.sender, reply)
        except LimitsExceeded as error:
            self.refused.append(call.sender)
            if self.replies.may_send_error(call.sender):
                sent = self.connection.reply_error(call, error.dbus_name, str(error))
                self.replies.count(call.sender, sent)

    async def idle(self) -> None:
        """Wait until every call has been answered, or refused."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def run(work: Callable[[Service, Bus], Awaitable[None]]) -> None:
    """Do work with a service on a bus of its own."""
    bus = Bus()

    async def both() -> None:
        async with Connection(bus.address) as connection:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await work(Service(connection), bus)

    try:
        asyncio.run(both())
    finally:
        bus.kill()


async def ask(client: Connection, service: Service, size: int) -> int:
    """Give the size of the reply."""
    return len((await client.call(service.connection.name, "/", "a.b.C", "u", size))[0])


async def stats_of(client: Connection, name: str) -> list[Any]:
    """Ask the bus what it holds for a connection."""
    stats = "org.freedesktop.DBus.Debug.Stats.GetConnectionStats"
    return await client.call("org.freedesktop.DBus", "/org/freedesktop/DBus", stats, "s", name)


class Deaf:
    """A client that asks and reads nothing from then on."""

    def __init__(self, client: Connection) -> None:
        self.client = client
        self._calls: list[asyncio.Future[Any]] = []
        transport = client._transport
        transport._loop.remove_reader(transport._socket)
        transport._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)

    def ask(self, service: Service, size: int, times: int) -> None:
        """Send calls."""
        for _ in range(times):
            self._calls.append(asyncio.ensure_future(ask(self.client, service, size)))

    async def leave(self) -> None:
        """Give up."""
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)


async def arrived(service: Service, client: Connection) -> None:
    """Wait until the bus has handed over what was sent before, and it is answered."""
    await ask(client, service, 1)
    await service.idle()


@work_of(run, handed=2)
async def test_a_client_that_reads_gets_everything(service: Service, bus: Bus) -> None:
    """Send many times what may be unread to a caller that reads it, all at once."""
    async with Connection(bus.address) as client:
        sizes = await asyncio.gather(*(ask(client, service, MIB) for _ in range(30)))
        assert sizes == [MIB] * 30
    assert service.refused == []


@work_of(run, handed=2)
async def test_a_client_that_does_not_read_is_refused_and_others_are_served(
    service: Service, bus: Bus
) -> None:
    """Leave no more than the limit unread by one caller, and go on serving another."""
    async with Connection(bus.address) as client, Connection(bus.address) as other:
        deaf = Deaf(other)
        deaf.ask(service, MIB, 40)
        await arrived(service, client)
        assert len(service.refused) >= 40 - MAX_UNREAD["connection"] // MIB
        (stats,) = await stats_of(client, other.name)
        assert stats["OutgoingBytes"] <= MAX_UNREAD["connection"] + SMALL_BYTES
        assert await ask(client, service, MIB) == MIB
        await deaf.leave()


@work_of(run, handed=2)
async def test_many_clients_that_do_not_read_leave_room_for_others(
    service: Service, bus: Bus
) -> None:
    """Answer small calls, and clients that read, whatever 40 others leave unread."""
    async with Connection(bus.address) as client:
        crowd = [Connection(bus.address) for _ in range(40)]
        for connection in crowd:
            await connection.__aenter__()
        deaf = [Deaf(connection) for connection in crowd]
        for one in deaf:
            one.ask(service, MIB, 6)
        await arrived(service, client)
        assert await ask(client, service, SMALL_BYTES // 2) == SMALL_BYTES // 2
        name = service.connection.name
        (stats,) = await stats_of(client, name)
        assert stats["IncomingBytes"] < 100 * MIB
        for one, connection in zip(deaf, crowd, strict=True):
            await one.leave()
            await connection.__aexit__(None, None, None)
            service.replies.forget(connection.name)
            service.accounts.forget(connection.name)
        assert await ask(client, service, MIB) == MIB


@work_of(run, handed=2)
async def test_a_user_leaves_room_for_other_users(service: Service, bus: Bus) -> None:
    """Answer another user's large calls whatever the many connections of one leave unread."""
    async with Connection(bus.address) as client, AsyncExitStack() as stack:
        service.users[client.name] = 2000
        crowd = [await stack.enter_async_context(Connection(bus.address)) for _ in range(20)]
        deaf = [Deaf(connection) for connection in crowd]
        for one in deaf:
            one.ask(service, MIB, 6)
        await arrived(service, client)
        (stats,) = await stats_of(client, service.connection.name)
        assert stats["IncomingBytes"] <= MAX_UNREAD["user"] + 20 * SMALL_BYTES
        assert await ask(client, service, MIB) == MIB
        for one in deaf:
            await one.leave()


@work_of(run, handed=2)
async def test_a_client_that_leaves_does_not_stop_the_replies_to_others_of_its_user(
    service: Service, bus: Bus
) -> None:
    """Answer a slow client's later calls although another one of its user, also slow, has left."""
    async with AsyncExitStack() as stack:
        crowd = [await stack.enter_async_context(Connection(bus.address)) for _ in range(9)]
        *slow, client = crowd
        deaf = [Deaf(connection) for connection in slow]
        for one in deaf:
            one.ask(service, MIB, 8)
        await arrived(service, client)
        # near its user's limit: each of these asks what all of the user's connections hold
        calls = [asyncio.create_task(ask(client, service, MIB)) for _ in range(4)]
        replies = service.replies
        while not replies._checks.is_asked(client.name):  # noqa: ASYNC110 -- no event says so
            await asyncio.sleep(0)
        for one, connection in zip(deaf, slow, strict=True):
            replies.forget(connection.name)
            service.accounts.forget(connection.name)
            await one.leave()
        assert await asyncio.gather(*calls) == [MIB] * 4
        assert await ask(client, service, MIB) == MIB


@work_of(run, handed=2)
async def test_a_client_that_reads_nothing_gets_no_errors_in_the_end(
    service: Service, bus: Bus
) -> None:
    """Stop sending errors to a caller that does not read those that were sent."""
    async with Connection(bus.address) as connection:
        service.replies.count(connection.name, 3 * MAX_UNREAD["connection"])
        assert not service.replies.may_send_error(connection.name)
        # in truth it has read everything, which is found out
        for _ in range(3):
            await service.connection.ask_bus("GetId")
        assert service.replies.may_send_error(connection.name)


def test_a_bus_that_tells_nothing_is_trusted() -> None:
    """Send everything where the bus has no statistics: it sees to slow readers itself."""
    policy = """
        <allow send_destination="*" eavesdrop="true"/>
        <allow eavesdrop="true"/>
        <allow own="*"/>
        <deny send_interface="org.freedesktop.DBus.Debug.Stats"/>
    """
    bus = Bus(policy)

    async def both() -> None:
        async with Connection(bus.address) as connection, Connection(bus.address) as client:
            service = Service(connection)
            with pytest.raises(RemoteError):
                await stats_of(client, client.name)
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert [await ask(client, service, MIB) for _ in range(8)] == [MIB] * 8

    try:
        asyncio.run(both())
    finally:
        bus.kill()
