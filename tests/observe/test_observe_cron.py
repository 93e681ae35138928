"""The observer of cron's jobs, on a folder like /etc."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from datetime import date, timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from harness.observing import PATIENCE, Host, observed

from opdbus.observe.core.report import Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.host import crontab
from opdbus.observe.host.cron import Cron
from opdbus.platform.accounts import user_name
from opdbus.platform.tasks import cancel

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


# What the programs of Debian's cron and of cronie have in them, which SUSE calls cron, too.
DEBIAN = "\x7fELF\0Syntax error, this crontab file will be ignored\0"
CRONIE = "\x7fELF\0cronie 1.7.2\0"


def _running(*services: str) -> Callable[[Collection[str]], Awaitable[list[str]]]:
    """Make what says which services run."""

    async def active_units(names: Collection[str]) -> list[str]:
        return [name for name in services if name in names]

    return active_units


@asynccontextmanager
async def watched(etc: Path, content: str = "", called: str = "cron") -> AsyncIterator[Host]:
    """Observe the jobs of a folder, where there is a cron."""
    program = etc.parent / called
    program.write_text(content)
    program.chmod(0o755)
    source = Cron(etc, str(etc.parent), os.getuid())
    async with observed(etc.parent, Observer("cron", "cron", source.observe)) as host:
        yield host


async def test_jobs_are_objects(etc: Path) -> None:
    """Each job says in words when it runs, as whom, and what; its name has the arguments."""
    async with watched(etc) as host:
        name = f"cron/job/{etc}/crontab save-orders"
        await host.until_shown(f"{name} again", schedule="every Sunday at 07:25")
        shown = await host.until_shown(
            f"{name} --password [redacted]",
            user="backup",
            schedule="every Sunday at 06:25",
            line="25 6 * * 7",
            program="/opt/shop/save-orders",
            file=f"{etc}/crontab",
        )
        assert "hunter2" not in str(shown)
        run_parts = f"cron/job/{etc}/crontab run-parts --report /etc/cron.hourly"
        await host.until_shown(run_parts, user="root")
        await host.until_shown(f"cron/job/{etc}/cron.daily/rotate", schedule="every day")
        assert len(host.names) == 4
        assert host.status.detail == (
            "crontabs of users in /var/spool/cron are not read;"
            f" 2 lines not understood: {etc}/crontab:7, {etc}/crontab:8"
        )


DAILY = "0 6 * * * root"


@pytest.mark.parametrize(
    ("first", "other", "name"),
    [
        (f"{DAILY} /opt/tidy a", f"{DAILY} /opt/tidy b", "tidy a"),
        (f"{DAILY} /opt/tidy", f"{DAILY} /opt/tidy b", "tidy"),
        (f"{DAILY} test -x /opt/tidy && /opt/tidy -v 1", f"{DAILY} /opt/tidy -v 2", "tidy -v 1"),
        (f"{DAILY} cd / && ( run-parts --report /a )", f"{DAILY} run-parts /b",
         "run-parts --report /a"),
        (f"{DAILY} nice -n 9 /opt/tidy.sh  x > /dev/null", f"{DAILY} /opt/tidy.sh", "tidy.sh x"),
        (f"{DAILY} /opt/tidy -o%input", f"{DAILY} /opt/tidy -p%input", "tidy -o"),
        (f"{DAILY} A=1 /opt/tidy || /opt/tidier x", f"{DAILY} /opt/tidier x", "tidy"),
    ],
)  # fmt: skip
async def test_a_job_keeps_its_name(etc: Path, first: str, other: str, name: str) -> None:
    """A job is named after itself: it is the same whatever stands above or below it."""
    assert (await listed(etc, first)).keys() == {name}
    above, below = await listed(etc, other, first), await listed(etc, first, other)
    assert above == below
    assert len(above) == 2
    assert name in above


async def test_a_command_that_runs_at_several_times_is_one_job(etc: Path) -> None:
    """Nothing of its lines is lost, and its name stays when one of them goes."""
    lines = f"{DAILY} /opt/tidy a", "0 18 * * * www-data /opt/tidy a"
    (job,) = (await listed(etc, *lines)).values()
    assert job["schedule"] == "every day at 06:00; every day at 18:00"
    assert (job["line"], job["user"]) == ("0 18 * * *; 0 6 * * *", "root; www-data")
    assert (await listed(etc, lines[0]))["tidy a"]["schedule"] == "every day at 06:00"


async def listed(etc: Path, *lines: str) -> dict[str, dict[str, Any]]:
    """Return the jobs of a crontab with these lines, by their names in it."""
    table = etc / "cron.d" / "shop"
    table.write_text("".join(f"{line}\n" for line in lines))
    report = Report()
    task = asyncio.create_task(Cron(etc, str(etc.parent), os.getuid()).observe(report))
    await report.news.wait()
    await cancel([task])
    jobs: dict[str, Any] = {**report.take().kinds["job"]}
    start = f"{table} "
    return {each.removeprefix(start): job for each, job in jobs.items() if each.startswith(start)}


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
        table = "LOGNAME=root\n1 5 cron.daily nice run-parts x\n@monthly 9 m y\n"
        (etc / "anacrontab").write_text(table)
        await host.until_shown(f"cron/job/{etc}/anacrontab cron.daily", schedule="every day")
        await host.until_shown(f"cron/job/{etc}/anacrontab m", schedule="every month")


async def test_a_host_without_cron(tmp_path: Path) -> None:
    """Where there is none of the files the observer is absent; without a program it says so."""
    source = Cron(tmp_path / "etc", str(tmp_path), running=_running())
    async with observed(tmp_path, Observer("cron", "cron", source.observe)) as host:
        await host.until(lambda: host.status.state == "absent")
        (tmp_path / "etc" / "cron.d").mkdir(parents=True)
        await host.until(lambda: host.status.state == "up")
        assert "no cron here that would run them" in host.status.detail


@pytest.mark.parametrize(("service", "tables"), [("cron.service", 1), ("crond.service", 2)])
async def test_a_host_whose_cron_is_outside(etc: Path, service: str, tables: int) -> None:
    """In a container, systemd says which cron the host runs; its kind decides on names of files."""
    for name in ("plain", "example.com"):
        (etc / "cron.d" / name).write_text("@daily root /opt/x\n")
    source = Cron(etc, str(etc), running=_running(service))
    async with observed(etc.parent, Observer("cron", "cron", source.observe)) as host:
        await host.until_shown(f"cron/job/{etc}/cron.d/plain x")
        assert "no cron here" not in host.status.detail
        assert sum("/cron.d/" in name for name in host.names) == tables


async def test_files_that_are_no_crontabs(etc: Path) -> None:
    """Binary rubbish, one endless line, a pipe and a link in circles harm no other job."""
    (etc / "cron.d" / "rubbish").write_bytes(bytes(range(256)) * 100)
    (etc / "cron.d" / "long").write_text("* * * * * root " + "x" * 2_000_000)
    (etc / "cron.d" / "many").write_text("* * * * * root x\n" * 8_000)
    (etc / "cron.d" / "circle").symlink_to("circle")
    (etc / "cron.d" / "old.dpkg-old").write_text("1 1 1 1 1 root old\n")
    async with watched(etc) as host:
        await host.until_shown(f"cron/job/{etc}/cron.daily/rotate")
        assert len(host.names) < 6_000
        assert not [name for name in host.names if "old" in name]


async def test_files_that_each_cron_takes(etc: Path) -> None:
    """Of Debian's cron only files whose names have no dot run; of cronie all but a few."""
    names = [*"plain_Name-1 example.com job.disabled x~ a.rpmsave .hidden #y#".split(" "), "n\xa0o"]
    for name in names:
        (etc / "cron.d" / name).write_text(f"@daily root /opt/run-{names.index(name)}\n")
    (etc / "cron.daily" / "man-db.cron").write_text("")
    (etc / "cron.daily" / "man-db.cron").chmod(0o755)
    (etc / "cron.d" / "folder").mkdir()

    def tables(host: Host) -> set[str]:
        return {
            name.split("/cron.d/")[1].rpartition(" ")[0] for name in host.names if "cron.d/" in name
        }

    for content, called, is_cronie in (
        (DEBIAN, "cron", False), ("", "cron", False), (CRONIE, "cron", True), ("", "crond", True),
    ):  # fmt: skip
        async with watched(etc, content, called) as host:
            await host.until_shown(f"cron/job/{etc}/cron.d/plain_Name-1 run-0", user="root")
            more = {"example.com", "job.disabled", "n\xa0o"} if is_cronie else set()
            await host.until(lambda: tables(host) == {"plain_Name-1"} | more)  # noqa: B023 -- at once
            assert (f"cron/job/{etc}/cron.daily/man-db.cron" in host.names) is is_cronie
            assert "cron.d" not in host.status.detail
        (etc.parent / called).unlink()


async def test_what_debians_cron_ignores(etc: Path) -> None:
    """One line that it does not understand, or no newline at the end, costs the whole file."""
    (etc / "cron.d" / "typo").write_text(
        "0 3 * * * root /opt/a\nMAILTO=\n-61 3 * * * root /opt/b\n"
    )
    (etc / "cron.d" / "open").write_text("0 3 * * * root /opt/a\n# end")
    (etc / "cron.d" / "sane").write_text("MAILTO=''\n0 3 * * * root /opt/a\n")
    (etc / "crontab").unlink()
    for file in (etc / "cron.d").iterdir():
        file.chmod(0o644)
    async with watched(etc, DEBIAN) as host:
        why = "line 2 is not understood"
        typo = await host.until_shown(f"cron/job/{etc}/cron.d/typo a", ignored=why)
        runs = "scheduled job, runs /opt/a every day at 03:00 as root"
        assert typo["description"] == f"{runs}, but cron ignores it: {why}"
        await host.until_shown(f"cron/job/{etc}/cron.d/open a", ignored="no newline ends line 2")
        assert "ignored" not in await host.properties(f"cron/job/{etc}/cron.d/sane a")
        places = f"{etc}/cron.d/typo:2, {etc}/cron.d/typo:3"
        assert host.status.detail.endswith(f"2 lines not understood: {places}")
    async with watched(etc, CRONIE) as host:
        await host.until_shown(f"cron/job/{etc}/cron.d/typo a", description=runs)
        assert f"1 line not understood: {etc}/cron.d/typo:3" in host.status.detail


async def test_files_and_users_that_cron_refuses(etc: Path) -> None:
    """A job has the reason why cron refuses its file or its user, until that is mended."""
    job = "0 3 * * * {} /opt/a\n"
    for name, mode, text in (
        ("sane", 0o644, job.format("root")),
        ("open", 0o664, job.format("root")),
        ("program", 0o755, job.format("root")),
        ("nobodys", 0o600, f"{job.format('root')}0 4 * * * no-such-user /opt/b\n"),
        ("long", 0o644, "#\n" * 10_003 + job.format("root")),
        ("linked", 0o644, job.format("root")),
    ):
        (etc / "cron.d" / name).write_text(text)
        (etc / "cron.d" / name).chmod(mode)
    (etc / "other-link").hardlink_to(etc / "cron.d" / "linked")
    missing = "there is no user no-such-user"

    def of(name: str) -> str:
        return f"cron/job/{etc}/cron.d/{name}"

    async with watched(etc, DEBIAN) as host:
        await host.until_shown(of("open a"), ignored="its mode is 0664")
        await host.until_shown(of("long a"), ignored="it has more than 10,000 lines")
        await host.until_shown(of("linked a"), ignored="it has other hard links")
        for program in "ab":
            await host.until_shown(of(f"nobodys {program}"), ignored=f"line 2: {missing}")
        for name in ("sane", "program"):
            assert "ignored" not in await host.properties(of(f"{name} a"))
        (etc / "cron.d" / "open").chmod(0o644)
        async with asyncio.timeout(PATIENCE):
            while "ignored" in await host.properties(of("open a")):  # noqa: ASYNC110 -- as until_shown
                await asyncio.sleep(0.01)
    async with watched(etc, CRONIE) as host:
        await host.until_shown(of("nobodys b"), ignored=missing)
        await host.until_shown(of("program a"), ignored="its mode is 0755")
        for name in ("sane", "open", "long", "linked", "nobodys"):
            assert "ignored" not in await host.properties(of(f"{name} a"))
    (etc.parent / "cron").write_text(DEBIAN)
    source = Cron(etc, str(etc.parent), os.getuid() + 1)
    async with observed(etc.parent, Observer("cron", "cron", source.observe)) as host:
        await host.until_shown(of("sane a"), ignored=f"it belongs to {user_name(os.getuid())}")


LINES = [
    (
        "0 0 * jan-MAR,12 mon-Fri root x",
        "every Monday to Friday in January to March, December at 00:00",
    ),
    ("1-5/2,7,20-30 0 * * 0,7 root x", None),
    ("0~30 ~ 3~ * * root x", None),
    ("  \t0\t0  * *\t* \troot \tx y  ", "every day at 00:00"),
    ("0 0 * * 5-7 www-data x%in%put; rm y", "every Friday to Sunday at 00:00"),
    ("@midnight root\tx\x0by\u2028z", "every day at 00:00"),
    ("*/90 * * * * root x", "every hour"),
    # a line that is not to be logged, as in SUSE's own crontab
    ("-*/15 * * * *   root  x && y", "every 15 minutes"),
    ("-@hourly root x /opt", "every hour"),
]


@pytest.mark.parametrize(("line", "words"), LINES)
def test_lines_that_cron_understands(line: str, words: str | None) -> None:
    """What both crons take is a job, told in words where these are not unusual."""
    skipped = Skipped()
    (job,) = crontab.parse_crontab(f"{line}\n", Path("t"), skipped)
    assert (job.program[0], skipped.sentence, job.ignored) == ("x", "", "")
    assert words in {None, job.schedule}


@pytest.mark.parametrize(
    "line",
    [
        "60 0 * * * root x", "0 24 * * * root x", "0 0 0 * * root x", "0 0 * 13 * root x",
        "0 0 * * 8 root x", "0 0 * * * * root x", "5/10 * * * * root x", "*/0 * * * * root x",
        "1,,2 * * * * root x", "5x * * * * root x", "0 0 * monday * root x", "0 0 mon * * root x",
        "0\x0b0 * * * * root x", "0\xa00 * * * * root x", "\u0661 0 * * * root x", "0 0 * * * root",
        "@every root x", "@Daily root x", "@daily", "0 3 * * * /opt/backup.sh >> log", "FOO = 'x",
        "A B=c", "nothing",
    ],
)  # fmt: skip
def test_lines_that_cron_does_not_understand(line: str) -> None:
    """What `crontab -n` and cronie refuse is no job, and is noted with its line."""
    skipped = Skipped()
    assert crontab.parse_crontab(f"# c\n\n{line}\n", Path("/t"), skipped) == []
    assert skipped.sentence == "1 line not understood: /t:3"


@pytest.mark.parametrize(
    "line",
    ["A=b", " A = b", '"A B" = "c d" ', "'A'=x=y", "=x", "A=", "# 0 0 * * * root x", "\t", " #"],
)
def test_lines_that_are_no_jobs(line: str) -> None:
    """Assignments, comments and empty lines are neither jobs nor a fault."""
    skipped = Skipped()
    assert crontab.parse_crontab(f"{line}\n", Path("/t"), skipped) == []
    assert skipped.sentence == ""


def test_random_numbers_of_debian() -> None:
    """Both crons know random numbers; those without a least one Debian's does not understand."""
    for line, is_of_both in (
        ("0~30 0 * * *", True),
        ("~30 0 * * *", False),
        ("0 1,~ * * *", False),
    ):
        for is_debian in (False, True):
            text = f"{line} root x\n"
            found = crontab.parse_crontab(text, Path("/t"), Skipped(), is_debian=is_debian)
            assert bool(found) == (is_of_both or not is_debian)


def test_a_random_number_of_debian_is_its_first() -> None:
    """Debian's cron reads `0~30` as 0, and leaves out the rest."""
    for is_debian, words in ((True, "every day at 04:00"), (False, None)):
        text = "0~30 4 * * * root x\n"
        (job,) = crontab.parse_crontab(text, Path("t"), Skipped(), is_debian=is_debian)
        assert (job.schedule == words) is is_debian


def _matches(field: str, least: int, most: int, number: int) -> bool:
    """Match a number as Debian's cron does: sets a bit for each number of each item."""
    for item in field.split(","):
        span, _, step = item.partition("/")
        first, _, last = span.partition("-")
        low, high = (least, most) if first == "*" else (int(first), int(last or first))
        if number in range(low, high + 1, int(step or 1)):
            return True
    return False


def test_every_schedule_in_words_says_when_it_never_runs() -> None:
    """A schedule is `never` if, and only if, no day of four years fits it."""
    days = [date(2025, 1, 1) + timedelta(days=n) for n in range(4 * 366)]
    for day, month, weekday in product(
        ("*", "*/2", "31", "30,31", "5-1", "1-7"),
        ("*", "2", "4,6", "12-1"),
        ("*", "1", "6-2", "*/7"),
    ):
        stars = day.startswith("*") or weekday.startswith("*")
        fits = [
            _matches(month, 1, 12, one.month)
            and (all if stars else any)(
                (
                    _matches(day, 1, 31, one.day),
                    any(
                        _matches(weekday, 0, 7, n) for n in {one.isoweekday() % 7, one.isoweekday()}
                    ),
                )
            )
            for one in days
        ]
        words = crontab.describe_schedule(f"0 5 {day} {month} {weekday}")
        assert (words == "never") is not any(fits), (day, month, weekday)
        assert words.startswith("every day at") is all(fits), (day, month, weekday)


def test_the_time_zone_of_jobs() -> None:
    """A job runs by the time zone that cronie's crontab names before it; Debian's has none."""
    table = "0 1 * * * root a\nCRON_TZ = 'Asia/Tokyo'\n0 1 * * * root b\n"
    found = crontab.parse_crontab(table, Path("/t"), Skipped())
    assert [job.zone for job in found] == ["", "Asia/Tokyo"]
    assert {
        job.zone for job in crontab.parse_crontab(table, Path("/t"), Skipped(), is_debian=True)
    } == {""}


def test_lines_of_anacron() -> None:
    """A line goes on after a backslash, and what is no job is noted."""
    table = (
        "A = b\n# c\n7\\\n 25 weekly \\\n  nice x\n@monthly 9\tm y\n1 5 a/b x\n@often 1 o x\n1 x\n"
    )
    skipped = Skipped()
    found = {
        name: job.schedule for name, job in crontab.parse_anacrontab(table, Path("/t"), skipped)
    }
    assert found == {"weekly": "every week", "m": "every month"}
    assert skipped.sentence == "3 lines not understood: /t:7, /t:8, /t:9"


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
        ("30 3 1-7 * 0", "on the 1. to 7. and on every Sunday at 03:30"),
        ("0 3,15 * * *", "every day at 03:00, 15:00"),
        ("0 */6 * * *", "every 6 hours"),
        ("* * * * *", "every minute"),
        ("@reboot", "at every boot"),
        ("@weekly", "every week"),
        ("@often", "@often"),
        ("99 99 99 99 99", "99 99 99 99 99"),
        ("*/45 * * * *", "every hour at minutes 0, 45"),
        ("*/30 * * * *", "every 30 minutes"),
        ("5-59/20 * * * *", "every hour at minutes 5, 25, 45"),
        ("0 */5 * * *", "every day at 00:00, 05:00, 10:00, 15:00, 20:00"),
        ("*/15 */5 * * *", "every 15 minutes in the hours 0, 5, 10, 15, 20"),
        ("15,45 */4 * * *", "every 4 hours at minutes 15, 45"),
        ("* 9 * * *", "every minute in the hour 9"),
        # a field of days that begins with a star: both must fit
        ("0 5 */10 * 1", "every Monday that is the 1., 11., 21., 31. of the month at 05:00"),
        ("0 5 1-7 * */7", "every Sunday that is the 1. to 7. of the month at 05:00"),
        ("0 5 *,1 * 5", "every Friday at 05:00"),
        ("0 5 */1 * 5", "every Friday at 05:00"),
        # of two others, one
        ("0 5 1-31 * 1", "every day at 05:00"),
        ("0 5 1,15 6 mon", "on the 1., 15. and on every Monday in June at 05:00"),
        ("0 5 * * 0-7", "every day at 05:00"),
        ("0 5 * * fri-sun", "never"),
        ("0 5 * * sun-tue", "every Monday, Tuesday, Sunday at 05:00"),
        ("0 5 * * sat,7", "every Saturday, Sunday at 05:00"),
        ("0 5 30 2 *", "never"),
        ("0 5 30 2 5", "every Friday in February at 05:00"),
        ("0 22-2 * * *", "never"),
        (
            "0~30 4 * * *",
            "every hour at minute 0~30 in the hour 4, where cron chooses at random for ~",
        ),
    ],
)
def test_schedules_in_words(fields: str, words: str) -> None:
    """A schedule in words is true of each time that it has, and of no other."""
    assert crontab.describe_schedule(fields) == words


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
        ("nice -n 19 /opt/x 2>&1 | logger", "/opt/x"),
        ("if [ $(date +%d) -le 7 ]; then /usr/share/mdadm/checkarray; fi", "checkarray"),
        (
            "test -x /usr/bin/certbot -a \\! -d /run && perl -e 'sleep 9' && certbot renew",
            "certbot",
        ),
        ("sudo -u www-data /srv/job", "/srv/job"),
        ("sudo -iu bob -- /srv/job", "/srv/job"),
        ('"/srv/my job/run" x', "/srv/my job/run"),
        ("/srv/my\\ job/run x", "/srv/my job/run"),
        (". /etc/profile; /srv/job", "/srv/job"),
        ("cd /srv/app && . ./venv; A=b B='c d' bin/rails x >> log 2>&1", "bin/rails"),
        ("env -i PATH=/bin HOME=/root /srv/job", "/srv/job"),
        (
            "flock -n -w 5 /run/lock/x timeout -k 5 30m nice -n 5 ionice -c2 -n7 /srv/job",
            "/srv/job",
        ),
        ("flock -n /run/lock/x -c '/srv/job --all'", "/srv/job"),
        ("chronic /srv/job", "/srv/job"),
        ("setlock -n /run/lock/x /srv/job", "/srv/job"),
        ("gosu app /srv/job", "/srv/job"),
        ("/usr/bin/test -f /x && /srv/job", "/srv/job"),
        ("chpst -u bob -m 99 /srv/job", "/srv/job"),
        ("/bin/bash /srv/job.sh >> /log", "/srv/job.sh"),
        ("sh -e ./job.sh x", "./job.sh"),
        ("sudo -u bob bash -o pipefail -l /srv/job.sh x", "/srv/job.sh"),
        ("bash -s < /srv/job.sh", "bash"),
        ("bash -s all < /srv/job.sh", "bash"),
        ("bash --rcfile /etc/rc /srv/job.sh", "/srv/job.sh"),
        ("su - postgres -c 'vacuumdb -a'", "vacuumdb"),
        ("su -s /bin/sh --command='/srv/job' bob", "/srv/job"),
        ("runuser -u www-data -- php /var/www/cron.php", "php"),
        ("test -x /x && sudo -u bob sh -c '. /etc/e; /srv/job'", "/srv/job"),
        ("bash -lc 'cd /srv && (./job || true)'", "./job"),
        ("sleep $((RANDOM % 60)); export A=1; echo start >> /log; /srv/job", "/srv/job"),
        ("if ! /srv/check; then /srv/repair; fi", "/srv/repair"),
        ("for i in 1 2; do /srv/job $i; done", "/srv/job"),
        ("[ $(date +%u) = 7 ] && $HOME/bin/job", "$HOME/bin/job"),
        ("$(which php) /srv/job", "/srv/job"),
        ("/srv/job 'unbalanced", "/srv/job"),
        ("echo hello", "echo"),
        ("perl -e 'print 1'", "perl"),
        ("true", ""),
        ("&& || ;", ""),
    ],
)
def test_programs_of_lines_of_shell(command: str, program: str) -> None:
    """What a line is for is found behind the tests that come before it."""
    assert crontab.program(command) == program
