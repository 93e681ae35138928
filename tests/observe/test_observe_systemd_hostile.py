"""The observer of PID 1, where it hears nonsense: limited, reported, and nothing secret kept."""

import asyncio
from pathlib import Path

from harness.units import MANAGER, UNIT, path_of
from test_observe_systemd import NEVER, pid1, watched

SECRET = "hunter2-xylophone"


async def test_properties_of_odd_types(tmp_path: Path, system_bus: str) -> None:
    """What is not of the type that it should have is left out, and the rest of a unit told."""
    odd = (7, "text", [], [[]], [[1, 2]], {"a": 1}, -1, 1 << 63, True, b"\xff")
    names = (
        "Description Documentation DropInPaths Triggers Names Result ExecStart TimersCalendar Type"
        " TimersMonotonic Listen Paths Priority Options Where StateChangeTimestamp Conditions User"
        " ConditionResult ConditionTimestamp NextElapseUSecRealtime NextElapseUSecMonotonic MainPID"
        " ExecMainStatus ExecMainCode LoadError ActiveEnterTimestamp ExecMainPID UnitFileState"
    ).split()
    async with pid1(system_bus, tmp_path) as fake:
        for number, value in enumerate(odd):
            fake.load(f"odd{number}.service")
            fake.service.properties[path_of(f"odd{number}.service")] = {
                "LoadState": "loaded",
                "FragmentPath": "/odd",
                **dict.fromkeys(names, value),
            }
        async with watched(tmp_path) as host:
            for number in range(len(odd)):
                await host.until_shown(f"systemd/unit/odd{number}.service", fragment_path="/odd")
            assert host.status.detail == ""


async def test_listings_of_odd_types(tmp_path: Path, system_bus: str) -> None:
    """Rows that are no units are skipped, and what is no listing is an empty one."""
    async with pid1(system_bus, tmp_path) as fake:
        listed = fake.service.answers[f"{MANAGER}.ListUnits"]
        rows = [*listed("")[1][0], ["no name", "", "loaded", "", "", "", "/else", 0, "", "/"]]
        fake.service.answers[f"{MANAGER}.ListUnits"] = lambda _: ("av", [[*rows, 5, "x", []]])
        fake.service.answers[f"{MANAGER}.ListUnitFiles"] = lambda _: ("s", ["nothing"])
        async with watched(tmp_path, files_after=0.0) as host:
            await host.until(lambda: len(fake.asked("ListUnitFiles")) == 1)
            assert len(host.names) == 2


async def test_signals_of_odd_types(tmp_path: Path, system_bus: str) -> None:
    """Signals without the values that they should have are ignored."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:
        for member in ("UnitNew", "UnitRemoved", "Reloading", "UnitFilesChanged"):
            fake.tell(member)
            fake.tell(member, "i", 5)
            fake.tell(member, "s", "../../x")
        fake.service.changed(path_of("one.service"), UNIT)
        fake.change("two.timer", ActiveState="active")
        await host.until_shown("systemd/unit/two.timer", active_state="active")


async def test_a_flood_of_units(tmp_path: Path, system_bus: str) -> None:
    """Thousands of signals lead to few questions, and what is true is told afterwards."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:
        for number in range(5_000):
            fake.tell_of("UnitNew", f"flood{number}.service")
            if number % 100 == 0:
                await asyncio.sleep(0)
        fake.change("two.timer", ActiveState="active")
        await host.until_shown("systemd/unit/two.timer", active_state="active")
        asked = len(fake.asked("ListUnitsByPatterns")) + len(fake.asked("ListUnits"))
        assert asked < 50
        assert len(host.names) == 2


async def test_more_units_than_are_observed(tmp_path: Path, system_bus: str) -> None:
    """Of too many units some are observed, and the status says so."""
    async with pid1(system_bus, tmp_path) as fake:
        for number in range(98):
            fake.load(f"one{number}.service")
        async with watched(tmp_path, files_after=NEVER, most_units=40) as host:
            assert len(host.names) == 40
            assert host.status.detail == "of 100 units 40 are observed"


async def test_secrets_are_not_kept(tmp_path: Path, system_bus: str) -> None:
    """Arguments and environments of services are not kept, nor secrets in what is kept."""
    async with pid1(system_bus, tmp_path) as fake:
        command = ["/bin/sh", ["/bin/sh", "-c", f"login {SECRET}"], False, 0, 0, 0, 0, 0, 0, 0]
        fake.load(
            "leaky.service",
            ExecStart=[command],
            Environment=[f"TOKEN={SECRET}"],
            Description=f"Logs in with password={SECRET}",
            StatusText=f"password: {SECRET}",
            Documentation=[f"https://user:{SECRET}@example.org/"],
        )
        fake.file("lazy.service", "disabled", f"[Unit]\nDescription=Has password={SECRET}\n")
        async with watched(tmp_path, files_after=0.0) as host:
            shown = [await host.properties("systemd/unit/leaky.service")]
            assert shown[0]["exec"] == "/bin/sh"
            shown.append(await host.until_shown("systemd/unit/lazy.service"))
            assert SECRET not in str(shown)
        assert b"Logs in with" in (content := stored(tmp_path))
        assert SECRET.encode() not in content


def stored(folder: Path) -> bytes:
    """Return all that the memory has on disk."""
    return b"".join(path.read_bytes() for path in folder.glob("memory.db*"))
