"""Properties that can be set: by which users, to what, and which clients are told."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from harness.users import GROUP, MEMBER, NOBODY, User, answers

from opdbus.bus.admission.accounting import RunningCalls
from opdbus.bus.authorization.authorizer import Authorizer
from opdbus.bus.service import contract
from opdbus.bus.service.contract import Caller, Node
from opdbus.bus.service.dispatch import Dispatcher
from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.values import Typed, from_wire
from opdbus.errors import InvalidArgs

NAME = "org.example.Oven"
SET = "org.freedesktop.DBus.Properties.Set"
OVEN = """<node><interface name="org.example.Oven">
  <method name="Melt"><annotation name="org.opdbus.Action" value="manage"/></method>
  <property name="Heat" type="u" access="readwrite">
    <annotation name="org.opdbus.Action" value="manage"/>
  </property>
  <property name="DoorState" type="s" access="readwrite">
    <annotation name="org.opdbus.Action" value="manage"/>
    <annotation name="org.freedesktop.DBus.Property.EmitsChangedSignal" value="false"/>
  </property>
  <property name="Maker" type="s" access="read"/>
</interface></node>"""


class Oven:
    """An interface that no file of the package describes."""

    info = contract.parse_interface(OVEN)

    def __init__(self) -> None:
        self.values: dict[str, Any] = {"Heat": 20, "DoorState": "shut", "Maker": "we"}

    async def melt(self, _caller: Caller) -> None:
        """Do nothing."""

    async def set_heat(self, _caller: Caller, heat: int) -> None:
        """Be as hot as that."""
        if heat > 300:
            raise InvalidArgs("too hot")
        self.values["Heat"] = heat

    async def set_door_state(self, _caller: Caller, state: str) -> None:
        """Be as open as that."""
        self.values["DoorState"] = state

    async def properties(self) -> Mapping[str, Any]:
        """Give every property's value."""
        return self.values


def ask(bus: str, calls: Sequence[Sequence[Any]], user: User | None = None) -> tuple[Any, ...]:
    """Call the oven as a user, or as us; gives the answers, the oven's values, and its signals."""

    async def work() -> tuple[Any, ...]:
        oven, signals = Oven(), []
        async with Connection(bus) as connection, Connection(bus) as client:
            authorizer = Authorizer(connection, gid_of=lambda _: GROUP)
            node = Node((oven,), list)
            connection.on_call = Dispatcher(
                connection, authorizer, {"/it": node}.get, RunningCalls()
            ).take
            await client.subscribe(f"type='signal',sender='{connection.name}'")
            # what the bus says of the client's own name has come by now
            client.on_signal = lambda m: signals.append((m.path, m.member, from_wire(m.body)))
            sent = [[connection.name, "/it", *call] for call in calls]
            if user:
                found = await asyncio.to_thread(answers, user, bus, sent)
            else:
                found = [await _answer(client, call) for call in sent]
            await client.ask_bus("GetId")
        return found, oven.values, signals

    return asyncio.run(work())


async def _answer(client: Connection, call: Sequence[Any]) -> Any:
    try:
        return await client.call(*call)
    except Exception as error:  # noqa: BLE001 -- its name is the answer
        return getattr(error, "name", repr(error)).rpartition(".")[2]


def test_a_user_that_may_sets_a_property(bus_address: str) -> None:
    """Hand a value of the right type to the interface, and signal it where the property says so."""
    calls = [(SET, "ssv", NAME, "Heat", Typed("u", 200)), (SET, "ssv", NAME, "DoorState", "open")]
    found, values, signals = ask(bus_address, calls)
    assert found == [[], []]
    assert values == {"Heat": 200, "DoorState": "open", "Maker": "we"}
    assert signals == [("/it", "PropertiesChanged", [NAME, {"Heat": 200}, []])]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("Heat", "hot", "InvalidArgs"),
        ("Heat", Typed("x", 200), "InvalidArgs"),
        ("Heat", Typed("v", Typed("u", 200)), "InvalidArgs"),
        ("Heat", Typed("u", 301), "InvalidArgs"),
        ("Maker", "me", "PropertyReadOnly"),
        ("Colour", "red", "UnknownProperty"),
    ],
)
def test_what_cannot_be_set_is_named_rightly(
    bus_address: str, name: str, value: Any, error: str
) -> None:
    """Refuse a value of another type, a wrong value, and what cannot be set."""
    found, values, signals = ask(bus_address, [(SET, "ssv", NAME, name, value)])
    assert (found, signals) == ([error], [])
    assert values == Oven().values


def test_a_reader_may_not_set_or_manage(bus_address: str) -> None:
    """Ask for the action that an interface names, even where no file of the package tells of it."""
    calls = [
        ("org.freedesktop.DBus.Properties.GetAll", "s", NAME),
        (f"{NAME}.Melt", ""),
        (".Melt", ""),
        (SET, "ssv", NAME, "DoorState", "open"),
        (SET, "ssv", NAME, "Maker", "me"),
        (SET, "ssv", NAME, "Colour", "red"),
    ]
    found, values, _ = ask(bus_address, calls, MEMBER)
    denied = "AccessDenied"
    assert found == ["allowed", denied, denied, denied, "PropertyReadOnly", "UnknownProperty"]
    assert values == Oven().values
    assert ask(bus_address, calls, NOBODY)[0] == [denied] * len(calls)
