"""Alerts on a booted host, switched on as docs/alerts.md says."""

import json
import re
from collections.abc import Iterator
from time import monotonic

import pytest

from system.host import Entry, Host
from system.observing import forget_journal, shown
from system.service import CHANGES, STATE_FILE, Service

UNIT, JOURNAL = "op-dbus-notify.service", "op-dbus-journal.service"
RULES, FOLDER = "/etc/op-dbus/notify.toml", "/etc/op-dbus/notify.d"
EXAMPLES = "/usr/local/share/doc/op-dbus/notify.d"
SECONDS = 120
SPY = '#!/bin/sh\ncat >/dev/null\necho "$(id -un) sees $(ls -x /etc/op-dbus) and $(env | wc -l)"\n'


@pytest.fixture
def alerts(host: Host, observer: Service) -> Iterator[None]:
    """Leave the host as it was, before the service ends: a call would start it again."""
    assert observer.host is host
    rules = host.path(RULES).read_text()
    host.ask("useradd", "--no-create-home", "bob")
    yield
    host.run("userdel", "bob")
    host.run("systemctl", "disable", "--now", UNIT, JOURNAL)
    forget_journal(host)
    units = ("broken.service", "broken2.service", "kept.service")
    host.run("systemctl", "reset-failed", UNIT, *units)
    host.write(RULES, rules)
    host.ask("sh", "-c", f"rm -rf {FOLDER}/* /var/lib/op-dbus-notify")


def put(host: Host, path: str) -> None:
    """Put an executable where alerts go, as the docs say."""
    host.ask("install", "-g", "op-dbus-config", "-m", "750", path, FOLDER)


def until_alert(host: Host, after: str, pattern: str) -> Entry:
    """Wait for an entry that the example for the journal wrote, past others."""
    while True:
        entry = host.await_entry(after, SYSLOG_IDENTIFIER="op-dbus-alert")
        if re.match(pattern, entry["MESSAGE"]):
            return entry
        after = entry["__CURSOR"]


@pytest.mark.usefixtures("alerts")
def test_alerts_reach_the_journal(host: Host, observer: Service) -> None:
    """A unit that fails, and one that is other than declared, are a line of the journal each."""
    host.ask("systemd-run", "--unit=kept", "--property=RemainAfterExit=yes", "true")
    units = {"kept.service": {"active_state": "active"}}
    host.write(STATE_FILE, json.dumps({"version": 1, "plugins": {"systemd": {"units": units}}}))
    observer.observe("systemd")
    assert host.run("systemctl", "is-enabled", UNIT).stdout.strip() == "disabled"
    assert "alerts: off" in host.run("op-dbus", "doctor").stdout
    put(host, f"{EXAMPLES}/journal")
    host.write("/run/spy", SPY)
    put(host, "/run/spy")
    after = host.cursor()
    host.ask("systemctl", "enable", "--now", UNIT, JOURNAL)
    host.ask("systemd-run", "--unit=broken", "sh", "-c", "exit 3")
    failed = until_alert(host, after, r"broken.service .*failed .*status 3")
    assert failed["PRIORITY"] == "3"
    # of /etc/op-dbus, and of the environment: PATH, LC_ALL, and what the shell adds
    seen = host.await_entry(after, _SYSTEMD_UNIT=UNIT, SYSLOG_IDENTIFIER="op-dbus")
    assert seen["MESSAGE"] == "op-dbus-notify sees notify.d  notify.toml and 3"
    stop = "/usr/bin/systemctl stop kept"
    with host.monitor(*CHANGES) as heard:
        heard.until(lambda: shown(host, "journal/reader/op-dbus-journal"))
        host.ask("logger", "--tag", "sudo", f"     bob : PWD=/ ; USER=root ; COMMAND={stop}")
        heard.until(lambda: shown(host, "journal/user/bob"))
    host.ask(*stop.split())
    # a transient unit that is stopped is not there any more
    by = r"kept.service is other than declared: missing .*\(job \d+ stop\), by bob with sudo"
    until_alert(host, after, by)
    assert "alerts: on; journal is at change " in host.run("op-dbus", "doctor").stdout
    # as on a full disk, nothing can be noted, and alerts go on
    pid = host.show(UNIT, "MainPID")
    host.ask("mkdir", f"/var/lib/op-dbus-notify/.journal.{pid}.new")
    host.ask("systemd-run", "--unit=broken2", "sh", "-c", "exit 4")
    until_alert(host, after, r"broken2.service .*failed .*status 4")
    end = monotonic() + SECONDS
    while "note that: Is a directory" not in (told := host.run("op-dbus", "doctor").stdout):
        assert monotonic() < end, told
    # a fault in the rules is not tried again, and nothing runs
    host.write(RULES, '[[rule]]\nname = "x\n')
    assert host.run("systemctl", "restart", UNIT).returncode != 0
    assert (host.show(UNIT, "ActiveState"), host.show(UNIT, "ExecMainStatus")) == ("failed", "2")
    wrong = rf"{RULES} is not TOML: Illegal character '\n' (at line 2, column 10)"
    assert host.show(UNIT, "StatusText") == f"Failed: {wrong}"
    assert wrong in " ".join(host.run("op-dbus", "doctor").stdout.split())
