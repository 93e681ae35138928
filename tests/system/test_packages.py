"""Packages and their configuration files, as the service sees them from inside its sandbox."""

import shutil
from pathlib import Path

from harness.debian import build, needs_dpkg

from system.host import Host
from system.observing import shown
from system.service import CHANGES, Service

CONFIGURATION = "/etc/op-dbus-demo.conf"
PACKAGE, FILE = "packages/package/op-dbus-demo", f"files/file/{CONFIGURATION}"


@needs_dpkg
def test_packages_and_files(host: Host, observer: Service, tmp_path: Path) -> None:
    """What dpkg installs and removes, and what an administrator edits, reaches the objects."""
    package = build(tmp_path, "op-dbus-demo", files={CONFIGURATION: "a=1\n"})
    shutil.copy(package, host.path("/root/demo.deb"))
    observer.observe("packages,files")
    with host.monitor(*CHANGES) as heard:
        assert shown(host, "packages/package/dpkg")["status"] == "installed"
        host.ask("dpkg", "--install", "/root/demo.deb")
        heard.until(lambda: shown(host, PACKAGE).get("status") == "installed")
        heard.until(lambda: shown(host, FILE).get("modified") is False)
        host.write(CONFIGURATION, "a=2\n")
        heard.until(lambda: shown(host, FILE).get("modified") is True)
        host.ask("chmod", "640", CONFIGURATION)
        heard.until(lambda: shown(host, FILE).get("readable") is False)
        host.ask("dpkg", "--remove", "op-dbus-demo")
        heard.until(lambda: shown(host, PACKAGE).get("removed"))
        host.ask("dpkg", "--purge", "op-dbus-demo")
        heard.until(lambda: not shown(host, PACKAGE) and not shown(host, FILE))
