"""Metrics on a booted host: a timer of its own leaves them where node_exporter looks."""

import json
from collections.abc import Iterator
from time import monotonic, sleep

import pytest

from system.host import Host
from system.observing import until_shown
from system.service import Service

TIMER, WRITER = "op-dbus-metrics.timer", "op-dbus-metrics.service"
FOLDER = "/var/lib/prometheus/node-exporter"
FILE = f"{FOLDER}/op-dbus.prom"
SECONDS = 120


@pytest.fixture
def collector(host: Host) -> Iterator[None]:
    """Have the folder that the collector's package makes."""
    host.ask("mkdir", "-p", FOLDER)
    yield
    host.run("systemctl", "reset-failed", "broken.service")
    host.run("systemctl", "disable", "--now", TIMER)
    host.run("rm", "-rf", FOLDER)


def until_written(host: Host, line: str) -> None:
    """Wait until the file has a line."""
    end = monotonic() + SECONDS
    while line not in (told := host.run("cat", FILE).stdout).splitlines():
        state = host.run("systemctl", "status", WRITER).stdout
        assert monotonic() < end, f"{line} is not among {told}\n{state}"
        sleep(0.1)


@pytest.mark.usefixtures("collector")
def test_metrics_are_left_for_the_collector(host: Host, observer: Service) -> None:
    """Once the timer is enabled, a file that all may read says what is, also of a dead daemon."""
    service = observer
    service.observe()
    assert host.run("systemctl", "is-enabled", TIMER).stdout.strip() == "disabled"
    host.ask("systemd-run", "--unit=broken", "sh", "-c", "exit 3")
    until_shown(service, "systemd/unit/broken.service", active_state="failed")
    host.ask("systemctl", "enable", "--now", TIMER)
    until_written(host, "opdbus_up 1")
    assert host.ask("stat", "--format=%a %U", FILE) == "644 root"
    assert host.ask("ls", "-A", FOLDER) == "op-dbus.prom"
    failed = json.loads(host.ask("op-dbus", "list", "--where", "active_state=failed", "--json"))
    host.ask("systemctl", "start", WRITER)
    until_written(host, f'opdbus_units{{state="failed"}} {failed["total"]}')
    until_written(host, 'opdbus_observer_up{observer="systemd"} 1')
    service.systemctl("stop")
    host.ask("systemctl", "start", WRITER)
    until_written(host, "opdbus_up 0")
    # it is not started by being asked
    assert service.show("ActiveState") == "inactive"
    assert host.run("systemctl", "is-failed", WRITER).stdout.strip() == "inactive"
    assert "metrics: on" in host.run("op-dbus", "doctor").stdout
    # without the collector's folder nothing is written, which nothing else says
    host.ask("rm", "-r", FOLDER)
    host.ask("systemctl", "start", WRITER)
    assert "metrics: the timer is on, and nothing is" in host.run("op-dbus", "doctor").stdout
