"""The interfaces' XML files as values, and nodes, objects on the bus that implement them."""

import builtins
import keyword
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Final, NamedTuple, Protocol
from xml.etree import ElementTree as ET

from opdbus.bus.names import ACTIONS, BUS_NAME
from opdbus.bus.transport.messages import Call
from opdbus.bus.transport.values import Plain
from opdbus.engine.batching import Rank
from opdbus.errors import UnknownInterface, UnknownMethod

_EMITS: Final = "org.freedesktop.DBus.Property.EmitsChangedSignal"
_ACTION: Final = f"{BUS_NAME}.Action"
_ERRORS: Final = f"{BUS_NAME}.Errors"
_LARGE: Final = f"{BUS_NAME}.LargeReply"
# The action for reading, and for learning that a member does not exist.
READ: Final = "read"
_TO_READ: Final = frozenset({READ})
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class MethodInfo:
    """A method: its signatures, the action that a caller needs, and its own errors.

    `is_large` means that callers limit the size of the reply themselves, so that it may be large.
    Raises ValueError if it has no action.
    """

    name: str
    inputs: str
    outputs: str
    action: str
    errors: tuple[str, ...]
    is_large: bool = False

    def __post_init__(self) -> None:
        """Check the annotations."""
        _require_action(self.name, self.action)


@dataclass(frozen=True, slots=True)
class PropertyInfo:
    """A property; `emits` is its EmitsChangedSignal, `action` is needed to set it.

    Raises ValueError if it can be set and has no action.
    """

    name: str
    signature: str
    emits: str
    access: str
    action: str

    def __post_init__(self) -> None:
        """Check the annotations."""
        if self.access not in {"read", "readwrite"}:
            raise ValueError(f"the property {self.name} has the access {self.access!r}")
        if self.emits not in {"true", "invalidates", "const", "false"}:
            raise ValueError(f"the property {self.name} emits {self.emits!r}")
        if self.is_writable:
            _require_action(self.name, self.action)

    @property
    def is_writable(self) -> bool:
        """True if the property can be set."""
        return self.access == "readwrite"


@dataclass(frozen=True, slots=True)
class InterfaceInfo:
    """One interface: members by name, and its XML element."""

    name: str
    methods: Mapping[str, MethodInfo]
    properties: Mapping[str, PropertyInfo]
    signals: Mapping[str, str]
    xml: str


@cache
def interface(name: str) -> InterfaceInfo:
    """Return the interface `name` from the package's files."""
    file = resources.files("opdbus.bus") / "interfaces" / f"{name}.xml"
    return parse_interface(file.read_text(encoding="utf-8"))


def parse_interface(xml: str) -> InterfaceInfo:
    """Parse an interface; raise ValueError if an element, such as an action, is missing."""
    root = ET.fromstring(xml)  # noqa: S314 -- our own file
    element = root.find("interface")
    if element is None:
        raise ValueError("there is no interface in this XML")
    for child in element.iter("annotation"):
        # XML keeps the line breaks of texts as spaces
        child.set("value", " ".join(child.attrib["value"].split()))
    return InterfaceInfo(
        name=element.attrib["name"],
        methods={
            m.attrib["name"]: MethodInfo(
                name=m.attrib["name"],
                inputs=signature(m, "in"),
                outputs=signature(m, "out"),
                action=annotation(m, _ACTION),
                errors=tuple(annotation(m, _ERRORS).split()),
                is_large=annotation(m, _LARGE) == "true",
            )
            for m in element.findall("method")
        },
        properties={
            p.attrib["name"]: PropertyInfo(
                name=p.attrib["name"],
                signature=p.attrib["type"],
                emits=annotation(p, _EMITS) or annotation(element, _EMITS) or "true",
                access=p.attrib["access"],
                action=annotation(p, _ACTION),
            )
            for p in element.findall("property")
        },
        signals={s.attrib["name"]: signature(s) for s in element.findall("signal")},
        xml=ET.tostring(element, encoding="unicode"),
    )


@cache
def interfaces() -> tuple[InterfaceInfo, ...]:
    """Return all interfaces of the package."""
    files = (resources.files("opdbus.bus") / "interfaces").iterdir()
    names = sorted(file.name for file in files)
    return tuple(interface(name.removesuffix(".xml")) for name in names if name.endswith(".xml"))


def actions(called: str, member: str) -> AbstractSet[str]:
    """Return the actions that a call needs, whether or not the called object has the method.

    `called` is the interface, or empty if the call names none.
    """
    return _actions().get((called, member), _TO_READ)


@cache
def _actions() -> Mapping[tuple[str, str], AbstractSet[str]]:
    found: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for interface in interfaces():
        for method in interface.methods.values():
            found[interface.name, method.name].add(method.action)
            found["", method.name].add(method.action)
    return dict(found)


def action_to_set(called: str, name: str) -> str:
    """Return the action that setting a property needs; `read` if there is none."""
    properties = (i.properties.get(name) for i in interfaces() if i.name == called)
    return next((p.action for p in properties if p and p.is_writable), READ)


@cache
def snake(name: str) -> str:
    """Return the Python name of a member: VectorizeMany is vectorize_many, List is list_."""
    snaked = _CAMEL.sub("_", name).lower()
    is_taken = hasattr(builtins, snaked) or keyword.iskeyword(snaked)
    return f"{snaked}_" if is_taken else snaked


def _require_action(name: str, action: str) -> None:
    if action not in ACTIONS:
        raise ValueError(
            f"{name} has the action {action!r}: its annotation {_ACTION} must name one of"
            f" {', '.join(ACTIONS)}"
        )


def signature(element: ET.Element, direction: str = "") -> str:
    """Return the signature of a method's or signal's arguments of a direction."""
    arguments = element.findall("arg")
    return "".join(a.attrib["type"] for a in arguments if a.get("direction", "") == direction)


def annotation(element: ET.Element, name: str) -> str:
    """Return the value of an annotation, "" if the element does not have it."""
    return next(
        (a.attrib["value"] for a in element.findall("annotation") if a.get("name") == name), ""
    )


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
