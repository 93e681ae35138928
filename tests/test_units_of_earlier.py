"""What a run of op-dbus makes of the units that an earlier one stored."""

import os
from pathlib import Path
from typing import Any

from observing import history, in_loop, rows
from test_observe_systemd import watched
from units import fake_pid1

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


@in_loop
async def test_units_that_are_as_they_were(tmp_path: Path, system_bus: str) -> None:
    """A restart of op-dbus is no change of any unit: loaded, not loaded, or looked up."""
    (tmp_path / "dpkg" / "info").mkdir(parents=True)
    (tmp_path / "dpkg" / "info" / "tidy.list").write_text("/lib/systemd/system/one.service\n")
    status = "Package: tidy\nStatus: install ok installed\nDescription: tidies up\n"
    (tmp_path / "dpkg" / "status").write_text(status)
    async with fake_pid1(system_bus, tmp_path) as fake:
        fake.load("one.service", FragmentPath="/lib/systemd/system/one.service", **RUN)
        fake.file("lazy.service", "disabled", "[Unit]\nDescription=Sleeps late\n")
        for files_after in (0.0, 0.0, 1e6):
            async with watched(tmp_path, files_after) as host:
                await host.until_shown(UNIT, active_state="active", **PACKAGE)
                await host.until_shown("systemd/unit/lazy.service", description="Sleeps late")
        assert changed(tmp_path) == []


@in_loop
async def test_a_unit_that_was_stopped_and_unloaded(tmp_path: Path, system_bus: str) -> None:
    """A unit that stopped meanwhile, and is not loaded any more, is shown so at once."""
    async with fake_pid1(system_bus, tmp_path) as fake:
        file = fake.file("one.service", "enabled")
        fake.load("one.service", FragmentPath=str(file), UnitFileState="enabled", **RUN)
        async with watched(tmp_path):
            pass
        fake.unload("one.service")
        fake.files[str(file)] = "disabled"
        async with watched(tmp_path) as host:
            shown = await host.until_shown(UNIT, active_state="inactive", enabled=False)
            assert (shown["type"], shown["user"]) == ("exec", "root")
        async with watched(tmp_path, files_after=0.0) as host:
            await host.until(lambda: len(fake.asked("ListUnitFiles")) == 1)
    ((*row, fields),) = changed(tmp_path)
    assert row == ["one.service", "changed", "start"]
    assert fields == {
        "active_state": ["active", "inactive"],
        "sub_state": ["running", "dead"],
        "enabled": [True, False],
        "unit_file_state": ["enabled", "disabled"],
    }


@in_loop
async def test_a_unit_without_a_file_that_has_left(tmp_path: Path, system_bus: str) -> None:
    """A unit that had no file and is not loaded any more is gone at once."""
    async with fake_pid1(system_bus, tmp_path) as fake:
        fake.load("one.service", Transient=True, **RUN)
        fake.load("two.timer")
        async with watched(tmp_path):
            pass
        fake.unload("one.service")
        async with watched(tmp_path) as host:
            await host.until(lambda: UNIT not in host.names)
    assert rows(tmp_path, "one.service")[1:] == [("gone", "start", 0)]
    assert len(rows(tmp_path, "two.timer")) == 1


@in_loop
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


@in_loop
async def test_units_that_were_restarted(tmp_path: Path, system_bus: str) -> None:
    """What was restarted since op-dbus ran last says so, and so does op-dbus itself."""
    up = {"ActiveState": "active", "SubState": "running"}
    async with fake_pid1(system_bus, tmp_path) as fake:
        names = "op-dbus.service", "since.service", "before.service", "stopped.service"
        for name in names:
            fake.load(name, **up, ActiveEnterTimestampMonotonic=1, ActiveExitTimestampMonotonic=0)
        fake.units["op-dbus.service"]["MainPID"] = os.getpid()
        for _ in range(2):
            async with watched(tmp_path):
                pass
        assert changed(tmp_path) == []
        for name, entered, exited in (names[0], 60, 50), (names[1], 55, 54), (names[2], 45, 44):
            stamps = {"Enter": entered, "Exit": exited}
            values = {f"Active{key}TimestampMonotonic": at for key, at in stamps.items()}
            fake.units[name] |= values
        fake.units["stopped.service"] |= {"ActiveState": "inactive", "SubState": "dead"}
        fake.units["stopped.service"]["ActiveEnterTimestampMonotonic"] = 55
        async with watched(tmp_path):
            pass
    told = {(name, what, cause) for name, what, cause, _ in changed(tmp_path)}
    assert told == {
        ("op-dbus.service", "event", "start"),
        ("since.service", "event", "start"),
        ("stopped.service", "changed", "start"),
    }
