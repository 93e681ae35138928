"""Mirrors of real services: NetworkManager and UDisks2, where they are installed."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness.observing import observed
from harness.running import Bus

from opdbus.observe.dbus.mirror import Mirror

UDISKS = "/usr/libexec/udisks2/udisksd"
KEY = "hunter2secret"
needs_udisks = pytest.mark.skipif(
    not Path(UDISKS).exists(), reason="there is no UDisks2: apt install udisks2"
)
needs_network_manager = pytest.mark.skipif(
    not shutil.which("NetworkManager") or os.geteuid() != 0,
    reason="NetworkManager is not there, or this is not root: apt install network-manager",
)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a private bus as the system's."""
    bus = Bus()
    monkeypatch.setenv("DBUS_SYSTEM_BUS_ADDRESS", bus.address)
    yield bus.address
    bus.kill()


@contextmanager
def started(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        yield process
        process.kill()


@needs_udisks
async def test_udisks(system: str, tmp_path: Path) -> None:
    """It is listed, and its objects are gone with it."""
    assert system
    async with observed(tmp_path, Mirror("org.freedesktop.UDisks2").observer) as host:
        with started(UDISKS):
            found = await host.until_shown("udisks2/manager/Manager")
            assert "ext4" in found["supported_filesystems"]
        await host.until(lambda: host.status.state == "absent" and not host.names)


@needs_network_manager
async def test_network_manager(system: str, tmp_path: Path) -> None:
    """An interface comes and goes, and a connection's secret is read by nobody."""
    assert system
    config, profiles = tmp_path / "nm.conf", tmp_path / "profiles"
    profiles.mkdir()
    config.write_text(f"[main]\nplugins=keyfile\n[keyfile]\npath={profiles}\n")
    state = tmp_path / "nm.state"
    manager = ("NetworkManager", "-n", "--config", str(config), "--state-file", str(state))
    with started("unshare", "--net", *manager) as process:
        inside = ("nsenter", f"--net=/proc/{process.pid}/ns/net")
        observer = Mirror("org.freedesktop.NetworkManager").observer
        async with observed(tmp_path, observer) as host:
            await host.until_shown("networkmanager/device/lo", interface="lo")
            do(*inside, "ip", "link", "add", "probe0", "type", "bridge")
            await host.until_shown("networkmanager/device/probe0", driver="bridge")
            wifi = ("type", "wifi", "con-name", "Home", "ssid", "home")
            secret = ("wifi-sec.key-mgmt", "wpa-psk", "wifi-sec.psk", KEY)
            do("nmcli", "connection", "add", *wifi, *secret)
            await host.until_shown("networkmanager/settings_connection/Home")
            await host.until_shown("networkmanager/settings/Settings", connections=["Home"])
            do(*inside, "ip", "link", "del", "probe0")
            await host.until(lambda: "networkmanager/device/probe0" not in host.names)
    assert KEY in (profiles / "Home.nmconnection").read_text()
    assert KEY.encode() not in (tmp_path / "memory.db").read_bytes()


def do(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, capture_output=True, timeout=30)
