"""Calls over a private bus: the right errors, replies for everyone, and nobody mistaken."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import structlog
from harness.running import PATIENCE_SECONDS

from opdbus.bus import names
from opdbus.bus.admission.accounting import RunningCalls
from opdbus.bus.admission.limits import MAX_REPLY_BYTES
from opdbus.bus.authorization.authorizer import Authorizer
from opdbus.bus.service import contract
from opdbus.bus.service.contract import Caller, Node
from opdbus.bus.service.dispatch import Dispatcher
from opdbus.bus.transport.connection import Connection, RemoteError
from opdbus.engine.batching import Rank
from opdbus.errors import NoModel

_FREEDESKTOP = "org.freedesktop.DBus.Error."


class BusInterface:
    """State1 without a house behind it: each method does what the test gives for it."""

    info = contract.interface(names.STATE)

    def __init__(self, **methods: Callable[..., Awaitable[Any]]) -> None:
        self.__dict__ |= methods

    async def properties(self) -> Mapping[str, Any]:
        """Give values of the right types."""
        values: dict[str, Any] = dict.fromkeys(self.info.properties, 1)
        return values | {
            "StateFile": "/state.json",
            "StateFileError": "",
            "StorageError": "",
            "LastError": "",
            "DriftAwaits": [],
            "Observers": [],
            "Sources": [],
        }


class Service:
    """A dispatcher on the bus, and a client to ask it."""

    def __init__(self, connection: Connection, dispatcher: Dispatcher, client: Connection) -> None:
        self.connection = connection
        self.dispatcher = dispatcher
        self.client = client

    async def call(self, member: str, signature: str = "", *body: Any, path: str = "/it") -> Any:
        """Call the interface's method `member`, or another interface's if it is named."""
        full = member if "." in member or not member else f"{names.STATE}.{member}"
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.client.call(self.connection.name, path, full, signature, *body)

    async def refused(self, member: str, signature: str = "", *body: Any, path: str = "/it") -> str:
        """Give the name of the error that a call is answered with."""
        with pytest.raises(RemoteError) as caught:
            await self.call(member, signature, *body, path=path)
        assert "Traceback" not in str(caught.value)
        return caught.value.name.removeprefix(_FREEDESKTOP)


@asynccontextmanager
async def serving(
    bus: str, interface: BusInterface, children: list[str] | None = None
) -> AsyncIterator[Service]:
    """Serve a interface at /it, and nothing elsewhere."""
    async with Connection(bus) as connection, Connection(bus) as client:
        node = Node((interface,), lambda: children or [])
        dispatcher = Dispatcher(
            connection, Authorizer(connection), {"/it": node}.get, RunningCalls()
        )
        connection.on_call = dispatcher.take
        yield Service(connection, dispatcher, client)
        await dispatcher.stop()


def run(
    bus: str, interface: BusInterface, ask: Callable[[Service], Awaitable[Any]], **more: Any
) -> Any:
    """Serve a interface and ask it."""

    async def both() -> Any:
        async with serving(bus, interface, **more) as service:
            return await ask(service)

    return asyncio.run(both())


async def _echo(_caller: Caller, query: str, _limit: int, _options: dict[str, Any]) -> list[Any]:
    return [("/it", 0.5, {"query": query})]


SEARCH = ("Search", "sua{sv}", "x", 1, {})


@pytest.mark.parametrize(
    ("member", "signature", "body", "path", "error"),
    [
        ("Search", "s", ("x",), "/it", "InvalidArgs"),
        ("Search", "", (), "/it", "InvalidArgs"),
        ("Search", "suas", ("x", 1, []), "/it", "InvalidArgs"),
        ("Nothing", "", (), "/it", "UnknownMethod"),
        ("Search", "sua{sv}", ("x", 1, {}), "/elsewhere", "UnknownObject"),
        ("org.example.Other.Search", "", (), "/it", "UnknownInterface"),
        ("org.freedesktop.DBus.Properties.Get", "ss", (names.STATE, "X"), "/it",
         "UnknownProperty"),
        ("org.freedesktop.DBus.Properties.Get", "ss", ("a.b", "X"), "/it", "UnknownInterface"),
        ("org.freedesktop.DBus.Properties.Get", "s", ("a.b",), "/it", "InvalidArgs"),
        ("org.freedesktop.DBus.Properties.GetAll", "s", ("a.b",), "/it", "UnknownInterface"),
        ("org.freedesktop.DBus.Properties.Set", "ssv", (names.STATE, "Count", 1), "/it",
         "PropertyReadOnly"),
        ("org.freedesktop.DBus.Properties.Take", "", (), "/it", "UnknownMethod"),
        ("org.freedesktop.DBus.Introspectable.Introspect", "s", ("x",), "/it", "InvalidArgs"),
        ("org.freedesktop.DBus.Introspectable.Introspect", "", (), "/no", "UnknownObject"),
        ("org.freedesktop.DBus.Peer.Pong", "", (), "/it", "UnknownMethod"),
    ],
)  # fmt: skip
async def test_a_wrong_call_is_named_rightly(
    bus_address: str, member: str, signature: str, body: tuple[Any, ...], path: str, error: str
) -> None:
    """Say InvalidArgs, UnknownObject, UnknownInterface, UnknownMethod as each is due."""
    async with serving(bus_address, BusInterface(search=_echo)) as service:
        assert await service.refused(member, signature, *body, path=path) == error


async def test_calls_without_an_interface_work(bus_address: str) -> None:
    """Find the method of a call that names no interface, ours before the standard ones."""

    async def get(_caller: Caller, path: str, _options: dict[str, Any]) -> str:
        return f"object {path}"

    async def bare(service: Service, member: str, signature: str = "", *body: Any) -> Any:
        name = service.connection.name
        return await service.client.call(name, "/it", f".{member}", signature, *body)

    async with serving(bus_address, BusInterface(search=_echo, get=get)) as service:
        assert await bare(service, *SEARCH) == [[["/it", 0.5, {"query": "x"}]]]
        assert await bare(service, "Ping") == []
        assert await bare(service, "Get", "oa{sv}", "/a", {}) == ["object /a"]
        assert await bare(service, "Get", "ss", names.STATE, "Count") == [1]
        with pytest.raises(RemoteError) as caught:
            await bare(service, "Nothing")
        assert caught.value.name.endswith("UnknownMethod")


async def test_peer_answers_anywhere(bus_address: str) -> None:
    """Answer Ping at any path, and give the machine's id."""
    async with serving(bus_address, BusInterface()) as service:
        peer = "org.freedesktop.DBus.Peer"
        assert await service.call(f"{peer}.Ping", path="/anywhere") == []
        assert len((await service.call(f"{peer}.GetMachineId"))[0]) == 32


def test_an_unknown_exception_is_internal_with_an_id(bus_address: str) -> None:
    """Answer what nobody foresaw with Internal and an id, and log the rest under that id."""

    async def search(*_: Any) -> Any:
        raise ZeroDivisionError("a detail for the log alone")

    async def ask(service: Service) -> str:
        with pytest.raises(RemoteError) as caught:
            await service.call(*SEARCH)
        assert caught.value.name == "org.opdbus.Error.Internal"
        return str(caught.value)

    with structlog.testing.capture_logs() as logged:
        sentence = run(bus_address, BusInterface(search=search), ask)
    (line,) = [line for line in logged if line["event"] == "internal error"]
    assert f"journalctl -u op-dbus -g {line['id']}" in sentence
    assert line["exc_info"]
    assert "detail" not in sentence
    assert "Traceback" not in sentence


@pytest.mark.parametrize("wrong", [[("/it", "no number", {})], [("no path",)], None, [1, 2]])
def test_a_reply_that_does_not_fit_is_internal(bus_address: str, wrong: Any) -> None:
    """Answer Internal where a method gives what its signature has not, and serve on."""

    async def search(caller: Caller, query: str, *_: Any) -> Any:
        return await _echo(caller, query, 1, {}) if query == "right" else wrong

    async def ask(service: Service) -> None:
        assert await service.refused(*SEARCH) == "org.opdbus.Error.Internal"
        assert await service.call("Search", "sua{sv}", "right", 1, {})

    with structlog.testing.capture_logs():
        run(bus_address, BusInterface(search=search), ask)


async def test_a_reply_past_the_limit_is_refused_and_the_service_stays(bus_address: str) -> None:
    """Answer LimitsExceeded instead of a reply over 1 MiB, and send one just below it."""

    async def get(_caller: Caller, path: str, _options: dict[str, Any]) -> str:
        return "x" * (MAX_REPLY_BYTES - 100 if path == "/fits" else 40 << 20)

    async with serving(bus_address, BusInterface(get=get)) as service:
        assert await service.refused("Get", "oa{sv}", "/large", {}) == "LimitsExceeded"
        with pytest.raises(RemoteError, match=r"limit of 1 MiB: it is one thing, and cannot be"):
            await service.call("Get", "oa{sv}", "/large", {})
        assert len((await service.call("Get", "oa{sv}", "/fits", {}))[0]) == MAX_REPLY_BYTES - 100


def test_a_large_reply_is_made_on_a_thread(bus_address: str) -> None:
    """Have the event loop serve others while thousands of rows are made into a reply."""
    threads: set[int] = set()

    class Rows(list[Any]):
        """Rows that note who reads them."""

        def __iter__(self) -> Iterator[Any]:
            threads.add(threading.get_ident())
            return super().__iter__()

    async def search(*_: Any) -> Any:
        return Rows([("/it", 0.5, {"query": f"question {n}"}) for n in range(5000)])

    found = run(bus_address, BusInterface(search=search), lambda s: s.call(*SEARCH))
    assert found[0][4999] == ["/it", 0.5, {"query": "question 4999"}]
    assert threads - {threading.get_ident()}


async def test_a_reply_of_too_many_rows_is_refused_before_it_is_made(bus_address: str) -> None:
    """Answer LimitsExceeded without making a reply of many times its limit."""
    read = []

    class Row(tuple[Any, ...]):
        """A row that notes that it is read."""

        __slots__ = ()

        def __iter__(self) -> Iterator[Any]:
            read.append(self)
            return super().__iter__()

    async def search(*_: Any) -> Any:
        return [Row(("/it", 0.5, {"query": "x" * 1000})) for _ in range(50_000)]

    async with serving(bus_address, BusInterface(search=search)) as service:
        assert await service.refused(*SEARCH) == "LimitsExceeded"
    assert len(read) < 5000


async def test_no_reply_where_none_is_expected(bus_address: str) -> None:
    """Do what a call that wants no reply changes, and send none, not even an error."""
    done = asyncio.Event()
    sent: list[str] = []
    begun: list[str] = []

    async def publish(_caller: Caller, source: str, *_: Any) -> Any:
        begun.append(source)
        if source == "quiet":
            done.set()
            raise NoModel("nobody hears this")
        return []

    async def search(*_: Any) -> Any:
        raise AssertionError("nobody hears what this finds")

    async with serving(bus_address, BusInterface(publish=publish, search=search)) as service:
        take, write = service.dispatcher.take, service.connection.encode

        def quietly(call: Any) -> None:
            take(replace(call, wants_reply=call.body[0] != "quiet"))

        def count(outgoing: Any) -> Any:
            if outgoing.message.reply_serial:
                sent.append(outgoing.message.error_name or "reply")
            return write(outgoing)

        service.connection.on_call = quietly
        service.connection.encode = count  # type: ignore[method-assign] -- counts what is sent
        arguments = "sa(sssa{sv})a{sv}", "quiet", [], {}
        waiting = [
            asyncio.ensure_future(service.call("Search", "sua{sv}", "quiet", 1, {})),
            asyncio.ensure_future(service.call("Publish", *arguments)),
        ]
        await done.wait()
        await service.call("Publish", arguments[0], "loud", [], {})
        for call in waiting:
            call.cancel()
    assert begun == ["quiet", "loud"]
    assert sent == ["reply"]


def test_each_of_200_calls_at_once_knows_its_caller(bus_address: str) -> None:
    """Tell 200 concurrent calls of eight callers apart, across every await."""

    async def search(caller: Caller, *_: Any) -> Any:
        await asyncio.to_thread(lambda: None)
        return [("/it", 0.0, {"sender": caller.sender, "uid": caller.uid})]

    async def one(service: Service, client: Connection) -> bool:
        hits = (await client.call(service.connection.name, "/it", f"{names.STATE}.Search",
                                  "sua{sv}", "x", 1, {}))[0]  # fmt: skip
        sender: str = hits[0][2]["sender"]
        return sender == client.name

    async def ask(service: Service) -> list[bool]:
        clients = [Connection(bus_address) for _ in range(8)]
        for client in clients:
            await client.__aenter__()
        calls = [one(service, client) for client in clients for _ in range(25)]
        try:
            return list(await asyncio.gather(*calls))
        finally:
            for client in clients:
                await client.__aexit__(None, None, None)

    assert run(bus_address, BusInterface(search=search), ask) == [True] * 200


def test_a_user_with_many_calls_has_a_lower_priority(bus_address: str) -> None:
    """Give the methods of a user with more than a few unanswered calls the priority CROWD."""

    async def search(caller: Caller, *_: Any) -> Any:
        return [("/it", 0.0, {"priority": int(caller.priority)})]

    async def priority(service: Service) -> Any:
        return (await service.call(*SEARCH))[0][0][2]["priority"]

    async def ask(service: Service) -> tuple[Any, set[Any]]:
        alone = await priority(service)
        return alone, set(await asyncio.gather(*(priority(service) for _ in range(100))))

    alone, together = run(bus_address, BusInterface(search=search), ask)
    assert alone == Rank.FEW
    assert Rank.BUSY_CALLER in together


async def test_work_for_a_caller_that_left_is_cancelled(bus_address: str) -> None:
    """Stop a running method when the bus says that its caller is gone."""
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def search(*_: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serving(bus_address, BusInterface(search=search)) as service:
        leaver = "type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg2=''"
        service.connection.on_signal = lambda m: service.dispatcher.caller_left(m.body[0])
        await service.connection.subscribe(leaver)
        async with Connection(bus_address) as client:
            name = f"{names.STATE}.Search"
            call = asyncio.ensure_future(
                client.call(service.connection.name, "/it", name, "sua{sv}", "x", 1, {})
            )
            await begun.wait()
            call.cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await cancelled.wait()


async def test_every_call_is_answered_at_shutdown(bus_address: str) -> None:
    """Answer ShuttingDown to calls that run, that were only taken, and that come after."""

    async def search(*_: Any) -> Any:
        await asyncio.Event().wait()

    async with serving(bus_address, BusInterface(search=search)) as service:
        take, taken, all_there = service.dispatcher.take, [], asyncio.Event()

        def take_and_stop(call: Any) -> None:
            take(call)
            taken.append(call)
            if len(taken) == 10:  # the last ones have not begun when they are cancelled
                task = asyncio.ensure_future(service.dispatcher.stop())
                task.add_done_callback(lambda _: all_there.set())

        service.connection.on_call = take_and_stop
        names = await asyncio.gather(*(service.refused(*SEARCH) for _ in range(10)))
        await all_there.wait()
        answers = [*names, await service.refused(*SEARCH)]
    assert answers == ["org.opdbus.Error.ShuttingDown"] * 11
