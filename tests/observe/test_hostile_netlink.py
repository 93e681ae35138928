"""Netlink messages that are cut off, lie, or never end, through the real observers of the network.

What they answer is reported as far as it can be read; nothing fails for good, grows without end, or
is believed that the kernel did not send.
"""

import asyncio
import errno
import itertools
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import product
from pathlib import Path

import pytest
from attacks.kernel import (
    ADDRESS,
    ADDRESSES,
    DONE,
    ERROR,
    INTERRUPTED,
    LINK,
    LINKS,
    ROUTE,
    ROUTES,
    SOCKETS,
    Answer,
    FakeKernel,
    Passed,
    address,
    attribute,
    done,
    link,
    listener,
    listing,
    message,
    route,
    sent,
)
from harness.observing import Host, less_than, observed

from opdbus.observe.core.netlink import MAX_MESSAGES, Channel
from opdbus.observe.core.netlink import ROUTE as PROTOCOL
from opdbus.observe.core.report import Observer
from opdbus.observe.network.network import Network
from opdbus.observe.network.sockets import Sockets
from opdbus.observe.packages.documents import ServiceNames
from opdbus.observe.systemd.control_groups import ControlGroups

ETH0, ITS_ADDRESS, ITS_ROUTE = link(2, "eth0"), address(2, 2), route(2)
SANE = {
    LINKS: listing(LINK, ETH0),
    ADDRESSES: listing(ADDRESS, ITS_ADDRESS),
    ROUTES: listing(ROUTE, ITS_ROUTE),
}
NAMES = {"net/interface/eth0", "net/address/192.0.2.2/24 on eth0", "net/route/default dev eth0"}
NEWS = sent(message(LINK, ETH0))
PROCESS = 4711
PATIENCE = 0.5


@pytest.fixture(autouse=True)
def no_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no system bus, where units could be followed."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")


@asynccontextmanager
async def watched(folder: Path, passed: Passed, patience: float = 10.0) -> AsyncIterator[Host]:
    """Observe the network that a fake kernel has."""
    observe = Network(passed, folder / "udev", patience).observe
    async with observed(folder, Observer("network", "net", observe)) as host:
        yield host


def nested(*kinds: int, length: int) -> bytes:
    """Give attributes inside each other, of which the innermost lies about its length."""
    inner = attribute(kinds[-1], b"vlan\0", length)
    for kind in reversed(kinds[:-1]):
        inner = attribute(kind, inner)
    return inner


ODD = "\x1b[2J\u202eleft to right\n"
NO_FAMILY = struct.pack("=BBBBI", 99, 255, 0, 255, 7) + attribute(2, b"abcd")
FIVE_BYTES = struct.pack("=BBBBI", 2, 24, 0, 0, 7) + attribute(2, b"abcde")
PAST_THE_END = attribute(9, struct.pack("=HBBi", 0xFFFF, 0, 0, 7))
# Of each lie what makes the datagram that has it, of the number of the request.
LIES: dict[str, Callable[[int], bytes]] = {
    "half a header": lambda number: message(LINK, b"", number)[:7],
    "longer than the datagram": partial(message, LINK, ETH0, length=0xFFFFFFFF),
    "no length": partial(message, LINK, ETH0, length=0),
    "shorter than its header": partial(message, LINK, ETH0, length=8),
    "no body": partial(message, LINK, b""),
    "half a body": partial(message, LINK, ETH0[:9]),
    "an attribute past the end": partial(message, LINK, link(7, "x", attribute(20, b"a", 0xFFFF))),
    "an attribute of no length": partial(message, LINK, link(7, "x", attribute(20, b"a", 0))),
    "a kind past the end": partial(message, LINK, link(7, "x", nested(18, 1, length=0xFFFF))),
    "a number past the end": partial(message, LINK, link(7, "x", nested(18, 2, 1, length=3))),
    "a name of 60,000 characters": partial(message, LINK, link(7, "x" * 60_000)),
    "a long alias": partial(message, LINK, link(7, "x", attribute(20, b"a" * 60_000))),
    "a name that is no text": partial(message, LINK, link(7, ODD)),
    "no name": partial(message, LINK, link(7, "")),
    "interface -1": partial(message, LINK, link(-1, "x")),
    "an address of no family": partial(message, ADDRESS, NO_FAMILY),
    "an address of 5 bytes": partial(message, ADDRESS, FIVE_BYTES),
    "next hops past the end": partial(message, ROUTE, route(2) + PAST_THE_END),
    "next hops of no length": partial(message, ROUTE, route(2) + attribute(9, bytes(64))),
    "a gateway of odd bytes": partial(
        message, ROUTE, route(2) + attribute(18, b"\xff") + attribute(5, b"12")
    ),
    "an unknown type": partial(message, 0xFFFF, b"\xff" * 64),
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("lie", LIES)
async def test_messages_that_lie(tmp_path: Path, lie: str) -> None:
    """Messages around one that lies are read, and the next change is seen."""

    def around(kind: int, body: bytes) -> Answer:
        def answer(number: int) -> Iterable[bytes]:
            lying = sent(LIES[lie](number))
            return [lying, sent(message(kind, body, number)), lying, sent(done(number))]

        return answer

    answers = {
        LINKS: around(LINK, ETH0), ADDRESSES: around(ADDRESS, ITS_ADDRESS),
        ROUTES: around(ROUTE, ITS_ROUTE), SOCKETS: around(SOCKETS, listener(80)),
    }  # fmt: skip
    with FakeKernel(answers) as kernel, FakeKernel(answers) as other:
        ports = Sockets(other.passed, ControlGroups([]), ServiceNames(tmp_path / "none"))
        observers = [
            Observer("network", "net", Network(kernel.passed, tmp_path).observe),
            Observer("sockets", "net", ports.observe),
        ]
        async with observed(tmp_path, *observers) as host:
            for name in (*NAMES, "net/listener/tcp 127.0.0.1:80"):
                await host.until_shown(name)
            await host.until(lambda: all(s.state == "up" for s in host.supervisor.statuses))
            assert max(map(len, host.names)) < 1000
            kernel.answers[LINKS] = listing(LINK, ETH0 + attribute(20, b"to the office"))
            kernel.tell(NEWS)
            await host.until_shown("net/interface/eth0", description="to the office")


async def test_what_others_send_is_no_part_of_a_list(tmp_path: Path) -> None:
    """Messages of another process are not believed, also in the middle of a list."""

    def answer(number: int) -> Iterable[bytes]:
        forged = sent(message(LINK, link(6, "forged"), number), sender=PROCESS)
        ended = sent(done(number), sender=PROCESS)
        return [forged, ended, sent(message(LINK, ETH0, number)), forged, sent(done(number))]

    with FakeKernel(SANE | {LINKS: answer}) as kernel:
        async with watched(tmp_path, kernel.passed) as host:
            await host.until_shown("net/interface/eth0")
            await host.until(lambda: host.names == NAMES)
            before = len(kernel.requests)
            kernel.tell(sent(message(LINK, link(6, "forged")), sender=PROCESS))
            await asyncio.sleep(0.3)  # nothing tells of what does not happen
            assert len(kernel.requests) == before
            assert host.names == NAMES


async def test_a_list_without_an_end(tmp_path: Path) -> None:
    """A list that never ends is given up, takes little memory, and is asked for again."""

    def endless(number: int) -> Iterable[bytes]:
        bodies = (message(LINK, link(n, f"e{n}"), number) for n in itertools.count(1))
        while kernel.answers[LINKS] is endless:
            yield sent(b"".join(itertools.islice(bodies, 500)))

    with FakeKernel(SANE | {LINKS: endless}) as kernel:
        async with watched(tmp_path, kernel.passed, PATIENCE) as host:
            await host.until(lambda: host.status.state == "failed")
            assert host.status.detail == "the kernel gave no list within 0.5 s"
            kernel.answers[LINKS] = SANE[LINKS]
            await host.until_shown("net/interface/eth0")


async def test_a_list_of_millions() -> None:
    """Of a list that is far too long only a part is kept while the rest is read."""
    many = 2 * MAX_MESSAGES

    def answer(number: int) -> Iterable[bytes]:
        piece = sent(message(ROUTE, ITS_ROUTE, number) * 1000)
        return itertools.chain(itertools.repeat(piece, many // 1000), [sent(done(number))])

    with FakeKernel({ROUTES: answer}) as kernel:
        channel = Channel(kernel.passed, PROTOCOL, 0, "", seconds=60)
        with channel, less_than(32 << 20):
            assert len(await channel.dump(ROUTES, bytes(12))) == MAX_MESSAGES


async def test_more_than_is_observed(tmp_path: Path) -> None:
    """Of too many routes some are observed, and the status says so."""
    routes = [route(2, 10, n >> 8, n & 255, 0) for n in range(2500)]
    with FakeKernel(SANE | {ROUTES: listing(ROUTE, *routes)}) as kernel:
        async with watched(tmp_path, kernel.passed) as host:
            await host.until(lambda: len(host.names) == 2_002)
            assert "more than 2,000 routes" in host.status.detail


async def test_a_list_that_changes_while_it_is_made(tmp_path: Path) -> None:
    """Where the kernel says that a list was interrupted, it is asked for again."""

    def interrupted(number: int) -> Iterable[bytes]:
        kernel.answers[ADDRESSES] = SANE[ADDRESSES]
        return [sent(done(number, INTERRUPTED))]

    with FakeKernel(SANE | {ADDRESSES: interrupted}) as kernel:
        async with watched(tmp_path, kernel.passed) as host:
            await host.until_shown("net/address/192.0.2.2/24 on eth0")
            await host.until(lambda: host.names == NAMES)


async def test_lists_that_are_always_interrupted(tmp_path: Path) -> None:
    """Where every list is interrupted, what there is is shown, and asking again costs little."""

    def interrupted(number: int) -> Iterable[bytes]:
        listed = message(LINK, ETH0, number, flags=INTERRUPTED)
        return [sent(listed), sent(done(number, INTERRUPTED))]

    with FakeKernel(SANE | {LINKS: interrupted}) as kernel:
        async with watched(tmp_path, kernel.passed) as host:
            await host.until(lambda: host.names == NAMES)
            await asyncio.sleep(1.0)  # until what may be done at once is done
            spent = []
            for _ in range(4):
                before = time.process_time()
                await asyncio.sleep(0.5)
                spent.append(time.process_time() - before)
            # the least: others work in this process, too
            assert min(spent) < 0.15
            assert host.status.state == "up"


async def test_a_list_whose_end_is_lost(tmp_path: Path) -> None:
    """Where the buffer ran over and the end of a list was lost, it is asked for again."""

    def lost(number: int) -> Iterable[bytes]:
        return [sent(message(LINK, ETH0, number)), sent(b"", fault=errno.ENOBUFS)]

    with FakeKernel(SANE | {LINKS: lost}) as kernel:
        async with watched(tmp_path, kernel.passed, PATIENCE) as host:
            await host.until(lambda: host.status.state == "failed")
            assert host.names == set()
            kernel.answers = SANE
            await host.until(lambda: host.names == NAMES and host.status.state == "up")
            kernel.answers = SANE | {LINKS: listing(LINK, ETH0, link(3, "eth1"))}
            kernel.tell(sent(b"", fault=errno.ENOBUFS))
            await host.until_shown("net/interface/eth1")


async def test_an_end_that_is_no_success(tmp_path: Path) -> None:
    """A list that ends by an error, or without saying how, replaces nothing that was there."""
    bodies = b"", b"\0", b"\x00\x00\x00\x80", b"\xff\xff\xff\xff"
    with FakeKernel(SANE) as kernel:
        async with watched(tmp_path, kernel.passed) as host:
            await host.until(lambda: host.names == NAMES)
            for kind, body in product((DONE, ERROR), bodies):
                ended = partial(message, kind, body)
                kernel.answers = SANE | {LINKS: lambda number, ended=ended: [sent(ended(number))]}
                kernel.tell(NEWS)
                await host.until(lambda: host.status.state == "failed")
                assert host.names == NAMES
                kernel.answers = SANE
                await host.until(lambda: host.status.state == "up")


async def test_a_flood_of_news(tmp_path: Path) -> None:
    """Thousands of messages lead to few lists, and what is true is shown afterwards."""
    with FakeKernel(SANE) as kernel:
        async with watched(tmp_path, kernel.passed) as host:
            await host.until(lambda: host.names == NAMES)
            before = len(kernel.requests)
            await asyncio.to_thread(lambda: [kernel.tell(NEWS) for _ in range(5_000)])
            kernel.answers = SANE | {LINKS: listing(LINK, ETH0, link(3, "eth1"))}
            kernel.tell(NEWS)
            await host.until_shown("net/interface/eth1")
            assert len(kernel.requests) - before < 250
