"""The observer of interfaces, addresses and routes, in a network namespace of its own."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from harness.observing import Host, observed
from harness.own_network import Network, own_network

from opdbus.observe.core.netlink import ROUTE, ROUTE_GROUPS
from opdbus.observe.core.report import Observer, Report
from opdbus.observe.network import network
from opdbus.platform.tasks import cancel


@asynccontextmanager
async def watched(tmp_path: Path) -> AsyncIterator[tuple[Network, Host]]:
    """Observe an empty network, through a socket as systemd passes it."""
    (tmp_path / "udev").mkdir()
    with own_network() as net, net.netlink(ROUTE, ROUTE_GROUPS) as passed:
        observe = network.Network(passed, tmp_path / "udev").observe
        async with observed(tmp_path, Observer("network", "net", observe)) as host:
            await host.until_shown("net/interface/lo", type="loopback", state="up")
            yield net, host


async def test_interfaces_come_and_go(tmp_path: Path) -> None:
    """An interface has its kind, its bridge, the other end of its cable, and what it forwards."""
    async with watched(tmp_path) as (net, host):
        await host.until_shown("net/interface/lo", forwards=[])
        net.set("net.ipv4.ip_forward", "1")
        await host.until_shown("net/interface/lo", forwards=["ipv4"])
        net.set("net.ipv6.conf.lo.forwarding", "1")
        await host.until_shown("net/interface/lo", forwards=["ipv4", "ipv6"])
        net.set("net.ipv4.ip_forward", "0")
        await host.until_shown("net/interface/lo", forwards=["ipv6"])
        net.ip("link", "add", "br0", "type", "bridge")
        net.ip("link", "add", "uplink", "type", "veth", "peer", "name", "other")
        net.ip("link", "set", "uplink", "up", "master", "br0", "promisc", "on", "mtu", "1400")
        net.ip("link", "set", "uplink", "alias", "to the office")
        await host.until_shown("net/interface/br0", type="bridge", state="down", enabled=False)
        about = {"master": "br0", "promiscuous": True, "mtu": 1400, "parent": "other"}
        await host.until_shown(
            "net/interface/uplink", type="veth", description="to the office", **about
        )
        net.ip("link", "set", "br0", "name", "lan")
        await host.until_shown("net/interface/uplink", master="lan")
        for name in ("uplink0", "a-name-that-is-longer-than-others"):
            net.ip("link", "property", "add", "dev", "uplink", "altname", name)
        names = ["a-name-that-is-longer-than-others", "uplink0"]
        await host.until_shown("net/interface/uplink", aliases=names)
        assert "aliases" not in await host.until_shown("net/interface/lan", type="bridge")
        net.ip("link", "del", "uplink")
        await host.until(lambda: "net/interface/other" not in host.names)
        assert "net/interface/uplink" not in host.names


async def test_addresses_come_and_go(tmp_path: Path) -> None:
    """An address is an object while it is there; how long it still lives changes nothing."""
    async with watched(tmp_path) as (net, host):
        before = await host.until_shown("net/interface/lo", addresses=["127.0.0.1/8", "::1/128"])
        net.ip("addr", "add", "192.0.2.10/28", "dev", "lo")
        where = {"address": "192.0.2.10", "prefix": 28, "interface": "lo", "scope": "global"}
        name = "net/address/192.0.2.10/28 on lo"
        where["description"] = "IPv4 address of this machine, on lo"
        await host.until_shown(name, family="ipv4", dynamic=False, **where)
        await host.until_shown(
            "net/interface/lo", addresses=["127.0.0.1/8", "192.0.2.10/28", "::1/128"]
        )
        net.ip("addr", "del", "192.0.2.10/28", "dev", "lo")
        await host.until(lambda: name not in host.names)
        assert await host.properties("net/interface/lo") == before
        lifetime = "valid_lft", "1000", "preferred_lft", "0"
        net.ip("addr", "add", "2001:db8::5/64", "dev", "lo", *lifetime, "nodad")
        name = "net/address/2001:db8::5/64 on lo"
        await host.until_shown(name, dynamic=True, deprecated=True)
        await host.until(lambda: "net/route/2001:db8::/64 dev lo" in host.names)
        generation = host.memory.generation
        net.ip("addr", "change", "2001:db8::5/64", "dev", "lo", *lifetime, "nodad")
        net.ip("link", "add", "sign", "type", "bridge")
        await host.until_shown("net/interface/sign")
        assert host.memory.generation == generation + 1


async def test_routes_come_and_go(tmp_path: Path) -> None:
    """Routes of all tables but the local one are objects, named as ip(8) names them."""
    async with watched(tmp_path) as (net, host):
        net.ip("link", "add", "wan", "type", "veth", "peer", "name", "out")
        net.ip("link", "set", "wan", "up")
        net.ip("link", "set", "out", "up")
        net.ip("addr", "add", "192.0.2.10/28", "dev", "wan")
        net.ip("route", "add", "default", "via", "192.0.2.1", "metric", "100", "proto", "dhcp")
        net.ip("route", "add", "blackhole", "10.0.0.0/8")
        net.ip("route", "add", "10.1.0.0/16", "dev", "wan", "table", "77")
        hops = "nexthop", "via", "192.0.2.2", "nexthop", "via", "192.0.2.3"
        net.ip("route", "add", "10.2.0.0/16", *hops)
        net.ip("route", "add", "10.3.0.0/16", "via", "inet6", "fe80::9", "dev", "wan")
        net.ip("-6", "route", "add", "default", "dev", "wan")
        default = "net/route/default via 192.0.2.1 dev wan metric 100"
        await host.until_shown(default, protocol="dhcp", metric=100, table="main", interface="wan")
        described = (await host.properties(default))["description"]
        assert described.startswith("default gateway, router 192.0.2.1, the way to the internet")
        await host.until_shown("net/route/blackhole 10.0.0.0/8", type="blackhole")
        await host.until_shown("net/route/10.1.0.0/16 dev wan table 77", table="77")
        await host.until_shown("net/route/10.2.0.0/16 via 192.0.2.2, 192.0.2.3 dev wan, wan")
        await host.until_shown("net/route/10.3.0.0/16 via fe80::9 dev wan", family="ipv4")
        await host.until_shown("net/route/default ipv6 dev wan", family="ipv6")
        await host.until_shown("net/route/192.0.2.0/28 dev wan", source="192.0.2.10")
        # each interface has a link-local route, which tells nothing
        await host.until(lambda: any("/fe80:" in n and n.endswith("on wan") for n in host.names))
        assert not [name for name in host.names if name.startswith("net/route/fe80:")]
        # the kernel tells of none of these routes that they are gone
        net.ip("link", "set", "wan", "down")
        await host.until(lambda: default not in host.names)
        assert not [n for n in host.names if n.startswith("net/route/") and "wan" in n]


# For each network, commands of ip(8), the names that these give, and one more that adds others.
SIBLINGS = {
    "metrics of one IPv4 prefix": (
        ["route add 10.1.0.0/16 dev wan", "route add 10.1.0.0/16 dev wan metric 256"],
        {"10.1.0.0/16 dev wan", "10.1.0.0/16 dev wan metric 256"},
    ),
    "metrics of one IPv6 prefix": (
        ["-6 route add 2001:db8:1::/64 dev wan metric 256 proto kernel",
         "-6 route add 2001:db8:1::/64 dev wan metric 1024 proto ra"],
        {"2001:db8:1::/64 dev wan", "2001:db8:1::/64 dev wan metric 1024"},
    ),
    "metrics of IPv6 gateways": (
        ["-6 route add default via fe80::1 dev wan proto ra",
         "-6 route add default via fe80::1 dev wan metric 256"],
        {"default via fe80::1 dev wan", "default via fe80::1 dev wan metric 256"},
    ),
    "services of one prefix": (
        ["route add 10.2.0.0/16 dev wan", "route add 10.2.0.0/16 dev wan tos 0x10"],
        {"10.2.0.0/16 dev wan", "10.2.0.0/16 tos 0x10 dev wan"},
    ),
    "sources of one prefix": (
        ["-6 route add 2001:db8:2::/64 dev wan metric 256",
         "-6 route add 2001:db8:2::/64 from 2001:db8:9::/64 dev wan metric 256"],
        {"2001:db8:2::/64 dev wan", "2001:db8:2::/64 from 2001:db8:9::/64 dev wan"},
    ),
    "next hops of one IPv6 prefix": (
        ["-6 route add default via fe80::1 dev wan", "-6 route append default via fe80::2 dev wan"],
        {"default via fe80::1 dev wan", "default via fe80::2 dev wan"},
    ),
    "types of one prefix": (
        ["route add 10.3.0.0/16 dev wan", "route add unreachable 10.3.0.0/16 metric 9"],
        {"10.3.0.0/16 dev wan", "unreachable 10.3.0.0/16 metric 9"},
    ),
    "tables": (
        ["route add 10.4.0.0/16 dev wan", "route add 10.4.0.0/16 dev wan table 7"],
        {"10.4.0.0/16 dev wan", "10.4.0.0/16 dev wan table 7"},
    ),
    "devices": (
        ["route add 10.5.0.0/16 dev wan", "route add 10.5.0.0/16 dev lan metric 1"],
        {"10.5.0.0/16 dev wan", "10.5.0.0/16 dev lan metric 1"},
    ),
    "families of one gateway": (
        ["-6 route add default via fe80::1 dev wan",
         "-4 route add default via inet6 fe80::1 dev wan"],
        {"default via fe80::1 dev wan", "default ipv4 via fe80::1 dev wan"},
    ),
    "default routes without a gateway": (
        ["route add unreachable default", "-6 route add unreachable default metric 1024"],
        {"unreachable default", "unreachable default ipv6 dev lo"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SIBLINGS)
async def test_a_route_keeps_its_name(case: str) -> None:
    """Routes that the kernel tells apart have two names, which do not depend on each other."""
    commands, names = SIBLINGS[case]
    with own_network() as net, net.netlink(ROUTE, ROUTE_GROUPS) as passed:
        for name in ("wan", "lan"):
            net.ip("link", "add", name, "type", "bridge")
            # no address and no route of its own
            net.ip("link", "set", name, "addrgenmode", "none", "up")
        before = await listed("route", passed)
        net.ip(*commands[0].split())
        first = await listed("route", passed) - before
        net.ip(*commands[1].split())
        assert await listed("route", passed) - before == names
        assert len(first) == 1
        assert first < names


async def test_an_address_keeps_its_name() -> None:
    """Addresses that differ in the other end alone are two."""
    with own_network() as net, net.netlink(ROUTE, ROUTE_GROUPS) as passed:
        net.ip("link", "add", "wan", "type", "bridge")
        names = {"10.0.0.1/32 peer 10.0.0.2 on wan", "10.0.0.1/32 peer 10.0.0.3 on wan"}
        for peer in ("10.0.0.2", "10.0.0.3"):
            net.ip("addr", "add", "10.0.0.1", "peer", f"{peer}/32", "dev", "wan")
        assert names <= await listed("address", passed)


async def listed(kind: str, passed: socket.socket) -> frozenset[str]:
    """Return the names of the objects of a kind."""
    report = Report()
    task = asyncio.create_task(network.Network(passed).observe(report))
    while not report.has_listed("route"):
        await report.news.wait()
        await asyncio.sleep(0)
    await cancel([task])
    return report.names(kind)


def test_hardware_has_its_name_from_the_database(tmp_path: Path) -> None:
    """An interface is described by the vendor and the model that udev found for its index."""
    lines = "I:1\nE:ID_MODEL_FROM_DATABASE=I350\nE:ID_VENDOR_FROM_DATABASE=Intel Corp\nE:X\n"
    (tmp_path / "n2").write_text(lines)
    (tmp_path / "n3").write_bytes(b"\xff\n")
    found = [network.hardware_name(tmp_path / name) for name in ("n2", "n3", "n4")]
    assert found == ["Intel Corp I350", "", ""]
