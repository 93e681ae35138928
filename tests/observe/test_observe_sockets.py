"""The observer of open ports, in a network namespace of its own."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.observing import FakeService, Host, fake_service, history, observed
from harness.own_network import Network, own_network

from opdbus.bus.transport.values import Typed
from opdbus.observe.core.lookup_cache import LookupCache
from opdbus.observe.core.netlink import DIAG
from opdbus.observe.core.report import Observer, Report
from opdbus.observe.network import sockets
from opdbus.observe.packages.documents import ServiceNames
from opdbus.observe.systemd.control_groups import ControlGroups
from opdbus.observe.systemd.pid1 import socket_units
from opdbus.platform.tasks import cancel

PATH = "/org/freedesktop/systemd1"
EVERYWHERE = "0.0.0.0"  # noqa: S104 -- in a network without neighbours
SERVICES = "ssh\t22/tcp\t\t# Secure Shell\nbare 23/tcp\ntftp 69/udp # Trivial transfer\n"


@pytest.fixture(autouse=True)
def no_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no system bus, unless a test brings one."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", f"unix:path={tmp_path}/none")


@asynccontextmanager
async def watched(
    tmp_path: Path, seconds: Sequence[float] = (0.05,), **known: Any
) -> AsyncIterator[tuple[Network, Host]]:
    """Observe the ports of an empty network, through a socket as systemd passes it.

    Without a unit's change ports are listed at `seconds` after each other. `known` are further
    fields of Sockets.
    """
    (tmp_path / "services").write_text(SERVICES)
    names = ServiceNames(tmp_path / "services")
    with own_network() as net, net.netlink(DIAG) as passed:
        observer = sockets.Sockets(passed, services=names, seconds=seconds, **known)
        async with observed(tmp_path, Observer("sockets", "net", observer.observe)) as host:
            yield net, host


def opened(net: Network, kind: int, address: str, port: int, device: str = "") -> socket.socket:
    """Wait for connections or datagrams in a network."""

    def make() -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        one = socket.socket(family, kind)
        if family == socket.AF_INET6:
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        one.bind((address, port))
        if kind == socket.SOCK_STREAM:
            one.listen()
        return one

    made: Any = net.inside(make)
    return made


async def test_ports_that_are_open(tmp_path: Path) -> None:
    """A port that waits has its address, what can reach it, its user and its service."""
    async with watched(tmp_path) as (net, host):
        with (
            opened(net, socket.SOCK_STREAM, EVERYWHERE, 22),
            opened(net, socket.SOCK_STREAM, "::", 22),
            opened(net, socket.SOCK_STREAM, "127.0.0.1", 23),
            opened(net, socket.SOCK_DGRAM, "127.0.0.1", 69),
            opened(net, socket.SOCK_DGRAM, "::1", 9999),
            # with a partner, or without a port, it waits for nobody
            opened(net, socket.SOCK_DGRAM, "127.0.0.1", 81) as client,
            opened(net, socket.SOCK_STREAM, "127.0.0.1", 0) as other,
        ):
            client.connect(("127.0.0.1", 23))
            other.close()
            about = {"protocol": "tcp", "port": 22, "state": "listening", "user": "root"}
            described = "ssh: Secure Shell, open to other machines"
            more = {"service": "ssh", "description": described}
            await host.until_shown(
                "net/listener/tcp 0.0.0.0:22", exposed="all addresses", **about, **more
            )
            await host.until_shown(
                "net/listener/tcp [::]:22", exposed="all addresses", family="ipv6", **about
            )
            bare = await host.until_shown(
                "net/listener/tcp 127.0.0.1:23", exposed="local only", family="ipv4"
            )
            assert (bare["service"], bare["description"]) == ("bare", "bare, for this machine only")
            await host.until_shown("net/listener/udp 127.0.0.1:69", service="tftp")
            nameless = await host.until_shown("net/listener/udp [::1]:9999")
            assert "service" not in nameless
            await host.until(lambda: len(host.names) == 5)
        await host.until(lambda: host.names == set())


@pytest.mark.parametrize(
    ("kind", "address", "device", "name", "exposed"),
    [
        (socket.SOCK_STREAM, EVERYWHERE, "lo", "tcp 0.0.0.0%lo:80", "local only"),
        (socket.SOCK_STREAM, EVERYWHERE, "wan", "tcp 0.0.0.0%wan:80", "one interface"),
        (socket.SOCK_STREAM, "::", "lo", "tcp [::]%lo:80", "local only"),
        (socket.SOCK_STREAM, "::", "wan", "tcp [::]%wan:80", "one interface"),
        (socket.SOCK_DGRAM, EVERYWHERE, "wan", "udp 0.0.0.0%wan:80", "one interface"),
        (socket.SOCK_DGRAM, "::", "wan", "udp [::]%wan:80", "one interface"),
        (socket.SOCK_STREAM, "127.0.0.1", "lo", "tcp 127.0.0.1%lo:80", "local only"),
        (socket.SOCK_STREAM, "10.9.0.1", "wan", "tcp 10.9.0.1%wan:80", "one address"),
        (socket.SOCK_STREAM, EVERYWHERE, "", "tcp 0.0.0.0:80", "all addresses"),
    ],
)
async def test_a_socket_of_one_interface(
    tmp_path: Path, kind: int, address: str, device: str, name: str, exposed: str
) -> None:
    """A socket that is bound to an interface is another than one that is bound to none."""
    with own_network() as net, net.netlink(DIAG) as passed, ExitStack() as open_sockets:
        net.ip("link", "set", "lo", "up")
        net.ip("link", "add", "wan", "type", "bridge")
        net.ip("link", "set", "wan", "up")
        net.ip("addr", "add", "10.9.0.1/24", "dev", "wan")
        first = await listed(passed, tmp_path)
        open_sockets.enter_context(opened(net, kind, address, 80, device))
        (own,) = (await listed(passed, tmp_path)).items()
        open_sockets.enter_context(opened(net, kind, "127.0.0.3", 80))
        both = await listed(passed, tmp_path)
    assert first == {}
    assert own[0] == name
    assert own[1]["exposed"] == exposed
    assert own[1].get("interface", "") == device
    assert len(both) == 2
    assert both[name] == own[1]


async def listed(passed: socket.socket, folder: Path) -> dict[str, Any]:
    """Return the ports of a network by name."""
    report = Report()
    source = sockets.Sockets(passed, services=ServiceNames(folder / "none"))
    task = asyncio.create_task(source.observe(report))
    await report.news.wait()
    await cancel([task])
    return dict(report.take().kinds["listener"])


async def test_a_units_change_is_followed_by_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bus_address: str
) -> None:
    """After a unit has changed, ports are listed at once and not only after a minute."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus_address)
    async with fake_service(bus_address, "org.freedesktop.systemd1") as pid1:
        pid1.answers["org.freedesktop.systemd1.Manager.Subscribe"] = lambda _: ("", [])
        async with watched(tmp_path, (0.01, 600.0)) as (net, host):
            await host.until(lambda: bool(pid1.calls))
            with opened(net, socket.SOCK_STREAM, "127.0.0.1", 22):
                tell(pid1)
                await host.until_shown("net/listener/tcp 127.0.0.1:22")
            tell(pid1)
            await host.until(lambda: host.names == set())


async def test_ports_of_socket_units(monkeypatch: pytest.MonkeyPatch, bus_address: str) -> None:
    """A port that process 1 opened is found by the socket unit that listens there."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus_address)
    listens = {
        "ssh.socket": [("Stream", "[::]:22")],
        "log.socket": [("Datagram", "0.0.0.0:514")],
        "lan.socket": [("Stream", "0.0.0.0:80"), ("Stream", "/run/lan")],
        "link.socket": [("Datagram", "[fe80::1]:546%wan")],
    }
    paths = {f"{PATH}/unit/{number}": unit for number, unit in enumerate([*listens, "gone.socket"])}
    rows = [[unit, *[""] * 5, path, 0, "", "/"] for path, unit in paths.items()]
    async with fake_service(bus_address, "org.freedesktop.systemd1") as pid1:
        list_units = "org.freedesktop.systemd1.Manager.ListUnitsByPatterns"
        pid1.answers[list_units] = lambda *_: ("a(ssssssouso)", [rows])
        for path, unit in paths.items():
            if unit in listens:
                device = "lan" if unit == "lan.socket" else ""
                properties = {"Listen": Typed("a(ss)", listens[unit]), "BindToDevice": device}
                pid1.properties[path] = properties
        assert await socket_units() == {
            "tcp [::]:22": "ssh.socket",
            "udp 0.0.0.0:514": "log.socket",
            "tcp 0.0.0.0%lan:80": "lan.socket",
            "tcp %lan:/run/lan": "lan.socket",
            "udp [fe80::1]%wan:546": "link.socket",
        }


class AllInOne(ControlGroups):
    """Groups that all are of one unit."""

    def units(self, ids: Collection[int]) -> Mapping[int, str]:
        """Name that unit."""
        return dict.fromkeys(ids, "a.service")


class Purposes(LookupCache[str, str]):
    """What units are for; says when it was first forgotten, which is when units are followed."""

    def __init__(self) -> None:
        super().__init__("")
        self.forgotten = asyncio.Event()

    def clear(self) -> None:
        """Forget all of it."""
        super().clear()
        self.forgotten.set()


async def test_a_port_is_for_what_its_unit_is_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bus_address: str
) -> None:
    """The unit says better than /etc/services what a port is for; it is asked once a reload."""
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus_address)
    row = ["a.service", "Ticket portal", *["", "", "", ""], f"{PATH}/unit/a", 0, "", "/"]
    async with fake_service(bus_address, "org.freedesktop.systemd1") as pid1:
        asked: list[list[str]] = []
        purposes = Purposes()
        pid1.answers["org.freedesktop.systemd1.Manager.Subscribe"] = lambda _: ("", [])
        pid1.answers["org.freedesktop.systemd1.Manager.ListUnitsByPatterns"] = (
            lambda _path, _states, names: asked.append(names) or ("a(ssssssouso)", [[row]])
        )
        async with watched(tmp_path, groups=AllInOne(), purposes=purposes) as (net, host):
            await purposes.forgotten.wait()
            with opened(net, socket.SOCK_STREAM, "127.0.0.1", 22):
                described = "Ticket portal, for this machine only"
                name = "net/listener/tcp 127.0.0.1:22"
                await host.until_shown(name, description=described)
                assert asked == [["a.service"]]
                row[1] = "Coffee"
                manager = "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager.Reloading"
                for begins in (True, False):
                    pid1.signal(*manager, "b", begins)
                await host.until_shown(name, description="Coffee, for this machine only")
    assert asked == [["a.service"]] * 2


@pytest.mark.parametrize("is_late", [True, False])
async def test_a_port_that_outlived_a_restart_was_not_closed_by_it(
    tmp_path: Path, *, is_late: bool
) -> None:
    """What ended its unit before a port was last listed did not close it, and later that did."""
    name, causes, noted = "net/listener/tcp 127.0.0.1:22", [], []
    with own_network() as net, net.netlink(DIAG) as passed:
        observer = sockets.Sockets(
            passed, AllInOne(), ServiceNames(tmp_path), seconds=(0.05,), ending_seconds=0.5
        )

        async def observe(report: Report) -> None:
            causes.append(report.causes)
            noted.append(time.monotonic())
            report.causes.note_job("a.service", "job:7 restart")
            await observer.observe(report)

        async with observed(tmp_path, Observer("sockets", "net", observe)) as host:
            with opened(net, socket.SOCK_STREAM, "127.0.0.1", 22):
                await host.until_shown(name)
                # it was listed so long after the restart, however busy the machine is
                await host.until(lambda: observer.listed_at[0] > noted[0] + 0.7)
                if is_late:
                    causes[0].note_job("a.service", "exit")
            await host.until(lambda: host.names == set())
            last = history(tmp_path)[-1]
    assert (last["what"], last["cause"]) == ("gone", "exit" if is_late else "")


def tell(pid1: FakeService) -> None:
    """Say that a unit has changed."""
    path = f"{PATH}/unit/a_2eservice"
    pid1.properties[path] = {}
    pid1.changed(path, "org.freedesktop.systemd1.Unit", ActiveState="active")


@pytest.mark.parametrize("place", [".", "unified"])
def test_the_unit_of_a_control_group(tmp_path: Path, place: str) -> None:
    """A group's id is its folder's number; whose it is, is remembered, be it nobody's."""
    assert ControlGroups([tmp_path]).units([7]) == {7: ""}
    top = tmp_path / place
    slice_ = top / "system.slice" / "system-getty.slice"
    service = slice_ / "getty@tty1.service"
    inner = service / "inner.scope"
    kernel = top / "system.slice" / "_cgroup.service"
    for folder in (inner, kernel):
        folder.mkdir(parents=True)
    (top / "cgroup.controllers").touch()
    groups = ControlGroups([tmp_path, tmp_path / "unified"])
    ids = {path: path.stat().st_ino for path in (slice_, service, inner, kernel)}
    found = groups.units([*ids.values(), 1])
    assert [found[ids[path]] for path in (slice_, service, inner, kernel)] == [
        *("", "getty@tty1.service", "getty@tty1.service", "cgroup.service")
    ]
    assert found[1] == ""
    service.rename(slice_ / "other.service")
    assert groups.units([1])[1] == ""
    assert groups.units([ids[service]])[ids[service]] == "getty@tty1.service"


async def test_what_of_the_names_of_services_is_not_understood(tmp_path: Path) -> None:
    """A name, and a comment, keep what is in them; a line without a port is noted."""
    services = " \todd\u2028name 22/tcp alias # of\x0bours\xa0x\nbroken 23\n# c\n\nx 24 /tcp\n"
    async with watched(tmp_path) as (net, host):
        (tmp_path / "services").write_text(services)
        with opened(net, socket.SOCK_STREAM, EVERYWHERE, 22):
            name = "net/listener/tcp 0.0.0.0:22"
            shown = await host.until_shown(name, service="odd\u2028name")
            assert shown["description"] == "odd\u2028name: of\x0bours\xa0x, open to other machines"
            file = tmp_path / "services"
            await host.until(
                lambda: host.status.detail == f"2 lines not understood: {file}:2, {file}:5"
            )
