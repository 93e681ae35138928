"""What every D-Bus object has: Peer, Introspectable, Properties."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from opdbus.bus import paths
from opdbus.bus.admission.limits import SMALL_BYTES
from opdbus.bus.service import contract
from opdbus.bus.transport.values import Typed
from opdbus.errors import (
    InvalidArgs,
    LimitsExceeded,
    OpDbusError,
    PropertyReadOnly,
    UnknownMethod,
    UnknownProperty,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opdbus.bus.service.contract import Property
    from opdbus.bus.service.node import BusInterface, Caller, Node
    from opdbus.bus.transport.call import Call
    from opdbus.bus.transport.values import Plain

PEER: Final = "org.freedesktop.DBus.Peer"
INTROSPECTABLE: Final = "org.freedesktop.DBus.Introspectable"
PROPERTIES: Final = "org.freedesktop.DBus.Properties"
MAX_CHILDREN: Final = 500

_METHODS: Final = {
    INTROSPECTABLE: {"Introspect": ""},
    PROPERTIES: {"Get": "ss", "Set": "ssv", "GetAll": "s"},
}
_DOCTYPE: Final = (
    '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"\n'
    ' "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">\n'
)
_STANDARD_XML: Final = """
  <interface name="org.freedesktop.DBus.Peer">
    <method name="Ping"/>
    <method name="GetMachineId"><arg name="machine_uuid" type="s" direction="out"/></method>
  </interface>
  <interface name="org.freedesktop.DBus.Introspectable">
    <method name="Introspect"><arg name="xml_data" type="s" direction="out"/></method>
  </interface>
  <interface name="org.freedesktop.DBus.Properties">
    <method name="Get">
      <arg name="interface_name" type="s" direction="in"/>
      <arg name="property_name" type="s" direction="in"/>
      <arg name="value" type="v" direction="out"/>
    </method>
    <method name="Set">
      <arg name="interface_name" type="s" direction="in"/>
      <arg name="property_name" type="s" direction="in"/>
      <arg name="value" type="v" direction="in"/>
    </method>
    <method name="GetAll">
      <arg name="interface_name" type="s" direction="in"/>
      <arg name="props" type="a{sv}" direction="out"/>
    </method>
    <signal name="PropertiesChanged">
      <arg name="interface_name" type="s"/>
      <arg name="changed_properties" type="a{sv}"/>
      <arg name="invalidated_properties" type="as"/>
    </signal>
  </interface>"""


def require_signature(call: Call, expected: str) -> None:
    """Raise InvalidArgs unless a call's arguments are of the expected types."""
    if call.signature != expected:
        raise InvalidArgs(
            f"{call.member} takes arguments of type {expected or 'none'!r}, not"
            f" {call.signature or 'none'!r}"
        )


def has(interface: str, member: str) -> bool:
    """Tell whether a call is for this module."""
    if interface:
        return interface in _METHODS
    return any(member in methods for methods in _METHODS.values())


def is_peer(interface: str, member: str) -> bool:
    """Tell whether a call is for Peer, which answers at any path."""
    return interface == PEER or (not interface and member in {"Ping", "GetMachineId"})


def actions(call: Call) -> set[str]:
    """Give all that a caller must be allowed to do, by the call alone; raises LimitsExceeded.

    What is at its path does not count: who is refused may not find out what is there.
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
    """Give what setting the property takes that is at the path."""
    if not _is_set(call):
        return set()
    interface, name, _ = call.body
    there = [face.interface for face in node.faces if face.interface.name == interface]
    properties = (found.properties.get(name) for found in there)
    return {p.action for p in properties if p and p.is_writable}


def is_for_nothing(call: Call) -> bool:
    """Tell whether a call whose answer nobody wants would change nothing either."""
    return not call.wants_reply and not _is_set(call) and actions(call) <= {contract.READ}


def _is_set(call: Call) -> bool:
    """Tell whether a call may set a property: what it takes, its body must be decoded to know."""
    return call.interface in {PROPERTIES, ""} and (call.member, call.signature) == ("Set", "ssv")


def peer(call: Call) -> tuple[str, Sequence[Plain]]:
    """Answer Ping and GetMachineId, at any path."""
    if call.member == "Ping":
        return "", []
    if call.member == "GetMachineId":
        return "s", [_machine_id()]
    raise UnknownMethod(f"{PEER} has no method {call.member}")


async def perform(
    call: Call, caller: Caller, node: Node, emit: Callable[..., None]
) -> tuple[str, Sequence[Plain]]:
    """Answer Introspect, Get, Set or GetAll; `emit` sends a signal."""
    _require_method(call)
    if call.member == "Introspect":
        return "s", [introspection(node)]
    if call.member == "GetAll":
        return "a{sv}", [await _all(node, call.body[0])]
    interface, name = call.body[:2]
    face = node.face(interface)
    if name not in face.interface.properties:
        raise UnknownProperty(f"{interface} has no property {name}")
    wanted = face.interface.properties[name]
    if call.member == "Set":
        await _set(call, caller, face, wanted)
        if wanted.emits == "true":
            changed = {name: await _get(face, wanted)}
            emit(call.path, f"{PROPERTIES}.PropertiesChanged", "sa{sv}as", interface, changed, [])
        return "", []
    return "v", [await _get(face, wanted)]


def introspection(node: Node) -> str:
    """Write a node as introspection XML: its interfaces' own files, and up to 500 children."""
    interfaces = [face.interface.xml for face in node.faces]
    children = [f'<node name="{name}"/>' for name in node.children()[:MAX_CHILDREN]]
    return "\n".join([_DOCTYPE + "<node>", *interfaces, _STANDARD_XML, *children, "</node>"])


async def _get(face: BusInterface, wanted: Property) -> Typed:
    return Typed(wanted.signature, (await face.properties())[wanted.name])


async def _set(call: Call, caller: Caller, face: BusInterface, wanted: Property) -> None:
    if not wanted.is_writable:
        raise PropertyReadOnly(f"{wanted.name} of {face.interface.name} cannot be set")
    given = call.values[2].signature
    if given != wanted.signature:
        raise InvalidArgs(f"{wanted.name} is of type {wanted.signature!r}, not {given!r}")
    await getattr(face, f"set_{contract.snake(wanted.name)}")(caller, call.body[2])


async def _all(node: Node, interface: str) -> dict[str, Plain]:
    faces = [node.face(interface)] if interface else node.faces
    return {
        name: Typed(face.interface.properties[name].signature, value)
        for face in faces
        for name, value in (await face.properties()).items()
    }


def _require_method(call: Call) -> None:
    """Raise UnknownMethod or InvalidArgs unless the call is one of ours."""
    methods = {
        name: signature
        for interface, members in _METHODS.items()
        if call.interface in {interface, ""}
        for name, signature in members.items()
    }
    if call.member not in methods:
        raise UnknownMethod(f"{call.interface} has no method {call.member}")
    require_signature(call, methods[call.member])


def _machine_id() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return Path(path).read_text(encoding="ascii").strip()
        except OSError:
            continue
    raise OpDbusError("this host has no machine id: `systemd-machine-id-setup` makes one")
