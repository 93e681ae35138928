"""Parser of crontabs and anacrontabs, with schedules in words; see crontab(5), anacrontab(5)."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.observe.core.skipped import Skipped
from opdbus.platform.lines import BLANKS, C_SPACES, split_lines, split_words

# A number or the name of a month or day, as in cron; the range is checked separately.
_ONE: Final = "(?:[0-9]{1,4}|[A-Za-z]{3})"
_ITEM: Final = re.compile(
    rf"(?:\*|({_ONE})-({_ONE}))(?:/([0-9]{{1,4}}))?|({_ONE})|({_ONE})?~({_ONE})?"
)
_OPEN: Final = re.compile("(?:^|[ ,])~")
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
# Words before the program in a shell command: wrappers, which may have options, then separators of
# commands, and commands that are skipped.
_BEFORE: Final = frozenset("if ! exec nice ionice chronic timeout env sudo time".split())
_STEPS = re.compile(r"\$\([^)]{0,200}\)|&&|\|\||[;{}()|]|\bthen\b|\bdo\b")
_SKIPPED: Final = frozenset("test [ [[ cd true command sleep fi done".split())
_OPTION: Final = frozenset("-0123456789")
_NO_PROGRAM: Final = frozenset("<>-$!]&")
_ASSIGNED = re.compile(r"\w+=.*", re.DOTALL)
# An unescaped percent sign begins the standard input of a command.
_INPUT: Final = re.compile(r"(?<!\\)%")
# The most commands of one line that are examined.
_MAX_STEPS: Final = 50
# Debian's cron allows 10,000 lines after the header that crontab(1) once wrote.
_MOST_OF_DEBIAN: Final = 10_003


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
        return program(_INPUT.split(self.command, maxsplit=1)[0])


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
    known = when[0] in _NICKNAMES if count == 1 else all(map(_is_field, when, _FIELDS))
    line = " ".join(when)
    # in Debian's cron a random range needs its lower bound
    if not known or (is_debian and _OPEN.search(line)):
        return None
    return Job(line, describe_schedule(line), user, *command)


def _is_field(field: str, limits: tuple[int, int, list[str]]) -> bool:
    """Return whether a comma-separated list of numbers, ranges and names is valid for a field."""
    least, most, names = limits
    short = {name[:_SHORT].lower() for name in names}

    def is_one(part: str) -> bool:
        return least <= int(part) <= most if part.isdecimal() else part.lower() in short

    for item in field.split(","):
        found = _ITEM.fullmatch(item)
        if not found or (found[3] and not int(found[3])):
            return False
        parts = (part for number, part in enumerate(found.groups(), 1) if part and number != 3)
        if not all(map(is_one, parts)):
            return False
    return True


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


def describe_schedule(when: str) -> str:
    """Return a schedule in words; unusual fields stay as they are."""
    if when.startswith("@"):
        return _NICKNAMES.get(when.lower(), when)
    minute, hour, day, month, weekday = when.split()
    day_of_month = f"the {day}{'.' if day.isdecimal() else ''}"
    if day != "*" and weekday != "*":
        days = f"on {day_of_month} and on every {_spell_names(weekday, _DAYS, 0)}"
    elif weekday != "*":
        days = f"every {_spell_names(weekday, _DAYS, 0)}"
    elif day != "*":
        days = f"on {day_of_month}"
    else:
        days = ""
    if month != "*":
        days = f"{days or 'every day'} in {_spell_names(month, _MONTHS, 1)}"
    elif days.startswith("on the ") and weekday == "*":
        days += " of every month"
    time = _time(minute, hour)
    if time.startswith("every"):
        return f"{time}, {days}" if days else time
    return f"{days or 'every day'} {time}"


def _time(minute: str, hour: str) -> str:
    """Return the time of day in words: `at 03:10`, `every 5 minutes`, `every hour at minute 17`."""
    hours = hour.split(",")
    are_numbers = all(one.isdecimal() and len(one) <= 2 for one in hours)
    if minute.isdecimal() and are_numbers and len(hours) <= 4:
        return "at " + ", ".join(f"{int(one):02}:{int(minute):02}" for one in hours)
    every = _step(minute, "minute") or ("every hour" if minute == "0" else "")
    every = every or f"every hour at minute {minute}"
    if hour == "*":
        return every
    if minute.isdecimal() and (step := _step(hour, "hour")):
        return step if minute == "0" else f"{step} at minute {minute}"
    return f"{every} in the hours {hour}"


def _step(field: str, unit: str) -> str:
    if field == "*":
        return f"every {unit}"
    start, slash, step = field.partition("/")
    if start == "*" and slash and step.isdecimal():
        return f"every {unit}" if int(step) == 1 else f"every {int(step)} {unit}s"
    return ""


def _spell_names(field: str, names: list[str], first: int) -> str:
    """Return a field with full names of days or months; ranges as `Monday to Friday`."""

    def one(part: str) -> str:
        if part.isdecimal() and first <= int(part) < len(names) + first:
            return names[int(part) - first]
        full = (name for name in names if name[:_SHORT].lower() == part.lower())
        return next(full, part)

    return ", ".join(" to ".join(map(one, part.split("-", 1))) for part in field.split(","))


def program(command: str) -> str:
    """Return the program that a command line runs, after any tests and changes of folder."""
    for step in _STEPS.split(command)[:_MAX_STEPS]:
        words = [word for word in split_words(step) if not _ASSIGNED.fullmatch(word)]
        is_wrapped = bool(words) and words[0] in _BEFORE
        while is_wrapped and words and (words[0] in _BEFORE or words[0][0] in _OPTION):
            words = words[1:]
        if words and words[0] not in _SKIPPED and words[0][0] not in _NO_PROGRAM:
            return words[0].strip("\"'").rpartition("/")[2]
    return ""
