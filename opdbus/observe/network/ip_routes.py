"""Decoder of the kernel's route messages; see rtnetlink(7)."""

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from opdbus.observe.core.netlink import Message, attributes, number, records
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.network import net_words
from opdbus.observe.network.rtnetlink import FAMILIES, Links, Properties, address_text

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
_MAIN, _LOCAL = 254, 255
_TABLES: Final = {253: "default", _MAIN: "main"}
_CLONED: Final = 0x200
# The kernel adds this route to each IPv6 interface.
_LINK_LOCAL: Final = (2, "fe80::/64")
# The kernel's default metrics, by family.
_USUAL_METRICS: Final = {2: {0}, 10: {0, 256, 1024}}


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
        family, length, _, _, table, protocol, _, kind, flags = _ROUTE.unpack_from(message.body)
        if kind in _OF_ADDRESSES or flags & _CLONED:
            continue
        if family not in FAMILIES:
            if skipped:
                skipped.row(f"route of the address family {family}")
            continue
        values = attributes(message.body, _ROUTE.size)
        table = number(values.get(15)) or table
        network = f"{address_text(values.get(1), family)}/{length}" if length else "default"
        if table == _LOCAL or (protocol, network) == _LINK_LOCAL:
            continue
        properties: Properties = {
            "family": FAMILIES[family],
            "destination": network,
            "type": _ROUTE_TYPES.get(kind, f"type {kind}"),
            "table": _TABLES.get(table, str(table)),
            "protocol": _PROTOCOLS.get(protocol, str(protocol)),
            "metric": number(values.get(6)),
        }
        properties |= _way(values, family, links)
        if source := address_text(values.get(7), family):
            properties["source"] = source
        properties["description"] = net_words.of_route(properties)
        named[_route_name(properties, family)] = properties
    return named


def _way(values: Mapping[int, bytes], family: int, links: Links) -> Properties:
    """Return the gateways and interfaces of a route; those of a multipath route are joined."""
    hops = [(number(values.get(4)), values)]
    if 9 in values:
        hops = [(hop[-1], attributes(own)) for hop, own in records(values[9], _NEXT_HOP)]
    gateways = [_gateway(own, family) for _, own in hops]
    names = [links.name(index) for index, _ in hops if index]
    found: Properties = {}
    if any(gateways):
        found["gateway"] = ", ".join(filter(None, gateways))
    if names:
        found["interface"] = ", ".join(names)
    return found


def _gateway(values: Mapping[int, bytes], family: int) -> str:
    via = values.get(18, b"")
    # an IPv4 route whose gateway has an IPv6 address
    return address_text(values.get(5), family) or address_text(via[2:], number(via[:2]))


def _route_name(properties: Properties, family: int) -> str:
    """Return a route's name in the form of ip(8): the parts that distinguish it from others."""
    words = ["" if properties["type"] == "unicast" else str(properties["type"])]
    words.append(str(properties["destination"]))
    if family != 2 and properties["destination"] == "default" and "gateway" not in properties:
        words.append("ipv6")
    words += [
        f"{word} {properties[key]}"
        for word, key in (("via", "gateway"), ("dev", "interface"))
        if key in properties
    ]
    if properties["metric"] not in _USUAL_METRICS[family]:
        words.append(f"metric {properties['metric']}")
    if properties["table"] != "main":
        words.append(f"table {properties['table']}")
    return " ".join(filter(None, words))
