"""All properties in one reply: those of both interfaces, and never older than they are."""

import asyncio
from collections.abc import Callable
from typing import Any

from harness.running import ROOT_PATH, STATE, STATE_PATH, VECTORIZER, Bus, Caller, Running, ask

from opdbus.bus import names
from opdbus.bus.transport.connection import Connection
from opdbus.client import Client

GET_ALL = "org.freedesktop.DBus.Properties.GetAll"
UNKNOWN_METHOD = "org.freedesktop.DBus.Error.UnknownMethod"


def test_a_status_is_both_interfaces_and_always_new(daemons: Callable[..., Running]) -> None:
    """Status gives what GetAll gives of both, and a change at once."""

    async def work(caller: Caller) -> None:
        await caller.vectorized()
        options, before = ("a{sv}", {}), await caller.read("Count")
        for number in range(5):
            (status,) = await caller.call(ROOT_PATH, f"{VECTORIZER}.Status", *options)
            (one,) = await caller.call(ROOT_PATH, GET_ALL, "s", VECTORIZER)
            (other,) = await caller.call(STATE_PATH, GET_ALL, "s", STATE)
            assert status.keys() == one.keys() | other.keys()
            moving = {"Memory", "Pending", "Vectorized", "Texts", "QueueDepth", "Latency"}
            moving |= {"FirstStage", "DriftAwaits"}
            for values in (status, one, other):
                for name in moving:
                    values.pop(name, None)
            assert status == one | other
            assert status["Count"] == before + number
            objects = [("plugin", "kind", f"{number}", {"text": "mail"})]
            call = ("sa(sssa{sv})a{sv}", "x", objects, {})
            await caller.call(STATE_PATH, f"{STATE}.Publish", *call)

    with daemons() as daemon:
        ask(daemon, work)


class Service:
    """A daemon as another process sees it, which notes what it is asked for."""

    def __init__(self, connection: Connection, *, has_status: bool = True) -> None:
        self.asked: list[str] = []
        self._connection = connection
        self._has_status = has_status
        connection.on_call = self._answer

    def _answer(self, call: Any) -> None:
        self.asked.append(call.member)
        if call.member == "Status" and not self._has_status:
            self._connection.send_error(
                call.sender, call.serial, UNKNOWN_METHOD, "there is no method Status"
            )
            return
        values = {"Count": 3, "State": "ready", "Drifted": 0, "LastError": "", "Observers": []}
        values |= {"StateFile": "/none.json", "StateFileError": "", "Sources": []}
        self._connection.reply(call, "a{sv}", [values])


def serve(work: Callable[[str], Any], *, has_status: bool = True) -> tuple[Any, list[str]]:
    """Do work with an address that a service owns the name on; give what it was asked for, too."""
    bus = Bus()

    async def both() -> tuple[Any, list[str]]:
        async with Connection(bus.address) as connection:
            service = Service(connection, has_status=has_status)
            await connection.own(names.BUS_NAME)
            return await work(bus.address), service.asked

    try:
        return asyncio.run(both())
    finally:
        bus.kill()


async def status(address: str) -> dict[str, Any]:
    """Ask as `op-dbus status` does."""
    async with Client(address) as client:
        return await client.status()


def test_a_status_is_one_call() -> None:
    """A client asks once; a daemon of an earlier version twice more."""
    found, asked = serve(status)
    assert (found["Count"], asked) == (3, ["Status"])
    found, asked = serve(status, has_status=False)
    assert (found["Count"], asked) == (3, ["Status", "GetAll", "GetAll"])
