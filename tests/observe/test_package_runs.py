"""The runs of dpkg and apt, as their logs and locks tell of them: fakes, and a real dpkg."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pytest
from harness.observing import Host, observed, rows
from test_observe_packages import paragraph

from opdbus.observe.core.report import Observer, Report
from opdbus.observe.packages import package_runs
from opdbus.observe.packages.documents import Places
from opdbus.observe.packages.package_observer import Packages

BEGUN = "2026-11-22 07:01:02 startup archives unpack\n"
APT = "\nStart-Date: 2026-11-22  07:01:02\nCommandline: apt-get install tool\n"
END = "End-Date: 2026-11-22  07:01:09\n"
RUN = "apt:2026-11-22T07:01:02 apt-get install tool"


@dataclass
class Fake:
    """What a package manager writes, in a folder."""

    folder: Path
    reports: list[Report] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Have a package and empty logs."""
        (self.folder / "dpkg").mkdir()
        (self.folder / "log" / "apt").mkdir(parents=True)
        self.log("dpkg.log", "2026-11-21 01:00:00 startup archives unpack\n")
        self.log("apt/history.log", "")
        self.write("tool")

    def log(self, name: str, text: str) -> None:
        """Add to a log."""
        with (self.folder / "log" / name).open("a") as file:
            file.write(text)

    def write(self, *names: str, status: str = "install ok installed") -> None:
        """Write dpkg's status as dpkg does."""
        new = self.folder / "dpkg" / "status-new"
        new.write_text("".join(paragraph(name, status) for name in names))
        new.rename(self.folder / "dpkg" / "status")

    def close(self) -> None:
        """Open the lock and close it."""
        (self.folder / "dpkg" / "lock-frontend").write_text("")

    @property
    def run(self) -> str:
        """The run that goes on, as other observers see it."""
        return self.reports[-1].causes.run(time.time())


@asynccontextmanager
async def watched(folder: Path, fake: Fake | None = None) -> AsyncIterator[tuple[Fake, Host]]:
    """Observe its packages."""
    fake = fake or Fake(folder)
    places = Places(folder, folder / "dpkg", folder, "no-rpm", ())
    packages = Packages(places, folder / "states", folder / "log")

    async def observe(report: Report) -> None:
        fake.reports.append(report)
        await packages.observe(report)

    async with observed(folder, Observer("packages", "packages", observe)) as host:
        await host.until_shown("packages/package/tool")
        yield fake, host


async def until(host: Host, folder: Path, name: str, what: str) -> str:
    """Wait for something to happen to a package, and give its cause."""
    await host.until(lambda: any(row[0] == what for row in rows(folder, name)))
    return next(cause for happened, cause, _ in rows(folder, name) if happened == what)


async def test_a_run_of_apt_is_one_cause(tmp_path: Path) -> None:
    """All that dpkg does for apt has apt's command as its cause, and is read at the end."""
    async with watched(tmp_path) as (fake, host):
        fake.log("apt/history.log", APT)
        await host.until(lambda: fake.run == RUN)
        for status in ("install ok unpacked", "install ok half-configured"):
            fake.log("dpkg.log", BEGUN)
            fake.write("tool", "new", status=status)
            fake.close()
            await asyncio.sleep(0.3)
        fake.write("tool", "new")
        fake.log("apt/history.log", END)
        assert await until(host, tmp_path, "new", "appeared") == RUN
        assert len(rows(tmp_path, "tool")) == len(rows(tmp_path, "new")) == 1
        assert fake.run == ""


async def test_what_apt_changes_before_it_begins_its_log(tmp_path: Path) -> None:
    """That dpkg notes what apt wants is the beginning of its run: nothing is read half-way."""
    async with watched(tmp_path) as (fake, host):
        fake.write("tool", status="deinstall ok installed")
        await asyncio.sleep(0.4)
        fake.log("apt/history.log", APT)
        fake.log("dpkg.log", BEGUN)
        fake.write("tool", status="deinstall ok half-installed")
        await asyncio.sleep(0.8)
        fake.write("other")
        fake.log("apt/history.log", END)
        assert await until(host, tmp_path, "tool", "gone") == RUN
        assert len(rows(tmp_path, "tool")) == 2


async def test_a_run_of_dpkg_ends_with_its_lock(tmp_path: Path) -> None:
    """A run of dpkg begins with the first line in its log, and two runs are two causes."""
    async with watched(tmp_path) as (fake, host):
        for name, second in (("one", "02"), ("two", "42")):
            begun = BEGUN.replace(":02 ", f":{second} ")
            fake.log("dpkg.log", begun + begun.replace("archives unpack", "packages configure"))
            fake.write("tool", "one", name)
            fake.close()
            cause = await until(host, tmp_path, name, "appeared")
            assert cause == f"dpkg:2026-11-22T07:01:{second}"


async def test_what_was_done_before_a_run_is_not_its(tmp_path: Path) -> None:
    """A run begins when it takes its lock, in whatever part of the second that its log has."""
    async with watched(tmp_path) as (fake, host):
        before = time.time()
        (tmp_path / "dpkg" / "lock").write_text("")
        begun = datetime.now().astimezone()
        fake.log("dpkg.log", f"{begun:%Y-%m-%d %H:%M:%S} startup archives unpack\n")
        (tmp_path / "dpkg" / "updates").mkdir()
        (tmp_path / "dpkg" / "updates" / "0001").touch()
        await host.until(lambda: fake.run != "")
        run = fake.reports[-1].causes.run
        assert fake.run == f"dpkg:{begun:%Y-%m-%dT%H:%M:%S}"
        assert run(before - 0.02) == ""
        assert run(time.time()) == fake.run


@pytest.mark.parametrize(
    ("takes", "second", "begins"),
    [
        pytest.param(0.9, 1, 0.9, id="it logs in the next second"),
        pytest.param(1.4, 1, 1.4, id="in the same"),
        pytest.param(2.1, 1, 1.0, id="another run has taken the lock since"),
    ],
)
async def test_when_a_run_of_dpkg_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: float, second: int, begins: float
) -> None:
    """A run begins when it takes its lock, also if that is heard of after it has made changes."""
    async with watched(tmp_path) as (fake, _):
        now = int(time.time()) - 9
        kept = package_runs.changed_at
        lock = str(tmp_path / "dpkg" / "lock")
        monkeypatch.setattr(
            package_runs, "changed_at", lambda path: now + takes if path == lock else kept(path)
        )
        logged = datetime.fromtimestamp(now + second).astimezone()
        fake.log("dpkg.log", f"{logged:%Y-%m-%d %H:%M:%S} startup archives unpack\n")
        run = fake.reports[-1].causes.run
        assert run(now + begins) == f"dpkg:{logged:%Y-%m-%dT%H:%M:%S}"
        assert run(now + begins - 0.01) == ""


async def test_what_no_run_changes_has_no_cause(tmp_path: Path) -> None:
    """That a package is held is noted by dpkg without a run: its log says so."""
    async with watched(tmp_path) as (fake, host):
        fake.write("tool", status="hold ok installed")
        assert await until(host, tmp_path, "tool", "changed") == ""


async def test_without_logs_time_tells_runs_apart(tmp_path: Path) -> None:
    """Where no log may be read, changes that follow each other soon have one cause."""
    async with watched(tmp_path) as (fake, host):
        (tmp_path / "log" / "dpkg.log").unlink()
        fake.write("tool", "one")
        cause = await until(host, tmp_path, "one", "appeared")
        assert cause.startswith("dpkg:20")
        fake.write("tool", "one", "two")
        assert await until(host, tmp_path, "two", "appeared") == cause
        assert fake.run == ""


async def test_an_apt_that_was_killed(tmp_path: Path) -> None:
    """A run that never says that it ended is over soon after its lock was closed."""
    async with watched(tmp_path) as (fake, host):
        fake.log("apt/history.log", APT)
        fake.write("tool", "new", status="install ok half-configured")
        fake.close()
        assert await until(host, tmp_path, "new", "appeared") == RUN


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("apt-get install -o password=hunter2correct x", "hunter2correct"),
        ("apt-get install " + "long " * 500, "long " * 50),
        ("apt-get \x1b[2J \x00 \udcff", "\x1b"),
    ],
)
async def test_a_command_is_made_sane(tmp_path: Path, line: str, cause: str) -> None:
    """A command in a cause has no secrets, no control characters, and no more than 200 letters."""
    async with watched(tmp_path) as (fake, host):
        command = APT.replace("apt-get install tool", line)
        with (tmp_path / "log" / "apt" / "history.log").open("ab") as file:
            file.write(command.encode(errors="surrogateescape") + END.encode())
        fake.write("tool", "new")
        found = await until(host, tmp_path, "new", "appeared")
        assert found.startswith("apt:2026-11-22T07:01:02 apt-get")
        assert cause not in found
        assert len(found) <= 200


async def test_logs_that_are_cut_or_not_sane(tmp_path: Path) -> None:
    """A log that was rotated is read from its beginning; what is no run is none."""
    async with watched(tmp_path) as (fake, host):
        fake.log("dpkg.log", "\0\n2026-11-22 startup\nstartup archives\n" * 10)
        fake.log("apt/history.log", "Start-Date: yesterday\nCommandline: x\n")
        await asyncio.sleep(0.5)
        assert fake.run == ""
        said = f"1 row not understood: the beginning of a run in {tmp_path}/log/apt/history.log"
        assert host.status.detail == said
        (tmp_path / "log" / "dpkg.log").unlink()
        fake.log("dpkg.log", BEGUN)
        fake.write("tool", "new")
        fake.close()
        cause = await until(host, tmp_path, "new", "appeared")
        assert cause == "dpkg:2026-11-22T07:01:02"


async def test_nobody_waits_for_a_run_that_is_not_seen(tmp_path: Path) -> None:
    """When the observer is lost while a run goes on, others do not wait for its end."""
    async with watched(tmp_path) as (fake, host):
        fake.log("apt/history.log", APT)
        await host.until(lambda: fake.run == RUN)
        (tmp_path / "dpkg" / "status").unlink()
        fake.log("apt/history.log", END)
        await host.until(lambda: host.status.state == "absent")
        await asyncio.wait_for(fake.reports[0].causes.run_over(), 5.0)


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_run_that_began_before(tmp_path: Path, *, is_over: bool) -> None:
    """A run that starts op-dbus is the cause of what it installs; triggers install nothing.

    A package is half-configured while it is installed, and again while its triggers run.
    """
    fake = Fake(tmp_path)
    fake.log("apt/history.log", APT + END * is_over)
    fake.log("dpkg.log", BEGUN)
    updates = tmp_path / "dpkg" / "updates"
    updates.mkdir()
    if not is_over:
        (updates / "0001").touch()
    trigger = paragraph("mandb", "install ok half-configured") + "Config-Version: 1.2-3\n"
    states = {
        "tool": paragraph("tool", "install ok half-configured"),
        "mandb": trigger.replace("\n\n", "\n"),
        "bus": paragraph("bus", "install ok triggers-pending"),
        "init": paragraph("init", "install ok triggers-awaited"),
    }
    status = tmp_path / "dpkg" / "status"
    status.write_text("\n".join(text.strip() + "\n" for text in states.values()))
    async with watched(tmp_path, fake) as (_, host):
        shown = await host.properties("packages/package/mandb")
        assert shown["status"] == ("half-configured" if is_over else "installed")
        assert fake.run == ("" if is_over else RUN)
        fake.write(*states)
        (updates / "0001").unlink(missing_ok=True)
        fake.log("apt/history.log", END)
        cause = await until(host, tmp_path, "tool", "changed")
        assert is_over or cause == RUN
        await host.until_shown("packages/package/mandb", status="installed")
        for name in {*states} - {"tool"}:
            assert len(rows(tmp_path, name)) == 1 + is_over


async def test_triggers_that_failed(tmp_path: Path) -> None:
    """What a run leaves half-configured is written when it is over."""
    fake = Fake(tmp_path)
    fake.log("apt/history.log", APT)
    updates = tmp_path / "dpkg" / "updates"
    updates.mkdir()
    (updates / "0001").touch()
    fake.write("tool", status="install ok triggers-pending")
    async with watched(tmp_path, fake) as (_, host):
        assert (await host.properties("packages/package/tool"))["status"] == "installed"
        fake.log("apt/history.log", END)
        assert await until(host, tmp_path, "tool", "changed") == RUN
        await host.until_shown("packages/package/tool", status="triggers-pending")
