"""What of a booted host is other than declared: each beginning and each end is told once."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from system.host import Host, Monitor
from system.service import CHANGES, STATE_FILE, Service

UNIT = "drifter.service"
MEMBER = "DriftDetected"


class Drifting:
    """A service that knows what is declared, and what it tells of that."""

    def __init__(self, host: Host, heard: Monitor) -> None:
        self.host = host
        self._heard = heard

    def told(self, name: str) -> list[tuple[str, str, list[str]]]:
        """Give what was signalled of an object: class, severity, fields."""
        escaped = name.replace(".", "_2e").replace("-", "_2d")
        bodies = [m["payload"]["data"] for m in self._heard.heard if m.get("member") == MEMBER]
        return [tuple(body[1:]) for body in bodies if body[0].endswith(f"/{escaped}")]

    def until_told(self, name: str, *told: tuple[str, str, list[str]]) -> None:
        """Wait until just this was signalled of an object, from the first on."""
        self._heard.until(lambda: len(self.told(name)) >= len(told))
        assert self.told(name) == list(told)

    def until(self, is_so: Callable[[], object]) -> None:
        """Wait until something is so."""
        self._heard.until(is_so)

    def fields(self, name: str) -> list[tuple[Any, ...]]:
        """Give the fields in which an object differs, with both values."""
        rows = json.loads(self.host.ask("op-dbus", "drift", "--json"))["drifts"]
        return [
            (field["path"], field["declared"], field["observed"])
            for row in rows
            if row["name"] == name
            for field in row["fields"]
        ]


@pytest.fixture
def drifting(host: Host, observer: Service) -> Iterator[Callable[..., Any]]:
    """Give what declares something, and listens."""
    host.write(
        f"/usr/lib/systemd/system/{UNIT}",
        "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nWantedBy=multi-user.target\n",
    )
    host.ask("systemctl", "daemon-reload")
    host.ask("systemctl", "enable", "--now", UNIT)
    with host.monitor(*CHANGES) as heard:

        def declare(observers: str, **plugins: Any) -> Drifting:
            host.write(STATE_FILE, json.dumps({"version": 1, "plugins": plugins}))
            observer.observe(observers)
            return Drifting(host, heard)

        yield declare
    host.run("systemctl", "disable", "--now", UNIT)
    host.path(f"/usr/lib/systemd/system/{UNIT}").unlink()
    host.ask("systemctl", "daemon-reload")


def test_a_unit_that_drifts_and_heals(host: Host, drifting: Callable[..., Drifting]) -> None:
    """A unit that is stopped, disabled or fails drifts once and heals once, with values."""
    declared = {"active_state": "active", "enabled": True, "masked": False}
    drift = drifting("systemd", systemd={"units": {UNIT: declared}})
    told: list[tuple[str, str, list[str]]] = []

    def crosses(severity: str, *fields: tuple[Any, ...]) -> None:
        told.append(("drift", severity, [field[0] for field in fields]))
        drift.until_told(UNIT, *told)
        assert drift.fields(UNIT) == list(fields)

    def heals(severity: str) -> None:
        told.append(("healed", severity, []))
        drift.until_told(UNIT, *told)

    host.ask("systemctl", "stop", UNIT)
    crosses("error", ("active_state", "active", "inactive"))
    host.ask("systemctl", "start", UNIT)
    heals("error")
    for _ in range(3):
        host.ask("systemctl", "restart", UNIT)
    host.ask("systemctl", "disable", UNIT)
    crosses("warning", ("enabled", True, "disabled"))
    host.ask("systemctl", "enable", UNIT)
    heals("warning")
    host.ask("systemctl", "kill", "--signal=KILL", UNIT)
    crosses("error", ("active_state", "active", "failed"))
    host.ask("systemctl", "start", UNIT)
    heals("error")
    assert drift.fields(UNIT) == []
    rows = map(json.loads, host.ask("op-dbus", "history", UNIT, "--json").splitlines())
    # another change of the unit may be seen between two that count
    causes = [
        re.split("[:,]", row["cause"])[0] for row in rows if row["what"] in {"drift", "healed"}
    ]
    assert causes == ["job", "job", "reload", "reload", "exit", "job"]


def test_what_has_failed_comes_first(host: Host, drifting: Callable[..., Drifting]) -> None:
    """A unit declared active that has failed is listed above all else, and ends a script by 10."""
    host.run("systemd-run", "--unit=zombie", "sh", "-c", "exit 3")
    units = {
        "aghost.service": {"active_state": "active"},
        UNIT: {"active_state": "inactive", "description": "Sleeps"},
        "zombie.service": {"active_state": "active"},
    }
    # declared before it is observed: what is found later has not followed
    drifting("none", systemd={"units": units})
    drift = drifting("systemd", systemd={"units": units})
    drift.until_told("zombie.service", ("drift", "error", ["active_state"]))
    # the file was changed just now, and the host has not followed yet
    drift.until_told("aghost.service", ("intended", "error", ["presence"]))
    done = host.run("op-dbus", "drift", "--exit-code")
    assert done.returncode == 10
    # who did that is not known here, but maybe when it was
    lines = [line.partition(", since ")[0] for line in done.stdout.splitlines()]
    assert lines[0] == "error    zombie.service: declared active, observed failed"
    missing = "declared present, observed missing (newly declared)"
    assert lines[1] == f"error    aghost.service: {missing}"
    assert lines[2] == f"warning  {UNIT}: declared inactive, observed active"
    assert host.run("op-dbus", "drift", "--exit-code", "--kind", "mount").returncode == 0
    host.ask("systemctl", "reset-failed", "zombie.service")
