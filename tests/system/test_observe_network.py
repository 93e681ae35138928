"""The host's network and ports as a sandboxed service sees them, through sockets of systemd."""

from collections.abc import Iterator
from contextlib import contextmanager

from system.host import Host
from system.observing import until_shown
from system.service import UNIT, Service

SOCKETS = tuple(f"op-dbus-{name}.socket" for name in ("route", "diag", "uevent"))
# ends well where the sandbox refuses every family but AF_UNIX
REFUSED = """
import errno, socket
for family in (socket.AF_NETLINK, socket.AF_INET, socket.AF_INET6):
    try:
        socket.socket(family, socket.SOCK_RAW if family == socket.AF_NETLINK else 0)
    except OSError as error:
        assert error.errno == errno.EAFNOSUPPORT, error
    else:
        raise AssertionError(family)
"""
WEB = ("/usr/bin/python3", "-m", "http.server", "--bind", "127.0.0.1", "8123")


@contextmanager
def address(host: Host, text: str) -> Iterator[None]:
    """Give the host an address, and take it away again."""
    host.ask("ip", "address", "add", text, "dev", "lo")
    try:
        yield
    finally:
        host.ask("ip", "address", "del", text, "dev", "lo")


def disturb(host: Host) -> None:
    """Let the kernel tell of many changes, and open and close a port."""
    for number in range(6):
        with address(host, f"198.51.100.{number}/32"):
            pass
    host.run("systemd-run", "--wait", "--quiet", "--collect", "timeout", "0.5", *WEB)


def states(host: Host) -> list[str]:
    """Say how the service and its sockets are."""
    return [host.show(unit, "ActiveState") for unit in (UNIT, *SOCKETS)]


def test_the_hosts_addresses_are_seen_from_the_sandbox(host: Host, observer: Service) -> None:
    """An address of the host is an object as long as it is there; the sandbox sees no network."""
    host.write("/run/refused.py", REFUSED)
    observer.drop_in("ExecStartPre=/usr/bin/python3 /run/refused.py")
    observer.observe("network")
    with address(host, "192.0.2.10/28"):
        until_shown(observer, "net/address/192.0.2.10/28 on lo", scope="global", prefix=28)
    until_shown(observer, "net/address/192.0.2.10/28 on lo")


def test_a_port_and_its_unit(host: Host, observer: Service) -> None:
    """A port has the name of the unit that opened it, be it a socket unit, until that stops."""
    observer.observe("sockets")
    name = "net/listener/tcp 127.0.0.1:8123"
    host.ask("systemd-run", "--unit=local-pages", "--property=User=op-dbus", *WEB)
    try:
        until_shown(
            observer, name, unit="local-pages.service", user="op-dbus", exposed="local only"
        )
    finally:
        host.ask("systemctl", "stop", "local-pages.service")
    until_shown(observer, name)
    listen = "--socket-property=ListenStream=127.0.0.1:8124"
    host.ask("systemd-run", "--unit=late", listen, "/bin/true")
    try:
        until_shown(observer, "net/listener/tcp 127.0.0.1:8124", unit="late.socket", user="root")
    finally:
        host.ask("systemctl", "stop", "late.socket")


def test_sockets_start_and_stop_with_the_service(host: Host, service: Service) -> None:
    """After a stop the service stays down, whatever the network does; a boot has no cycle."""
    assert states(host) == ["active"] * 4
    service.systemctl("restart")
    assert states(host) == ["active"] * 4
    service.systemctl("stop")
    disturb(host)
    assert states(host) == ["inactive"] * 4
    service.systemctl("enable")
    try:
        done = host.run("systemd-analyze", "verify", "multi-user.target", "sockets.target", UNIT)
        assert "cycle" not in done.stderr
    finally:
        service.systemctl("disable")


def test_a_service_that_ended_for_good_stays_down(host: Host, service: Service) -> None:
    """After a fault that no start mends, no message of the kernel starts the service again."""
    service.systemctl("stop")
    service.configure(OBSERVE="auto", EXECUTION_PROVIDER="cuda")
    after = host.cursor()
    host.run("systemctl", "start", UNIT)
    service.until_failed(after)
    disturb(host)
    assert states(host) == ["failed", *["inactive"] * 3]
    assert service.show("NRestarts") == "0"


def test_a_killed_service_has_its_sockets_again(host: Host, observer: Service) -> None:
    """What happened on the network while the service was away is seen when it is back."""
    observer.drop_in("RestartSec=3")
    observer.observe("network")
    after = host.cursor()
    observer.systemctl("kill", "--signal=KILL")
    observer.until_failed(after)
    with address(host, "192.0.2.20/28"):
        observer.until_started(after)
        until_shown(observer, "net/address/192.0.2.20/28 on lo", prefix=28)
    assert states(host) == ["active"] * 4
