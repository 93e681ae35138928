"""What a run of op-dbus makes of the units that an earlier one stored."""

import time
from pathlib import Path
from typing import Any

from harness.observing import history, rows
from harness.units import fake_pid1, install_tidy
from test_observe_systemd import watched

RUN = {"ActiveState": "active", "SubState": "running", "Type": "exec", "User": "", "ExecMainPID": 7}
UNIT = "systemd/unit/one.service"
PACKAGE = {"package": "tidy", "package_summary": "tidies up"}


def changed(folder: Path) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Return the rows after the first listing, with the fields of each."""
    return [
        (
            *(row[column] for column in ("name", "what", "cause")),
            {".".join(path): [*old, *new] for path, old, new in row["fields"]},
        )
        for row in history(folder)
        if row["cause"] != "first"
    ]


async def test_units_that_are_as_they_were(tmp_path: Path, system_bus: str) -> None:
    """A restart of op-dbus is no change of any unit: loaded, not loaded, or looked up."""
    install_tidy(tmp_path, "/lib/systemd/system/one.service")
    async with fake_pid1(system_bus, tmp_path) as fake:
        fake.load("one.service", FragmentPath="/lib/systemd/system/one.service", **RUN)
        fake.file("lazy.service", "disabled", "[Unit]\nDescription=Sleeps late\n")
        for files_after in (0.0, 0.0, 1e6):
            async with watched(tmp_path, files_after) as host:
                await host.until_shown(UNIT, active_state="active", **PACKAGE)
                await host.until_shown("systemd/unit/lazy.service", description="Sleeps late")
        assert changed(tmp_path) == []


async def test_a_unit_that_was_stopped_and_unloaded(tmp_path: Path, system_bus: str) -> None:
    """A unit that stopped and is not loaded any more is shown so at once, gone without a file."""
    async with fake_pid1(system_bus, tmp_path) as fake:
        fake.load("bare.service", Transient=True, **RUN)
        file = fake.file("one.service", "enabled")
        fake.load("one.service", FragmentPath=str(file), UnitFileState="enabled", **RUN)
        async with watched(tmp_path):
            pass
        fake.unload("one.service")
        fake.unload("bare.service")
        fake.files[str(file)] = "disabled"
        async with watched(tmp_path) as host:
            await host.until(lambda: "systemd/unit/bare.service" not in host.names)
            shown = await host.until_shown(UNIT, active_state="inactive", enabled=False)
            assert (shown["type"], shown["user"]) == ("exec", "root")
        async with watched(tmp_path, files_after=0.0) as host:
            await host.until(lambda: len(fake.asked("ListUnitFiles")) == 1)
    assert rows(tmp_path, "bare.service")[1:] == [("gone", "start", 0)]
    ((*row, fields),) = [row for row in changed(tmp_path) if row[0] != "bare.service"]
    assert row == ["one.service", "changed", "start"]
    assert fields == {
        "active_state": ["active", "inactive"],
        "sub_state": ["running", "dead"],
        "enabled": [True, False],
        "unit_file_state": ["enabled", "disabled"],
    }


async def test_a_unit_that_comes_back_soon(tmp_path: Path, system_bus: str) -> None:
    """What is stored of a unit that is loaded before all files are listed counts as before."""
    async with fake_pid1(system_bus, tmp_path) as fake:
        file = str(fake.file("one.service", "enabled"))
        fake.load("one.service", FragmentPath=file, UnitFileState="enabled", **RUN)
        fake.load("two.timer")
        async with watched(tmp_path) as host:
            fake.unload("one.service")
            fake.tell_of("UnitRemoved", "one.service")
            await host.until_shown(UNIT, active_state="inactive")
        async with watched(tmp_path) as host:
            down = RUN | {"ActiveState": "inactive", "SubState": "dead"}
            fake.load("one.service", FragmentPath=file, UnitFileState="enabled", **down)
            fake.work("one.service", 7, ("active", "running"))
            fake.end("one.service", 7)
            await host.until_shown(UNIT, active_state="active")
    row = changed(tmp_path)[-1]
    assert row[:3] == ("one.service", "changed", "job:7 start")
    assert row[3].keys() == {"active_state", "sub_state"}


async def test_units_that_were_restarted(tmp_path: Path, system_bus: str) -> None:
    """What came up or ended since op-dbus wrote its last row says so, op-dbus itself as well."""
    up = {"ActiveState": "active", "SubState": "running", "ActiveEnterTimestamp": 1}
    async with fake_pid1(system_bus, tmp_path) as fake:
        names = "op-dbus.service since.socket before.service ahead.service stopped.service"
        for name in names.split():
            fake.load(name, **up)
        # one that is restarted with what it starts is not told of besides
        fake.load("op-dbus-route.socket", **up, Triggers=["op-dbus.service"])
        for name, state in (("crash.service", "failed"), ("once.service", "inactive")):
            fake.load(name, ActiveState=state, SubState="dead", InactiveEnterTimestamp=1)
        for _ in range(2):
            async with watched(tmp_path):
                pass
        assert changed(tmp_path) == []
        now = int(time.time() * 1e6)
        for name in (
            "op-dbus.service",
            "op-dbus-route.socket",
            "since.socket",
            "stopped.service",
        ):
            fake.units[name]["ActiveEnterTimestamp"] = now
        for name in ("crash.service", "once.service"):
            fake.units[name]["InactiveEnterTimestamp"] = now
        fake.units["before.service"]["ActiveEnterTimestamp"] = now - 3600 * 10**6
        # before the clock was set back
        fake.units["ahead.service"]["ActiveEnterTimestamp"] = now + 3600 * 10**6
        fake.units["stopped.service"] |= {"ActiveState": "inactive", "SubState": "dead"}
        async with watched(tmp_path):
            pass
        told = {(name, what, cause) for name, what, cause, _ in changed(tmp_path)}
        # what was told is not told again
        async with watched(tmp_path):
            pass
    assert told == {
        ("op-dbus.service", "event", "start"),
        ("since.socket", "event", "start"),
        ("crash.service", "event", "start:failed"),
        ("once.service", "event", "start:ran"),
        ("stopped.service", "changed", "start"),
    }
    assert len(changed(tmp_path)) == len(told)


async def test_what_an_earlier_version_did_not_tell(tmp_path: Path, system_bus: str) -> None:
    """What units require is shown, and is no row of history: not of a host that upgrades."""
    async with fake_pid1(system_bus, tmp_path) as fake:
        fake.load("one.service", **RUN)
        async with watched(tmp_path) as host:
            await host.until_shown(UNIT, active_state="active")
        named = ["two.service"]
        fake.load("one.service", Requires=named, Wants=named, After=named, **RUN)
        async with watched(tmp_path) as host:
            await host.until_shown(UNIT, requires=named, wants=named, after=named)
    assert changed(tmp_path) == []
