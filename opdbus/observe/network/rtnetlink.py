"""Decoder of the kernel's messages on interfaces, addresses and routes; see rtnetlink(7)."""

import ipaddress
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from opdbus.observe.core.netlink import (
    Message,
    attributes,
    number,
    records,
    text,
    values_of,
)
from opdbus.observe.core.skipped import Skipped
from opdbus.state.object import Json

Properties = dict[str, Json]
_LINK: Final = struct.Struct("=BxHiII")
_ADDRESS: Final = struct.Struct("=BBBBI")
_NEW_LINK, _NEW_ADDRESS = 16, 20
# Requests for interfaces (without IPv6 counters), addresses and routes of all families.
REQUESTS: Final = (
    (18, bytes(16) + struct.pack("=HHI", 8, 29, 8)),
    (22, bytes(_ADDRESS.size)),
    (26, bytes(12)),
)
_IPV4: Final = 2
FAMILIES: Final = {_IPV4: "ipv4", 10: "ipv6"}
_ADDRESS_BYTES: Final = {2: 4, 10: 16}

# Attributes of an interface; see IFLA_ADDRESS and so on in linux/if_link.h.
_MAC, _NAME, _MTU, _PARENT, _MASTER = 1, 3, 4, 5, 10
_STATE, _INFO, _ALIAS, _SETTINGS, _CARRIER, _PARENT_NAMESPACE = 16, 18, 20, 26, 33, 37
_INFO_KIND, _INFO_DATA, _VLAN_ID = 1, 2, 1
# Alternative names, set by `ip link property`: IFLA_PROP_LIST, IFLA_ALT_IFNAME.
_PROPERTIES, _OTHER_NAME = 52, 53
# Attributes of an address; see IFA_ADDRESS and so on in linux/if_addr.h.
_PEER, _LOCAL, _LONG_FLAGS = 1, 2, 8
_UP, _LOOPBACK, _PROMISCUOUS, _LOWER_UP = 0x1, 0x8, 0x100, 0x10000
# See IF_OPER in linux/if.h. For 0 (unknown) the flags are read.
_STATES: Final = {
    0: "down", 1: "down", 2: "down", 3: "down", 4: "testing", 5: "dormant", 6: "up",
}  # fmt: skip
# The type of interfaces without a driver kind (IFLA_INFO_KIND); see linux/if_arp.h.
_HARDWARE: Final = {
    1: "ethernet", 32: "infiniband", 280: "can", 512: "ppp", 768: "ipip", 769: "ip6tnl",
    772: "loopback", 776: "sit", 778: "gre", 801: "wireless", 65534: "tunnel",
}  # fmt: skip
_SCOPES: Final = {0: "global", 200: "site", 253: "link", 254: "host", 255: "nowhere"}
_SCOPE_WORDS: Final = {
    "host": "loopback, programs on this machine reach each other",
    "link": "link-local, counts only between direct neighbours",
}
_TEMPORARY, _DUPLICATE, _DEPRECATED, _PERMANENT = 0x1, 0x8, 0x20, 0x80

_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_NEXT_HOP: Final = struct.Struct("=HBBi")
_NEW_ROUTE: Final = 24
# See rt_protos of iproute2; other protocols are shown as numbers.
_PROTOCOLS: Final = {
    0: "unspecified", 1: "redirect", 2: "kernel", 3: "boot", 4: "static", 9: "ra", 11: "zebra",
    12: "bird", 16: "dhcp", 18: "keepalived", 42: "babel", 186: "bgp", 187: "isis", 188: "ospf",
    189: "rip", 192: "eigrp",
}  # fmt: skip
# See rtm_type in rtnetlink(7); routes of the host's own addresses are not listed.
_ROUTE_TYPES: Final = {
    1: "unicast", 6: "blackhole", 7: "unreachable", 8: "prohibit", 9: "throw", 10: "nat",
}  # fmt: skip
_OF_ADDRESSES: Final = frozenset({0, 2, 3, 4, 5})
_LOCAL_TABLE: Final = 255
_TABLES: Final = {253: "default", 254: "main"}
# Attributes of a route; see RTA_DST and so on in linux/rtnetlink.h.
_DESTINATION, _FROM, _INTERFACE, _GATEWAY, _METRIC, _SOURCE = 1, 2, 4, 5, 6, 7
_HOPS, _TABLE, _VIA, _PREFERENCE = 9, 15, 18, 20
# See ICMPV6_ROUTER_PREF_LOW and so on in linux/icmpv6.h.
_PREFERENCES: Final = {1: "high", 3: "low"}
_CLONED: Final = 0x200
# The kernel adds this route to each IPv6 interface.
_LINK_LOCAL: Final = (2, "fe80::/64")
# The kernel's metrics of IPv6 routes that it makes for addresses, and that others make.
_OF_PREFIX, _USUAL_METRIC = 256, 1024
_OF_HOP: Final = ("gateway", "interface")
_DROPPING: Final = frozenset({"blackhole", "unreachable", "prohibit", "throw"})


class _Link(NamedTuple):
    """The name, hardware type, flags and attributes of one interface message."""

    name: str
    hardware: int
    flags: int
    attributes: Mapping[int, bytes]


class Address(NamedTuple):
    """An address in CIDR notation; `interface` is the interface's index."""

    interface: int
    prefix: str
    properties: Properties

    @property
    def name(self) -> str:
        """Return the parts by which the kernel distinguishes addresses."""
        peer = f" peer {self.properties['peer']}" if "peer" in self.properties else ""
        return f"{self.prefix}{peer} on {self.properties['interface']}"


@dataclass(frozen=True, slots=True)
class Links:
    """All interfaces by index."""

    links: Mapping[int, _Link]

    @classmethod
    def read(cls, found: Iterable[Message]) -> "Links":
        """Decode the answer to a request for interfaces."""
        links = {}
        for message in found:
            if message.type == _NEW_LINK and len(message.body) >= _LINK.size:
                family, hardware, index, flags, _ = _LINK.unpack_from(message.body)
                values = attributes(message.body, _LINK.size)
                # bridges report their ports in messages of their own family
                if family == 0 and (name := text(values.get(_NAME))):
                    links[index] = _Link(name, hardware, flags, values)
        return cls(links)

    def name(self, index: int) -> str:
        """Return an interface's name, or its index if the interface is gone."""
        return self.links[index].name if index in self.links else str(index)

    @property
    def hardware(self) -> frozenset[int]:
        """Return the indexes of interfaces that may be hardware."""
        return frozenset(
            index
            for index, link in self.links.items()
            if not link.flags & _LOOPBACK and _INFO not in link.attributes
        )

    def properties(self, addresses: Iterable[Address]) -> dict[int, Properties]:
        """Return the properties of each interface by index, with its addresses."""
        own: dict[int, list[Json]] = {}
        for address in sorted(addresses, key=attrgetter("prefix")):
            own.setdefault(address.interface, []).append(address.prefix)
        return {
            index: {**self._properties(link), "addresses": own.get(index, [])}
            for index, link in self.links.items()
        }

    def _properties(self, link: _Link) -> Properties:
        values = link.attributes
        driver = attributes(values.get(_INFO, b""))
        kind = text(driver.get(_INFO_KIND))
        state = number(values.get(_STATE))
        # drivers that report no state, such as that of `lo`
        is_up = state == 0 and link.flags & _UP and link.flags & _LOWER_UP
        # the families whose packets it forwards, by the first setting of each
        settings = attributes(values.get(_SETTINGS, b""))
        forwards = [
            FAMILIES[family]
            for family, first in ((2, 1), (10, 2))
            if number(attributes(settings.get(family, b"")).get(first, b"")[:4])
        ]
        found: Properties = {
            "type": kind or _HARDWARE.get(link.hardware, f"hardware {link.hardware}"),
            "state": "up" if is_up else _STATES.get(state, f"state {state}"),
            "enabled": bool(link.flags & _UP),
            "carrier": bool(number(values.get(_CARRIER))),
            "mtu": number(values.get(_MTU)),
            "forwards": forwards,
        }
        if any(values.get(_MAC, b"")):
            found["mac"] = values[_MAC].hex(":")
        if _MASTER in values:
            found["master"] = self.name(number(values[_MASTER]))
        # of a veth pair, the kernel may name a peer in another namespace
        if _PARENT in values and _PARENT_NAMESPACE not in values:
            found["parent"] = self.name(number(values[_PARENT]))
        vlan = (
            number(attributes(driver.get(_INFO_DATA, b"")).get(_VLAN_ID)) if kind == "vlan" else 0
        )
        if vlan:
            found["vlan"] = vlan
        if link.flags & _PROMISCUOUS:
            found["promiscuous"] = True
        if alias := text(values.get(_ALIAS)):
            found["description"] = alias
        if names := values_of(_OTHER_NAME, values.get(_PROPERTIES, b"")):
            found["aliases"] = sorted(map(text, names))
        return found


def read_addresses(
    found: Iterable[Message], links: Links, skipped: Skipped | None = None
) -> Iterator[Address]:
    """Yield the addresses that are of a known family."""
    for message in found:
        if message.type != _NEW_ADDRESS or len(message.body) < _ADDRESS.size:
            continue
        family, length, flags, scope, index = _ADDRESS.unpack_from(message.body)
        values = attributes(message.body, _ADDRESS.size)
        peer = address_text(values.get(_PEER), family)
        address = address_text(values.get(_LOCAL), family) or peer
        if not address:
            if skipped:
                skipped.row(f"address of the family {family} on {links.name(index)}")
            continue
        flags = number(values.get(_LONG_FLAGS)) or flags
        properties: Properties = {
            "family": FAMILIES[family],
            "address": address,
            "prefix": length,
            "interface": links.name(index),
            "scope": _SCOPES.get(scope, str(scope)),
            "dynamic": not flags & _PERMANENT,
        }
        if peer not in {"", address}:
            properties["peer"] = peer
        # the first flag has another meaning for IPv4
        first = "secondary" if family == 2 else "temporary"
        named = {first: _TEMPORARY, "duplicate": _DUPLICATE, "deprecated": _DEPRECATED}
        properties |= {name: True for name, bit in named.items() if flags & bit}
        usual = f"{'IPv6' if family == 10 else 'IPv4'} address of this machine"
        words = _SCOPE_WORDS.get(str(properties["scope"]), usual)
        given = ", given by the network for a time" if properties["dynamic"] else ""
        properties["description"] = f"{words}, on {properties['interface']}{given}"
        yield Address(index, f"{address}/{length}", properties)


def address_text(value: bytes | None, family: int) -> str:
    """Return an address as text; empty if missing or not of the family."""
    if value is None or len(value) != _ADDRESS_BYTES.get(family):
        return ""
    return str(ipaddress.ip_address(value))


def read_routes(
    found: Iterable[Message], links: Links, most: int, skipped: Skipped | None = None
) -> dict[str, Properties]:
    """Return at most `most` routes by name; no local and no cached ones.

    Link-local routes are left out: each interface has the same one, also those of containers.
    """
    named: dict[str, Properties] = {}
    for message in found:
        if len(named) >= most:
            break
        if message.type != _NEW_ROUTE or len(message.body) < _ROUTE.size:
            continue
        family, length, from_length, tos, table, protocol, _, kind, flags = _ROUTE.unpack_from(
            message.body
        )
        if kind in _OF_ADDRESSES or flags & _CLONED:
            continue
        if family not in FAMILIES:
            if skipped:
                skipped.row(f"route of the address family {family}")
            continue
        values = attributes(message.body, _ROUTE.size)
        table = number(values.get(_TABLE)) or table
        network = (
            f"{address_text(values.get(_DESTINATION), family)}/{length}" if length else "default"
        )
        if table == _LOCAL_TABLE or (protocol, network) == _LINK_LOCAL:
            continue
        properties: Properties = {
            "family": FAMILIES[family],
            "destination": network,
            "type": _ROUTE_TYPES.get(kind, f"type {kind}"),
            "table": _TABLES.get(table, str(table)),
            "protocol": _PROTOCOLS.get(protocol, str(protocol)),
            "metric": number(values.get(_METRIC)),
        }
        others = {
            "from": f"{address_text(values.get(_FROM), family)}/{from_length}",
            "tos": f"{tos:#04x}",
            "preference": _PREFERENCES.get(number(values.get(_PREFERENCE)), ""),
            "source": address_text(values.get(_SOURCE), family),
        }
        unset = {"/0", "0x00", ""}
        properties |= {key: value for key, value in others.items() if value not in unset}
        for hop in _read_hops(values, family, links):
            route = {**properties, **hop}
            route["description"] = _describe_route(route)
            # of two that differ in nothing else than this, the kernel uses the first
            named.setdefault(_route_name(route, family), route)
    return named


def _read_hops(values: Mapping[int, bytes], family: int, links: Links) -> list[Properties]:
    """Return the gateways and interfaces of a route.

    An IPv4 route with several is replaced as a whole: its hops are joined. Those of IPv6 come and
    go one by one: each is a route.
    """
    hops = [(number(values.get(_INTERFACE)), values)]
    if _HOPS in values:
        hops = [(hop[-1], attributes(own)) for hop, own in records(values[_HOPS], _NEXT_HOP)]
    found: list[Properties] = []
    for index, own in hops:
        via = own.get(_VIA, b"")
        # an IPv4 route whose gateway has an IPv6 address
        other = address_text(via[2:], number(via[:2]))
        gateway = address_text(own.get(_GATEWAY), family) or other
        both = {"gateway": gateway, "interface": links.name(index) if index else ""}
        found.append({key: value for key, value in both.items() if value})
    if family != _IPV4 or not found:
        return found or [{}]
    joined = {key: [str(hop[key]) for hop in found if key in hop] for key in _OF_HOP}
    return [{key: ", ".join(names) for key, names in joined.items() if names}]


def _route_name(properties: Properties, family: int) -> str:
    """Return a route's name in the form of ip(8): the parts that distinguish it from others."""
    kind, destination = str(properties["type"]), str(properties["destination"])
    gateway = str(properties.get("gateway", ""))
    words = [destination] if kind == "unicast" else [kind, destination]
    is_default = destination == "default"
    # where the gateway does not have the family
    if is_default and (":" in gateway) != (family != _IPV4):
        words.append(FAMILIES[family])
    words += [f"{key} {properties[key]}" for key in ("from", "tos") if key in properties]
    words += [
        f"{word} {properties[key]}"
        for word, key in (("via", "gateway"), ("dev", "interface"))
        if key in properties
    ]
    usual = 0
    if family != _IPV4:
        is_of_prefix = kind == "unicast" and not gateway and not is_default
        usual = _OF_PREFIX if is_of_prefix else _USUAL_METRIC
    if properties["metric"] != usual:
        words.append(f"metric {properties['metric']}")
    if properties["table"] != "main":
        words.append(f"table {properties['table']}")
    return " ".join(words)


def _describe_route(properties: Properties) -> str:
    """Return a sentence on the destination of a route and its gateway."""
    network, gateway = properties["destination"], properties.get("gateway")
    if properties["type"] in _DROPPING:
        return f"{properties['type']}, packets to {network} are dropped"
    if properties["type"] != "unicast":
        return f"{properties['type']}, way to the network {network}"
    over = [f"over {properties['interface']}"] if "interface" in properties else []
    if network == "default":
        first = f"default gateway, router {gateway}" if gateway else "default route"
        return ", ".join([first, "the way to the internet and all other networks", *over])
    router = f"by the router {gateway}" if gateway else "connected directly, without a router"
    return ", ".join([f"way to the network {network}", router, *over])
