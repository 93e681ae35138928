"""Netlink: messages as the kernel sends them, broken ones, and those of others."""

import asyncio
import json
import socket
import struct

import pytest
from attacks.kernel import attribute, link
from conftest import ROOT
from harness.own_network import own_network
from hypothesis import example, given
from hypothesis import strategies as st

from opdbus.observe.core import netlink
from opdbus.observe.core.netlink import Channel, ListRefused, Message
from opdbus.observe.core.report import Absent
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.network import rtnetlink, sockets
from opdbus.observe.network.rtnetlink import read_routes

# Taken from Linux 6.18 on x86-64.
CAPTURED = json.loads((ROOT / "tests/data/netlink.json").read_text())
BODIES = {name: bytes.fromhex(text) for name, text in CAPTURED.items()}
TYPES = {"link": 16, "address": 20, "route": 24, "socket": 20}
GET_ADDRESSES = rtnetlink.REQUESTS[1]
# Any two processes may talk over it.
USERSOCK = 2


def link_message(index: int, name: str, *more: bytes) -> Message:
    """Give the message of an Ethernet interface that is up."""
    return Message(16, 0, 1, link(index, name, *more))


def read(name: str, body: bytes) -> object:
    """Read one message as its observer does."""
    message = Message(TYPES[name], 0, 1, body)
    links = rtnetlink.Links.read([message])
    addresses = list(rtnetlink.read_addresses([message], links))
    found = read_routes([message], links, most=10)
    listeners = list(sockets.read_listeners("tcp", [message]))
    return links.properties(addresses), addresses, found, listeners


def test_what_the_kernel_sends() -> None:
    """The kernel's bytes of a card, an address, a route and a socket become what people call it."""
    links = rtnetlink.Links.read([Message(16, 0, 1, BODIES["link"])])
    assert (links.name(4), links.hardware) == ("eth0", {4})
    state = {"state": "up", "enabled": True, "carrier": True, "mtu": 1400}
    state |= {"addresses": [], "forwards": []}
    assert links.properties([]) == {4: {"type": "ethernet", "mac": "02:fc:00:00:00:01", **state}}
    (address,) = rtnetlink.read_addresses([Message(20, 0, 1, BODIES["address"])], links)
    assert (address.prefix, address.properties["interface"]) == ("192.0.2.2/24", "eth0")
    (name,) = read_routes([Message(24, 0, 1, BODIES["route"])], links, most=1)
    assert name == "default via 192.0.2.1 dev eth0"
    (one,) = sockets.read_listeners("tcp", [Message(20, 0, 1, BODIES["socket"])])
    assert (one.name, one.uid, one.group) == ("tcp 0.0.0.0:2024", 0, 1)


def test_a_vlan_on_an_interface() -> None:
    """A VLAN has its number and the interface that carries it."""
    data = attribute(1, struct.pack("=H", 7))
    info = attribute(18, attribute(1, b"vlan\0") + attribute(2, data))
    vlan = link_message(9, "guests", attribute(5, struct.pack("=I", 4)), info)
    links = rtnetlink.Links.read([link_message(4, "eth0"), vlan])
    found = links.properties([])[9]
    assert (found["type"], found["vlan"], found["parent"]) == ("vlan", 7, "eth0")
    assert links.hardware == {4}


def test_a_name_that_is_no_text() -> None:
    """Bytes that are no UTF-8 are replaced, and a name ends at its first zero byte."""
    head = struct.pack("=BxHiII", 0, 1, 1, 0, 0)
    links = rtnetlink.Links.read([Message(16, 0, 1, head + attribute(3, b"a\xff\0b"))])
    assert links.name(1) == "a\ufffd"
    assert links.name(2) == "2"


def test_numbers_that_have_no_name_yet() -> None:
    """What a later kernel numbers is shown by its number, and nothing is lost or called usual."""
    body = struct.pack("=BxHiII", 0, 4711, 3, 1, 0)
    odd = Message(16, 0, 1, body + attribute(3, b"new0\0") + attribute(16, b"\x09"))
    links = rtnetlink.Links.read([odd])
    found = links.properties([])[3]
    assert (found["type"], found["state"]) == ("hardware 4711", "state 9")
    body = struct.pack("=BBBBI", 2, 24, 0x80, 77, 3) + attribute(2, bytes([192, 0, 2, 1]))
    (address,) = rtnetlink.read_addresses([Message(20, 0, 1, body)], links)
    assert address.properties["scope"] == "77"
    body = struct.pack("=BBBBBBBBI", 2, 24, 0, 0, 99, 222, 0, 12, 0)
    target = attribute(1, bytes([192, 0, 2, 0])) + attribute(4, struct.pack("=I", 3))
    (route,) = read_routes([Message(24, 0, 1, body + target)], links, most=9).values()
    shown = (route["type"], route["protocol"], route["table"])
    assert shown == ("type 12", "222", "99")
    assert route["description"] == "type 12, way to the network 192.0.2.0/24"


def test_families_that_have_no_name_yet() -> None:
    """Addresses, routes and ports of a family that is not read are noted."""
    links, skipped = rtnetlink.Links.read([link_message(3, "eth0")]), Skipped()
    address = Message(20, 0, 1, struct.pack("=BBBBI", 28, 20, 0, 0, 3) + attribute(2, b"abcd"))
    assert list(rtnetlink.read_addresses([address], links, skipped)) == []
    route = Message(24, 0, 1, struct.pack("=BBBBBBBBI", 28, 20, 0, 0, 254, 3, 0, 1, 0))
    assert read_routes([route], links, 9, skipped) == {}
    assert list(sockets.read_listeners("tcp", [Message(20, 0, 1, b"short")], skipped)) == []
    assert skipped.sentence == (
        "3 rows not understood: address of the family 28 on eth0,"
        " route of the address family 28, message 20 of the kernel on tcp ports"
    )


@pytest.mark.parametrize("name", BODIES)
def test_a_message_cut_anywhere(name: str) -> None:
    """A message that ends anywhere is read as far as it goes."""
    for end in range(len(BODIES[name])):
        read(name, BODIES[name][:end])


@given(st.sampled_from(sorted(BODIES)), st.lists(st.tuples(st.integers(0, 500), st.binary())))
def test_a_message_with_any_bytes(name: str, changes: list[tuple[int, bytes]]) -> None:
    """No bytes make reading fail, whatever lengths and kinds they give."""
    body = bytearray(BODIES[name])
    for start, content in changes:
        body[start : start + len(content)] = content
    read(name, bytes(body))


@given(st.binary())
@example(struct.pack("=IHHII", 0, 2, 0, 0, 0))
@example(struct.pack("=IHHII", 0xFFFFFFFF, 2, 0, 0, 0))
def test_any_datagram(data: bytes) -> None:
    """No bytes make splitting fail or go on for ever."""
    assert len(list(netlink.messages(data))) <= len(data) // 16
    assert len(netlink.attributes(data)) <= len(data) // 4


async def test_what_another_process_sends_is_not_believed() -> None:
    """Messages that do not come from the kernel are dropped."""
    with (
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, USERSOCK) as passed,
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, USERSOCK) as liar,
    ):
        passed.bind((0, 0))
        channel = Channel(passed, USERSOCK, 0, "")
        with channel:
            liar.sendto(struct.pack("=IHHII", 16, 16, 0, 0, 0), passed.getsockname())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(channel.wait_for_change(), 0.2)
        assert not channel.is_stale
        assert passed.fileno() >= 0, "what was passed stays open"


async def test_what_the_kernel_refuses() -> None:
    """A list that the kernel has not got is an error with the kernel's reason."""
    with (
        Channel(None, netlink.ROUTE, 0, "") as channel,
        pytest.raises(ListRefused, match="refused a list: Operation not supported"),
    ):
        await channel.dump(98, bytes(16))


async def test_the_rest_of_a_list_that_nobody_read() -> None:
    """A list that another process asked for over the socket, and left, disturbs no other."""
    with own_network() as net, net.netlink(netlink.ROUTE) as passed:
        for number in range(300):
            net.ip("addr", "add", f"10.0.{number // 200}.{number % 200}/24", "dev", "lo")
        left = struct.pack("=IHHII", 24, 22, 0x301, 1, 0) + bytes(8)
        passed.send(left)
        with Channel(passed, netlink.ROUTE, 0, "") as channel:
            assert len(await channel.dump(*GET_ADDRESSES)) == 302


def test_a_socket_that_cannot_be_opened() -> None:
    """Without a socket the reason is told, and the unit that brings one."""
    with pytest.raises(Absent, match=r"systemd passed no socket.*restart op-dbus-route.socket"):
        Channel(None, 31, 0, "op-dbus-route.socket")
