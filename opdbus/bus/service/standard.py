"""Interfaces that others define: Peer, Introspectable, Properties and LogControl1."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import resources
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from opdbus.bus import names, paths
from opdbus.bus.admission.limits import SMALL_BYTES
from opdbus.bus.service import contract
from opdbus.bus.service.contract import BusInterface, Caller, Node, PropertyInfo
from opdbus.bus.transport.messages import Call
from opdbus.bus.transport.values import Plain, Typed
from opdbus.errors import (
    InvalidArgs,
    LimitsExceeded,
    OpDbusError,
    PropertyReadOnly,
    UnknownMethod,
    UnknownProperty,
)
from opdbus.log import Log
from opdbus.platform.journal import IDENTIFIER

PEER: Final = "org.freedesktop.DBus.Peer"
INTROSPECTABLE: Final = "org.freedesktop.DBus.Introspectable"
PROPERTIES: Final = "org.freedesktop.DBus.Properties"
MAX_CHILDREN: Final = 500

_DOCTYPE: Final = (
    '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"\n'
    ' "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">\n'
)
_NODE: Final = ET.fromstring(  # noqa: S314 -- our own file
    (resources.files("opdbus.bus.service") / "standard.xml").read_text(encoding="utf-8")
)
_STANDARD_XML: Final = [ET.tostring(interface, encoding="unicode").strip() for interface in _NODE]
_METHODS: Final = {
    interface.attrib["name"]: {
        method.attrib["name"]: contract.signature(method, "in")
        for method in interface.findall("method")
    }
    for interface in _NODE
}


def require_signature(call: Call, expected: str) -> None:
    """Raise InvalidArgs unless a call has the expected signature."""
    if call.signature != expected:
        raise InvalidArgs(
            f"{call.member} takes arguments of type {expected or 'none'!r}, not"
            f" {call.signature or 'none'!r}"
        )


def has(interface: str, member: str) -> bool:
    """Return whether a call is for an interface of this module."""
    if interface:
        return interface in _METHODS
    return any(member in methods for methods in _METHODS.values())


def is_peer(interface: str, member: str) -> bool:
    """Return whether a call is for Peer, which is valid at any path."""
    return interface == PEER or (not interface and member in {"Ping", "GetMachineId"})


def actions(call: Call) -> AbstractSet[str]:
    """Return the actions that a call needs; raise LimitsExceeded.

    They do not depend on the object at its path, so that callers without rights learn nothing of
    it.
    """
    if call.interface in {INTROSPECTABLE, ""} and call.member == "Introspect":
        return set() if call.path in paths.FIXED else {contract.READ}
    if _is_set(call):
        if call.size > SMALL_BYTES:
            raise LimitsExceeded(
                f"the call has {call.size} bytes, and no property takes more than {SMALL_BYTES}"
            )
        interface, name, _ = call.body
        return {contract.action_to_set(interface, name)}
    return contract.actions(call.interface, call.member)


def actions_there(call: Call, node: Node) -> set[str]:
    """Return the actions that setting a property of this node needs."""
    if not _is_set(call):
        return set()
    name, member, _ = call.body
    there = (i.info.properties.get(member) for i in node.interfaces if i.info.name == name)
    return {p.action for p in there if p and p.is_writable}


def is_pointless(call: Call) -> bool:
    """Return whether a call changes nothing and wants no reply."""
    return not call.wants_reply and not _is_set(call) and actions(call) <= {contract.READ}


def _is_set(call: Call) -> bool:
    """Return whether a call may set a property, which only its body names."""
    return call.interface in {PROPERTIES, ""} and (call.member, call.signature) == ("Set", "ssv")


def peer(call: Call) -> tuple[str, Sequence[Plain]]:
    """Return the signature and values of the reply to Ping or GetMachineId."""
    if call.member == "Ping":
        return "", []
    if call.member == "GetMachineId":
        return "s", [machine_id()]
    raise UnknownMethod(f"{PEER} has no method {call.member}")


async def perform(
    call: Call, caller: Caller, node: Node, emit: Callable[..., None]
) -> tuple[str, Sequence[Plain]]:
    """Run Introspect, Get, Set or GetAll; `emit` sends a signal."""
    _require_method(call)
    if call.member == "Introspect":
        return "s", [introspection(node)]
    if call.member == "GetAll":
        named = [node.interface(call.body[0])] if call.body[0] else node.interfaces
        return "a{sv}", [await read_properties(named)]
    name, member = call.body[:2]
    interface = node.interface(name)
    if member not in interface.info.properties:
        raise UnknownProperty(f"{name} has no property {member}")
    wanted = interface.info.properties[member]
    if call.member == "Set":
        await _set(call, caller, interface, wanted)
        if wanted.emits == "true":
            changed = {member: await _get(interface, wanted)}
            emit(call.path, f"{PROPERTIES}.PropertiesChanged", "sa{sv}as", name, changed, [])
        return "", []
    return "v", [await _get(interface, wanted)]


def introspection(node: Node) -> str:
    """Return a node's introspection XML: its interfaces' files, and at most 500 children."""
    interfaces = [interface.info.xml for interface in node.interfaces]
    children = [f'<node name="{name}"/>' for name in node.children()[:MAX_CHILDREN]]
    return "\n".join([_DOCTYPE + "<node>", *interfaces, *_STANDARD_XML, *children, "</node>"])


async def _get(interface: BusInterface, wanted: PropertyInfo) -> Typed:
    return Typed(wanted.signature, (await interface.properties())[wanted.name])


async def _set(call: Call, caller: Caller, interface: BusInterface, wanted: PropertyInfo) -> None:
    if not wanted.is_writable:
        raise PropertyReadOnly(f"{wanted.name} of {interface.info.name} cannot be set")
    given = call.values[2].signature
    if given != wanted.signature:
        raise InvalidArgs(f"{wanted.name} is of type {wanted.signature!r}, not {given!r}")
    await getattr(interface, f"set_{contract.snake(wanted.name)}")(caller, call.body[2])


def _require_method(call: Call) -> None:
    """Raise UnknownMethod or InvalidArgs unless the call is valid for these interfaces."""
    methods = {
        name: signature
        for interface, members in _METHODS.items()
        if call.interface in {interface, ""}
        for name, signature in members.items()
    }
    if call.member not in methods:
        raise UnknownMethod(f"{call.interface} has no method {call.member}")
    require_signature(call, methods[call.member])


def machine_id() -> str:
    """Return the machine-id(5) of this host; raise OpDbusError if it has none."""
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
    raise OpDbusError("this host has no machine id: `systemd-machine-id-setup` makes one")


async def read_properties(interfaces: Iterable[BusInterface]) -> Mapping[str, Typed]:
    """Return all properties of some interfaces."""
    found: dict[str, Typed] = {}
    for interface in interfaces:
        of, values = interface.info.properties, await interface.properties()
        found |= {name: Typed(of[name].signature, value) for name, value in values.items()}
    return found


class LogControlInterface:
    """org.freedesktop.LogControl1, see org.freedesktop.LogControl1(5)."""

    info = contract.interface(names.LOG_CONTROL)

    def __init__(self, log: Log) -> None:
        self._log = log

    async def set_log_level(self, _caller: Caller, level: str) -> None:
        """Set the least level of log lines."""
        self._log.set_level(level)

    async def set_log_target(self, _caller: Caller, target: str) -> None:
        """Set the target of log lines."""
        self._log.set_target(target)

    async def properties(self) -> Mapping[str, Plain]:
        """Return every property's value."""
        return {
            "LogLevel": self._log.level,
            "LogTarget": self._log.target,
            "SyslogIdentifier": IDENTIFIER,
        }
