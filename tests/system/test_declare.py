"""A booted host that was declared as it is drifts in nothing, and then in what is changed."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.debian import build, needs_dpkg

from system.host import Host, Monitor
from system.service import CHANGES, STATE_FILE, Service

KEPT = "op-dbus-kept"
SERVICE, PACKAGE, FILE = "declared.service", "op-dbus-demo", "/etc/op-dbus-demo.conf"
PORT = "tcp 127.0.0.1:8125"
WEB = "/usr/bin/python3 -m http.server --bind 127.0.0.1 8125".split()
CHANGED = {"sudo", SERVICE, PACKAGE, FILE, PORT}


@pytest.fixture
def as_it_should_be(host: Host, observer: Service, tmp_path: Path) -> Iterator[Service]:
    """Give the service on a host with a unit, a package and its file."""
    unit = f"/usr/lib/systemd/system/{SERVICE}"
    started = "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n"
    host.write(unit, started)
    host.ask("systemctl", "daemon-reload")
    host.ask("systemctl", "enable", "--now", SERVICE)
    for name, files in ((PACKAGE, {"/usr/share/demo": ""}), (KEPT, {FILE: "a=1\n"})):
        shutil.copy(build(tmp_path, name, files=files), host.path(f"/root/{name}.deb"))
        host.ask("dpkg", "--install", f"/root/{name}.deb")
    host.write(STATE_FILE, '{"version": 1, "plugins": {}}')
    observer.observe("auto", level="none")
    yield observer
    host.run("systemctl", "disable", "--now", SERVICE)
    host.run("systemctl", "stop", "opened.service")
    host.path(unit).unlink()
    host.ask("systemctl", "daemon-reload")
    host.run("dpkg", "--purge", PACKAGE, KEPT)
    host.run("gpasswd", "--delete", "member", "sudo")


def _drifting(host: Host) -> set[str]:
    # it waits 15 seconds for observers, and a busy host may take longer
    for _ in range(8):
        done = host.run("op-dbus", "drift", "--json")
        if "not all is known yet" not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return {row["name"] for row in json.loads(done.stdout)["drifts"]}


def _told(heard: Monitor) -> int:
    """Count the objects whose drift was signalled."""
    return len({m["payload"]["data"][0] for m in heard.heard if m.get("member") == "DriftDetected"})


def _drift(host: Host) -> str:
    return " ".join(host.ask("op-dbus", "drift").split())


@needs_dpkg
def test_a_declared_host_drifts_in_what_is_changed(host: Host, as_it_should_be: Service) -> None:
    """Declare a whole host: nothing drifts, then each change is named, also after a restart."""
    service = as_it_should_be
    file = host.ask("op-dbus", "declare")
    plugins = json.loads(file)["plugins"]
    assert plugins["systemd"]["units"][SERVICE] == {"active_state": "active", "enabled": True}
    assert plugins["packages"]["packages"][PACKAGE] == {"ensure": "installed"}
    assert plugins["files"]["files"][FILE] == {"mode": "0644", "owner": "root", "modified": False}
    host.write(STATE_FILE, file)
    # what drifts is known once the service has been restarted and has seen all
    service.systemctl("restart")
    assert _drifting(host) == set()
    with host.monitor(*CHANGES) as heard:
        host.ask("usermod", "--append", "--groups", "sudo", "member")
        host.ask("systemctl", "disable", SERVICE)
        host.write(FILE, "a=2\n")
        host.ask("chown", "member", FILE)
        host.ask("dpkg", "--remove", PACKAGE)
        host.ask("systemd-run", "--unit=opened", *WEB)
        heard.until(lambda: _told(heard) >= len(CHANGED) and "not root" in _drift(host))
    assert f"{FILE}: owner declared root, observed not root" in _drift(host)
    assert _drifting(host) == CHANGED
    service.systemctl("restart")
    assert _drifting(host) == CHANGED
    named = ["users/group/sudo", SERVICE, f"packages/package/{PACKAGE}", f"files/file/{FILE}"]
    host.ask("op-dbus", "declare", "--update", STATE_FILE, *named, f"net/listener/{PORT}")
    service.systemctl("restart")
    assert _drifting(host) == set()
