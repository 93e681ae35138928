"""Decoder of the kernel's messages on interfaces and addresses; see rtnetlink(7)."""

import ipaddress
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from opdbus.observe.core.netlink import Message, attributes, number, text, values_of
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.network import net_words
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
FAMILIES: Final = {2: "ipv4", 10: "ipv6"}
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
_TEMPORARY, _DUPLICATE, _DEPRECATED, _PERMANENT = 0x1, 0x8, 0x20, 0x80


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
        found: Properties = {
            "type": _link_type(link),
            "state": _link_state(link),
            "enabled": bool(link.flags & _UP),
            "carrier": bool(number(values.get(_CARRIER))),
            "mtu": number(values.get(_MTU)),
            "forwards": _forwarded(values),
        }
        if any(values.get(_MAC, b"")):
            found["mac"] = values[_MAC].hex(":")
        if _MASTER in values:
            found["master"] = self.name(number(values[_MASTER]))
        # of a veth pair, the kernel may name a peer in another namespace
        if _PARENT in values and _PARENT_NAMESPACE not in values:
            found["parent"] = self.name(number(values[_PARENT]))
        if vlan := _vlan(values):
            found["vlan"] = vlan
        if link.flags & _PROMISCUOUS:
            found["promiscuous"] = True
        if alias := text(values.get(_ALIAS)):
            found["description"] = alias
        if names := values_of(_OTHER_NAME, values.get(_PROPERTIES, b"")):
            found["aliases"] = sorted(map(text, names))
        return found


def addresses(
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
        properties |= {name: True for name, bit in _flags(family).items() if flags & bit}
        properties["description"] = net_words.of_address(properties)
        yield Address(index, f"{address}/{length}", properties)


def _link_type(link: _Link) -> str:
    kind = text(attributes(link.attributes.get(_INFO, b"")).get(_INFO_KIND))
    return kind or _HARDWARE.get(link.hardware, f"hardware {link.hardware}")


def _link_state(link: _Link) -> str:
    state = number(link.attributes.get(_STATE))
    # drivers that report no state, such as that of `lo`
    if state == 0 and link.flags & _UP and link.flags & _LOWER_UP:
        return "up"
    return _STATES.get(state, f"state {state}")


def _vlan(values: Mapping[int, bytes]) -> int:
    info = attributes(values.get(_INFO, b""))
    is_vlan = text(info.get(_INFO_KIND)) == "vlan"
    return number(attributes(info.get(_INFO_DATA, b"")).get(_VLAN_ID)) if is_vlan else 0


def _forwarded(values: Mapping[int, bytes]) -> list[Json]:
    """Return the families whose packets an interface forwards, by their first setting."""
    families = attributes(values.get(_SETTINGS, b""))
    # by family, the attribute that begins with the setting `forwarding`
    settings = {2: 1, 10: 2}
    return [
        FAMILIES[family]
        for family, kind in settings.items()
        if number(attributes(families.get(family, b"")).get(kind, b"")[:4])
    ]


def _flags(family: int) -> dict[str, int]:
    """Return the reported flags by name; the first has another meaning for IPv4."""
    first = "secondary" if family == 2 else "temporary"
    return {first: _TEMPORARY, "duplicate": _DUPLICATE, "deprecated": _DEPRECATED}


def address_text(value: bytes | None, family: int) -> str:
    """Return an address as text; empty if missing or not of the family."""
    if value is None or len(value) != _ADDRESS_BYTES.get(family):
        return ""
    return str(ipaddress.ip_address(value))
