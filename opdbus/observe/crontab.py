"""Reads crontabs, see crontab(5) and anacrontab(5): when a command runs, in words."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

_FIELD: Final = r"[\w*,/~-]+"
_LINE = re.compile(rf"(@[a-z]+|[\d*]{_FIELD[:-1]}*(?:\s+{_FIELD}){{4}})\s++(.*)")
_VARIABLE = re.compile(r"\s*[\"']?[A-Za-z_]\w*[\"']?\s*=")
_ANACRON = re.compile(r"(\d{1,9}|@\w+)\s+\d{1,9}\s+(\S+)\s++(.+)")
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
# What comes before the program of a line of shell, with options and numbers of its own, and what
# is none.
_BEFORE: Final = frozenset("if ! exec nice ionice chronic timeout env sudo time".split())
_STEPS = re.compile(r"\$\([^)]{0,200}\)|&&|\|\||[;{}()|]|\bthen\b|\bdo\b")
_SKIPPED: Final = frozenset("test [ [[ cd true command sleep fi done".split())
_OPTION: Final = frozenset("-0123456789")
_NO_PROGRAM: Final = frozenset("<>-$!]&")
_ASSIGNED = re.compile(r"\w+=\S*")
# More commands of one line than anybody writes.
_MAX_STEPS: Final = 50


class Job(NamedTuple):
    """A command and when it runs: as it is written, and in words."""

    line: str
    schedule: str
    user: str
    command: str


def jobs(text: str) -> Iterator[Job]:
    """Yield the jobs of a system's crontab, where each line names a user."""
    for row in text.splitlines():
        line = row.strip()
        found = _LINE.fullmatch(line)
        if not found or line.startswith("#") or _VARIABLE.match(line):
            continue
        when, rest = found.groups()
        user, *command = rest.split(None, 1)
        if command:
            yield Job(" ".join(when.split()), in_words(when), user, *command)


def anacron_jobs(text: str) -> Iterator[tuple[str, Job]]:
    """Yield the jobs of an anacrontab, each with its identifier."""
    for row in text.splitlines():
        if found := _ANACRON.fullmatch(row.strip()):
            period, name, command = found.groups()
            yield name, Job(period, _period(period), "root", command)


def _period(period: str) -> str:
    if not period.isdecimal():
        return _NICKNAMES.get(period, period)
    return {1: "every day", 7: "every week", 30: "every month"}.get(
        int(period), f"every {int(period)} days"
    )


def in_words(when: str) -> str:
    """Say when five fields, or a nickname, let a command run; unusual fields stay as they are."""
    if when.startswith("@"):
        return _NICKNAMES.get(when.lower(), when)
    minute, hour, day, month, weekday = when.split()
    if day != "*" and weekday != "*":
        days = f"on {_day_of_month(day)} and on every {_named(weekday, _DAYS, 0)}"
    elif weekday != "*":
        days = f"every {_named(weekday, _DAYS, 0)}"
    elif day != "*":
        days = f"on {_day_of_month(day)}"
    else:
        days = ""
    if month != "*":
        days = f"{days or 'every day'} in {_named(month, _MONTHS, 1)}"
    elif days.startswith("on the ") and weekday == "*":
        days += " of every month"
    return _joined(days, _time(minute, hour))


def _joined(days: str, time: str) -> str:
    if time.startswith("every"):
        return f"{time}, {days}" if days else time
    return f"{days or 'every day'} {time}"


def _time(minute: str, hour: str) -> str:
    """Say at which time of a day: `at 03:10`, `every 5 minutes`, `every hour at minute 17`."""
    hours = _numbers(hour)
    if minute.isdecimal() and hours and len(hours) <= 4:
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


def _numbers(field: str) -> list[str]:
    """Return the numbers of a list; nothing for other fields."""
    parts = field.split(",")
    return parts if all(part.isdecimal() and len(part) <= 2 for part in parts) else []


def _day_of_month(field: str) -> str:
    return f"the {field}{'.' if field.isdecimal() else ''}"


def _named(field: str, names: list[str], first: int) -> str:
    """Write the numbers and short names of days or months out; ranges as `Monday to Friday`."""

    def one(part: str) -> str:
        if part.isdecimal() and first <= int(part) < len(names) + first:
            return names[int(part) - first]
        full = (name for name in names if name[:_SHORT].lower() == part.lower())
        return next(full, part)

    return ", ".join(" to ".join(map(one, part.split("-", 1))) for part in field.split(","))


def program(command: str) -> str:
    """Return what a command line runs, without the tests and changes of folder before it."""
    for step in _STEPS.split(command)[:_MAX_STEPS]:
        words = [word for word in step.split() if not _ASSIGNED.fullmatch(word)]
        is_wrapped = bool(words) and words[0] in _BEFORE
        while is_wrapped and words and (words[0] in _BEFORE or words[0][0] in _OPTION):
            words = words[1:]
        if words and words[0] not in _SKIPPED and words[0][0] not in _NO_PROGRAM:
            return words[0].strip("\"'").rpartition("/")[2]
    return ""
