"""An object on the bus with its interfaces and children, and the caller of a method."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from opdbus.bus.service.contract import InterfaceInfo, MethodInfo
from opdbus.bus.transport.call import Call
from opdbus.bus.transport.values import Plain
from opdbus.engine.batching import Rank
from opdbus.errors import UnknownInterface, UnknownMethod


class Caller(NamedTuple):
    """The client that called a method, and the priority of its texts for the engine."""

    sender: str
    uid: int
    priority: Rank = Rank.FEW

    @property
    def cause(self) -> str:
        """The cause of the changes that the caller makes."""
        return f"bus:{self.sender} uid {self.uid}"


class BusInterface(Protocol):
    """One interface of an object; methods are coroutines named in snake_case.

    Each takes the Caller and then the call's arguments. For each writable property there is a
    coroutine set_NAME, which takes the Caller and the value.
    """

    @property
    def info(self) -> InterfaceInfo:
        """Return the interface's contract."""

    async def properties(self) -> Mapping[str, Plain]:
        """Return every property's value; lists and dicts among them must never change."""


class Node(NamedTuple):
    """The object at a path: its interfaces, and the names of its child nodes."""

    interfaces: Sequence[BusInterface]
    children: Callable[[], Sequence[str]]

    def interface(self, name: str) -> BusInterface:
        """Return the interface of a name; raise UnknownInterface."""
        for interface in self.interfaces:
            if interface.info.name == name:
                return interface
        names = ", ".join(interface.info.name for interface in self.interfaces) or "none of ours"
        raise UnknownInterface(f"this object has no interface {name}; it has {names}")

    def method(self, call: Call) -> tuple[BusInterface, MethodInfo]:
        """Return the called method; raise UnknownInterface or UnknownMethod."""
        interfaces = [self.interface(call.interface)] if call.interface else self.interfaces
        for interface in interfaces:
            if call.member in interface.info.methods:
                return interface, interface.info.methods[call.member]
        owner = call.interface or call.path
        raise UnknownMethod(f"{owner} has no method {call.member}; Introspect lists those it has")

    def is_own(self, call: Call) -> bool:
        """Return whether a call without an interface fits a method here: State1.Get(oa{sv})."""
        methods = (interface.info.methods.get(call.member) for interface in self.interfaces)
        return not call.interface and any(m and m.inputs == call.signature for m in methods)
