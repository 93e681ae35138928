"""Why units changed, as history has it: what an observer tells of a fake PID 1."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from harness.observing import Host, history, observed, rows
from harness.running import PATIENCE_SECONDS
from harness.units import NAME, FakePid1, fake_pid1, install_tidy, path_of

from opdbus.observe.core.report import Observer
from opdbus.observe.kernel.filesystems import FileSystems, Space
from opdbus.observe.packages.documents import Places
from opdbus.observe.systemd import unit_documents, unit_observer
from opdbus.observe.systemd.unit_observer import Options

ONE, TIMER = "one.service", "two.timer"
UP, DOWN = ("active", "running"), ("inactive", "dead")
STOPS, WAITS = ("deactivating", "stop"), ("activating", "auto-restart")
NEVER = 1e6
NEW, EARLY = "new.service", 0


@asynccontextmanager
async def watched(
    bus: str, folder: Path, *others: Observer, run_seconds: float = 60.0
) -> AsyncIterator[tuple[FakePid1, Host]]:
    """Observe a service that runs and the timer that starts it."""
    places = Places(folder, folder / "dpkg", folder / "man", "rpm", ())
    options = Options(NEVER, NEVER, 0.0, places=places, run_seconds=run_seconds)
    observer = replace(
        unit_observer.OBSERVER, observe=partial(unit_observer.observe, options=options)
    )
    async with fake_pid1(bus, folder) as fake:
        fake.load(ONE, ActiveState="active", SubState="running", is_up=True, TriggeredBy=[TIMER])
        fake.units[ONE]["StateChangeTimestampMonotonic"] = 1
        fake.load(TIMER, ActiveState="active", SubState="waiting", is_up=True, Triggers=[ONE])
        async with observed(folder, observer, *others) as host:
            await host.until(lambda: host.status.state == "up")
            yield fake, host


async def until(host: Host, folder: Path, name: str, *wanted: tuple[str, str, int]) -> None:
    """Wait for rows after the first listing, and for no other."""
    count = len(wanted) + 1
    await host.until(lambda: len(rows(folder, name)) >= count)
    # what comes next comes later
    assert rows(folder, name)[1:] == list(wanted)


# Events of a running service in parts, each with the rows of history that it adds.
FAILED = ("failed", "failed")
EXITS = ("changed", "exit", 0)
GIVEN_UP = {"Result": "start-limit-hit"}
SCRIPTS: dict[str, list[tuple[Any, ...]]] = {
    "a restart that leaves all as it was is one row": [
        ([(7, STOPS, DOWN, UP), "end 7"], ("event", "job:7 restart", 0)),
        ([(8, STOPS, DOWN), "end 8"], ("changed", "job:8 stop", 0)),
    ],
    "restarts between two looks are counted in one row": [
        ([step for n in range(7, 12) for step in ((n, STOPS, DOWN, UP), f"end {n}")],
         ("event", "job:11 restart", 4)),
    ],
    "a stop, a start and a restart are counted apart": [
        ([(7, STOPS, DOWN), "end 7", (8, UP), "end 8", (9, STOPS, DOWN, UP), "end 9"],
         ("event", "job:9 restart, after 1 stop 1 start", 2)),
    ],
    "what fails without a job did so itself, and what is forgotten later does not exit": [
        ([(0, FAILED)], EXITS), ([(0, DOWN)], ("changed", "", 0)),
    ],
    "what is up only after its job was told was started by it": [
        ([(7, STOPS, DOWN), "end 7"], ("changed", "job:7 stop", 0)),
        ([(8, ("activating", "start")), "end 8"], ("changed", "job:8 start", 0)),
        ([(0, UP)], ("changed", "job:8 start", 0)),
    ],
    "what came up and was stopped between two looks was up": [
        ([(7, STOPS, DOWN), "end 7"], ("changed", "job:7 stop", 0)),
        ([(8, ("activating", "start"))], ("changed", "job:8 start", 0)),
        (
            [(8, UP), "end 8", (9, STOPS, DOWN), "end 9"],
            ("changed", "job:8 start", 0),
            ("changed", "job:9 stop", 0),
        ),
    ],
    "what was restarted by itself and stopped between two looks was up": [
        ([(0, WAITS)], EXITS),
        (
            [{"NRestarts": 1}, (9, DOWN, UP), "end 9", (10, STOPS, DOWN), "end 10"],
            ("changed", "job:9 restart, automatic", 0),
            ("changed", "job:10 stop", 0),
        ),
    ],
    "what was stopped while it started was not up": [
        ([(7, STOPS, DOWN), "end 7"], ("changed", "job:7 stop", 0)),
        ([(8, ("activating", "start"))], ("changed", "job:8 start", 0)),
        ([(9, STOPS, DOWN), "end 9"], ("changed", "job:9 stop", 0)),
    ],
    "an automatic restart is a job that says so": [
        ([(0, FAILED, WAITS)], EXITS),
        ([{"NRestarts": 1}, (9, DOWN, UP), "end 9"], ("changed", "job:9 restart, automatic", 0)),
    ],
    "the job that would start what is given up stops nothing": [
        ([(0, FAILED, WAITS)], EXITS),
        ([GIVEN_UP, (9, FAILED), "end 9"], ("changed", "exit:start limit", 0)),
    ],
    "what is given up was not stopped by a job that failed": [
        ([(0, WAITS)], EXITS),
        ([GIVEN_UP, (7, FAILED), "end 7 failed"], ("changed", "exit:start limit", 0)),
    ],
    "giving up is the cause also where restarts are told with it": [
        ([(0, WAITS), (7, DOWN, UP), "end 7", (0, WAITS), GIVEN_UP, (8, FAILED), "end 8 failed"],
         ("changed", "exit:start limit, after 1 restart", 1)),
    ],
    "what had failed and fails at its next start says so": [
        ([(0, FAILED)], EXITS),
        ([(7, ("activating", "start"), FAILED), "end 7 failed"],
         ("event", "job:7 start, failed", 0)),
    ],
    "what failed once more, in another way, while its files were read did so itself": [
        ([{"Result": "exit-code"}, (0, FAILED)], EXITS),
        (["reload begins", {"Result": "signal"}, "reload ends"], ("changed", "", 0)),
    ],
    "what files changed is told apart from a restart that follows at once": [
        (["reload begins", {"DropInPaths": ["/etc/a.conf"]}, "reload ends", (7, DOWN, UP), "end 7"],
         ("changed", "reload", 0), ("event", "job:7 restart", 0)),
    ],
    "an automatic restart that a trigger wanted, too, is none of the trigger": [
        ([{"NRestarts": 1}, (9, WAITS, DOWN, UP), "end 9"], ("event", "exit", 0)),
        ([{"NRestarts": 3}, (10, DOWN, UP), "end 10", (11, DOWN, UP), "end 11"],
         ("event", "exit", 1)),
    ],
    "an automatic restart of which PID 1 said nothing is known by its count": [
        ([{"NRestarts": 1, "MainPID": 900}, "look"], ("event", "exit", 0)),
        ([{"NRestarts": 3, "MainPID": 901}, "look"], ("event", "exit", 1)),
        # a job of somebody begins the count anew
        ([{"NRestarts": 0}, (7, STOPS, DOWN, UP), "end 7"], ("event", "job:7 restart", 0)),
    ],
    "what was killed and started again before a look did not only run": [
        ([(0, DOWN), (7, UP), "end 7"], ("event", "job:7 start, after 1 exit", 1)),
    ],
}  # fmt: skip


@pytest.mark.parametrize("about", SCRIPTS)
async def test_rows_of_a_service(tmp_path: Path, system_bus: str, about: str) -> None:
    """Each part of a script makes its rows, with cause and number of coalesced changes."""
    expected = []
    async with watched(system_bus, tmp_path) as (fake, host):
        for steps, *more in SCRIPTS[about]:
            for step in steps:
                if isinstance(step, tuple):
                    fake.work(ONE, *step)
                elif isinstance(step, dict):
                    fake.units[ONE] |= step
                elif step == "look":
                    fake.change(ONE)
                elif step.startswith("reload"):
                    fake.tell_reloading(begins=step.endswith("begins"))
                else:
                    number, result = f"{step} done".split()[1:3]
                    fake.end(ONE, int(number), result)
            expected += more
            await until(host, tmp_path, ONE, *expected)


async def test_a_slow_stop_has_its_job_twice(tmp_path: Path, system_bus: str) -> None:
    """While a unit stops, PID 1 is asked what its job is; the end is no further event."""
    async with watched(system_bus, tmp_path) as (fake, host):
        fake.jobs = [[7, ONE, "restart", "running", "/", "/"]]
        fake.work(ONE, 7, STOPS)
        await until(host, tmp_path, ONE, ("changed", "job:7 restart", 0))
        fake.jobs = [[7, ONE, "start", "running", "/", "/"]]
        fake.work(ONE, 7, DOWN, UP)
        fake.end(ONE, 7)
        both = ("changed", "job:7 restart", 0), ("changed", "job:7 restart", 0)
        await until(host, tmp_path, ONE, *both)
        assert len(fake.asked("ListJobs")) == 1


@pytest.mark.parametrize("seconds", [0.0, NEVER])
async def test_a_reload_is_one_row_unless_it_lasts(
    tmp_path: Path, system_bus: str, seconds: float
) -> None:
    """That a unit reloads is told only where it does not end soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unit_observer, "_RELOAD_SECONDS", seconds)
        async with watched(system_bus, tmp_path) as (fake, host):
            read = len(fake.asked("GetAll"))
            fake.work(ONE, 7, ("reloading", "reload"))
            await host.until(lambda: len(fake.asked("GetAll")) > read)
            lasts = [("changed", "job:7 reload", 0)] if not seconds else []
            await host.until(lambda: len(rows(tmp_path, ONE)) > len(lasts))
            fake.work(ONE, 7, UP)
            fake.end(ONE, 7)
            end = ("changed" if lasts else "event", "job:7 reload", 0)
            await until(host, tmp_path, ONE, *lasts, end)


@pytest.mark.parametrize("state", [("failed", "failed"), WAITS])
async def test_a_failure_has_file_systems_measured(
    tmp_path: Path, system_bus: str, state: tuple[str, str]
) -> None:
    """How full file systems are is read at once where a unit fails, and not after a minute."""
    used, info = [50.0], tmp_path / "mountinfo"
    info.write_text("30 27 0:27 / /run rw,nosuid - tmpfs tmpfs rw,size=10k\n")
    source = FileSystems(info, NEVER, measure=lambda *_: Space(1 << 30, used[0], 1.0))
    mounts = Observer("filesystems", "mounts", source.observe)
    async with watched(system_bus, tmp_path, mounts) as (fake, host):
        await host.until_shown("mounts/mount//run", used_percent=50)
        used[0] = 100.0
        fake.work(ONE, 0, state)
        await host.until_shown("mounts/mount//run", used_percent=100)


async def test_a_loop_begins_by_itself(tmp_path: Path, system_bus: str) -> None:
    """A service that is restarted again and again does that itself, and no job of systemd's."""
    async with watched(system_bus, tmp_path) as (fake, host):
        fake.units[ONE]["NRestarts"] = 4
        fake.work(ONE, 9, DOWN, UP)
        fake.end(ONE, 9)
        await until(host, tmp_path, ONE, ("changed", "exit", 0))
        fake.units[ONE]["NRestarts"] = 5
        fake.work(ONE, 10, DOWN, UP)
        fake.end(ONE, 10)
        await host.until_shown(f"systemd/unit/{ONE}", n_restarts=5)
        await until(host, tmp_path, ONE, ("changed", "exit", 0))


@pytest.mark.parametrize(
    ("code", "status", "result", "cause"),
    [
        (2, 9, "signal", "exit:SIGKILL"),
        (1, 3, "exit-code", "exit:status 3"),
        (2, 6, "watchdog", "exit:SIGABRT"),
        (1, 0, "success", "exit"),
        (2, 15, "success", "exit:SIGTERM"),
        (2, 15, "timeout", "exit:timeout"),
        (2, 1 << 20, "signal", "exit"),
    ],
)
async def test_systemd_restarts_at_once(
    tmp_path: Path, system_bus: str, code: int, status: int, result: str, cause: str
) -> None:
    """Where a service runs again before it is looked at, its row says how it had ended."""
    async with watched(system_bus, tmp_path) as (fake, host):
        ended = {"ExecMainCode": code, "ExecMainStatus": status, "Result": result}
        fake.service.changed(path_of(ONE), f"{NAME}.Service", **ended)
        fake.work(ONE, 0, ("failed", "failed"), WAITS)
        well = {"ExecMainCode": 0, "ExecMainStatus": 0, "Result": "success"}
        fake.service.changed(path_of(ONE), f"{NAME}.Service", **well)
        fake.work(ONE, 9, DOWN, UP)
        fake.end(ONE, 9)
        await until(host, tmp_path, ONE, ("event", cause, 0))


async def test_the_end_of_a_main_process_names_it(tmp_path: Path, system_bus: str) -> None:
    """A row about the end of a unit's process has its number; a row about a job has none."""
    async with watched(system_bus, tmp_path) as (fake, host):
        fake.units[ONE] |= {"MainPID": 812, "NRestarts": 0}
        fake.change(ONE)
        await host.until_shown(f"systemd/unit/{ONE}", main_pid=812)
        fake.units[ONE] |= {"MainPID": 900, "NRestarts": 1}
        fake.change(ONE)
        await until(host, tmp_path, ONE, ("event", "exit", 0))
        fake.work(ONE, 7, STOPS, DOWN, UP)
        fake.end(ONE, 7)
        await until(host, tmp_path, ONE, ("event", "exit", 0), ("event", "job:7 restart", 0))
        fake.work(ONE, 0, FAILED)
        await host.until(lambda: len(rows(tmp_path, ONE)) == 4)
        of_pid = [
            [each for each in row["fields"] if each[0] == ["main_pid"]] for row in history(tmp_path)
        ]
        ended = [found for found in of_pid if found]
        assert ended == [[[["main_pid"], [812], []]], [[["main_pid"], [900], []]]]


async def test_a_timer_changes_with_what_it_starts(tmp_path: Path, system_bus: str) -> None:
    """A timer has no job when it elapses: what it starts has one, which is told of both."""
    async with watched(system_bus, tmp_path) as (fake, host):
        fake.work(ONE, 5, STOPS, DOWN)
        fake.end(ONE, 5)
        await until(host, tmp_path, ONE, ("changed", "job:5 stop", 0))
        fake.work(TIMER, 0, ("active", "elapsed"))
        fake.work(ONE, 6, UP)
        fake.end(ONE, 6)
        await until(host, tmp_path, TIMER, ("changed", "job:6 start", 0))


async def test_a_reload_is_the_cause_of_what_it_changes(tmp_path: Path, system_bus: str) -> None:
    """What differs after a reload has it as its cause; a job of the same time keeps its own."""
    async with watched(system_bus, tmp_path) as (fake, host):
        fake.tell_reloading(begins=True)
        fake.load(TIMER, Description="elapses", ActiveState="active", SubState="waiting")
        fake.work(ONE, 7, STOPS, DOWN)
        fake.end(ONE, 7)
        fake.tell_reloading(begins=False)
        await until(host, tmp_path, TIMER, ("changed", "reload", 0))
        assert len(fake.asked("ListUnits")) == 2
        await until(host, tmp_path, ONE, ("changed", "job:7 stop", 0))


@pytest.mark.parametrize(
    ("name", "fragment", "told"),
    [
        # not all unit files were listed yet
        ("tidy@1.service", "tidy@.service", [("appeared", "first", 0)]),
        (NEW, NEW, [("appeared", "reload", 0), ("changed", "", 0)]),
        (TIMER, "", [("changed", "", 0)]),
        (ONE, "", [("changed", "exit", 0)]),
    ],
)
async def test_no_reload_makes_a_unit_fail(
    tmp_path: Path, system_bus: str, name: str, fragment: str, told: list[tuple[str, str, int]]
) -> None:
    """What failed by the time that units were read again did not fail by that."""
    async with watched(system_bus, tmp_path) as (fake, host):
        file, count = (
            str(fake.file(fragment, "static")) if fragment else "",
            len(rows(tmp_path, name)),
        )
        fake.tell_reloading(begins=True)
        fake.load(name, FragmentPath=file, ActiveState="failed", SubState="failed")
        fake.tell_reloading(begins=False)
        await host.until(lambda: len(rows(tmp_path, name)) >= count + len(told))
        assert rows(tmp_path, name)[count:] == told


async def test_lost_and_hostile_jobs(tmp_path: Path, system_bus: str) -> None:
    """Jobs of which nothing else was heard, of units that there are not, and odd names."""
    async with watched(system_bus, tmp_path) as (fake, host):
        for name in ("none.service", "not a unit", "../../etc.service", "a" * 300 + ".service"):
            fake.end(name, 3)
        fake.tell("JobRemoved", "s", "nothing")
        fake.change(ONE, ActiveState="inactive", SubState="dead")
        fake.end(ONE, 4, "canceled")
        await until(host, tmp_path, ONE, ("changed", "job:4", 0))
        assert len(host.names) == 2


@pytest.mark.parametrize("job", ["job:7 stop", "job:7 start"])
async def test_files_and_a_job_at_once(tmp_path: Path, system_bus: str, job: str) -> None:
    """What is read of `disable --now` or `enable --now` before its signals waits for them."""
    stops = "stop" in job
    name, was, now = (ONE, "enabled", "disabled") if stops else (NEW, "disabled", "enabled")
    async with watched(system_bus, tmp_path) as (fake, host):
        file = fake.file(name, was)
        fake.tell("UnitFilesChanged")
        await host.until_shown(f"systemd/unit/{name}", enabled=stops)
        count, read = len(rows(tmp_path, name)), len(fake.read)
        if not stops:
            fake.load(name)
        old, clock = dict(fake.units[name]), fake.clock + 1
        stamp = "InactiveEnter" if stops else "InactiveExit"
        moved = {f"{stamp}TimestampMonotonic": clock, "StateChangeTimestampMonotonic": clock}
        state = ("inactive", "dead") if stops else ("active", "running")
        new = dict(zip(("ActiveState", "SubState"), state, strict=True)) | moved
        fake.units[name] |= new
        file.write_text("[Install]\n")
        fake.files[str(file)] = now
        fake.tell("UnitFilesChanged")
        await host.until(lambda: len(fake.read) > read)
        fake.units[name] |= old | dict.fromkeys(moved, EARLY)
        fake.work(name, 7)
        fake.units[name] |= new
        fake.work(name, 7)
        fake.end(name, 7)
        await host.until_shown(f"systemd/unit/{name}", active_state=state[0], enabled=not stops)
        await asyncio.sleep(0.5)
        assert rows(tmp_path, name)[count:] == [("changed", job, 0)]


async def test_systemd_gives_up_once(tmp_path: Path, system_bus: str) -> None:
    """A job that is heard of after it was read that a service was given up is no second time."""
    async with watched(system_bus, tmp_path) as (fake, host):
        fake.work(ONE, 0, WAITS)
        await until(host, tmp_path, ONE, ("changed", "exit", 0))
        fake.change(ONE, ActiveState="failed", SubState="failed", Result="start-limit-hit")
        both = ("changed", "exit", 0), ("changed", "exit:start limit", 0)
        await until(host, tmp_path, ONE, *both)
        fake.work(ONE, 8, ("failed", "failed"))
        fake.end(ONE, 8, "failed")
        fake.load(TIMER, ActiveState="inactive", SubState="dead")
        fake.change(TIMER)
        await host.until_shown(f"systemd/unit/{TIMER}", active_state="inactive")
        await until(host, tmp_path, ONE, *both)


async def test_a_restart_that_fails_is_not_given_up(tmp_path: Path, system_bus: str) -> None:
    """A service whose start by PID 1 failed ended by itself, and may be started again."""
    async with watched(system_bus, tmp_path) as (fake, host):
        fake.work(ONE, 0, WAITS)
        await until(host, tmp_path, ONE, ("changed", "exit", 0))
        fake.units[ONE]["Result"] = "exit-code"
        fake.work(ONE, 8, ("failed", "failed"))
        fake.end(ONE, 8, "failed")
        await until(host, tmp_path, ONE, ("changed", "exit", 0), ("changed", "exit", 0))
        fake.work(ONE, 0, WAITS)
        fake.work(ONE, 9, ("activating", "start"), ("failed", "failed"), WAITS)
        fake.end(ONE, 9, "failed")
        await host.until_shown(f"systemd/unit/{ONE}", sub_state="auto-restart")
        assert not any("limit" in cause for _, cause, _ in rows(tmp_path, ONE))


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_unit_that_left_before_its_signals(
    tmp_path: Path, system_bus: str, *, is_loaded: bool
) -> None:
    """What is read of a unit that stopped, and may load it, waits for signals that say why."""
    async with watched(system_bus, tmp_path) as (fake, host):
        file, before = fake.file(ONE, "static"), dict(fake.units[ONE])
        if is_loaded:
            fake.load(ONE, StateChangeTimestampMonotonic=0)
        else:
            fake.unload(ONE)
        fake.tell_of("UnitNew", ONE)
        await host.until(lambda: len(fake.asked("ListUnitsByPatterns")) == 1)
        await host.until(lambda: len(fake.read) == 2 + is_loaded)
        fake.load(ONE, **before)
        fake.work(ONE, 7, STOPS, DOWN)
        fake.end(ONE, 7)
        fake.load(ONE, StateChangeTimestampMonotonic=0)
        await until(host, tmp_path, ONE, ("changed", "job:7 stop", 0))
        fake.files[str(file)] = "masked"
        fake.unload(ONE)
        fake.tell_of("UnitRemoved", ONE)
        await host.until_shown(f"systemd/unit/{ONE}", masked=True)


@pytest.mark.parametrize(
    ("state", "what"), [(UP, "changed"), (("failed", "failed"), "changed"), (DOWN, "event")]
)
async def test_a_new_unit_that_was_started(
    tmp_path: Path, system_bus: str, state: tuple[str, str], what: str
) -> None:
    """That a unit came by a reload and that a job started it are two rows, however it went."""
    async with watched(system_bus, tmp_path) as (fake, host):
        file = fake.file(NEW, "enabled")
        fake.tell_reloading(begins=True)
        fake.load(NEW, FragmentPath=str(file), UnitFileState="enabled")
        fake.tell_reloading(begins=False)
        fake.work(NEW, 7, ("activating", "start"), state)
        fake.end(NEW, 7)
        await host.until(lambda: len(rows(tmp_path, NEW)) == 2)
        came, started = (row for row in history(tmp_path) if row["name"] == NEW)
        assert (came["what"], came["cause"]) == ("appeared", "reload")
        assert [["active_state"], [], ["inactive"]] in came["fields"]
        assert (started["what"], started["cause"]) == (what, "job:7 start")
        wanted = [["active_state"], ["inactive"], [state[0]]]
        assert (wanted in started["fields"]) == (state != DOWN)


async def test_documents_that_are_late(
    tmp_path: Path, system_bus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of a new unit only later is shown, is no change of it, and takes no job."""
    is_free, found = threading.Event(), unit_documents.find_facts
    monkeypatch.setattr(unit_documents, "_SOON_SECONDS", 0.0)
    monkeypatch.setattr(
        unit_documents, "find_facts", lambda *args: is_free.wait(PATIENCE_SECONDS) and found(*args)
    )
    is_free.set()
    async with watched(system_bus, tmp_path) as (fake, host):
        is_free.clear()
        file = fake.file(NEW, "enabled")
        install_tidy(tmp_path, str(file))
        fake.tell_reloading(begins=True)
        fake.load(NEW, FragmentPath=str(file))
        fake.tell_reloading(begins=False)
        fake.work(NEW, 7, ("activating", "start"), UP)
        fake.end(NEW, 7)
        await host.until(lambda: len(rows(tmp_path, NEW)) == 1)
        is_free.set()
        await host.until_shown(f"systemd/unit/{NEW}", package="tidy", active_state="active")
        told = [("appeared", "reload"), ("changed", "job:7 start")]
        assert [(what, cause) for what, cause, _ in rows(tmp_path, NEW)] == told


async def test_a_trigger_that_stops_or_is_masked(tmp_path: Path, system_bus: str) -> None:
    """Which loaded units start a service is shown, and is no change of the service."""
    async with watched(system_bus, tmp_path) as (fake, host):
        shown = f"systemd/unit/{ONE}"
        for job, triggers in enumerate(([], [TIMER], ["three.timer", TIMER], [TIMER]), 7):
            fake.units[ONE]["TriggeredBy"] = triggers
            fake.work(ONE, job, STOPS, DOWN, UP)
            fake.end(ONE, job)
            await host.until_shown(shown, **{"triggered_by": triggers} if triggers else {})
            await host.until(lambda count=job - 5: len(rows(tmp_path, ONE)) == count)
        assert {tuple(map(str, row["fields"])) for row in history(tmp_path)[2:]} == {()}


RUN = {"Type": "oneshot", "TriggeredBy": [TIMER]}
BEGINS = ("activating", "start")


async def run_by_timer(fake: FakePid1, job: int, end: tuple[str, str] = DOWN) -> None:
    """Let a timer run a service whose run takes longer than a reading."""
    fake.work(TIMER, 0, ("active", "running"))
    fake.work(ONE, job, BEGINS)
    await asyncio.sleep(0.3)
    fake.work(ONE, job, end)
    fake.end(ONE, job)
    fake.work(TIMER, 0, ("active", "waiting"))


async def test_a_run_of_a_timer_is_one_row(tmp_path: Path, system_bus: str) -> None:
    """A service that its timer runs has one row for each run, the timer none; a failure is news."""
    async with watched(system_bus, tmp_path) as (fake, host):
        fake.units[ONE] |= RUN
        fake.work(ONE, 5, STOPS, DOWN)
        fake.end(ONE, 5)
        wanted = [("changed", "job:5 stop", 0)]
        await until(host, tmp_path, ONE, *wanted)
        for job in (6, 7):
            await run_by_timer(fake, job)
            wanted.append(("event", f"job:{job} start by {TIMER}", 0))
            await until(host, tmp_path, ONE, *wanted)
        fake.units[ONE] |= {"Result": "exit-code", "ExecMainCode": 1, "ExecMainStatus": 3}
        await run_by_timer(fake, 8, FAILED)
        wanted.append(("changed", f"job:8 start by {TIMER}", 0))
        await until(host, tmp_path, ONE, *wanted)
        await run_by_timer(fake, 9, FAILED)
        wanted.append(("event", f"job:9 start by {TIMER}, failed", 0))
        await until(host, tmp_path, ONE, *wanted)
        assert [what for what, *_ in rows(tmp_path, TIMER)] == ["appeared"]


async def test_a_timer_that_has_started_a_unit_waits(tmp_path: Path, system_bus: str) -> None:
    """While its unit runs, a timer is shown as waiting, with its state at present beside it."""
    async with watched(system_bus, tmp_path) as (fake, host):
        shown = f"systemd/unit/{TIMER}"
        fake.work(TIMER, 0, ("active", "running"))
        await host.until_shown(shown, sub_state="waiting", state_now="active (running)")
        fake.work(TIMER, 0, ("active", "elapsed"))
        await host.until_shown(shown, sub_state="elapsed")


async def test_a_long_run_of_a_timer_is_shown(tmp_path: Path, system_bus: str) -> None:
    """A run that lasts is shown while it goes on; so is a service that no timer runs, at once."""
    async with watched(system_bus, tmp_path, run_seconds=0.2) as (fake, host):
        for job, fields in (
            (5, RUN),
            (7, RUN | {"TriggeredBy": []}),
            (9, RUN | {"Type": "simple"}),
        ):
            fake.units[ONE] |= fields
            fake.work(ONE, job, STOPS, DOWN)
            fake.end(ONE, job)
            await host.until_shown(f"systemd/unit/{ONE}", active_state="inactive")
            fake.work(ONE, job + 1, BEGINS)
            await host.until_shown(f"systemd/unit/{ONE}", active_state="activating")
            fake.work(ONE, job + 1, DOWN)
            fake.end(ONE, job + 1)
            await host.until_shown(f"systemd/unit/{ONE}", active_state="inactive")
