"""What is told of a unit, from the properties that PID 1 has of it."""

import pytest

from opdbus.observe.systemd.unit_properties import (
    VOLATILE,
    fields_of_unloaded,
    of_file_state,
    of_unit,
)

SERVICE = {
    "Id": "a.service",
    "Names": ["a.service", "b.service"],
    "Description": "Does a",
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "UnitFileState": "enabled",
    "ExecMainPID": 5,
    "MainPID": 5,
    "User": "",
    "Type": "notify",
    "Restart": "always",
    "Result": "success",
    "ExecStart": [["/usr/bin/python3", ["python3", "/opt/a.py", "--token", "x"], False]],
    "ActiveEnterTimestamp": 1_700_000_000_000_000,
    "Documentation": [],
}


def test_a_service() -> None:
    """A service tells whom it runs as and what it runs, and nothing that is empty."""
    assert of_unit(SERVICE) == {
        "description": "Does a",
        "load_state": "loaded",
        "active_state": "active",
        "sub_state": "running",
        "unit_file_state": "enabled",
        "enabled": True,
        "masked": False,
        "aliases": ["b.service"],
        "type": "notify",
        "restart": "always",
        "user": "root",
        "exec": "/usr/bin/python3 /opt/a.py",
        "main_pid": 5,
        "active_since": "2023-11-14 22:13:20 UTC",
    }


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        (1, 3, {"exit_status": 3}),
        (2, 9, {"exit_signal": "SIGKILL"}),
        # most of real time have no name
        (2, 35, {"exit_signal": "signal 35"}),
        (0, 0, {}),
    ],
)
def test_why_a_service_failed(code: int, status: int, told: dict[str, object]) -> None:
    """A service that failed tells how, and with which exit status or signal."""
    ended = {"Result": "exit-code", "ExecMainCode": code, "ExecMainStatus": status}
    shown = of_unit(SERVICE | ended)
    assert shown["result"] == "exit-code"
    assert {key: shown[key] for key in shown if key.startswith("exit_")} == told


def test_why_a_unit_was_not_started() -> None:
    """A unit whose conditions are not met tells which."""
    rows = [["ConditionACPower", False, False, "true", 1], ["ConditionHost", False, True, "x", -1]]
    skipped = {"ConditionResult": False, "ConditionTimestamp": 9, "Conditions": rows}
    assert of_unit(SERVICE | skipped)["unmet_condition"] == ["ConditionHost=!x"]


def test_a_unit_that_cannot_be_loaded() -> None:
    """A broken unit file tells what is wrong with it; a masked unit is no fault."""
    broken = {"LoadState": "bad-setting", "LoadError": ["org.example", "Unit a has a bad setting."]}
    assert of_unit(SERVICE | broken)["load_error"] == "Unit a has a bad setting."
    masked = {"LoadState": "masked", "UnitFileState": "masked", "LoadError": ["x", "is masked"]}
    shown = of_unit(SERVICE | masked)
    assert (shown["masked"], shown["enabled"]) == (True, False)
    assert "load_error" not in shown
    assert "user" not in shown


def test_a_timer() -> None:
    """A timer tells when it elapses in words."""
    shown = of_unit(
        {
            "Unit": "a.service",
            "TimersCalendar": [["OnCalendar", "*-*-* 00:00:00", 0], ["OnCalendar", "Fri", 0]],
            "TimersMonotonic": [
                ["OnBootUSec", 5_400_000_000, 0],
                ["OnUnitActiveUSec", 86_400_000_000, 0],
            ],
            "NextElapseUSecRealtime": 1_700_000_000_000_000,
            "LastTriggerUSec": 0,
        }
    )
    assert shown == {
        "unit": "a.service",
        "calendar": ["*-*-* 00:00:00 (daily)", "Fri"],
        "on": ["1 h 30 min after boot", "1 d after its unit was last started"],
        "next_elapse": "2023-11-14 22:13:20 UTC",
    }


def test_a_mount() -> None:
    """A mount tells what is mounted where, how, and whether it can be written."""
    mount = {"Id": "srv.mount", "Where": "/srv", "Description": "/srv", "What": "/dev/sda1"}
    shown = of_unit(mount | {"Type": "ext4", "Options": "ro,relatime"})
    assert shown == {
        "where": "/srv",
        "what": "/dev/sda1",
        "fstype": "ext4",
        "options": "ro,relatime",
        "read_only": True,
    }
    assert of_unit(mount | {"Options": "rw,errors=remount-ro"})["read_only"] is False


def test_a_socket_and_a_path() -> None:
    """A socket tells on what it listens, a path unit what it watches."""
    assert of_unit({"Listen": [["Stream", "[::]:22"]], "Accept": False}) == {"listens": ["[::]:22"]}
    assert of_unit({"Paths": [["PathExists", "/run/x"]]}) == {"watches": ["/run/x"]}


def test_the_state_of_a_file() -> None:
    """Whether a unit is enabled is told where that is the question."""
    assert of_file_state("enabled-runtime") == {"masked": False, "enabled": True}
    assert of_file_state("static") == {"masked": False}
    assert of_file_state("") == {}
    assert of_unit(SERVICE, "disabled")["enabled"] is False


def test_what_stays_when_a_unit_is_unloaded() -> None:
    """A unit that is not loaded any more is inactive, and has nothing of its last run."""
    shown = fields_of_unloaded(of_unit(SERVICE | {"Result": "timeout"}))
    assert shown["active_state"] == "inactive"
    assert not shown.keys() & (VOLATILE | {"result"})
    assert (shown["user"], shown["load_state"]) == ("root", "loaded")
    faulty = {"LoadState": "bad-setting", "LoadError": ["", "Bad line."], "NeedDaemonReload": True}
    faults = {"load_state", "load_error", "need_daemon_reload"}
    assert faults <= of_unit(SERVICE | faulty).keys()
    assert not faults & fields_of_unloaded(of_unit(SERVICE | faulty)).keys()


def test_what_a_unit_requires() -> None:
    """What other units it names is told in order, without what nearly every unit names."""
    named = {
        "Requires": ["ticketdb.service", "system.slice", "sysinit.target", "-.mount"],
        "BindsTo": ["dev-sda.device", "lock.service"],
        "Wants": ["network-online.target"],
        "After": ["ticketdb.service", "systemd-journald.socket", "basic.target", "a.mount"],
    }
    shown = of_unit(SERVICE | named)
    assert shown["requires"] == ["lock.service", "ticketdb.service"]
    assert shown["after"] == ["a.mount", "ticketdb.service"]
    assert "wants" not in shown
    assert "requires" not in of_unit(named | {"Id": "a.target"})
    many = [f"{letter}.service" for letter in "zyxwvutsrqponmlkji"]
    assert of_unit(SERVICE | {"Wants": many})["wants"] == sorted(many)[:12]
    assert "wants" not in of_unit(SERVICE | {"Wants": [7]})
