"""What is on the bus: nodes and their faces, and the caller that a face's method answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from opdbus.engine.batching import Rank
from opdbus.errors import UnknownInterface, UnknownMethod

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opdbus.bus.service.contract import Interface, Method
    from opdbus.bus.transport.call import Call
    from opdbus.bus.transport.values import Plain


class Caller(NamedTuple):
    """The client that a method answers, and how urgent its texts are for the engine."""

    sender: str
    uid: int
    priority: Rank = Rank.FEW


class BusInterface(Protocol):
    """An object on the bus, one interface of it; methods are coroutines named in snake_case.

    Each takes the Caller and then the call's arguments. A property that can be set has a coroutine
    too, set_ and its name, which takes the Caller and the value.
    """

    @property
    def interface(self) -> Interface:
        """The interface that this is."""

    async def properties(self) -> Mapping[str, Plain]:
        """Give every property's value."""


class Node(NamedTuple):
    """What is at a path: its faces, and the names of the nodes below."""

    faces: Sequence[BusInterface]
    children: Callable[[], Sequence[str]]

    def face(self, interface: str) -> BusInterface:
        """Give the face of an interface; raises UnknownInterface."""
        for face in self.faces:
            if face.interface.name == interface:
                return face
        names = ", ".join(face.interface.name for face in self.faces) or "none of ours"
        raise UnknownInterface(f"this object has no interface {interface}; it has {names}")

    def method(self, call: Call) -> tuple[BusInterface, Method]:
        """Give what a call is for; raises UnknownInterface, UnknownMethod."""
        faces = [self.face(call.interface)] if call.interface else self.faces
        for face in faces:
            if call.member in face.interface.methods:
                return face, face.interface.methods[call.member]
        owner = call.interface or call.path
        raise UnknownMethod(f"{owner} has no method {call.member}; Introspect lists those it has")

    def is_own(self, call: Call) -> bool:
        """Tell whether a call that names no interface fits one of ours: State1.Get(oa{sv})."""
        methods = (face.interface.methods.get(call.member) for face in self.faces)
        return not call.interface and any(m and m.inputs == call.signature for m in methods)
