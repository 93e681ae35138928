"""The observer of cron's jobs, on a folder like /etc."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from observing import Host, in_loop, observed

from opdbus.observe import crontab
from opdbus.observe.cron import Cron
from opdbus.observe.report import Observer

CRONTAB = """\
SHELL=/bin/sh
MAILTO=root
# m h dom mon dow user command
17 *\t* * *\troot\tcd / && run-parts --report /etc/cron.hourly
25 6 * * 7 backup /opt/shop/save-orders --password hunter2
25 7 * * 7 backup /opt/shop/save-orders again
these are no five fields but words
* * * *
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    """Make a host with a crontab, and a script that runs each day."""
    folder = tmp_path / "etc"
    (folder / "cron.daily").mkdir(parents=True)
    (folder / "cron.d").mkdir()
    (folder / "crontab").write_text(CRONTAB)
    (folder / "cron.daily" / "rotate").write_text("#!/bin/sh\n")
    (folder / "cron.daily" / "rotate").chmod(0o755)
    (folder / "cron.daily" / "not-executable").write_text("#!/bin/sh\n")
    (folder / "cron.daily" / ".placeholder").write_text("")
    return folder


@asynccontextmanager
async def watched(etc: Path) -> AsyncIterator[Host]:
    """Observe the jobs of a folder, where there is a cron."""
    program = etc.parent / "cron"
    program.write_text("")
    program.chmod(0o755)
    source = Cron(etc, str(etc.parent))
    async with observed(etc.parent, Observer("cron", "cron", source.observe)) as host:
        yield host


@in_loop
async def test_jobs_are_objects(etc: Path) -> None:
    """Each job says in words when it runs, as whom, and what; two of a program have numbers."""
    async with watched(etc) as host:
        name = f"cron/job/{etc}/crontab save-orders"
        shown = await host.until_shown(
            name, user="backup", schedule="every Sunday at 06:25", line="25 6 * * 7",
            program="save-orders", file=f"{etc}/crontab",
        )  # fmt: skip
        assert "hunter2" not in str(shown)
        await host.until_shown(f"{name} 2", schedule="every Sunday at 07:25")
        await host.until_shown(f"cron/job/{etc}/crontab run-parts", user="root")
        await host.until_shown(f"cron/job/{etc}/cron.daily/rotate", schedule="every day")
        assert len(host.names) == 4
        assert host.status.detail == "crontabs of users in /var/spool/cron are not read"
        assert "no cron here" not in host.status.detail


@in_loop
async def test_jobs_come_change_and_go(etc: Path) -> None:
    """A file that is added, edited and removed is seen, also in a folder that was missing."""
    async with watched(etc) as host:
        await host.until_shown(f"cron/job/{etc}/cron.daily/rotate")
        file = etc / "cron.d" / "shop"
        name = f"cron/job/{file} tidy"
        file.write_text("0 3 * * * www /opt/tidy\n")
        await host.until_shown(name, schedule="every day at 03:00")
        file.write_text("0 4 * * * www /opt/tidy\n")
        await host.until_shown(name, schedule="every day at 04:00")
        file.unlink()
        await host.until(lambda: name not in host.names)
        (etc / "cron.weekly").mkdir()
        (etc / "cron.weekly" / "trim").write_text("")
        (etc / "cron.weekly" / "trim").chmod(0o755)
        await host.until_shown(f"cron/job/{etc}/cron.weekly/trim", schedule="every week")


@in_loop
async def test_jobs_of_anacron(etc: Path) -> None:
    """Jobs of anacron run every so many days, and are called as there."""
    (etc / "anacrontab").write_text(
        "LOGNAME=root\n1 5 cron.daily nice run-parts x\n@monthly 9 m y\n"
    )
    async with watched(etc) as host:
        await host.until_shown(f"cron/job/{etc}/anacrontab cron.daily", schedule="every day")
        await host.until_shown(f"cron/job/{etc}/anacrontab m", schedule="every month")


@in_loop
async def test_a_host_without_cron(tmp_path: Path) -> None:
    """Where there is none of the files the observer is absent; without a program it says so."""
    source = Cron(tmp_path / "etc", str(tmp_path))
    async with observed(tmp_path, Observer("cron", "cron", source.observe)) as host:
        await host.until(lambda: host.status.state == "absent")
        (tmp_path / "etc" / "cron.d").mkdir(parents=True)
        await host.until(lambda: host.status.state == "up")
        assert "no cron here that would run them" in host.status.detail


@in_loop
async def test_files_that_are_no_crontabs(etc: Path) -> None:
    """Binary rubbish, one endless line, a pipe and a link in circles harm no other job."""
    (etc / "cron.d" / "rubbish").write_bytes(bytes(range(256)) * 100)
    (etc / "cron.d" / "long").write_text("* * * * * root " + "x" * 2_000_000)
    (etc / "cron.d" / "many").write_text("* * * * * root x\n" * 20_000)
    (etc / "cron.d" / "circle").symlink_to("circle")
    (etc / "cron.d" / "old.dpkg-old").write_text("1 1 1 1 1 root old\n")
    async with watched(etc) as host:
        await host.until_shown(f"cron/job/{etc}/cron.daily/rotate")
        assert len(host.names) < 6_000
        assert not [name for name in host.names if "old" in name]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("10 3 * * *", "every day at 03:10"),
        ("*/5 * * * *", "every 5 minutes"),
        ("17 * * * *", "every hour at minute 17"),
        ("0 * * * *", "every hour"),
        ("52 6 1 * *", "on the 1. of every month at 06:52"),
        ("0 0 1 1 *", "on the 1. in January at 00:00"),
        ("0 4 * * mon,wed", "every Monday, Wednesday at 04:00"),
        ("*/10 8-18 * * 1-5", "every 10 minutes in the hours 8-18, every Monday to Friday"),
        ("30 3 1-7 * 0", "on the 1-7 and on every Sunday at 03:30"),
        ("0 3,15 * * *", "every day at 03:00, 15:00"),
        ("0 */6 * * *", "every 6 hours"),
        ("* * * * *", "every minute"),
        ("@reboot", "at every boot"),
        ("@weekly", "every week"),
        ("@often", "@often"),
        ("99 99 99 99 99", "on the 99. and on every 99 in 99 at 99:99"),
    ],
)
def test_schedules_in_words(fields: str, words: str) -> None:
    """A schedule is told as people do; what is unusual stays as it is written."""
    assert crontab.in_words(fields) == words


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (
            "test -x /usr/sbin/anacron || { cd / && run-parts --report /etc/cron.daily; }",
            "run-parts",
        ),
        ("test -e /run/systemd/system || MODE=1 /sbin/e2scrub_all -A -r", "e2scrub_all"),
        ("[ -x /a/b ] && if [ ! -d /run ]; then /usr/lib/php/sessionclean; fi", "sessionclean"),
        ("command -v debian-sa1 > /dev/null && debian-sa1 1 1", "debian-sa1"),
        ("nice -n 19 /opt/x 2>&1 | logger", "x"),
        ("if [ $(date +%d) -le 7 ]; then /usr/share/mdadm/checkarray; fi", "checkarray"),
        ("true", ""),
        ("&& || ;", ""),
    ],
)
def test_programs_of_lines_of_shell(command: str, program: str) -> None:
    """What a line is for is found behind the tests that come before it."""
    assert crontab.program(command) == program
