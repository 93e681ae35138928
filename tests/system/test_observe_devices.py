"""Devices, the kernel and cron of a booted host, as the sandboxed service sees them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from system.host import Host
from system.observing import rows, shown, until_shown
from system.service import STATE, Service

# This machine's own: what is inside sees its devices, and its settings read-only.
CONTROL = Path("/sys/class/zram-control")
OBSERVED = "kernel,cron"
SOCKET = "op-dbus-uevent.socket"


@contextmanager
def memory_disk() -> Iterator[Path]:
    """Add a real block device to this machine's kernel, one without hardware."""
    try:
        number = (CONTROL / "hot_add").read_text().strip()
    except OSError:
        pytest.skip("this kernel has no zram that may be added")
    try:
        yield Path("/sys/class/block", f"zram{number}")
    finally:
        for _ in range(50):
            try:
                (CONTROL / "hot_remove").write_text(number)
            except OSError:  # it is in use for a moment
                time.sleep(0.1)
            else:
                break


def states(service: Service) -> dict[str, list[str]]:
    """Give the state and the detail of each observer."""
    return {row[0]: [row[1], row[3]] for row in service.get("Observers", STATE)}


def test_settings_of_the_kernel_that_differ(host: Host, observing: Service) -> None:
    """A file of sysctl.d that wants another value than there is shows so, until it is removed."""
    parameter = Path("/proc/cmdline").read_text().split()[0].partition("=")[0]
    assert shown(host, f"kernel/parameter/{parameter}")
    earlier = rows(host)
    now = Path("/proc/sys/vm/swappiness").read_text().strip()
    before = observing.get("Count", STATE)
    file = "/etc/sysctl.d/90-test.conf"
    host.write(file, "vm.swappiness = 7\nnet.ipv4.ip_forward = 1\n")
    until_shown(observing, "kernel/sysctl/vm.swappiness", value=now, wanted="7", differs=True)
    forwarding = shown(host, "kernel/sysctl/net.ipv4.ip_forward")
    assert forwarding["wanted"] == "1"
    assert "value" not in forwarding
    assert forwarding["not_measured"]
    assert observing.get("Count", STATE) == before + 2
    host.ask("rm", file)
    until_shown(observing, "kernel/sysctl/vm.swappiness")
    assert observing.get("Count", STATE) == before
    names = ("net.ipv4.ip_forward", "vm.swappiness")
    told = [(what, "sysctl", name, "") for what in ("appeared", "gone") for name in names]
    assert sorted(rows(host)[len(earlier) :]) == told


def test_a_job_of_cron_comes_changes_and_goes(host: Host, observing: Service) -> None:
    """A file in cron.d is an object with its schedule in words until it is removed."""
    before = observing.get("Count", STATE)
    file = "/etc/cron.d/shop"
    name = f"cron/job/{file} save-orders --token [redacted]"
    earlier = rows(host)
    host.write(file, "10 3 * * * root /opt/save-orders --token hunter2\n")
    until_shown(observing, name, schedule="every day at 03:10", user="root")
    assert "hunter2" not in str(shown(host, name))
    host.write(file, "10 4 * * * root /opt/save-orders --token hunter2\n")
    until_shown(observing, name, schedule="every day at 04:10")
    assert observing.get("Count", STATE) == before + 1
    host.ask("chmod", "600", file)
    until_shown(observing, f"cron/job/{file}", readable=False)
    assert not shown(host, name)
    host.ask("rm", file)
    until_shown(observing, f"cron/job/{file}")
    assert observing.get("Count", STATE) == before
    whats = ("appeared", "changed", "gone", "appeared", "gone")
    told = rows(host)[len(earlier) :]
    assert sorted(row[0] for row in told) == sorted(whats)
    assert {(row[1], row[3]) for row in told} == {("job", "")}
    host.ask("chmod", "700", "/etc/cron.weekly")
    closed = "/etc/cron.weekly may be read by root only"
    with host.monitor() as heard:
        heard.until(lambda: closed in states(observing)["cron"][1])
    host.ask("chmod", "755", "/etc/cron.weekly")
    assert "/var/spool/cron" in states(observing)["cron"][1]


def test_a_device_comes_and_goes(host: Host, observer: Service) -> None:
    """A block device is seen from the sandbox by its event, and nothing else changes."""
    observer.observe("devices")
    assert states(observer)["devices"] == ["up", ""]
    earlier = rows(host)
    with memory_disk() as disk:
        before = observer.get("Count", STATE)
        (disk / "disksize").write_text("64M")
        # the kernel tells of the size by no event; this one is replayed
        (disk / "uevent").write_text("change")
        until_shown(observer, f"devices/block/{disk.name}", size_gb=0.067, type="compressed memory")
        assert observer.get("Count", STATE) == before + 1
    until_shown(observer, f"devices/block/{disk.name}")
    assert observer.get("Count", STATE) == before
    told = [(what, "block", disk.name, "kernel") for what in ("appeared", "gone")]
    assert rows(host) == [*earlier, *told]


def test_without_its_socket_it_says_how_often_it_looks(host: Host, observer: Service) -> None:
    """Where systemd passes no socket, devices are listed all the same, every minute."""
    host.ask("systemctl", "mask", "--runtime", SOCKET)
    try:
        observer.observe("devices,kernel")
        for name, (state, detail) in states(observer).items():
            assert state == "up"
            # of a kernel without modules none is listed
            if name == "devices" or Path("/proc/modules").exists():
                assert "every minute" in detail
                assert SOCKET in detail
    finally:
        host.ask("systemctl", "unmask", "--runtime", SOCKET)
