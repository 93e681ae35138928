"""All properties in one reply: encoded as the library does it, and never older than they are."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from harness.running import ROOT_PATH, STATE, STATE_PATH, VECTORIZER, Bus, Caller, Running, ask
from hypothesis import given
from hypothesis import strategies as st

from opdbus.bus import names
from opdbus.bus.service import contract
from opdbus.bus.service.standard import AllProperties
from opdbus.bus.transport import frames
from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.library import Variant, decode
from opdbus.bus.transport.values import UNFIT
from opdbus.client import Client

GET_ALL = "org.freedesktop.DBus.Properties.GetAll"
UNKNOWN_METHOD = "org.freedesktop.DBus.Error.UnknownMethod"
OVEN = contract.parse_interface("""<node><interface name="org.example.Oven">
  <property name="Heat" type="u" access="read"/>
  <property name="Hours" type="d" access="read"/>
  <property name="Baked" type="t" access="read"/>
  <property name="DoorState" type="s" access="read"/>
  <property name="Inside" type="a(su)" access="read"/>
  <property name="More" type="a{sv}" access="read"/>
</interface></node>""")
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "Heat": st.integers(0, 300),
        "Hours": st.floats(allow_nan=False),
        "Baked": st.integers(0, (1 << 64) - 1),
        "DoorState": st.sampled_from(["shut", "open", "\u00e4jar", ""]),
        "Inside": st.lists(st.tuples(st.sampled_from(["bread", "rolls"]), st.integers(0, 9))),
        "More": st.dictionaries(st.sampled_from(["a", "bc"]), st.booleans()),
    },
)


def told(entries: bytes, receiver: str = ":1.5") -> Any:
    """Read a reply with entries as clients do."""
    message = decode(frames.encode_entries_reply(7, 9, receiver, entries))
    assert (message.serial, message.reply_serial, message.signature) == (7, 9, "a{sv}")
    assert message.destination == receiver
    return plain(message.body[0])


def plain(value: Any) -> Any:
    """Give a value without variants, a list as it is compared."""
    if isinstance(value, Variant):
        return plain(value.value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [list(row) for row in value] if isinstance(value, list) else value


@given(st.lists(VALUES, max_size=8), st.integers(0, 10**19))
def test_what_is_told_is_what_is_there(steps: list[dict[str, Any]], receiver: int) -> None:
    """Whatever changes, comes and goes, any receiver gets each value of now, in order."""
    encoder = AllProperties(OVEN)
    # one dict that changes in place, as an interface's own may
    mine: dict[str, Any] = {}
    for values in steps:
        mine.clear()
        mine |= values
        found = told(encoder.encode_values(mine), f":1.{receiver}")
        assert found == plain(values)
        assert list(found) == list(values)


def test_a_value_that_does_not_fit_leaves_nothing_behind() -> None:
    """After a value that cannot be sent, those beside it are told as they are."""
    encoder = AllProperties(OVEN)
    encoder.encode_values({"DoorState": "shut", "Heat": 20})
    with pytest.raises(UNFIT):
        encoder.encode_values({"DoorState": "open", "Heat": -1})
    assert told(encoder.encode_values({"DoorState": "shut", "Heat": 21}))["DoorState"] == "shut"


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
            moving |= {"FirstStage"}
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
            self._connection.reply_error(call, UNKNOWN_METHOD, "there is no method Status")
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
