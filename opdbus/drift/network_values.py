"""Comparisons of declared network interface fields with the addresses and routes in the kernel."""

import ipaddress
from collections.abc import Sequence
from typing import Final

from opdbus.drift import equality, word_values
from opdbus.drift.field import Severity
from opdbus.drift.word_values import Difference, Meaning, Seen
from opdbus.state.object import Json

# Kinds of interface as the kernel names them, by the names that people use.
_ALSO: Final = {
    "ethernet": {"ethernet", "veth", "macvlan", "ipvlan", "dummy"},
    "loopback": {"loopback"},
    "tun": {"tun", "tunnel"}, "tap": {"tun", "ethernet"},
    "tunnel": {"tun", "tunnel", "ipip", "gre", "sit"},
    "wifi": {"wireless", "ethernet"}, "wlan": {"wireless", "ethernet"},
    "openvswitch": {"openvswitch"}, "ovs": {"openvswitch"},
    "bridge": {"bridge", "openvswitch"},
}  # fmt: skip
_KERNEL: Final = frozenset(
    "ethernet loopback bridge bond vlan wireguard vxlan veth dummy tun".split()
)
# The field with the other names of related interfaces: members, master and parent.
OTHER_NAMES: Final = "other_names"


def kind(declared: Json, observed: Json, _seen: Seen) -> Difference | None:
    """Compare the kind of an interface; a kind unknown to the kernel makes no difference."""
    wanted = str(declared).lower()
    if wanted not in _ALSO and wanted not in _KERNEL:
        return None
    return None if str(observed) in _ALSO.get(wanted, {wanted}) else Difference(observed)


def addresses(family: int) -> Meaning:
    """Return a comparison of the addresses of a family: 4, 6, or 0 for both."""

    def compare(declared: Json, _observed: Json, seen: Seen) -> Difference | None:
        wanted = [_to_kernel_notation(item) for item in equality.items(declared)]
        found = [one for one in _addresses(seen) if family in {0, _family(one)}]
        found = [one for one in found if one in wanted or not _is_link_local(one)]
        bare = {one for one in wanted if "/" not in one}
        found = [one.partition("/")[0] if one.partition("/")[0] in bare else one for one in found]
        # dynamic addresses may exist besides the declared ones
        given = _dynamic(seen)
        lasting = [one for one in found if one in wanted or one.partition("/")[0] not in given]
        return _other(lasting, wanted) and _other(found, wanted)

    return compare


def _dynamic(seen: Seen) -> set[str]:
    rows = _rows(seen, "addresses_in_detail")
    return {str(row["address"]) for row in rows if row.get("dynamic")}


def lasting_addresses(seen: Seen) -> list[str]:
    """Return the addresses that are neither dynamic nor link-local."""
    given = _dynamic(seen)
    found = [one for one in _addresses(seen) if not _is_link_local(one)]
    return [one for one in found if one.partition("/")[0] not in given]


def is_dynamic(seen: Seen, family: int) -> bool:
    """Return whether an address of a family is dynamic."""
    return any(_family(one) == family for one in _dynamic(seen))


def gateways(seen: Seen, family: int) -> list[str]:
    """Return the gateways of the default routes of a family, each once."""
    routes = [row for row in _rows(seen, "default_routes") if row["family"] == f"ipv{family}"]
    return sorted({str(row["gateway"]) for row in routes if row.get("gateway")})


def dhcp(declared: Json, _observed: Json, seen: Seen) -> Difference | None:
    """Compare whether IPv4 addresses are assigned dynamically."""
    if bool(_addresses(seen)) != bool(_rows(seen, "addresses_in_detail")):
        return None
    dynamic = [row for row in _rows(seen, "addresses_in_detail") if row.get("family") == "ipv4"]
    if not dynamic:
        return Difference("no address", Severity.WARNING) if equality.is_true(declared) else None
    is_given = any(row.get("dynamic") for row in dynamic)
    if equality.is_true(declared) in {None, is_given}:
        return None
    return Difference(is_given, Severity.WARNING)


def has(family: int) -> Meaning:
    """Return a comparison of whether an address family is in use."""

    def compare(declared: Json, _observed: Json, seen: Seen) -> Difference | None:
        found = [one for one in _addresses(seen) if _family(one) == family]
        if equality.is_true(declared) in {None, bool(found)}:
            return None
        return Difference(bool(found), Severity.WARNING)

    return compare


def gateway(family: int) -> Meaning:
    """Return a comparison of the gateway of the default route over the interface."""

    def compare(declared: Json, _observed: Json, seen: Seen) -> Difference | None:
        found = gateways(seen, family)
        wanted = sorted({_to_kernel_notation(one) for one in equality.items(declared)})
        if "default_routes" not in seen or found == wanted:
            return None
        return Difference(found[0] if len(found) == 1 else found or "none", Severity.WARNING)

    return compare


def ports(declared: Json, _observed: Json, seen: Seen) -> Difference | None:
    """Compare the members of a bridge or bond, or the parent of an interface."""
    wanted = [str(_own_name(item, seen)) for item in equality.items(declared)]
    if "parent" in seen:
        return _other([str(seen["parent"])], wanted)
    found = seen.get("members", [])
    return _other(sorted(map(str, found)), wanted) if "members" in seen else None


def controller(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare the master of an interface.

    For a port of Open vSwitch, the kernel shows `ovs-system` whatever its switch: no difference.
    """
    if observed == "ovs-system" or not parent(declared, observed, seen):
        return None
    return Difference(observed or "none", Severity.WARNING)


def parent(declared: Json, observed: Json, seen: Seen) -> Difference | None:
    """Compare the name of a related interface, which may have several names."""
    return word_values.equal(_own_name(declared, seen), observed, seen)


def _own_name(name: Json, seen: Seen) -> Json:
    """Return the name that the kernel shows of a related interface."""
    found: Json = seen.get(OTHER_NAMES, {}).get(name, name) if isinstance(name, str) else name
    return found


def _other(found: Sequence[Json], wanted: Sequence[Json]) -> Difference | None:
    """Compare lists of plain values in any order; the difference has both lists whole."""
    if sorted(found, key=str) == sorted(wanted, key=str):
        return None
    return Difference(list(found), declared=list(wanted))


def _to_kernel_notation(item: Json) -> str:
    """Return an address in the kernel's notation: 192.0.2.1/24."""
    if isinstance(item, dict):
        address = item.get("ip") or item.get("address") or ""
        prefix = item.get("prefix", item.get("prefix_length", item.get("netmask")))
        item = address if prefix is None else f"{address}/{prefix}"
    return equality.address(str(item).strip())


def _is_link_local(address: str) -> bool:
    try:
        return ipaddress.ip_interface(address).is_link_local
    except ValueError:  # publishers may send any text
        return False


def _addresses(seen: Seen) -> list[str]:
    found = seen.get("addresses", [])
    return [str(one) for one in found] if isinstance(found, list) else []


def _family(address: str) -> int:
    return 6 if ":" in address else 4


def _rows(seen: Seen, key: str) -> list[dict[str, Json]]:
    return list(seen.get(key, []))
