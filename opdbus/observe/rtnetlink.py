"""Reads the kernel's messages on interfaces, addresses and routes, see rtnetlink(7)."""

import ipaddress
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from opdbus.observe.netlink import Message, attributes, number, text
from opdbus.state.object import Json

Properties = dict[str, Json]
_LINK: Final = struct.Struct("=BxHiII")
_ADDRESS: Final = struct.Struct("=BBBBI")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_NEXT_HOP: Final = struct.Struct("=HBBi")
_NEW_LINK, _NEW_ADDRESS, _NEW_ROUTE = 16, 20, 24
# What asks for interfaces (without counters of IPv6), addresses and routes, of all families.
REQUESTS: Final = (
    (18, bytes(16) + struct.pack("=HHI", 8, 29, 8)),
    (22, bytes(_ADDRESS.size)),
    (26, bytes(_ROUTE.size)),
)
_FAMILIES: Final = {2: "ipv4", 10: "ipv6"}
_ADDRESS_BYTES: Final = {2: 4, 10: 16}

_UP, _LOOPBACK, _PROMISCUOUS, _LOWER_UP = 0x1, 0x8, 0x100, 0x10000
_STATES: Final = {4: "testing", 5: "dormant", 6: "up"}
# What is made by no driver of its own is named by its hardware, see linux/if_arp.h.
_HARDWARE: Final = {
    1: "ethernet", 32: "infiniband", 280: "can", 512: "ppp", 768: "ipip", 769: "ip6tnl",
    772: "loopback", 776: "sit", 778: "gre", 801: "wireless", 65534: "tunnel",
}  # fmt: skip
_SCOPES: Final = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
_TEMPORARY, _DUPLICATE, _DEPRECATED, _PERMANENT = 0x1, 0x8, 0x20, 0x80
# See rt_protos of iproute2; all others are shown as numbers.
_PROTOCOLS: Final = {
    0: "unspecified", 1: "redirect", 2: "kernel", 3: "boot", 4: "static", 9: "ra", 11: "zebra",
    12: "bird", 16: "dhcp", 18: "keepalived", 42: "babel", 186: "bgp", 187: "isis", 188: "ospf",
    189: "rip", 192: "eigrp",
}  # fmt: skip
_ROUTE_TYPES: Final = {1: "unicast", 6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw"}
_MAIN, _LOCAL = 254, 255
_TABLES: Final = {253: "default", _MAIN: "main"}
_CLONED: Final = 0x200
# What the kernel gives IPv6 routes that were given none.
_USUAL_METRICS: Final = {2: {0}, 10: {0, 256, 1024}}


class _Link(NamedTuple):
    """An interface, unread."""

    name: str
    hardware: int
    flags: int
    attributes: Mapping[int, bytes]


class Address(NamedTuple):
    """An address of an interface, by its index."""

    interface: int
    prefix: str
    properties: Properties


@dataclass(frozen=True, slots=True)
class Links:
    """All interfaces by their index."""

    links: Mapping[int, _Link]

    @classmethod
    def read(cls, found: Iterable[Message]) -> "Links":
        """Read a list of interfaces."""
        links = {}
        for message in found:
            if message.type == _NEW_LINK and len(message.body) >= _LINK.size:
                family, hardware, index, flags, _ = _LINK.unpack_from(message.body)
                values = attributes(message.body, _LINK.size)
                # bridges tell about their ports in messages of their own family
                if family == 0 and (name := text(values.get(3))):
                    links[index] = _Link(name, hardware, flags, values)
        return cls(links)

    def name(self, index: int) -> str:
        """Return an interface's name; of one that has left meanwhile, its number."""
        return self.links[index].name if index in self.links else str(index)

    @property
    def hardware(self) -> frozenset[int]:
        """The indexes of those that may be a piece of hardware."""
        return frozenset(
            index
            for index, link in self.links.items()
            if not link.flags & _LOOPBACK and 18 not in link.attributes
        )

    def properties(self, addresses: Iterable[Address]) -> dict[int, Properties]:
        """Return what each interface is, with its addresses."""
        found = {index: self._properties(link) for index, link in self.links.items()}
        for index, values in found.items():
            own: list[Json] = sorted(a.prefix for a in addresses if a.interface == index)
            values["addresses"] = own
        return found

    def _properties(self, link: _Link) -> Properties:
        values = link.attributes
        found: Properties = {
            "type": _link_type(link),
            "state": _link_state(link),
            "enabled": bool(link.flags & _UP),
            "carrier": bool(number(values.get(33))),
            "mtu": number(values.get(4)),
        }
        if any(values.get(1, b"")):
            found["mac"] = values[1].hex(":")
        if 10 in values:
            found["master"] = self.name(number(values[10]))
        # of a pair, the other end may be on another host, as the kernel sees it
        if 5 in values and 37 not in values:
            found["parent"] = self.name(number(values[5]))
        if vlan := _vlan(values):
            found["vlan"] = vlan
        if link.flags & _PROMISCUOUS:
            found["promiscuous"] = True
        if alias := text(values.get(20)):
            found["description"] = alias
        return found


def addresses(found: Iterable[Message], links: Links) -> Iterator[Address]:
    """Yield the addresses of a list."""
    for message in found:
        if message.type != _NEW_ADDRESS or len(message.body) < _ADDRESS.size:
            continue
        family, length, flags, scope, index = _ADDRESS.unpack_from(message.body)
        values = attributes(message.body, _ADDRESS.size)
        peer = _ip(values.get(1), family)
        address = _ip(values.get(2), family) or peer
        if not address:
            continue
        flags = number(values.get(8)) or flags
        properties: Properties = {
            "family": _FAMILIES[family],
            "address": address,
            "prefix": length,
            "interface": links.name(index),
            "scope": _SCOPES.get(scope, str(scope)),
            "dynamic": not flags & _PERMANENT,
        }
        if peer not in {"", address}:
            properties["peer"] = peer
        properties |= {name: True for name, bit in _flags(family).items() if flags & bit}
        yield Address(index, f"{address}/{length}", properties)


def routes(found: Iterable[Message], links: Links, most: int) -> dict[str, Properties]:
    """Return routes by their names, as many as are wanted; no local and no cached ones."""
    named: dict[str, Properties] = {}
    for message in found:
        if message.type != _NEW_ROUTE or len(message.body) < _ROUTE.size or len(named) >= most:
            continue
        family, length, _, _, table, protocol, _, kind, flags = _ROUTE.unpack_from(message.body)
        if family not in _FAMILIES or kind not in _ROUTE_TYPES or flags & _CLONED:
            continue
        values = attributes(message.body, _ROUTE.size)
        table = number(values.get(15)) or table
        if table != _LOCAL:
            network = f"{_ip(values.get(1), family)}/{length}" if length else "default"
            properties: Properties = {
                "family": _FAMILIES[family],
                "destination": network,
                "type": _ROUTE_TYPES[kind],
                "table": _TABLES.get(table, str(table)),
                "protocol": _PROTOCOLS.get(protocol, str(protocol)),
                "metric": number(values.get(6)),
            }
            properties |= _way(values, family, links)
            if source := _ip(values.get(7), family):
                properties["source"] = source
            named[_route_name(properties, family)] = properties
    return named


def _way(values: Mapping[int, bytes], family: int, links: Links) -> Properties:
    """Return the gateways and interfaces of a route, several of them joined."""
    hops = [(number(values.get(4)), values)]
    if 9 in values:
        hops = list(_next_hops(values[9]))
    gateways = [_gateway(own, family) for _, own in hops]
    names = [links.name(index) for index, _ in hops if index]
    found: Properties = {}
    if any(gateways):
        found["gateway"] = ", ".join(filter(None, gateways))
    if names:
        found["interface"] = ", ".join(names)
    return found


def _next_hops(data: bytes) -> Iterator[tuple[int, Mapping[int, bytes]]]:
    start = 0
    while start + _NEXT_HOP.size <= len(data):
        length, _, _, index = _NEXT_HOP.unpack_from(data, start)
        if length < _NEXT_HOP.size or start + length > len(data):
            return
        yield index, attributes(data[start : start + length], _NEXT_HOP.size)
        start += (length + 3) & ~3


def _gateway(values: Mapping[int, bytes], family: int) -> str:
    via = values.get(18, b"")
    # IPv4 by way of an IPv6 address
    return _ip(values.get(5), family) or _ip(via[2:], number(via[:2]))


def _route_name(properties: Properties, family: int) -> str:
    """Name a route as ip(8) does, by what tells it from others."""
    words = ["" if properties["type"] == "unicast" else str(properties["type"])]
    words.append(str(properties["destination"]))
    if family != 2 and properties["destination"] == "default" and "gateway" not in properties:
        words.append("ipv6")
    words += [f"via {properties[key]}" for key in ("gateway",) if key in properties]
    words += [f"dev {properties[key]}" for key in ("interface",) if key in properties]
    if properties["metric"] not in _USUAL_METRICS[family]:
        words.append(f"metric {properties['metric']}")
    if properties["table"] != "main":
        words.append(f"table {properties['table']}")
    return " ".join(filter(None, words))


def _link_type(link: _Link) -> str:
    kind = text(attributes(link.attributes.get(18, b"")).get(1))
    return kind or _HARDWARE.get(link.hardware, f"hardware {link.hardware}")


def _link_state(link: _Link) -> str:
    state = number(link.attributes.get(16))
    # drivers that do not tell, such as that of `lo`
    if state == 0 and link.flags & _UP and link.flags & _LOWER_UP:
        return "up"
    return _STATES.get(state, "down")


def _vlan(values: Mapping[int, bytes]) -> int:
    info = attributes(values.get(18, b""))
    is_vlan = text(info.get(1)) == "vlan"
    return number(attributes(info.get(2, b"")).get(1)) if is_vlan else 0


def _flags(family: int) -> dict[str, int]:
    """Return the flags that are worth telling; the first means something else for IPv4."""
    first = "secondary" if family == 2 else "temporary"
    return {first: _TEMPORARY, "duplicate": _DUPLICATE, "deprecated": _DEPRECATED}


def _ip(value: bytes | None, family: int) -> str:
    """Return an address as text; empty where there is none, or none of that family."""
    if value is None or len(value) != _ADDRESS_BYTES.get(family):
        return ""
    return str(ipaddress.ip_address(value))
