"""The observer of PID 1, on a fake one: each rule of what may be asked, and when."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.observing import Host, history, observed, rows
from harness.units import NAME, PATH, FakePid1, fake_pid1, install_tidy, path_of

from opdbus.observe.packages.documents import Places
from opdbus.observe.systemd import unit_observer
from opdbus.observe.systemd.unit_observer import Options

NEVER = 1e6


@asynccontextmanager
async def pid1(bus: str, tmp_path: Path) -> AsyncIterator[FakePid1]:
    """Have two units loaded."""
    async with fake_pid1(bus, tmp_path) as pid1:
        pid1.load("one.service", Type="simple", ExecMainPID=0, User="")
        pid1.load("two.timer", Unit="one.service")
        yield pid1


@asynccontextmanager
async def watched(
    tmp_path: Path, files_after: float = NEVER, most_units: int = 20_000, units_every: float = 0.0
) -> AsyncIterator[Host]:
    """Observe it; unit files are listed after some seconds, and once."""
    places = Places(tmp_path, tmp_path / "dpkg", tmp_path / "man", "rpm", ())
    options = Options(files_after, NEVER, units_every, most_units, places)
    observer = replace(
        unit_observer.OBSERVER, observe=partial(unit_observer.observe, options=options)
    )
    async with observed(tmp_path, observer) as host:
        await host.until(lambda: host.status.state == "up")
        yield host


async def test_units_are_listed(tmp_path: Path, system_bus: str) -> None:
    """Units are listed once, with signals on; one that changes or comes is read whole, by name."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:
        fake.load("gone.service", LoadState="not-found")
        await host.until_shown("systemd/unit/one.service", user="root", type="simple")
        await host.until_shown("systemd/unit/two.timer", unit="one.service")
        assert (len(host.names), len(fake.read)) == (2, 2)
        # PID 1 sends nothing without a subscriber
        members = [member.rpartition(".")[2] for _, member, _ in fake.service.calls]
        assert members.index("Subscribe") == 0
        assert members.count("Subscribe") == members.count("ListUnits") == 1
        failed = {"active_state": "failed", "result": "exit-code"}
        fake.change("one.service", ActiveState="failed", SubState="failed", Result="exit-code")
        await host.until_shown("systemd/unit/one.service", **failed)
        new = "new@a\\x2db.service"
        fake.load(new, ActiveState="active")
        fake.tell_of("UnitNew", new)
        await host.until_shown(f"systemd/unit/{new}", active_state="active")
        assert fake.asked("ListUnitsByPatterns")[1:] == [(PATH, [[], [new]])]
        assert fake.read[2:] == [path_of("one.service"), path_of(new)]


async def test_what_is_not_loaded_is_not_read(tmp_path: Path, system_bus: str) -> None:
    """Units that a question loaded for a moment are not read, which would load them again."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:
        for name in ("asked.service", "not-there.service"):
            fake.tell_of("UnitNew", name)
            fake.tell_of("UnitRemoved", name)
        fake.load("not-there.service", LoadState="not-found")
        fake.service.changed(path_of("not-there.service"), "org.freedesktop.systemd1.Unit")
        fake.tell_of("UnitNew", "not a name")
        fake.tell_of("UnitNew", "last.service")
        fake.load("last.service")
        await host.until_shown("systemd/unit/last.service")
        assert fake.read[2:] == [path_of("last.service")]
        assert len(host.names) == 3


async def test_a_unit_that_is_not_loaded_any_more(tmp_path: Path, system_bus: str) -> None:
    """A unit that is not loaded any more is inactive where it has a file, and gone without one."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:
        fake.file("one.service", "disabled")
        fake.change("one.service", ActiveState="failed", Result="timeout")
        await host.until_shown("systemd/unit/one.service", result="timeout")
        for name in ("one.service", "two.timer"):
            fake.unload(name)
            fake.tell_of("UnitRemoved", name)
        shown = await host.until_shown("systemd/unit/one.service", active_state="inactive")
        assert shown["user"] == "root"
        assert shown["enabled"] is False
        assert "result" not in shown
        await host.until(lambda: host.names == {"systemd/unit/one.service"})


async def test_a_reload(tmp_path: Path, system_bus: str) -> None:
    """A reload that tells of every unit leads to one listing, which changes what has changed."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:
        generation, asked = host.memory.generation, len(fake.service.calls)
        fake.tell_reloading(begins=True)
        for member in ("UnitRemoved", "UnitNew"):
            for name in fake.units:
                fake.tell_of(member, name)
        fake.tell_reloading(begins=False)
        await host.until(lambda: len(fake.asked("GetAll", asked)) == 2)
        fake.load("last.service")
        fake.tell_of("UnitNew", "last.service")
        await host.until_shown("systemd/unit/last.service")
        assert len(fake.asked("ListUnits", asked)) == 1
        assert fake.asked("ListUnitsByPatterns", asked) == [(PATH, [[], ["last.service"]])]
        assert host.memory.generation == generation + 1
        drop_ins = ["/etc/systemd/system/one.service.d/a.conf"]
        fake.tell_reloading(begins=True)
        fake.load("one.service", DropInPaths=drop_ins)
        fake.load("three.path")
        fake.unload("two.timer")
        fake.tell_reloading(begins=False)
        await host.until_shown("systemd/unit/one.service", drop_ins=drop_ins)
        await host.until_shown("systemd/unit/three.path")
        await host.until(lambda: "systemd/unit/two.timer" not in host.names)


async def test_unit_files_are_listed_later(tmp_path: Path, system_bus: str) -> None:
    """Files of units that are not loaded are listed once, later, and described by themselves."""
    async with pid1(system_bus, tmp_path) as fake:
        fake.file(
            "lazy.service", "disabled", "[Unit]\nDescription=Sleeps late\n[Service]\nType=x\n"
        )
        fake.file("one.service", "static", "[Unit]\nDescription=Not what PID 1 has read\n")
        fake.files["/etc/systemd/system/other-name.service"] = "alias"
        async with watched(tmp_path, files_after=0.2) as host:
            await host.until_shown(
                "systemd/unit/lazy.service",
                description="Sleeps late",
                enabled=False,
                active_state="inactive",
            )
            shown = await host.properties("systemd/unit/one.service")
            assert shown["description"] == "The one.service"
            assert len(host.names) == 3
            assert len(fake.asked("ListUnitFiles")) == 1
            assert len(fake.read) == 2


async def test_objects_of_earlier_stay_until_files_are_listed(
    tmp_path: Path, system_bus: str
) -> None:
    """No object is taken away at a start before it is known which unit files there are."""
    async with pid1(system_bus, tmp_path) as fake:
        lazy = fake.file("lazy.service", "disabled")
        fake.file("busy.service", "enabled")
        async with watched(tmp_path, files_after=0.0) as host:
            await host.until_shown("systemd/unit/lazy.service")
        del fake.files[str(lazy)]
        async with watched(tmp_path) as host:
            await host.until(lambda: host.status.state == "up")
            assert "systemd/unit/lazy.service" in host.names
            awaited = host.supervisor.awaited
            assert (awaited(["systemd"]), awaited([], ["systemd"])) == ([], ["systemd"])
        async with watched(tmp_path, files_after=0.0) as host:
            await host.until(lambda: "systemd/unit/lazy.service" not in host.names)
            assert "systemd/unit/busy.service" in host.names
            await host.until(lambda: not host.supervisor.awaited([], ["systemd"]))


async def test_enabling_asks_for_exact_names(tmp_path: Path, system_bus: str) -> None:
    """PID 1 is asked for the state of files that differ, by name, of units loaded and not."""
    async with pid1(system_bus, tmp_path) as fake:
        one = fake.file("one.service", "disabled")
        lazy = fake.file("lazy.service", "enabled")
        fake.units["one.service"]["UnitFileState"] = "disabled"
        async with watched(tmp_path) as host:
            await host.until_shown("systemd/unit/one.service", enabled=False)
            wants = fake.folder / "multi-user.target.wants"
            wants.mkdir()
            (wants / "one.service").symlink_to(one)
            fake.files[str(one)] = "enabled"
            fake.tell("UnitFilesChanged")
            await host.until_shown("systemd/unit/one.service", enabled=True)
            lazy.unlink()
            lazy.symlink_to("/dev/null")
            fake.files[str(lazy)] = "masked"
            fake.tell("UnitFilesChanged")
            await host.until_shown("systemd/unit/lazy.service", masked=True, enabled=False)
            asked = [set(body[1]) for _, body in fake.asked("ListUnitFilesByPatterns")]
            assert asked[0] == {"one.service"}
            assert all(names == {"lazy.service"} for names in asked[1:])
            assert not fake.asked("ListUnitFiles")


async def test_enabling_right_after_a_reload(tmp_path: Path, system_bus: str) -> None:
    """What changes between a reload and the listing after it is newer than what PID 1 has read."""
    async with pid1(system_bus, tmp_path) as fake:
        one = fake.file("one.service", "disabled")
        fake.units["one.service"]["UnitFileState"] = "disabled"
        async with watched(tmp_path, units_every=0.5) as host:
            await host.until_shown("systemd/unit/one.service", enabled=False)
            asked = len(fake.service.calls)
            fake.tell_reloading(begins=True)
            fake.tell_reloading(begins=False)
            wants = fake.folder / "multi-user.target.wants"
            wants.mkdir()
            (wants / "one.service").symlink_to(one)
            fake.files[str(one)] = "enabled"
            fake.tell("UnitFilesChanged")
            await host.until(lambda: fake.asked("ListUnits", asked))
            # the last unit that is listed
            fake.change("two.timer", SubState="elapsed")
            await host.until_shown("systemd/unit/two.timer", sub_state="elapsed")
            await host.until_shown("systemd/unit/one.service", enabled=True)


async def test_a_change_that_was_undone_is_read(tmp_path: Path, system_bus: str) -> None:
    """The state of a unit that was read between two changes is read again after the second."""
    async with pid1(system_bus, tmp_path) as fake:
        lazy = fake.file("lazy.service", "disabled")
        wants = fake.folder / "multi-user.target.wants"
        wants.mkdir()
        async with watched(tmp_path, files_after=0.0) as host:
            await host.until_shown("systemd/unit/lazy.service", enabled=False)
            link = wants / "lazy.service"
            link.symlink_to(lazy)
            fake.files[str(lazy)] = "enabled"
            # the unit is read for this, the folders are not
            fake.tell_of("UnitRemoved", "lazy.service")
            await host.until_shown("systemd/unit/lazy.service", enabled=True)
            link.unlink()
            fake.files[str(lazy)] = "disabled"
            fake.tell("UnitFilesChanged")
            await host.until_shown("systemd/unit/lazy.service", enabled=False)


async def test_what_the_documents_say(tmp_path: Path, system_bus: str) -> None:
    """A unit tells which package its file is of, and what its manual page says of itself."""
    install_tidy(tmp_path, "/lib/systemd/system/three.service")
    (tmp_path / "man" / "man8").mkdir(parents=True)
    page = ".TH TIDY 8\n.SH NAME\ntidyd \\- tidies each night\n.SH DESCRIPTION\n"
    (tmp_path / "man" / "man8" / "tidyd.8").write_text(page)
    file = {"FragmentPath": "/lib/systemd/system/three.service", "Documentation": ["man:tidyd(8)"]}
    told = {"package": "tidy", "package_summary": "tidies up", "manual": "tidies each night"}
    async with pid1(system_bus, tmp_path) as fake:
        fake.load("three.service", **file)
        async with watched(tmp_path) as host:
            assert (await host.properties("systemd/unit/three.service")).items() >= told.items()
            fake.load("four.service", **file)
            fake.tell_of("UnitNew", "four.service")
            await host.until_shown("systemd/unit/four.service", **told)
            assert [what for what, _, _ in rows(tmp_path, "four.service")] == ["appeared"]


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_what_is_found_later_is_no_change(
    tmp_path: Path, system_bus: str, *, is_loaded: bool
) -> None:
    """A manual page or a package that is found later, also after a restart, has no row."""
    name = "systemd/unit/tidy.service"
    async with pid1(system_bus, tmp_path) as fake:
        path = fake.file("tidy.service", "enabled")
        path.write_text("[Unit]\nDocumentation=man:tidyd(8)\n")
        if is_loaded:
            fake.load("tidy.service", FragmentPath=str(path), Documentation=["man:tidyd(8)"])
        async with watched(tmp_path, files_after=0.0) as host:
            await host.until_shown(name, documentation=["man:tidyd(8)"])
        install_tidy(tmp_path, str(path))
        (tmp_path / "man" / "man8").mkdir(parents=True)
        page = ".TH TIDY 8\n.SH NAME\ntidyd \\- tidies each night\n"
        (tmp_path / "man" / "man8" / "tidyd.8").write_text(page)
        async with watched(tmp_path, files_after=0.0) as host:
            await host.until_shown(name, manual="tidies each night", package="tidy")
            # what is another at the same time is told, and it alone
            if is_loaded:
                fake.change("tidy.service", ActiveState="failed", Documentation=[])
                await host.until_shown(name, active_state="failed")
    first, *later = [row for row in history(tmp_path) if row["name"] == "tidy.service"]
    assert first["what"] == "appeared"
    assert [row["what"] for row in later] == ["changed"] * is_loaded
    assert all("active_state" in str(row["fields"]) for row in later)
    assert not any(word in str(row["fields"]) for row in later for word in ("manual", "package"))


async def test_a_unit_that_changes_all_the_time(tmp_path: Path, system_bus: str) -> None:
    """A unit that changes all the time is read at once and then seldom, its neighbour at once."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:
        clock = asyncio.get_running_loop().time
        began = clock()
        count = 0
        while clock() - began < 1.5:
            count += 1
            fake.change("one.service", NRestarts=count)
            await asyncio.sleep(0.02)
        fake.change("two.timer", ActiveState="active")
        await host.until_shown("systemd/unit/two.timer", active_state="active")
        read = fake.read[2:]
        # after 0.1, 0.2, 0.4, 0.8 and then each second
        assert 1 <= read.count(path_of("one.service")) <= 6
        assert read.count(path_of("two.timer")) == 1
        await host.until_shown("systemd/unit/one.service", n_restarts=count)


async def test_restarts_again_and_again_are_one_state(tmp_path: Path, system_bus: str) -> None:
    """A service in a loop waits for a restart all the time, in two rows, until a job starts it."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:
        runs = {"ActiveState": "active", "SubState": "running"}
        for count in (4, 8):
            fake.change("one.service", NRestarts=count, **runs)
            await host.until_shown("systemd/unit/one.service", n_restarts=count)
        loop = {"active_state": "activating", "sub_state": "auto-restart", "restart_loop": True}
        shown = await host.properties("systemd/unit/one.service")
        assert shown.items() >= loop.items()
        fake.change("one.service", NRestarts=9, ActiveState="activating", SubState="auto-restart")
        await host.until_shown("systemd/unit/one.service", n_restarts=9)
        fake.change("one.service", NRestarts=0, **runs)
        await host.until_shown("systemd/unit/one.service", active_state="active")
        assert "restart_loop" not in await host.properties("systemd/unit/one.service")
        told = [what for what, _, _ in rows(tmp_path, "one.service")]
        assert told == ["appeared", "changed", "changed"]


async def test_a_pid1_that_begins_anew(tmp_path: Path, system_bus: str) -> None:
    """When PID 1 was executed anew, it is subscribed to again and listed again."""
    async with observed(tmp_path, unit_observer.OBSERVER) as host:
        async with pid1(system_bus, tmp_path):
            await host.until_shown("systemd/unit/one.service")
        await host.until(lambda: host.status.state == "absent")
        async with pid1(system_bus, tmp_path) as fake:
            fake.load("three.path")
            await host.until_shown("systemd/unit/three.path")
            assert len(fake.asked("Subscribe")) == 1


async def test_a_unit_that_was_started_before_a_package_run(
    tmp_path: Path, system_bus: str
) -> None:
    """A unit that appears when it is started did not come with a later run that wrote its file."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path, files_after=0.0) as host:
        await host.until(lambda: len(fake.asked("ListUnitFiles")) == 1)
        now = time.time()
        host.supervisor._watched[0].report.causes.run_begins("dpkg:later", now - 5)
        for name, before in (("early.service", 60), ("late.service", 1)):
            up = {"ActiveState": "active", "StateChangeTimestamp": int((now - before) * 1e6)}
            fake.load(name, FragmentPath=str(fake.file(name, "enabled")), **up)
            fake.tell_of("UnitNew", name)
            await host.until_shown(f"systemd/unit/{name}", active_state="active")
    assert "dpkg:later" in {cause for _, cause, _ in rows(tmp_path, "late.service")}
    assert "dpkg:later" not in {cause for _, cause, _ in rows(tmp_path, "early.service")}


async def test_a_unit_runs_on_without_its_file(tmp_path: Path, system_bus: str) -> None:
    """A unit whose file was deleted stays as long as it runs or has failed."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:
        fake.tell_reloading(begins=True)
        fake.load("one.service", LoadState="not-found", ActiveState="active", SubState="running")
        fake.tell_reloading(begins=False)
        shown = {"load_state": "not-found", "active_state": "active"}
        await host.until_shown("systemd/unit/one.service", **shown)
        fake.change("one.service", ActiveState="failed")
        await host.until_shown("systemd/unit/one.service", active_state="failed")
        fake.change("one.service", ActiveState="inactive")
        await host.until(lambda: "systemd/unit/one.service" not in host.names)


@pytest.mark.parametrize(
    ("is_told", "cause"),
    [
        pytest.param(True, "dpkg:earlier", id="PID 1 says when it read the files"),
        pytest.param(False, "reload", id="an old one, which does not"),
    ],
)
async def test_a_reload_that_is_heard_of_late(
    tmp_path: Path, system_bus: str, *, is_told: bool, cause: str
) -> None:
    """A reload is of the package run in which it was made, if it is heard of after that."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path, files_after=0.0) as host:
        await host.until(lambda: len(fake.asked("ListUnitFiles")) == 1)
        now, causes = time.time(), host.supervisor._watched[0].report.causes
        causes.run_begins("dpkg:earlier", now - 5)
        causes.end_run(now - 3)
        fake.loaded_at = now - 4 if is_told else 0.0
        fake.unload("one.service")
        fake.tell_reloading(begins=True)
        fake.tell_reloading(begins=False)
        await host.until(lambda: "systemd/unit/one.service" not in host.names)
    assert [row[:2] for row in rows(tmp_path, "one.service")][-1] == ("gone", cause)


async def test_a_unit_that_is_disabled_before_files_are_listed(
    tmp_path: Path, system_bus: str
) -> None:
    """What the file of a loaded unit was is known from the first: a job does not disable it."""
    up = {"ActiveState": "active", "SubState": "running"}
    async with pid1(system_bus, tmp_path) as fake:
        fake.load("one.service", UnitFileState="enabled", is_up=True, **up)
        async with watched(tmp_path) as host:
            fake.units["one.service"]["UnitFileState"] = "disabled"
            fake.work("one.service", 7, ("inactive", "dead"), ("active", "running"))
            fake.end("one.service", 7)
            await host.until(lambda: len(rows(tmp_path, "one.service")) == 3)
    both = [("changed", "reload", 0), ("event", "job:7 restart", 0)]
    assert rows(tmp_path, "one.service")[1:] == both


async def test_what_is_said_before_an_answer_counts(tmp_path: Path, system_bus: str) -> None:
    """A reload that PID 1 told of before it answered is why what it answered is as it is."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:
        list_units = fake.service.answers[f"{NAME}.Manager.ListUnitsByPatterns"]

        def reload(*arguments: Any) -> tuple[str, list[Any]]:
            fake.tell_reloading(begins=True)
            fake.units["one.service"]["Description"] = "Is another one"
            fake.tell_reloading(begins=False)
            return list_units(*arguments)

        fake.service.answers[f"{NAME}.Manager.ListUnitsByPatterns"] = reload
        fake.work("one.service", 7, ("active", "running"), ("inactive", "dead"))
        fake.end("one.service", 7)
        await host.until(lambda: len(rows(tmp_path, "one.service")) == 3)
    assert ("changed", "reload", 0) in rows(tmp_path, "one.service")


async def test_failed_and_looping_units_are_counted(tmp_path: Path, system_bus: str) -> None:
    """Count units while they are failed, or started again and again, and none that is gone."""
    async with pid1(system_bus, tmp_path) as fake, watched(tmp_path) as host:

        def counts() -> list[int]:
            samples = {f.name: f.samples for f in host.supervisor.metrics()}["units"]
            return [samples[state,] for state in ("failed", "looping")]

        assert counts() == [0, 0]
        fake.change("one.service", ActiveState="failed", SubState="failed", Result="exit-code")
        await host.until(lambda: counts() == [1, 0])
        fake.change("one.service", ActiveState="activating", SubState="auto-restart", NRestarts=4)
        await host.until(lambda: counts() == [0, 1])
        fake.change("one.service", ActiveState="failed", SubState="failed", NRestarts=4)
        await host.until(lambda: counts() == [1, 0])
        fake.unload("one.service")
        fake.tell_of("UnitRemoved", "one.service")
        await host.until(lambda: counts() == [0, 0])
