"""Open files on the bus: those that come in are ours alone and closed, those that go out arrive."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from harness.bulky import DIMENSION, Engine, in_memory, lines, open_files
from harness.running import PATIENCE_SECONDS, Bus, work_of

from opdbus.bus import names
from opdbus.bus.admission.accounting import RunningCalls
from opdbus.bus.authorization.authorizer import Authorizer, Credentials
from opdbus.bus.service import contract
from opdbus.bus.service.bulk import Bulk, BulkOptions
from opdbus.bus.service.bulk_files import Format
from opdbus.bus.service.contract import Caller, Node
from opdbus.bus.service.dispatch import Dispatcher
from opdbus.bus.service.job1 import Jobs
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.bus.transport.library import Message, MessageFlag, MessageType
from opdbus.bus.transport.messages import Call, Outgoing, decode_frame
from opdbus.errors import AccessDenied, BusError, InvalidArgs

BULK = f"{names.VECTORIZER}.VectorizeBulk"
OPTIONS = "ha{sv}"


def copies(files: Sequence[int]) -> list[Descriptor]:
    """Open files once more."""
    return list(map(Descriptor.copy_of, files))


class BusInterface:
    """Vectorizer1 that gives a file which says what was in the caller's."""

    info = contract.interface(names.VECTORIZER)

    async def vectorize_bulk(
        self, _caller: Caller, texts: Descriptor, _options: Any
    ) -> tuple[Any, int, int, str]:
        """Give a new file."""
        assert os.get_inheritable(texts.fileno()) is False
        return in_memory(b"about " + os.pread(texts.fileno(), 100, 0)), 1, 2, "float32"

    async def properties(self) -> Mapping[str, Any]:
        """Give none."""
        return {}


class Guard(Authorizer):
    """Lets nobody vectorize while `is_shut`."""

    is_shut = False

    async def require(self, *given: str, **more: Any) -> Credentials:
        """Decide."""
        if self.is_shut:
            raise AccessDenied("not now")
        return await super().require(*given, **more)


class Service:
    """A dispatcher on the bus, and a client to ask it."""

    def __init__(self, connection: Connection, client: Connection, interface: Any) -> None:
        self.connection = connection
        self.client = client
        self.guard = Guard(connection)
        node = Node((interface,), list)
        self.dispatcher = Dispatcher(connection, self.guard, {"/it": node}.get, RunningCalls())
        connection.on_call = self.dispatcher.take

    async def call(self, member: str, signature: str, *body: Any, path: str = "/it") -> list[Any]:
        """Call the service."""
        return await self.client.call(self.connection.name, path, member, signature, *body)

    async def raw(self, signature: str, body: list[Any], files: list[int], **more: Any) -> str:
        """Send a call as it is, and give the name of the error that comes back, or nothing."""
        where = {"path": "/it", "interface": names.VECTORIZER, "member": "VectorizeBulk"} | more
        message = Message(
            destination=self.connection.name,
            signature=signature,
            body=body,
            unix_fds=files,
            **where,
        )
        frame = await self.client._reply_to(Outgoing(message, copies(files)))
        return (decode_frame(frame).error_name or "").rpartition(".")[2]


def run(bus: str, ask: Callable[[Service], Awaitable[Any]], interface: Any = None) -> Any:
    """Serve a interface and ask it."""

    async def both() -> Any:
        async with Connection(bus) as connection, Connection(bus) as client:
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await ask(Service(connection, client, interface or BusInterface()))

    return asyncio.run(both())


@work_of(run, "bus_address")
async def test_files_go_both_ways(service: Service) -> None:
    """Hand the caller's file in and a file back, each the receiver's own, never inherited."""
    mine = in_memory(b"mine")
    reply, *more = await service.call(BULK, OPTIONS, mine, {})
    assert os.pread(reply.fileno(), 100, 0) == b"about mine"
    assert os.get_inheritable(reply.fileno()) is False
    assert os.pread(mine.fileno(), 100, 0) == b"mine"
    assert more == [1, 2, "float32"]


@work_of(run, "bus_address")
async def test_a_file_that_is_not_there_is_refused(service: Service) -> None:
    """Answer InvalidArgs where a message names a file that did not come with it."""
    file = in_memory(b"x")
    assert await service.raw(OPTIONS, [7, {}], [file.fileno()]) == "InvalidArgs"
    assert await service.raw(OPTIONS, [1, {}], [file.fileno()]) == "InvalidArgs"
    assert await service.raw(OPTIONS, [0, {}], []) == "InvalidArgs"
    assert await service.raw(OPTIONS, [(1 << 32) - 1, {}], []) == "InvalidArgs"


@work_of(run, "bus_address")
async def test_what_is_no_file_is_not_sent(service: Service) -> None:
    """Raise InvalidArgs before anything is sent for a file that is closed or none."""
    closed = in_memory(b"")
    closed.close()
    for wrong in (987_654, -1, 1 << 40, closed, "text"):
        with pytest.raises(InvalidArgs, match="cannot be sent"):
            await service.call(BULK, OPTIONS, wrong, {})


async def test_a_reply_that_names_a_file_it_lacks_is_damaged(bus_address: str) -> None:
    """Raise BusError for a reply whose file did not come."""
    async with Connection(bus_address) as service, Connection(bus_address) as client:

        def answer(call: Call) -> None:
            reply = Message(message_type=MessageType.METHOD_RETURN, destination=call.sender,
                            reply_serial=call.serial, signature="h", body=[3])  # fmt: skip
            service.send(service.encode(Outgoing(reply)))

        service.on_call = answer
        with pytest.raises(BusError, match="is damaged: argument 1 names the descriptor 3"):
            await client.call(service.name, "/", "a.b.C")


Ask = Callable[[Service, int], Awaitable[object]]


async def _accepted(service: Service, file: int) -> object:
    return await service.call(BULK, OPTIONS, file, {})


async def _sixteen(service: Service, file: int) -> object:
    assert await service.raw(OPTIONS, [15, {}], [file] * 16) == ""
    return await service.raw("h" * 16, list(range(16)), [file] * 16)


async def _no_reply_wanted(service: Service, file: int) -> object:
    quiet = Message(destination=service.connection.name, path="/it", interface=names.VECTORIZER,
                    member="VectorizeBulk", signature=OPTIONS, body=[0, {}], unix_fds=[file],
                    flags=MessageFlag.NO_REPLY_EXPECTED)  # fmt: skip
    service.client.send(service.client.encode(Outgoing(quiet, copies([file]))))
    return await service.raw("", [], [], interface="org.freedesktop.DBus.Peer", member="Ping")


async def _unauthorized(service: Service, file: int) -> None:
    service.guard.is_shut = True
    assert await service.raw(OPTIONS, [0, {}], [file]) == "AccessDenied"
    service.guard.is_shut = False


async def _peer(service: Service, file: int) -> object:
    return await service.raw("", [], [file], interface="org.freedesktop.DBus.Peer", member="Ping")


async def _given_up(service: Service, file: int) -> None:
    """Leave at every moment: before sending, while waiting, when the reply is on its way."""
    for turns in range(6):
        call = asyncio.create_task(service.call(BULK, OPTIONS, file, {}))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def _unheard(service: Service, file: int) -> None:
    """Send a call, a reply and a signal with a file to a client that expects none of them."""
    target = service.connection.name
    reply = Message(message_type=MessageType.METHOD_RETURN, destination=target,
                    reply_serial=9999, signature="h", body=[0], unix_fds=[file])  # fmt: skip
    told = Message.new_signal("/", "a.b", "S", "h", [0], [file])
    told.destination = target
    for message in (reply, told):
        service.client.send(service.client.encode(Outgoing(message, copies([file]))))
    assert await service.raw(OPTIONS, [0, {}], [file], path="/no") == "UnknownObject"


KINDS: dict[str, Ask] = {
    "accepted": _accepted,
    "sixteen": _sixteen,
    "unauthorized": _unauthorized,
    "no reply": _no_reply_wanted,
    "peer": _peer,
    "given up": _given_up,
    "unheard": _unheard,
    "no such method": lambda s, f: s.raw(OPTIONS, [0, {}], [f], member="Nothing"),
    "no such interface": lambda s, f: s.raw(OPTIONS, [0, {}], [f], interface="a.b"),
    "no such object": lambda s, f: s.raw(OPTIONS, [0, {}], [f], path="/elsewhere"),
    "wrong signature": lambda s, f: s.raw("hs", [0, "x"], [f]),
    "wrong index": lambda s, f: s.raw(OPTIONS, [7, {}], [f]),
    "in a variant": lambda s, f: s.raw("v", [_variant()], [f]),
    "a standard method": lambda s, f: s.raw(
        "s", [""], [f], interface="org.freedesktop.DBus.Properties", member="GetAll"
    ),
}


def _variant() -> Any:
    from opdbus.bus.transport.library import Variant

    return Variant("h", 0)


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_leaves_a_file_open(bus_address: str, kind: str) -> None:
    """Have as many files open after 20 calls as before, however the calls end."""

    async def ask(service: Service) -> tuple[int, int]:
        file = in_memory(b"x")
        await KINDS[kind](service, file.fileno())
        await _settle(service)
        before = open_files(settled=True)
        for _ in range(20):
            await KINDS[kind](service, file.fileno())
        await _settle(service)
        return before, open_files(settled=True)

    before, after = run(bus_address, ask)
    assert after == before


async def _settle(service: Service) -> None:
    """Wait until all that was sent has been answered, both ways."""
    for _ in range(3):
        await service.client.ask_bus("GetId")
        await service.connection.ask_bus("GetId")
        await service.raw("", [], [], interface="org.freedesktop.DBus.Peer", member="Ping")


def test_calls_at_the_end_leave_no_file_open(bus_address: str) -> None:
    """Close what came with calls that are refused because the service is stopping."""

    async def ask(service: Service) -> tuple[int, int]:
        file = in_memory(b"x")
        await service.dispatcher.stop()
        before = open_files(settled=True)
        for _ in range(20):
            assert await service.raw(OPTIONS, [0, {}], [file.fileno()]) == "ShuttingDown"
        return before, open_files(settled=True)

    before, after = run(bus_address, ask)
    assert after == before


def test_files_that_nobody_took_any_more_are_closed() -> None:
    """Close what waits to be sent when the bus is gone."""
    bus = Bus()
    before = open_files(settled=True)

    async def both() -> None:
        async with Connection(bus.address) as sender:
            os.kill(bus.pid, signal.SIGSTOP)
            file = in_memory(b"x")
            sender.emit("/", "a.b.S", "ay", b"x" * (4 << 20))
            for _ in range(10):
                sender.emit("/", "a.b.S", "h", file)
            bus.kill()
            await sender.wait_closed()

    asyncio.run(both())
    assert open_files(settled=True) < before  # the bus's own pipe is closed, too


def test_a_paused_bus_loses_no_bulk_answer() -> None:
    """Deliver every file of vectors and every signal that waited while the bus was stopped."""
    bus = Bus()
    clients, count = 2, 300
    engine = Engine(asyncio.Event())

    class Bulky(BusInterface):
        bulk = Bulk(Jobs(lambda *_: None))

        async def vectorize_bulk(
            self, caller: Caller, texts: Descriptor, _: Any
        ) -> tuple[Any, int, int, str]:
            order = BulkOptions(Format("float32", DIMENSION), truncate=True, is_job=True)
            found = await self.bulk.run(caller, engine, texts, order)  # type: ignore[arg-type]
            return found.file, found.rows, DIMENSION, "float32"

    async def one(service: Service, seen: list[int]) -> list[int]:
        def take(message: Any) -> None:
            if message.member == "S":
                seen.append(message.body[0])

        async with Connection(bus.address) as client:
            client.on_signal = take
            await client.subscribe("type='signal',interface='a.b'")
            file = in_memory(lines(["x"] * 3000))
            calls = [
                client.call(service.connection.name, "/it", BULK, OPTIONS, file, {})
                for _ in range(2)
            ]
            replies = await asyncio.gather(*calls)
            while len(seen) < count:
                await client.ask_bus("GetId")
            return [os.fstat(reply[0].fileno()).st_size for reply in replies]

    async def ask(service: Service) -> None:
        seen: list[list[int]] = [[] for _ in range(clients)]
        asking = [asyncio.create_task(one(service, numbers)) for numbers in seen]
        while engine.held < clients * 2 * 3000:  # noqa: ASYNC110 -- an engine tells nobody
            await asyncio.sleep(0.01)  # until all calls are with the engine
        os.kill(bus.pid, signal.SIGSTOP)
        assert engine.hold
        engine.hold.set()
        for number in range(count):
            service.connection.emit("/", "a.b.S", "us", number, "x" * 50_000)
            await asyncio.sleep(0)
        while service.dispatcher._running:  # noqa: ASYNC110 -- nor does a dispatcher
            await asyncio.sleep(0.01)  # until all answers wait to be sent
        os.kill(bus.pid, signal.SIGCONT)
        assert await asyncio.gather(*asking) == [[3000 * DIMENSION * 4] * 2] * clients
        assert seen == [list(range(count))] * clients

    try:
        run(bus.address, ask, Bulky())
    finally:
        bus.kill()


@work_of(run, "bus_address")
async def test_a_remote_error_brings_no_files(service: Service) -> None:
    """Raise RemoteError, and nothing else, for a call that is refused with a file in it."""
    with pytest.raises(RemoteError):
        await service.call(f"{names.VECTORIZER}.No", OPTIONS, in_memory(b""), {})
