"""Descriptions of addresses, routes and ports in plain words."""

from collections.abc import Mapping
from typing import Final

from opdbus.state.object import Json

_SCOPES: Final = {
    "host": "loopback, programs on this machine reach each other",
    "link": "link-local, counts only between direct neighbours",
}
_DROPPING: Final = frozenset({"blackhole", "unreachable", "prohibit", "throw"})
_EXPOSED: Final = {
    "all addresses": "open to other machines",
    "local only": "for this machine only",
    "one address": "open at this address",
}


def of_address(properties: Mapping[str, Json]) -> str:
    """Return a sentence on the scope of an address."""
    family = "IPv6" if properties["family"] == "ipv6" else "IPv4"
    words = _SCOPES.get(str(properties["scope"]), f"{family} address of this machine")
    given = ", given by the network for a time" if properties["dynamic"] else ""
    return f"{words}, on {properties['interface']}{given}"


def of_route(properties: Mapping[str, Json]) -> str:
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


def of_port(purpose: str, exposed: str) -> str:
    """Return a sentence on the purpose of a port and on who can reach it."""
    return ", ".join(filter(None, [purpose, _EXPOSED[exposed]]))
