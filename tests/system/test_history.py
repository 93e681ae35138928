"""History is vouched for by the journal of a booted host, where nobody else's word counts."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from opdbus.platform.journal import MESSAGE_IDS
from system.host import PROGRAM, Host
from system.service import UNIT, UNITS, Service

# Sends what it reads as an entry, as every user may.
_FORGE = """
import json, socket, sys
from opdbus.platform.journal import SOCKET, encode
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(encode(json.load(sys.stdin)), str(SOCKET))
"""


def verify(host: Host, since: str) -> tuple[int, dict[str, Any]]:
    """Run `op-dbus history verify` and give its exit code and what it found.

    Other tests have thrown away databases for which the same journal vouched.
    """
    done = host.run("op-dbus", "history", "verify", "--json", "--since", since)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def change(service: Service) -> str:
    """Have a row for each of some units, and another for one of them; stop; give when it began."""
    began = datetime.now(UTC).isoformat()
    service.declare({**UNITS, "cron.service": "runs jobs"})
    service.reload()
    service.declare(UNITS)
    service.reload()
    service.systemctl("stop")
    return began


def test_the_journal_vouches_for_history(host: Host, service: Service) -> None:
    """A checkpoint is in the journal when the service has stopped, and verification uses it."""
    after = host.cursor()
    began = change(service)
    entries = host.journal(after=after, MESSAGE_ID=MESSAGE_IDS["history checkpoint"])
    assert entries
    assert {entry["_SYSTEMD_UNIT"] for entry in entries} == {UNIT}
    machine = host.ask("cat", "/etc/machine-id")
    origin, size, *_ = entries[-1]["OPDBUS_CHECKPOINT"].splitlines()
    assert origin.startswith("op-dbus/")
    assert machine not in origin
    code, found = verify(host, began)
    assert (code, found["ok"], found["journal_error"]) == (0, True, "")
    assert found["vouched"] == found["last"] == int(size)
    assert found["unvouched"] == 0


def test_nobody_else_vouches(host: Host, service: Service) -> None:
    """Entries of other users and of other units are not believed, whatever is in them."""
    began = change(service)
    _, before = verify(host, began)
    root = "A" * 43 + "="
    forged = {
        "MESSAGE": "history checkpoint",
        "MESSAGE_ID": MESSAGE_IDS["history checkpoint"],
        "SYSLOG_IDENTIFIER": "op-dbus",
        "_SYSTEMD_UNIT": UNIT,
        "_UID": host.ask("id", "-u", "op-dbus"),
        "OPDBUS_FIRST": "999",
        "OPDBUS_CHECKPOINT": f"op-dbus/0\n{before['last'] + 5}\n{root}\n",
    }
    after = host.cursor()
    for user in ("outsider", "op-dbus", ""):
        host.ask(f"{PROGRAM}/bin/python", "-c", _FORGE, user=user, stdin=json.dumps(forged))
    told = host.journal(after=after, MESSAGE_ID=MESSAGE_IDS["history checkpoint"])
    assert len(told) == 3
    assert verify(host, began) == (0, before)


@pytest.mark.usefixtures("service")
def test_only_root_reads_it(host: Host) -> None:
    """Others are told what to do instead."""
    for user in ("member", "outsider"):
        done = host.run("op-dbus", "history", "verify", user=user)
        assert done.returncode
        assert "sudo" in done.stderr
        assert "Traceback" not in done.stderr
