"""Who did it and why, on a booted host: a service of its own reads the journal."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from system.host import Host
from system.observing import forget_journal, shown, until_shown
from system.service import CHANGES, Service

PUBLISHER = "op-dbus-journal.service"
READER = "journal/reader/op-dbus-journal"
WEB, RUN = "probe-web.service", "probe-clock.service"
SPOOL, STARTERS = "probe-spool.service", ("probe-spool.path", "probe-spool.socket")
WHY = "web: [emerg] unknown directive foo in /etc/web.conf:3"
UNITS = {
    WEB: f"[Service]\nExecStart=/bin/sh -c 'echo starting; echo \"{WHY}\" >&2; exit 1'\n",
    RUN: "[Service]\nExecStart=/bin/sleep infinity\n",
    # as cups has them: both would start the service if systemd did not
    SPOOL: "[Service]\nExecStart=/bin/sleep infinity\nRestart=always\nRestartSec=0\n",
    STARTERS[0]: "[Path]\nPathExists=/etc/passwd\n",
    STARTERS[1]: "[Socket]\nListenStream=/run/probe-spool\n",
}
STOP = ("/usr/bin/systemctl", "stop", "probe-clock")


@pytest.fixture
def units(host: Host, observer: Service) -> Iterator[None]:
    """Have a service that runs and one that will fail, and bob, who may use sudo."""
    assert observer.host is host
    for name, text in UNITS.items():
        host.write(f"/run/systemd/system/{name}", text)
    host.ask("systemctl", "daemon-reload")
    host.ask("systemctl", "start", RUN)
    for name in reversed(STARTERS):
        host.ask("systemctl", "start", name)
    host.ask("useradd", "--no-create-home", "bob")
    if host.path("/etc/sudoers.d").exists():
        host.write("/etc/sudoers.d/bob", "bob ALL=(ALL) NOPASSWD: ALL\n")
    yield
    host.run("systemctl", "disable", "--now", PUBLISHER)
    forget_journal(host)
    host.run("systemctl", "stop", *STARTERS)
    host.run("systemctl", "stop", SPOOL, RUN)
    host.run("systemctl", "reset-failed", WEB)
    host.run("userdel", "bob")


def with_sudo(host: Host, *command: str) -> None:
    """Run a command as bob does with sudo; where there is no sudo, with the line that it logs."""
    if host.path("/usr/bin/sudo").exists():
        host.ask("sudo", *command, user="bob")
        return
    line = f"     bob : PWD=/ ; USER=root ; COMMAND={' '.join(command)}"
    host.ask("logger", "--tag", "sudo", line)
    host.ask(*command)


def changes(host: Host, name: str) -> list[dict[str, Any]]:
    """Give the changes of a unit, the oldest first; none before it was read."""
    done = host.run("op-dbus", "history", "show", f"systemd/unit/{name}", "--json")
    return [json.loads(line) for line in done.stdout.splitlines()]


def until(host: Host, name: str, field: str) -> dict[str, Any]:
    """Wait for a change of a unit with a field, and give it."""
    with host.monitor(*CHANGES) as heard:
        heard.until(lambda: any(field in change for change in changes(host, name)))
    return next(change for change in changes(host, name) if field in change)


@pytest.mark.usefixtures("units")
def test_who_did_it_and_what_it_said(host: Host, observer: Service) -> None:
    """Once it is enabled, changes have who did it, failures have why, and it has no other right."""
    observer.observe("systemd")
    assert host.run("systemctl", "is-enabled", PUBLISHER).stdout.strip() == "disabled"
    status = " ".join(host.ask("op-dbus", "status").split())
    assert "journal (absent): who did what, and why units failed, is unknown" in status
    host.ask("systemctl", "enable", "--now", PUBLISHER)
    with host.monitor(*CHANGES) as heard:
        heard.until(lambda: shown(host, READER))
    assert "journal (absent)" not in host.ask("op-dbus", "status")

    pid = host.ask("systemctl", "show", "--value", "--property=MainPID", PUBLISHER)
    text = host.ask("cat", f"/proc/{pid}/status")
    facts = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert (facts["CapEff"], facts["NoNewPrivs"]) == ("0" * 16, "1")
    assert facts["Uid"].split()[0] == host.ask("id", "--user", "op-dbus-journal")
    names = {"op-dbus", "systemd-journal"}
    numbers = {host.ask("getent", "group", name).split(":")[2] for name in names}
    assert numbers == set(facts["Groups"].split())

    host.run("systemctl", "start", WEB)
    failed = until(host, WEB, "why")
    assert failed["why"] == WHY
    assert failed["lines"][0] == "starting"
    text = " ".join(host.ask("op-dbus", "show", WEB).split())
    assert "Last failure" in text
    assert WHY in text
    for question in ("changes", "ask why did probe-web fail?"):
        told = " ".join(host.ask("op-dbus", *question.split(" ", 1)).split())
        assert f"why: {WHY}" in told, told

    with_sudo(host, *STOP)
    stopped = until(host, RUN, "by")
    assert stopped["by"] == "bob with sudo systemctl stop probe-clock"
    told = " ".join(host.ask("op-dbus", "ask", "who stopped probe-clock?").split())
    assert "stop) by bob with sudo systemctl stop probe-clock" in told
    # nobody is named for what root did without it
    host.ask("systemctl", "start", RUN)
    with host.monitor(*CHANGES) as heard:
        heard.until(lambda: changes(host, RUN)[-1]["cause"].endswith(" start"))
    assert "by" not in changes(host, RUN)[-1]

    # it notes at its end until when it read
    note = "/var/lib/op-dbus-journal/state.json"
    host.ask("touch", "--date=@1", note)
    host.ask("systemctl", "stop", PUBLISHER)
    assert int(host.ask("stat", "--format=%Y", note)) > 1
    until_shown(observer, READER)


def killed(host: Host, *options: str) -> dict[str, Any]:
    """Kill the main process of a service as bob does, and give the change that names him."""
    pid = host.show(SPOOL, "MainPID")
    with_sudo(host, "/bin/kill", *options, pid)

    def named() -> list[dict[str, Any]]:
        return [one for one in changes(host, SPOOL) if one.get("by", "").endswith(f" {pid}")]

    with host.monitor(*CHANGES) as heard:
        heard.until(named)
    return named()[0]


@pytest.mark.usefixtures("units")
def test_who_killed_what_runs_again_at_once(host: Host, observer: Service) -> None:
    """A service that runs again at once was killed by somebody, not started by a socket or path."""
    observer.observe("systemd")
    host.ask("systemctl", "enable", "--now", PUBLISHER)
    with host.monitor(*CHANGES) as heard:
        heard.until(lambda: shown(host, READER))
    for options, signal in ((["-9"], "SIGKILL"), (["-SEGV"], "SIGSEGV"), ([], "SIGTERM")):
        row = killed(host, *options)
        # a busy host is slow enough for its fall to be seen
        is_seen = row["cause"] == "exit" and (signal in str(row["fields"]) or signal == "SIGTERM")
        assert row["cause"] == f"exit:{signal}" or is_seen, row
        assert row.get("why", f"killed by {signal}").startswith(f"killed by {signal}")
    told = " ".join(host.ask("op-dbus", "ask", "who killed probe-spool?").split())
    # of changes that are alike the last one is told
    assert "by bob with sudo kill -" in told, told
    causes = [one["cause"] for one in changes(host, SPOOL)]
    assert not [cause for cause in causes if any(name in cause for name in STARTERS)]
