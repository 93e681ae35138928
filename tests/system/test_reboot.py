"""A reboot of a booted host: history has it as an event, with who brought it about."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opdbus.history.change import REBOOT
from system.booting import booted
from system.host import Host
from system.observing import shown
from system.service import CHANGES, STORE, UNITS, Service

PUBLISHER = "op-dbus-journal.service"
READER = "journal/reader/op-dbus-journal"
LINE = "     bob : PWD=/ ; USER=root ; COMMAND=/usr/bin/systemctl reboot"


@contextmanager
def boot_once(layer: Path, kept: Path) -> Iterator[Service]:
    """Boot a host whose disk is a folder with its store, and shut it down."""
    with booted("dbus", layer) as host:
        disk = host.path(STORE)
        disk.mkdir(exist_ok=True)
        subprocess.run(["cp", "--archive", f"{kept}/.", disk], check=True)
        service = Service(host)
        service.declare(UNITS)
        service.observe("systemd")
        yield service
        service.systemctl("stop")
        subprocess.run(["cp", "--archive", f"{disk}/.", kept], check=True)


def reboots(host: Host) -> list[dict[str, Any]]:
    """Give the rows of history that are reboots."""
    text = host.ask("op-dbus", "changes", "--json")
    return [row for row in map(json.loads, text.splitlines()) if row["cause"] == REBOOT]


def test_who_rebooted_the_host(layer: Path, tmp_path: Path) -> None:
    """The run after a reboot has one event of it, by the user whose command it was."""
    with boot_once(layer, tmp_path) as first:
        host = first.host
        assert reboots(host) == []
        host.ask("systemctl", "enable", "--now", PUBLISHER)
        with host.monitor(*CHANGES) as heard:
            heard.until(lambda: shown(host, READER))
        # the image may have no sudo: the line that it logs
        host.ask("logger", "--tag", "sudo", LINE)
        with host.monitor(*CHANGES) as heard:
            heard.until(lambda: "systemctl reboot" in str(shown(host, "journal/user/bob")))
    with boot_once(layer, tmp_path) as second:
        (row,) = reboots(second.host)
        assert row["what"] == "event"
        assert row["by"].startswith("bob with sudo"), row
        told = " ".join(second.host.ask("op-dbus", "ask", "who rebooted this host?").split())
        assert "by bob with sudo" in told, told
