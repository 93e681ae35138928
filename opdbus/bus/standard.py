"""What every D-Bus object has: Peer, Introspectable, Properties."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from opdbus.bus import paths
from opdbus.bus.connection import Typed
from opdbus.errors import InvalidArgs, OpDbusError, PropertyReadOnly, UnknownMethod, UnknownProperty

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.bus.connection import Call, Plain
    from opdbus.bus.dispatch import Node

PEER: Final = "org.freedesktop.DBus.Peer"
INTROSPECTABLE: Final = "org.freedesktop.DBus.Introspectable"
PROPERTIES: Final = "org.freedesktop.DBus.Properties"
# The action of what everyone may do.
FREE: Final = ""
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


def action(call: Call) -> str:
    """Give what a caller must be allowed to do: the tree of objects and all values are `read`."""
    if call.member == "Introspect" and not call.path.startswith(paths.STATE):
        return FREE
    return "read"


def peer(call: Call) -> tuple[str, Sequence[Plain]]:
    """Answer Ping and GetMachineId, at any path."""
    if call.member == "Ping":
        return "", []
    if call.member == "GetMachineId":
        return "s", [_machine_id()]
    raise UnknownMethod(f"{PEER} has no method {call.member}")


async def perform(call: Call, node: Node) -> tuple[str, Sequence[Plain]]:
    """Answer Introspect, Get, Set or GetAll."""
    _require_method(call)
    if call.member == "Introspect":
        return "s", [introspection(node)]
    if call.member == "GetAll":
        return "a{sv}", [await _all(node, call.body[0])]
    face = node.face(call.body[0])
    name = call.body[1]
    if name not in face.interface.properties:
        raise UnknownProperty(f"{face.interface.name} has no property {name}")
    if call.member == "Set":
        raise PropertyReadOnly(f"{name} of {face.interface.name} cannot be set")
    values = await face.properties()
    return "v", [Typed(face.interface.properties[name].signature, values[name])]


def introspection(node: Node) -> str:
    """Write a node as introspection XML: its interfaces' own files, and up to 500 children."""
    interfaces = [face.interface.xml for face in node.faces]
    children = [f'<node name="{name}"/>' for name in node.children()[:MAX_CHILDREN]]
    return "\n".join([_DOCTYPE + "<node>", *interfaces, _STANDARD_XML, *children, "</node>"])


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
