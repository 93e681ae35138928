"""The booted host itself: what it is, and what is left of it when a test run is killed."""

import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from system import booting
from system.host import PATIENCE_SECONDS, Host


@pytest.mark.each_bus
def test_process_one_is_systemd(host: Host) -> None:
    """It booted whole, has a bus, and shares no network, clock and kernel setting with us."""
    assert host.ask("cat", "/proc/1/comm") == "systemd"
    assert host.ask("systemctl", "--failed", "--quiet", "--no-legend") == ""
    assert host.ask("systemctl", "is-active", "dbus.service") == "active"
    assert host.ask("ls", "/sys/class/net") == "lo"
    assert host.run("sh", "-c", "echo x >/proc/sys/kernel/hostname").returncode != 0
    # what enters from outside could still set it
    set_now = 'date --set "$(date --rfc-3339=seconds)"'
    done = host.run("systemd-run", "--wait", "--pipe", "--quiet", "sh", "-c", set_now)
    assert "cannot set date: Operation not permitted" in done.stderr


@pytest.fixture
def run() -> Iterator[subprocess.Popen[str]]:
    """Start a test run of its own, which has booted a host."""
    if reason := booting.why_not():
        pytest.skip(reason)
    boot = [sys.executable, "-m", booting.__name__, "dbus"]
    hold = ["sh", "-c", "echo up; exec sleep infinity"]
    tests = Path(__file__).parents[1]
    with subprocess.Popen([*boot, *hold], cwd=tests, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stdout.readline() == "up\n"
        yield run
        run.kill()


def test_a_killed_run_leaves_nothing(run: subprocess.Popen[str]) -> None:
    """When a test run is killed, its host ends with it; the next run removes its empty folders."""
    prefix = f"{booting.PREFIX}{run.pid}-"
    processes = {pid for group in booting.groups(prefix) for pid in _processes(group)}
    assert processes
    ends = [os.pidfd_open(pid) for pid in processes]
    run.kill()
    for end in ends:
        assert select.select([end], [], [], PATIENCE_SECONDS)[0]
        os.close(end)
    run.wait()
    booting.sweep()
    assert booting.groups(prefix) == []
    assert list(Path(tempfile.gettempdir()).glob(f"{prefix}*")) == []
    assert prefix not in Path("/proc/self/mountinfo").read_text()


def _processes(group: Path) -> Iterator[int]:
    for procs in group.rglob("cgroup.procs"):
        yield from map(int, procs.read_text().split())
