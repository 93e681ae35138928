"""The units of a booted host, as its PID 1 tells the sandboxed service of them."""

from collections.abc import Iterator

import pytest

from system.host import Host
from system.observing import rows, shown, until_shown
from system.service import Service

OBSERVED = "systemd"
TIMER, TIDY = "systemd/unit/tidy.timer", "systemd/unit/tidy.service"
FILE = "/usr/lib/systemd/system/tidy.service"


@pytest.fixture(scope="module")
def units(host: Host, request: pytest.FixtureRequest) -> Iterator[Service]:
    """Observe the units of a host, of which one is not loaded."""
    host.write(
        FILE,
        "[Unit]\nDescription=Tidies up\nDocumentation=man:systemd(1)\n"
        "[Service]\nExecStart=/bin/sh -c 'exec sleep 1000' --password=hunter2\n"
        "[Install]\nWantedBy=multi-user.target\n",
    )
    host.ask("systemctl", "daemon-reload")
    yield request.getfixturevalue("observing")
    host.path(FILE).unlink()
    host.ask("systemctl", "daemon-reload")


def test_all_units_are_listed(host: Host, units: Service) -> None:
    """All units that systemctl lists are there, and unit files that are not loaded."""
    until_shown(units, TIDY, description="Tidies up", enabled=False)
    journald = shown(host, "systemd/unit/systemd-journald.service")
    assert (journald["active_state"], journald["user"]) == ("active", "root")
    listed = host.ask("systemctl", "list-units", "--all", "--plain", "--no-legend", "--full")
    found = [line.split() for line in listed.splitlines()]
    loaded = {f"systemd/unit/{row[0]}" for row in found if row[1] != "not-found"}
    assert len(loaded) > 50
    assert loaded <= {*host.ask("op-dbus", "list", "-q", "--plugin", "systemd").splitlines()}
    root = shown(host, "systemd/unit/-.mount")
    assert (root["where"], root["fstype"], root["read_only"]) == ("/", "overlay", False)


def test_a_service_by_its_life(host: Host, units: Service) -> None:
    """A service that is enabled, started, stopped, disabled and masked is shown so."""
    host.ask("systemctl", "enable", "--now", "tidy.service")
    until_shown(units, TIDY, active_state="active", enabled=True, sub_state="running")
    tidy = shown(host, TIDY)
    assert (tidy["exec"], tidy["user"]) == ("/bin/sh", "root")
    assert "hunter2" not in str(tidy)
    host.ask("systemctl", "disable", "--now", "tidy.service")
    until_shown(units, TIDY, active_state="inactive", enabled=False)
    host.ask("systemctl", "mask", "tidy.service")
    until_shown(units, TIDY, masked=True, description="Tidies up")
    host.ask("systemctl", "unmask", "tidy.service")
    until_shown(units, TIDY, masked=False)


def test_a_unit_that_is_not_loaded_is_masked(host: Host, units: Service) -> None:
    """Masking and enabling of unit files that are not loaded is shown, with a reload or without."""
    name, shell = "systemd/unit/debug-shell.service", "debug-shell.service"
    until_shown(units, name, enabled=False)
    for command, seen in (
        (["mask"], {"masked": True}),
        (["unmask", "--no-reload"], {"masked": False}),
        (["enable", "--no-reload"], {"enabled": True}),
        (["disable", "--no-reload"], {"enabled": False}),
    ):
        host.ask("systemctl", *command, shell)
        until_shown(units, name, **seen)


def test_a_transient_service_that_fails(host: Host, units: Service) -> None:
    """A service that fails tells why, until it is forgotten: it has no file."""
    name = "systemd/unit/broken.service"
    host.ask("systemd-run", "--unit=broken", "sh", "-c", "exit 3")
    failed = {"active_state": "failed", "result": "exit-code", "exit_status": 3, "transient": True}
    until_shown(units, name, **failed)
    host.ask("systemctl", "reset-failed", "broken.service")
    until_shown(units, name)


def test_a_new_timer(host: Host, units: Service) -> None:
    """A timer that is written and started tells when it elapses."""
    host.write("/etc/systemd/system/tidy.timer", "[Timer]\nOnCalendar=daily\nOnBootSec=15min\n")
    host.ask("systemctl", "daemon-reload")
    until_shown(units, TIMER, active_state="inactive")
    host.ask("systemctl", "start", "tidy.timer")
    calendar = ["*-*-* 00:00:00 (daily)"]
    elapses = {"unit": "tidy.service", "calendar": calendar, "on": ["15 min after boot"]}
    until_shown(units, TIMER, active_state="active", **elapses)
    host.ask("systemctl", "stop", "tidy.timer")
    host.path("/etc/systemd/system/tidy.timer").unlink()
    host.ask("systemctl", "daemon-reload")
    until_shown(units, TIMER)
    # nothing needs it any more
    until_shown(units, TIDY, triggered_by=None)


def test_what_changes_nothing(host: Host, units: Service) -> None:
    """A reload reaches the unit that it changes, and no other one; a question reaches none."""
    drop_in = "/etc/systemd/system/fstrim.service.d/more.conf"
    host.write(drop_in, "[Unit]\nDescription=\nDescription=Trims more\n[Service]\nUser=nobody\n")
    host.ask("systemctl", "daemon-reload")
    changed = {"description": "Trims more", "user": "nobody", "drop_ins": [drop_in]}
    until_shown(units, "systemd/unit/fstrim.service", **changed)
    before = rows(host)
    for _ in range(3):
        host.ask("systemctl", "daemon-reload")
    for name in ("debug-shell.service", "no-such.service", "getty@tty9.service"):
        host.run("systemctl", "show", name)
    host.ask("systemd-run", "--unit=after", "sleep", "1000")
    until_shown(units, "systemd/unit/after.service", active_state="active")
    told = {name for _, _, name, _ in rows(host)[len(before) :]}
    # the one that a timer may start a quarter of an hour after the boot
    assert {name for name in told if "tmpfiles" not in name} == {"after.service"}
    host.ask("systemctl", "stop", "after.service")
    host.path(drop_in).unlink()
