"""The units of a booted host, as its PID 1 tells of them."""

from collections.abc import Iterator

import pytest

from system.booting import booted, why_not
from system.host import Host
from system.watched import Watched, watched

TIMER = "systemd/unit/tidy.timer"
SERVICE = "systemd/unit/tidy.service"


@pytest.fixture(scope="module", params=["dbus", "dbus-broker"])
def bare(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Boot a host without op-dbus."""
    if reason := why_not():
        pytest.skip(reason)
    with booted(request.param) as host:
        host.write(
            "/usr/lib/systemd/system/tidy.service",
            "[Unit]\nDescription=Tidies up\nDocumentation=man:systemd(1)\n"
            "[Service]\nExecStart=/bin/sh -c 'exec sleep 1000' --password=hunter2\n"
            "[Install]\nWantedBy=multi-user.target\n",
        )
        yield host


@pytest.fixture(scope="module")
def units(bare: Host) -> Iterator[Watched]:
    """Observe its units."""
    with watched(bare, "systemd") as units:
        yield units


def test_all_units_are_listed(bare: Host, units: Watched) -> None:
    """All units that systemctl lists are there, and unit files that are not loaded."""
    units.until("systemd/unit/systemd-journald.service", active_state="active", user="root")
    listed = bare.ask("systemctl", "list-units", "--all", "--plain", "--no-legend", "--full")
    rows = [line.split() for line in listed.splitlines()]
    loaded = {f"systemd/unit/{row[0]}" for row in rows if row[1] != "not-found"}
    assert len(loaded) > 50
    units.until(SERVICE, description="Tidies up", enabled=False)
    units.until_there(loaded)
    root = units.objects["systemd/unit/-.mount"]
    assert (root["where"], root["fstype"], root["read_only"]) == ("/", "overlay", False)


def test_a_service_by_its_life(bare: Host, units: Watched) -> None:
    """A service that is enabled, started, stopped and disabled is shown so."""
    bare.ask("systemctl", "enable", "--now", "tidy.service")
    shown = units.until(SERVICE, active_state="active", enabled=True, sub_state="running")
    assert (shown["exec"], shown["user"]) == ("/bin/sh", "root")
    assert "hunter2" not in str(units.objects)
    bare.ask("systemctl", "stop", "tidy.service")
    units.until(SERVICE, active_state="inactive", enabled=True)
    bare.ask("systemctl", "disable", "tidy.service")
    units.until(SERVICE, enabled=False)
    bare.ask("systemctl", "mask", "tidy.service")
    assert units.until(SERVICE, masked=True)["description"] == "Tidies up"
    bare.ask("systemctl", "unmask", "tidy.service")
    units.until(SERVICE, masked=False)


def test_a_unit_that_is_not_loaded_is_masked(bare: Host, units: Watched) -> None:
    """Masking and enabling of unit files that are not loaded is shown, with a reload or without."""
    name = "systemd/unit/debug-shell.service"
    units.until(name, enabled=False)
    bare.ask("systemctl", "mask", "debug-shell.service")
    units.until(name, masked=True)
    bare.ask("systemctl", "unmask", "--no-reload", "debug-shell.service")
    units.until(name, masked=False)
    bare.ask("systemctl", "enable", "--no-reload", "debug-shell.service")
    units.until(name, enabled=True)
    bare.ask("systemctl", "disable", "--no-reload", "debug-shell.service")
    units.until(name, enabled=False)


def test_a_transient_service_that_fails(bare: Host, units: Watched) -> None:
    """A service that fails tells why, until it is forgotten: it has no file."""
    name = "systemd/unit/broken.service"
    bare.ask("systemd-run", "--unit=broken", "sh", "-c", "exit 3")
    shown = units.until(name, active_state="failed", result="exit-code", exit_status=3)
    assert shown["transient"] is True
    bare.ask("systemctl", "reset-failed", "broken.service")
    units.until(name)


def test_a_new_timer(bare: Host, units: Watched) -> None:
    """A timer that is written and started tells when it elapses."""
    bare.write("/etc/systemd/system/tidy.timer", "[Timer]\nOnCalendar=daily\nOnBootSec=15min\n")
    bare.ask("systemctl", "daemon-reload")
    units.until(TIMER, active_state="inactive")
    bare.ask("systemctl", "start", "tidy.timer")
    shown = units.until(TIMER, active_state="active", unit="tidy.service")
    assert shown["calendar"] == ["*-*-* 00:00:00 (daily)"]
    assert shown["on"] == ["15 min after boot"]
    bare.ask("systemctl", "stop", "tidy.timer")
    bare.path("/etc/systemd/system/tidy.timer").unlink()
    bare.ask("systemctl", "daemon-reload")
    units.until(TIMER)
    # nothing needs it any more
    units.until(SERVICE, triggered_by=None)


def test_a_drop_in_reaches_the_unit(bare: Host, units: Watched) -> None:
    """What a reload changes of a unit is shown; one that changes nothing changes no object."""
    drop_in = "/etc/systemd/system/fstrim.service.d/more.conf"
    bare.write(drop_in, "[Unit]\nDescription=\nDescription=Trims more\n[Service]\nUser=nobody\n")
    bare.ask("systemctl", "daemon-reload")
    name = "systemd/unit/fstrim.service"
    units.until(name, description="Trims more", user="nobody", drop_ins=[drop_in])
    before = len(units.changes)
    for _ in range(3):
        bare.ask("systemctl", "daemon-reload")
    bare.ask("systemd-run", "--unit=after", "sleep", "1000")
    units.until("systemd/unit/after.service", active_state="active")
    assert set(units.changes[before:]) == {"systemd/unit/after.service"}


def test_questions_change_nothing(bare: Host, units: Watched) -> None:
    """Units that a question loads for a moment are no change, and are not loaded by us."""
    before = len(units.changes)
    for name in ("debug-shell.service", "no-such.service", "getty@tty9.service"):
        bare.run("systemctl", "show", name)
    bare.ask("systemd-run", "--unit=last", "sleep", "1000")
    units.until("systemd/unit/last.service", active_state="active")
    assert set(units.changes[before:]) == {"systemd/unit/last.service"}
