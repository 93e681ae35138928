"""Values to and from the wire, and a connection to a real bus."""

import asyncio
import os
import signal
import struct
from typing import Any

import pytest
from attacks.clients import connections
from harness import marshal
from harness.broker import BUSES
from harness.bulky import in_memory, open_files
from harness.marshal import Variant
from harness.running import PATIENCE_SECONDS, Bus
from harness.wire import Wire
from hypothesis import given
from hypothesis import strategies as st

from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.bus.transport.library import Message
from opdbus.bus.transport.message_socket import transports
from opdbus.bus.transport.messages import MAX_ERROR_CHARACTERS, Call, Outgoing
from opdbus.bus.transport.values import Typed, from_wire, split, variant
from opdbus.errors import BusError, InvalidArgs
from opdbus.platform.tasks import start

LAST_SERIAL = (1 << 32) - 1
_BASIC = st.sampled_from("ybnqiuxtdsogh")
_TYPES = st.recursive(
    st.one_of(_BASIC, st.just("v")),
    lambda inner: st.one_of(
        inner.map(lambda t: f"a{t}"),
        st.lists(inner, min_size=1, max_size=3).map(lambda ts: f"({''.join(ts)})"),
        st.tuples(_BASIC, inner).map(lambda kv: f"a{{{kv[0]}{kv[1]}}}"),
    ),
    max_leaves=6,
)
_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_PLAIN = st.recursive(
    st.one_of(
        st.booleans(),
        st.integers(-(1 << 63), (1 << 64) - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        _TEXT,
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_TEXT, inner, max_size=3)),
    max_leaves=10,
)


@given(st.lists(_TYPES, max_size=5))
def test_split_gives_single_complete_types(types: list[str]) -> None:
    """Split a signature exactly where one type ends and the next begins."""
    assert split("".join(types)) == tuple(types)


@given(_PLAIN)
def test_what_goes_into_a_variant_comes_out(value: Any) -> None:
    """Give back every value that JSON can hold from the variant it was put into."""
    assert from_wire(variant(value)) == value


@pytest.mark.parametrize(
    ("value", "signature"),
    [
        (True, "b"),
        (-1, "x"),
        (1 << 63, "t"),
        (1.5, "d"),
        ("", "s"),
        (b"", "ay"),
        ([], "av"),
        (["a"], "as"),
        (["a", 1], "av"),
        ({}, "a{sv}"),
        (Typed("u", 1), "u"),
        (Typed("a(ss)", [["a", "b"]]), "a(ss)"),
    ],
)
def test_a_variant_has_the_type_of_its_value(value: Any, signature: str) -> None:
    """Choose the D-Bus type by the Python type, or take the one that is given."""
    assert variant(value).signature == signature


@pytest.mark.parametrize("value", [None, 1 << 64, -(1 << 63) - 1, object()])
def test_what_dbus_cannot_carry_is_refused(value: Any) -> None:
    """Raise InvalidArgs for a value that has no D-Bus type."""
    with pytest.raises(InvalidArgs):
        variant({"key": [value]})


@pytest.mark.parametrize(
    "address",
    ["unix:path=/nonexistent/bus", "unix:nothing=1", "carrier-pigeon:loft=3", "unix:path"],
)
def test_no_bus_is_one_sentence(address: str) -> None:
    """Raise BusError, which names the address, where there is no bus."""

    async def connect() -> None:
        async with Connection(address):
            pass

    with pytest.raises(BusError, match=address.partition("=")[0]):
        asyncio.run(connect())


def _between(bus: str, serve: Any, ask: Any) -> Any:
    """Run `ask(client, name of the service)` while `serve(connection, call)` answers."""

    async def run() -> Any:
        async with Connection(bus) as service, Connection(bus) as client:
            service.on_call = lambda call: serve(service, call)
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await ask(client, service.name)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "signature", "body"),
    [
        ("not a path", "", ()),
        ("/", "u", (-1,)),
        ("/", "u", (1 << 32,)),
        ("/", "s", (1,)),
        ("/", "s", ("half a pair: \ud800",)),
        ("/", "ss", ("too few",)),
        ("/", "o", ("not/a/path",)),
        ("/", "ao", (["/fine", "not/a/path"],)),
        ("/", "a{sv}", ({"key": ["NUL: \0"]},)),
    ],
)
def test_values_that_do_not_fit_are_the_callers_fault(
    bus_address: str, path: str, signature: str, body: tuple[Any, ...]
) -> None:
    """Raise InvalidArgs before anything is sent, and go on working."""

    async def ask(client: Connection, name: str) -> None:
        with pytest.raises(InvalidArgs):
            await client.call(name, path, "a.b.C", signature, *body)
        assert await client.call(name, "/", "a.b.C", "s", "x") == ["x"]

    _between(bus_address, lambda service, call: service.reply(call, "s", call.body), ask)


def test_an_error_keeps_its_name_and_a_bounded_text(bus_address: str) -> None:
    """Carry an error's name and text, cut so that no caller's own words end the connection."""

    def serve(service: Connection, call: Call) -> None:
        service.send_error(
            call.sender, call.serial, "org.opdbus.Error.Test", "no\0 \ud800" + "x" * (40 << 20)
        )

    async def ask(client: Connection, name: str) -> None:
        for _ in range(2):
            with pytest.raises(RemoteError, match=r"no  .x+") as caught:
                await client.call(name, "/", "a.b.C")
            assert caught.value.name == "org.opdbus.Error.Test"
            assert len(str(caught.value)) <= MAX_ERROR_CHARACTERS + 3

    _between(bus_address, serve, ask)


@pytest.mark.parametrize("size", [10, 64 << 10, 3 << 20])
@pytest.mark.parametrize("kind", BUSES)
def test_a_call_with_unknown_fields_is_answered(kind: str, size: int) -> None:
    """Answer a call whose header has more fields, whether the bus removes or delivers them."""
    bus = BUSES[kind]()

    async def ask(client: Connection, name: str) -> None:
        with Wire(bus.address) as wire:
            fields = marshal.call_fields("/", "a.b", "C", "s") | {marshal.DESTINATION: name}
            head = [(code, Variant(marshal.TYPES.get(code, "s"), v)) for code, v in fields.items()]
            head.insert(2, (99, Variant("ay", bytes(size))))
            body, array = marshal.encode("s", ["x"]), marshal.encode("a(yv)", [head])
            fixed = b"l\1\0\1" + struct.pack("<III", len(body), wire.serial(), len(array) - 8)
            data = fixed + array[8:] + bytes(-len(array) % 8) + body
            await asyncio.to_thread(wire.send, data)
            answer = await asyncio.to_thread(wire.answer, wire._serial)
        assert (answer.error, answer.body()) == ("", ["x"])
        assert await client.call(name, "/", "a.b.C", "s", "x") == ["x"]

    try:
        _between(bus.address, lambda service, call: service.reply(call, "s", call.body), ask)
    finally:
        bus.kill()


@pytest.mark.parametrize("kind", BUSES)
def test_a_client_answers_pings(kind: str) -> None:
    """Prove by an answer to Ping that all was read that came before, unless the bus answers."""
    bus = BUSES[kind]()

    async def ask(client: Connection, name: str) -> None:
        assert await client.call(name, "/", "a.b.C") == [[True, False]]

    async def ping(service: Connection, call: Call) -> None:
        found = [await service.ping(name) for name in (call.sender, ":1.999")]
        service.reply(call, "ab", [found])

    tasks: set[asyncio.Task[None]] = set()
    try:
        _between(bus.address, lambda *given: start(ping(*given), tasks), ask)
    finally:
        bus.kill()


@pytest.mark.parametrize(("count", "size", "every"), [(300, 50_000, 50), (500, 10, 1)])
def test_a_slow_bus_loses_nothing(count: int, size: int, every: int) -> None:
    """Outlive a bus daemon that reads nothing for a while, and send all in order after it.

    Messages with an open file, which are every few or all of them, arrive once with their own.
    """
    bus = Bus()

    async def run() -> list[Any]:
        seen: list[Any] = []
        done = asyncio.Event()

        def take(message: Any) -> None:
            if message.member == "Numbered":
                number, text, *_ = message.body
                assert text == "x" * size
                seen.append((number, *(os.pread(f, 100, 0) for f in message.unix_fds)))
                if len(seen) == count:
                    done.set()

        async with Connection(bus.address) as sender, Connection(bus.address) as receiver:
            receiver.on_signal = take
            await receiver.subscribe("type='signal',interface='a.b'")
            os.kill(bus.pid, signal.SIGSTOP)
            for number in range(count):
                file = in_memory(b"%d" % number)
                with_file = ("ush", number, "x" * size, file)
                sender.emit("/", "a.b.Numbered", *(with_file if number % every == 0
                                                   else ("us", number, "x" * size)))  # fmt: skip
                file.close()
            await asyncio.sleep(0)
            os.kill(bus.pid, signal.SIGCONT)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await done.wait()
        return seen

    before = open_files(settled=True)
    try:
        expected = [(n, b"%d" % n) if n % every == 0 else (n,) for n in range(count)]
        assert asyncio.run(run()) == expected
    finally:
        bus.kill()
    assert open_files(settled=True) < before  # the bus's own pipe is closed, too


def test_what_was_answered_is_sent_before_the_end(bus_address: str) -> None:
    """Send replies that wait in the queue before disconnecting."""

    async def run() -> list[int]:
        async with Connection(bus_address) as client:
            async with Connection(bus_address) as service:
                waiting: list[Call] = []
                all_there = asyncio.Event()

                def take(call: Call) -> None:
                    waiting.append(call)
                    if len(waiting) == 20:
                        all_there.set()

                service.on_call = take
                calls = [
                    asyncio.ensure_future(client.call(service.name, "/", "a.b.C"))
                    for _ in range(20)
                ]
                await all_there.wait()
                for call in waiting:
                    service.reply(call, "ay", [b"x" * 500_000])
            return [len(answer[0]) for answer in await asyncio.gather(*calls)]

    assert asyncio.run(run()) == [500_000] * 20


async def test_a_lost_bus_ends_every_wait() -> None:
    """Raise BusError in callers that wait, tell `closed`, and send nothing any more."""
    bus = Bus()
    async with Connection(bus.address) as service, Connection(bus.address) as client:
        service.on_call = lambda _call: bus.kill()
        async with asyncio.timeout(PATIENCE_SECONDS):
            with pytest.raises(BusError, match="lost"):
                await client.call(service.name, "/", "a.b.C")
            await client.wait_closed()
            await service.wait_closed()
            service.emit("/", "a.b.S", "s", "nobody")
            with pytest.raises(BusError, match="lost"):
                await client.ask_bus("GetId")


async def test_a_name_is_owned_at_once_or_not_at_all(bus_address: str) -> None:
    """Never queue for a name: the second connection that asks gets BusError."""
    async with Connection(bus_address) as one, Connection(bus_address) as other:
        await one.own("org.opdbus.Test")
        with pytest.raises(BusError, match="owned already"):
            await other.own("org.opdbus.Test")
        found: list[str] = (await one.ask_bus("ListQueuedOwners", "s", "org.opdbus.Test"))[0]
        assert found == [one.name]
        return found


def test_signals_that_are_not_wanted_are_not_heard() -> None:
    """Give `on_signal` what somebody sends to us alone only if its header is wanted."""
    bus = Bus()

    async def run() -> list[str]:
        heard: list[str] = []
        async with Connection(bus.address) as sender, Connection(bus.address) as receiver:
            receiver.wants_signal = lambda header, _size: header.member == "Wanted"
            receiver.on_signal = lambda message: heard.append(message.member)
            for member, signature, body in (
                *(("Other", "", []), ("Other", "s", ["text"]), ("Other", "s", ["t" * 300_000])),
                *(("Wanted", "", []), ("Wanted", "s", ["text"])),
            ):
                message = Message.new_signal("/a", "a.b", member, signature, body)
                message.destination = receiver.name
                sender.send(sender.encode(Outgoing(message)))
            await sender.ask_bus("GetId")
            await receiver.ask_bus("GetId")
        return heard

    try:
        assert asyncio.run(run()) == ["Wanted"] * 2
    finally:
        bus.kill()


def test_serials_begin_again_after_the_last_one(bus_address: str) -> None:
    """Calls, replies, errors and signals go on after serial 2^32 - 1, and none has serial 0."""
    seen: list[int] = []

    def serve(service: Connection, call: Call) -> None:
        seen.append(call.serial)
        service.emit("/", "a.b.Asked", "")
        if call.member == "Fail":
            service.send_error(call.sender, call.serial, "org.opdbus.Error.Test", "no")
        else:
            service.reply(call, "u", [call.serial])

    async def run() -> list[int]:
        async with Connection(bus_address) as service, Connection(bus_address) as client:
            service.on_call = lambda call: serve(service, call)
            service.last_serial = client.last_serial = LAST_SERIAL - 2
            found = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                for _ in range(5):
                    found += await client.call(service.name, "/", "a.b.C")
                with pytest.raises(RemoteError):
                    await client.call(service.name, "/", "a.b.Fail")
            return found

    assert asyncio.run(run()) == [LAST_SERIAL - 1, LAST_SERIAL, 1, 2, 3]
    assert seen[-1] == 4


def test_a_serial_that_waits_for_its_reply_is_not_used_again(bus_address: str) -> None:
    """A call that is outstanding when its serial comes round again gets its own reply."""

    async def run() -> list[str]:
        async with Connection(bus_address) as service, Connection(bus_address) as client:
            held: list[Call] = []
            service.on_call = held.append
            async with asyncio.timeout(PATIENCE_SECONDS):
                first = asyncio.ensure_future(client.call(service.name, "/", "a.b.First"))
                await client.ask_bus("GetId")
                await service.ask_bus("GetId")
                client.last_serial = held[0].serial - 1
                second = asyncio.ensure_future(client.call(service.name, "/", "a.b.Second"))
                await client.ask_bus("GetId")
                await service.ask_bus("GetId")
                for call in reversed(held):
                    service.reply(call, "s", [call.member])
                return [*await first, *await second]

    assert asyncio.run(run()) == ["First", "Second"]


def test_what_the_bus_does_not_answer_is_asked_again() -> None:
    """A reply that the bus drops, because of the files that others send here, is asked for again.

    dbus-daemon refuses messages for a connection that has 64 files to receive, its own included.
    """
    bus = Bus()

    async def run() -> list[Any]:
        async with Connection(bus.address) as service:
            fields = marshal.call_fields("/", "a.b", "C", "hay", descriptors=16)
            fields[marshal.DESTINATION] = service.name
            body = marshal.encode("hay", (0, bytes(1 << 17)))
            message = marshal.message(fields, body, 9, flags=marshal.NO_REPLY)
            with connections(bus.address, 5) as attackers, Wire(bus.address) as other:
                for wire in attackers * 3:
                    wire.send(message, [0] * 16)
                other.ask_bus("GetId")
                asked = asyncio.ensure_future(service.ask_bus("GetId"))
                await asyncio.sleep(0)
                # meanwhile the bus has answered, and nothing is read here
                for _ in range(3):
                    other.ask_bus("GetId")
            async with asyncio.timeout(PATIENCE_SECONDS):
                return await asked

    try:
        assert len(asyncio.run(run())) == 1
    finally:
        bus.kill()


def test_without_a_session_there_is_no_session_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of no session is told what it lacks, not the name of a variable of Python's."""
    for name in ("DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BusError, match="no session bus here, as DBUS_SESSION_BUS_ADDRESS is not"):
        transports("session")
