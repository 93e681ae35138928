"""The fleet on a booted host: its server, and the sender, each in the sandbox of its unit."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from system.host import PATIENCE_SECONDS, Host
from system.service import STATE, Service

SENDER, SERVER = "op-dbus-fleet.service", "op-dbus-fleet-server.service"
CREDENTIALS = "/etc/op-dbus-fleet"
DROP_IN = f"/run/systemd/system/{SERVER}.d/level.conf"


@pytest.fixture
def fleet(host: Host, service: Service) -> Iterator[Service]:
    """Switch the server on as the documentation says, and all of it off again."""
    host.write(DROP_IN, "[Service]\nEnvironment=OP_DBUS_VECTOR_LEVEL=static\n")
    host.ask("systemctl", "daemon-reload")
    for unit in (SENDER, SERVER):
        assert host.run("systemctl", "is-enabled", unit).stdout.strip() == "disabled"
    host.ask("systemctl", "enable", "--now", SERVER)
    yield service
    host.run("systemctl", "disable", "--now", SENDER, SERVER)
    host.run("op-dbus", "withdraw", "backup/job/home")
    host.run("rm", "-rf", DROP_IN, CREDENTIALS, "/var/lib/op-dbus-fleet", "/root/here")
    host.ask("systemctl", "daemon-reload")
    host.run("systemctl", "reset-failed", SENDER, SERVER)


def listed(host: Host) -> dict[str, Any]:
    """Return the only host of the fleet, as its administrator sees it."""
    (found,) = json.loads(host.ask("op-dbus", "fleet", "hosts", "--json"))
    return dict(found)


def wait_for(host: Host, is_so: Any) -> dict[str, Any]:
    """Wait until something is so of the only host of the fleet."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not is_so(found := listed(host)):
        assert time.monotonic() < end, (found, host.log())
        time.sleep(1)
    return found


def test_a_host_is_sent_by_three_commands(host: Host, fleet: Service) -> None:
    """Add a host on the server, switch its sender on, and see its objects, changes and faults."""
    host.ask("systemctl", "enable", "--now", SENDER)
    assert host.show(SENDER, "ActiveState") == "inactive"
    assert "has no credentials of a fleet" in host.run("op-dbus", "doctor").stdout
    told = host.ask("sh", "-c", "cd /root && op-dbus fleet add here --tag demo --out here")
    steps = [line.strip() for line in told.splitlines() if line.startswith("    ")]
    assert len(steps) == 3
    assert steps[1] == f"systemctl enable --now {SENDER.removesuffix('.service')}"
    for step in steps[:2]:
        host.ask("sh", "-c", f"cd /root && {step}")
    found = wait_for(host, lambda each: each["compared_at"])
    assert found["objects"] == fleet.get("Count", STATE)
    assert (found["level"], found["tags"], found["conflict"]) == ("static", ["demo"], "")
    doctor = steps[2].split()
    end = time.monotonic() + PATIENCE_SECONDS
    # the sender says so a moment after the database has it
    while "fleet: on; All is sent" not in (said := host.run(*doctor).stdout):
        assert time.monotonic() < end, said
        time.sleep(1)
    assert [host.show(unit, "User") for unit in (SENDER, SERVER)] == [
        *("op-dbus-fleet", "op-dbus-fleet-server"),
    ]
    job = {"plugin": "backup", "kind": "job", "name": "home", "properties": {"state": "done"}}
    host.ask("op-dbus", "publish", "probe", stdin=json.dumps([job]))
    wait_for(host, lambda each: each["objects"] == found["objects"] + 1)
    # a database that is away is waited for
    host.ask("systemctl", "kill", "--signal=KILL", SERVER)
    host.ask("op-dbus", "withdraw", "backup/job/home")
    end = time.monotonic() + PATIENCE_SECONDS
    while host.run("op-dbus", "fleet", "hosts", "--json").returncode:
        assert time.monotonic() < end, host.log()
        time.sleep(1)
    wait_for(host, lambda each: each["objects"] == found["objects"])


@pytest.mark.usefixtures("service")
def test_its_user_may_not_publish(host: Host) -> None:
    """Let the sender's user read over the bus and not publish."""
    job = '[{"plugin": "backup", "kind": "job", "name": "home", "properties": {}}]'
    done = host.run("op-dbus", "publish", "probe", user="op-dbus-fleet", stdin=job)
    assert done.returncode == 5, done.stderr
    assert host.ask("op-dbus", "search", "web server", user="op-dbus-fleet")
