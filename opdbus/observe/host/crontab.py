"""Parser of crontabs and anacrontabs, with schedules in words; see crontab(5), anacrontab(5)."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.history import command_lines
from opdbus.observe.core.skipped import Skipped
from opdbus.platform.lines import BLANKS, C_SPACES, split_lines, split_words
from opdbus.state.redact import redact_text

# An item of a field: `*` or a range, with a step; a number or name; a random choice.
_ONE: Final = "(?:[0-9]{1,4}|[A-Za-z]{3})"
_ITEM: Final = re.compile(
    rf"(?:\*|({_ONE})-({_ONE}))(?:/([0-9]{{1,4}}))?|({_ONE})|(({_ONE})?~({_ONE})?)"
)
_OPEN: Final = re.compile("(?:^|[ ,])~")
_BOUND: Final = re.compile(f"~{_ONE}?")
_ANACRON_NUMBER: Final = re.compile("[0-9]{1,9}")
_NICKNAMES: Final = {
    "@reboot": "at every boot",
    "@yearly": "every year",
    "@annually": "every year",
    "@monthly": "every month",
    "@weekly": "every week",
    "@daily": "every day",
    "@midnight": "every day at 00:00",
    "@hourly": "every hour",
}
_DAYS: Final = "Sunday Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_MONTHS: Final = (
    "January February March April May June July August September October November December".split()
)
_SHORT: Final = 3
# The lowest and highest number of each field, and its names.
_FIELDS: Final[tuple[tuple[int, int, list[str]], ...]] = (
    (0, 59, []), (0, 23, []), (1, 31, []), (1, 12, _MONTHS), (0, 7, _DAYS),
)  # fmt: skip
_ALL_DAYS: Final = frozenset(range(1, 32))
_LONGEST_MONTH: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_LEAST_RUN: Final = 3
_CACHED: Final = 256
# Up to this many times of day are listed as such.
_MOST_TIMES: Final = 6
_CHOSEN: Final = ", where cron chooses at random for ~"
# Words of a shell before a command, and commands that prepare others.
_KEYWORDS: Final = frozenset("if elif then else while until do ! {".split())
_CONDITIONS: Final = frozenset("if elif while until".split())
_SKIPPED: Final = frozenset(
    "test [ [[ cd pushd true false : . source export umask ulimit set unset shopt trap local"
    " readonly exit return wait shift eval read command which type hash for case esac fi done }"
    " in function select tee".split()
)
# Programs that are what a line is for only if it runs no others.
_MINOR: Final = frozenset(
    "echo printf sleep date logger mkdir touch rm cat pgrep pidof hostname id".split()
)
# Options with which an interpreter runs a script that stands in the line itself.
_INLINE: Final[Mapping[str, str]] = {
    "perl": "-e", "python": "-c", "python3": "-c", "ruby": "-e", "node": "-e", "php": "-r",
}  # fmt: skip
_NO_PROGRAM: Final = frozenset("<>-!]&")
_SUBSTITUTED: Final = re.compile(r"\$\(\([^)]{0,200}\)\)|\$\([^)]{0,200}\)|`[^`]{0,200}`")
# Folders whose programs are known by name.
_SYSTEM_FOLDERS: Final = ("/usr/", "/bin/", "/sbin/")
# An unescaped percent sign begins the standard input of a command.
_INPUT: Final = re.compile(r"(?<!\\)%")
# The characters of a command line in which its program is looked for.
_MAX_COMMAND: Final = 4096
# Debian's cron allows 10,000 lines after the header that crontab(1) once wrote.
_MOST_OF_DEBIAN: Final = 10_003


class _Field(NamedTuple):
    """A field of a schedule: its numbers, and its random choices as written.

    A range whose end comes before its beginning has no numbers.
    """

    numbers: frozenset[int]
    begins_with_star: bool
    random: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return the numbers, three or more in a row as `8-18`, and the random choices."""
        return ", ".join([*_join_runs(sorted(self.numbers), str, "-"), *self.random])


class Job(NamedTuple):
    """A command and its schedule, as written (`line`) and in words (`schedule`).

    `zone` is the time zone set in the crontab; `ignored` is the reason why cron ignores the job.
    """

    line: str
    schedule: str
    user: str
    command: str
    zone: str = ""
    ignored: str = ""

    @property
    def program(self) -> str:
        """Return the program; text after a percent sign is its input."""
        # secrets are recognized in the whole command, no longer in the name alone
        return program(_INPUT.split(redact_text(self.command), maxsplit=1)[0])


def parse_crontab(
    text: str,
    path: Path,
    skipped: Skipped,
    *,
    is_debian: bool = False,
    is_user: Callable[[str], bool] = bool,
) -> list[Job]:
    """Return the jobs of a system crontab, in which each line names a user.

    With `is_debian`, the rules of Debian's cron apply: it ignores a whole file for a line that it
    cannot parse or that names no existing user, or for too many lines. It has no empty values, time
    zones, or dash that suppresses logging.
    """
    found: list[Job] = []
    zone = bad = ""
    lines = split_lines(text)
    end = "" if text.endswith("\n") else f"no newline ends line {len(lines)}"
    for number, row in enumerate(lines, 1):
        line = row.strip(BLANKS)
        if not line or line.startswith("#"):
            continue
        if variable := _parse_variable(line, is_debian=is_debian):
            zone = variable[1] if variable[0] == "CRON_TZ" and not is_debian else zone
        elif job := _parse_job(line, is_debian=is_debian):
            ignored = end if number == len(lines) else ""
            if not is_user(job.user):
                ignored = f"there is no user {job.user}"
                bad = bad or f"line {number}: {ignored}"
            found.append(job._replace(zone=zone, ignored=ignored))
        else:
            skipped.line(path, number)
            bad = bad or f"line {number} is not understood"
    if is_debian and text.count("\n") > _MOST_OF_DEBIAN:
        bad = bad or "it has more than 10,000 lines"
    if is_debian and (why := bad or end):
        return [job._replace(ignored=why) for job in found]
    return found


def _parse_variable(line: str, *, is_debian: bool) -> tuple[str, str] | None:
    """Return the name and value that a line assigns; None for other lines."""
    name, is_set, value = line.partition("=")
    name, value = name.rstrip(C_SPACES), value.strip(C_SPACES)
    quote = name[:1] if name[:1] in {"'", '"'} else ""
    is_name = name[1:].find(quote) == len(name) - 2 if quote else set(C_SPACES).isdisjoint(name)
    if not is_set or not is_name or (is_debian and not value):
        return None
    quote = value[:1] if value[:1] in {"'", '"'} else ""
    if quote and value[1:].find(quote) != len(value) - 2:
        return None
    return (name.strip("'\""), value[1:-1] if quote else value)


def _parse_job(line: str, *, is_debian: bool) -> Job | None:
    """Return the job of a line; None if cron could not parse it."""
    # in SUSE's cron a leading dash suppresses logging
    line = line if is_debian else line.removeprefix("-")
    count = 1 if line.startswith("@") else len(_FIELDS)
    *when, rest = [*split_words(line, count), ""][: count + 1]
    # if the user is missing, the command stands in its place
    user, *command = split_words(rest, 1) or [""]
    is_user = bool(user) and user[0] not in "*/"
    if len(when) < count or not is_user or not command:
        return None
    known = when[0] in _NICKNAMES if count == 1 else None not in map(_parse_field, when, _FIELDS)
    line = " ".join(when)
    # in Debian's cron a random choice needs its lower bound, which then is the number
    if not known or (is_debian and _OPEN.search(line)):
        return None
    schedule = describe_schedule(_BOUND.sub("", line) if is_debian else line)
    return Job(line, schedule, user, *command)


def _parse_field(field: str, limits: tuple[int, int, list[str]]) -> _Field | None:
    """Parse a comma-separated list of numbers, ranges and names; None if cron refuses it."""
    least, most, names = limits
    # of two days with one name, Sunday, cron takes the first
    short = {name[:_SHORT].lower(): n for n, name in reversed([*enumerate(names, least)])}
    numbers, chosen = set[int](), []

    def number(part: str | None, default: int) -> int:
        found = default if not part else int(part) if part.isdecimal() else short.get(part.lower())
        if found is None or not least <= found <= most:
            raise ValueError(part)
        return found

    for item in field.split(","):
        found = _ITEM.fullmatch(item)
        if not found or (found[3] and not int(found[3])):
            return None
        try:
            if found[5]:
                first, last = number(found[6], least), number(found[7], most)
                chosen.append(f"{first}~{last}")
                if first > last:
                    return None
            else:
                first, last = (
                    number(found[1] or found[4], least),
                    number(found[2] or found[4], most),
                )
                numbers.update(range(first, last + 1, int(found[3] or 1)))
        except ValueError:
            return None
    return _Field(frozenset(numbers), field.startswith("*"), tuple(chosen))


def parse_anacrontab(text: str, path: Path, skipped: Skipped) -> Iterator[tuple[str, Job]]:
    """Yield the identifiers and jobs of an anacrontab."""
    rest = iter(enumerate(split_lines(text), 1))
    for number, row in rest:
        # a backslash continues a line; line numbers count the file's own lines
        parts = [row]
        while parts[-1].endswith("\\") and (more := next(rest, None)):
            parts[-1] = parts[-1].removesuffix("\\")
            parts.append(more[1])
        line = " ".join(parts).strip(BLANKS)
        name, is_set, _ = line.partition("=")
        if not line or line.startswith("#") or (is_set and len(split_words(name)) == 1):
            continue
        period, delay, name, command = [*split_words(line, 3), *[""] * 4][:4]
        is_number = _ANACRON_NUMBER.fullmatch(period) is not None
        if (
            command
            and (is_number or period in _NICKNAMES)
            and _ANACRON_NUMBER.fullmatch(delay)
            and "/" not in name
        ):
            usual = {1: "every day", 7: "every week", 30: "every month"}
            schedule = _NICKNAMES.get(period, "")
            if is_number:
                schedule = usual.get(int(period), f"every {int(period)} days")
            yield name, Job(period, schedule, "root", command)
        else:
            skipped.line(path, number)


@lru_cache(_CACHED)
def describe_schedule(when: str) -> str:
    """Return a schedule in words that are true of each time at which cron runs it."""
    if when.startswith("@"):
        return _NICKNAMES.get(when.lower(), when)
    found = [*map(_parse_field, when.split(), _FIELDS)]
    fields = [field for field in found if field]
    if len(fields) < len(_FIELDS):
        return when
    minute, hour, day, month, weekday = fields
    runs = all(field.numbers or field.random for field in (minute, hour, month))
    days = _describe_days(day, month, weekday)
    if not runs or days is None:
        return "never"
    time = _describe_time(minute, hour)
    chosen = _CHOSEN if any(field.random for field in fields) else ""
    if time.startswith("every"):
        return (f"{time}, {days}" if days else time) + chosen
    return f"{days or 'every day'} {time}{chosen}"


def _describe_days(day: _Field, month: _Field, weekday: _Field) -> str | None:
    """Return the days in words, empty for every day; None if there is none.

    If one of the fields of days begins with `*`, both must fit, else one of them, see crontab(5).
    """
    lasts = [_LONGEST_MONTH[number - 1] for number in month.numbers]
    # no day of a month that it does not have
    numbers = {number for number in day.numbers if number <= max(lasts, default=31)}
    day = day._replace(numbers=frozenset(numbers))
    week = {number % 7 or 7 for number in weekday.numbers}
    is_every_day = day.numbers == {n for n in _ALL_DAYS if n <= max(lasts, default=31)}
    is_every_weekday = len(week) == len(_DAYS) - 1
    of_month = ", ".join([*_join_runs(sorted(day.numbers), "{}.".format, " to "), *day.random])
    of_week = ", ".join([*_join_runs(sorted(week), _DAYS.__getitem__, " to "), *weekday.random])
    if day.begins_with_star or weekday.begins_with_star:
        if not of_month or not of_week:
            return None
    elif not of_month and not of_week:
        return None
    else:
        is_every_day = is_every_weekday = is_every_day or is_every_weekday
    months = ", ".join(
        [*_join_runs(sorted(month.numbers), lambda n: _MONTHS[n - 1], " to "), *month.random]
    )
    within = "" if len(month.numbers) == len(_MONTHS) else f" in {months}"
    if is_every_day and is_every_weekday:
        return f"every day{within}" if within else ""
    if is_every_day or not of_month:
        return f"every {of_week}{within}"
    if is_every_weekday or not of_week:
        return f"on the {of_month}{within or ' of every month'}"
    if day.begins_with_star or weekday.begins_with_star:
        return f"every {of_week} that is the {of_month} of the month{within}"
    return f"on the {of_month} and on every {of_week}{within}"


def _describe_time(minute: _Field, hour: _Field) -> str:
    """Return the time of day in words: `at 03:10`, `every 5 minutes`, `every hour at minute 17`."""
    step, of_hours = _step(minute, 60, 2), _step(hour, 24)
    many = len(hour.numbers) + len(hour.random) > 1
    hours = f"in the hour{'s' * many} {hour.describe()}"
    if minute.numbers == {0} and not minute.random and of_hours:
        return "every hour" if of_hours == 1 else f"every {of_hours} hours"
    is_known = not minute.random and not hour.random
    if is_known and not of_hours and len(minute.numbers) * len(hour.numbers) <= _MOST_TIMES:
        times = (f"{h:02}:{m:02}" for h in sorted(hour.numbers) for m in sorted(minute.numbers))
        return f"at {', '.join(times)}"
    if step:
        every = "every minute" if step == 1 else f"every {step} minutes"
        return every if of_hours == 1 else f"{every} {hours}"
    many = len(minute.numbers) + len(minute.random) > 1
    at = f"at minute{'s' * many} {minute.describe()}"
    if of_hours:
        return f"every hour {at}" if of_hours == 1 else f"every {of_hours} hours {at}"
    return f"every hour {at} {hours}"


def _step(field: _Field, count: int, least: int = _LEAST_RUN) -> int:
    """Return the distance of at least `least` numbers that divide the whole evenly, or 0."""
    numbers = sorted(field.numbers)
    step = count // len(numbers) if numbers else 0
    is_even = len(numbers) >= least and numbers == [*range(0, count, step)]
    return step if is_even and not field.random else 0


def _join_runs(numbers: list[int], spell: Callable[[int], str], to: str) -> Iterator[str]:
    """Yield numbers in words; three or more in a row by their first and last."""
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        if len(run) >= _LEAST_RUN:
            yield f"{spell(run[0])}{to}{spell(run[-1])}"
        else:
            yield from map(spell, run)


@lru_cache(_CACHED)
def program(command: str) -> str:
    """Return the program that a command line is for, or empty.

    It is looked for after tests, changes of folder and variables, and in what other programs and
    shells run. A program of the system is returned by its name, others by their paths.
    """
    minor = ""
    line = _SUBSTITUTED.sub("$", command[:_MAX_COMMAND])
    for part in [*command_lines.parts(line)] or [split_words(line)]:
        first = next((at for at, word in enumerate(part) if word not in _KEYWORDS), len(part))
        is_condition = not _CONDITIONS.isdisjoint(part[:first])
        for words in command_lines.unwrap(part[first:]):
            name = next((word for word in words if word != "$"), "")
            if name.rpartition("/")[2] in command_lines.SHELLS:
                options, operands = command_lines.split(words)
                # with -s the operands are arguments of what it reads from its input
                name = next(iter(operands if "-s" not in options else ()), name)
            if name.startswith(_SYSTEM_FOLDERS):
                name = name.rpartition("/")[2]
            if name in _SKIPPED or not name or name[0] in _NO_PROGRAM:
                continue
            if name not in _MINOR and _INLINE.get(name) not in words and not is_condition:
                return name
            minor = minor or name
    return minor
