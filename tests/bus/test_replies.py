"""Replies and clients that do not read them, on a real bus."""

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import chain
from typing import Any

import pytest
from harness import marshal
from harness.broker import BUSES, Broker
from harness.running import PATIENCE_SECONDS, Bus, work_of
from harness.wire import Wire

from opdbus.bus.admission.accounting import Accounts
from opdbus.bus.admission.limits import MAX_UNREAD, SMALL_BYTES
from opdbus.bus.admission.replies import Replies
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.message_socket import Written
from opdbus.bus.transport.messages import MAX_ERROR_CHARACTERS, Call
from opdbus.errors import LimitsExceeded

MIB = 1 << 20
# Asked for so many bytes, the service refuses with a long text.
REFUSED = (1 << 32) - 1


@pytest.fixture(params=BUSES)
def bus_kind(request: pytest.FixtureRequest) -> str:
    """Name a kind of bus: one that reports what clients have not read, and one that does not."""
    return str(request.param)


class CountingConnection(Connection):
    """A connection that counts the bytes that it sends to each client."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.sent: Counter[str] = Counter()

    def send(self, written: Written) -> None:
        """Send an encoded message."""
        self.sent[written.destination] += len(written.data)
        super().send(written)


def require_allowed(size: int) -> None:
    """Raise LimitsExceeded for the size that is refused."""
    if size == REFUSED:
        raise LimitsExceeded("x" * MAX_ERROR_CHARACTERS)


class Service:
    """A service that answers with as many bytes as it is asked for, where that is admitted."""

    def __init__(self, connection: CountingConnection) -> None:
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
            require_allowed(size)
            self.accounts.identify(call.sender, self.users.get(call.sender, 1000))
            await self.replies.wait_until_read(call.sender)
            reply = self.connection.encode_reply(call, "ay", [bytes(size)])
            await self.replies.send(call.sender, reply)
        except LimitsExceeded as error:
            self.refused.append(call.sender)
            self.replies.send_error(call, error)

    async def idle(self) -> None:
        """Wait until every call has been answered, or refused."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def run(bus_kind: str, work: Callable[[Service, Bus | Broker], Awaitable[None]]) -> None:
    """Do work with a service on a bus of its own."""
    bus = BUSES[bus_kind]()

    async def both() -> None:
        async with CountingConnection(bus.address) as connection:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await work(Service(connection), bus)

    try:
        asyncio.run(both())
    finally:
        bus.kill()


def run_on_broker(work: Callable[[Service, Bus | Broker], Awaitable[None]]) -> None:
    """Do work with a service on a bus that takes any number of calls at once."""
    run("dbus-broker", work)


async def ask(client: Connection, service: Service, size: int) -> int:
    """Give the size of the reply."""
    return len((await client.call(service.connection.name, "/", "a.b.C", "u", size))[0])


async def stats_of(client: Connection, name: str) -> list[Any]:
    """Ask the bus what it holds for a connection."""
    stats = "org.freedesktop.DBus.Debug.Stats.GetConnectionStats"
    return await client.call("org.freedesktop.DBus", "/org/freedesktop/DBus", stats, "s", name)


class Blocking(Wire):
    """A client that reads only while it waits, and answers pings then if it is told to."""

    answers_pings = False

    def send_calls(self, service: Service, size: int, times: int) -> list[int]:
        """Send calls at once, and give their serials."""
        fields = marshal.call_fields("/", "a.b", "C", "u")
        fields[marshal.DESTINATION] = service.connection.name
        serials = [self.serial() for _ in range(times)]
        body = marshal.encode("u", [size])
        self.send(b"".join(marshal.message(fields, body, serial) for serial in serials))
        return serials

    def read_answers(self, serials: list[int]) -> list[int]:
        """Give the bytes of the answers."""
        return [len(self.answer(serial).data) for serial in serials]

    def _take(self, message: marshal.Message) -> None:
        super()._take(message)
        if message.kind == marshal.CALL and self.answers_pings:
            fields = {marshal.REPLY_SERIAL: message.serial}
            fields[marshal.DESTINATION] = message.fields[marshal.SENDER]
            self.send(marshal.message(fields, b"", self.serial(), kind=marshal.RETURN))


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


@work_of(run, "bus_kind", handed=2)
async def test_a_client_that_reads_gets_everything(service: Service, bus: Bus | Broker) -> None:
    """Send many times what may be unread to a caller that reads it, all at once."""
    async with Connection(bus.address) as client:
        sizes = await asyncio.gather(*(ask(client, service, MIB) for _ in range(30)))
        assert sizes == [MIB] * 30
    assert service.refused == []


@pytest.mark.parametrize(("answers_pings", "count"), [(True, 4500), (False, 2400)])
@work_of(run_on_broker, handed=2)
async def test_a_client_that_reads_late_loses_no_error(
    service: Service, bus: Broker, *, answers_pings: bool, count: int
) -> None:
    """Send every error to a client that sends thousands of calls before it reads."""
    with Blocking(bus.address) as client:
        client.answers_pings = answers_pings
        # the loop stands still: all calls wait in the bus before the first is answered
        serials = client.send_calls(service, REFUSED, count)
        sizes = await asyncio.to_thread(client.read_answers, serials)
        assert min(sizes) > MAX_ERROR_CHARACTERS


@work_of(run, "bus_kind", handed=2)
async def test_a_client_that_asks_one_at_a_time_gets_everything(
    service: Service, bus: Bus | Broker
) -> None:
    """Answer a client with more than may be unread though its library never answers a ping."""
    with Blocking(bus.address) as client:

        def ask_often() -> list[int]:
            return [
                *chain(*(client.read_answers(client.send_calls(service, MIB, 1)) for _ in range(6)))
            ]

        assert min(await asyncio.to_thread(ask_often)) > MIB
    assert not service.refused


@work_of(run, "bus_kind", handed=2)
async def test_a_client_that_does_not_read_is_refused_and_others_are_served(
    service: Service, bus: Bus | Broker
) -> None:
    """Leave no more than the limit unread by one caller, and go on serving another."""
    async with Connection(bus.address) as client, Connection(bus.address) as other:
        deaf = Deaf(other)
        deaf.ask(service, MIB, 40)
        await arrived(service, client)
        assert len(service.refused) >= 40 - MAX_UNREAD["connection"] // MIB
        assert service.connection.sent[other.name] <= MAX_UNREAD["connection"] + SMALL_BYTES
        assert await ask(client, service, MIB) == MIB
        await deaf.leave()


@work_of(run, "bus_kind", handed=2)
async def test_many_clients_that_do_not_read_leave_room_for_others(
    service: Service, bus: Bus | Broker
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
        unread = sum(service.connection.sent[connection.name] for connection in crowd)
        assert unread <= MAX_UNREAD["total"] + 40 * SMALL_BYTES
        for one, connection in zip(deaf, crowd, strict=True):
            await one.leave()
            await connection.__aexit__(None, None, None)
            service.replies.forget(connection.name)
            service.accounts.forget(connection.name)
        assert await ask(client, service, MIB) == MIB


@work_of(run, "bus_kind", handed=2)
async def test_a_user_leaves_room_for_other_users(service: Service, bus: Bus | Broker) -> None:
    """Answer another user's large calls whatever the many connections of one leave unread."""
    async with Connection(bus.address) as client, AsyncExitStack() as stack:
        service.users[client.name] = 2000
        crowd = [await stack.enter_async_context(Connection(bus.address)) for _ in range(20)]
        deaf = [Deaf(connection) for connection in crowd]
        for one in deaf:
            one.ask(service, MIB, 6)
        await arrived(service, client)
        unread = sum(service.connection.sent[connection.name] for connection in crowd)
        assert unread <= MAX_UNREAD["user"] + 20 * SMALL_BYTES
        assert await ask(client, service, MIB) == MIB
        for one in deaf:
            await one.leave()


@work_of(run, "bus_kind", handed=2)
async def test_a_client_that_leaves_does_not_stop_the_replies_to_others_of_its_user(
    service: Service, bus: Bus | Broker
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
        while not replies._unread.is_checked(client.name):  # noqa: ASYNC110 -- no event says so
            await asyncio.sleep(0)
        for one, connection in zip(deaf, slow, strict=True):
            replies.forget(connection.name)
            service.accounts.forget(connection.name)
            await one.leave()
        assert await asyncio.gather(*calls) == [MIB] * 4
        assert await ask(client, service, MIB) == MIB


@work_of(run, "bus_kind", handed=2)
async def test_a_client_that_reads_nothing_gets_no_errors_in_the_end(
    service: Service, bus: Bus | Broker
) -> None:
    """Stop sending errors to a caller that does not read those that were sent."""
    async with Connection(bus.address) as connection:
        service.replies._unread.count(connection.name, 3 * MAX_UNREAD["connection"])
        assert not service.replies.may_send_error(connection.name)
        # in truth it has read everything, which is found out
        while not service.replies.may_send_error(connection.name):  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0)


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
