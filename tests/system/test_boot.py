"""The booted host itself: what it is, and what is left of it when a test run is killed."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import booting
import pytest
from host import Host


def test_process_one_is_systemd(host: Host) -> None:
    """It booted whole, has a bus, and shares no process, network or kernel setting with us."""
    assert host.ask("cat", "/proc/1/comm") == "systemd"
    assert host.run("systemctl", "--failed", "--quiet", "--no-legend").stdout == ""
    assert host.ask("systemctl", "is-active", "dbus.service") == "active"
    assert host.ask("ls", "/sys/class/net") == "lo"
    assert host.run("sh", "-c", "echo x >/proc/sys/kernel/hostname").returncode != 0


@pytest.fixture
def killed(layer: Path) -> Iterator[int]:
    """Give the first process of a host whose test run is killed."""
    assert layer
    hold = [sys.executable, booting.__file__, "dbus", "sleep", "infinity"]
    with subprocess.Popen(hold) as run:
        [init] = iter(lambda: _systemd_below(run.pid), [])
        yield init
"""
"""
