"""Clock times, intervals and days of a month in a question: one table of rules. Pure.

`twenty to five` becomes conditions on the fields of timers (`calendar`, `on`) and cron jobs
(`schedule`).
"""

import re
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from opdbus.language.tables import NUMBERS
from opdbus.state.conditions import Condition

Meaning: TypeAlias = Callable[[re.Match[str]], Sequence[Condition]]

# Times that are read from a question, and matches that are looked at.
_MOST: Final = 3
_MOST_MATCHES: Final = 24

_MINUTES: Final = {
    **NUMBERS, "a quarter": 15, "quarter": 15, "twenty": 20, "twenty five": 25, "twenty-five": 25,
    "half": 30, "fifteen": 15, "thirty": 30,
}  # fmt: skip
_DAYS_OF_MONTH: Final = ("first second third fourth fifth sixth seventh eighth ninth tenth").split()
# Hours of the day that the words after a clock time allow.
_PARTS: Final = {
    **dict.fromkeys(("am", "a.m.", "in the morning"), range(12)),
    **dict.fromkeys(("pm", "p.m.", "in the afternoon", "in the evening"), range(12, 24)),
    "at night": (0, 1, 2, 3, 4, 5, 20, 21, 22, 23),
}
_MINUTE: Final = rf"\d{{1,2}}|{'|'.join(sorted(_MINUTES, key=len, reverse=True))}"
_PART: Final = rf"(?: ?(?P<part>{'|'.join(map(re.escape, _PARTS))})(?!\w))"
_OF_MONTH: Final = (
    rf"(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)|(?P<word>{'|'.join(_DAYS_OF_MONTH)}))\b(?: day\b)?"
)


class ScheduleTime(NamedTuple):
    """The span `start` to `end` of a time in a question, and the conditions that it may mean."""

    start: int
    end: int
    meanings: tuple[Condition, ...]


class Rule(NamedTuple):
    """A pattern, its meaning, and a question that has it (tested)."""

    name: str
    meaning: Meaning
    example: str
    pattern: re.Pattern[str]


def _rule(name: str, meaning: Meaning, example: str, *pattern: str) -> Rule:
    return Rule(name, meaning, example, re.compile("".join(pattern), re.IGNORECASE))


def _to_number(text: str) -> int:
    return int(text) if text.isdecimal() else _MINUTES[text.lower()]


def _run_at(hour: int, minute: int) -> Sequence[Condition]:
    """Return the conditions of timers and cron jobs that run at a time of the day."""
    time = f"{hour:02}:{minute:02}"
    return Condition("calendar", "~", f" {time}:"), Condition("schedule", "~", f"at {time}")


def _run_at_clock(match: re.Match[str]) -> Sequence[Condition]:
    """Return the conditions of a clock time: both halves of the day if that is open."""
    given = match.groupdict()
    hour, minute = _to_number(match["hour"]), _to_number(given.get("minute") or "0")
    if given.get("to") in {"to", "before"}:
        hour, minute = (hour - 1) % 24, 60 - minute
    if not (0 <= hour < 24 and 0 <= minute < 60):
        return ()
    # written as on a 24-hour clock: `04:40`
    is_exact = match["hour"].startswith("0") and len(match["hour"]) == 2
    hours = {hour % 24, (hour + 12) % 24} if hour <= 12 and not is_exact else {hour}
    part = _PARTS.get((match["part"] or "").lower(), range(24))
    return [each for one in sorted(hours) if one in part for each in _run_at(one, minute)]


def _run_every(match: re.Match[str]) -> Sequence[Condition]:
    """Return the conditions of timers and cron jobs that repeat at an interval."""
    is_hours = (match["unit"] or "").lower() == "hours"
    count = _to_number(match["count"] or match["share"])
    return (
        Condition("schedule", "~", f"every {count} {'hours' if is_hours else 'minutes'}"),
        Condition("calendar", "~", f"/{count:02}:" if is_hours else f"/{count:02}:00"),
        Condition("on", "~", f"{count} {'h' if is_hours else 'min'} after its unit"),
    )


def _run_on_day(match: re.Match[str]) -> Sequence[Condition]:
    """Return the conditions of timers and cron jobs that run on a day of the month."""
    word = (match["word"] or "").lower()
    day = _DAYS_OF_MONTH.index(word) + 1 if word else int(match["day"])
    return (
        Condition("calendar", "~", f"-{day:02} "),
        Condition("schedule", "~", f"on the {day}. of"),
    )


TIMES: Final[Sequence[Rule]] = (
    _rule("digits", _run_at_clock, "what starts at 21:45",
          r"\b(?:at )?(?P<hour>\d{1,2})(?::|\.(?=\d\d ?(?:h|am|pm)\b))(?P<minute>\d\d)",
          rf"(?![\w:.]*\d){_PART}?"),
    _rule("part of the day", _run_at_clock, "jobs at 3 am",
          rf"\b(?:at )?(?P<hour>{_MINUTE}){_PART}"),
    _rule("minutes", _run_at_clock, "what runs at twenty to five in the morning",
          rf"\b(?:at )?(?P<minute>{_MINUTE})(?: minutes?)? (?P<to>past|to|before|after)",
          rf" (?P<hour>\d{{1,2}}|{'|'.join(NUMBERS)})\b{_PART}?"),
    _rule("interval", _run_every, "every half hour",
          rf"\b(?:every|each) (?:(?P<count>{_MINUTE}) (?P<unit>minutes|hours)",
          r"|(?P<share>half|quarter)(?: of)?(?: an)? hour)\b"),
    _rule("day of a month", _run_on_day, "timers on the first of a month",
          rf"\b{_OF_MONTH} of (?:the|a|each|every) month\b"),
)  # fmt: skip


def find_times(question: str) -> list[ScheduleTime]:
    """Return the first times of a question, in order; where they overlap, the longest."""
    question = question.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    every = ((rule, match) for rule in TIMES for match in rule.pattern.finditer(question))
    matches = islice(every, _MOST_MATCHES)
    found: list[ScheduleTime] = []
    for rule, match in sorted(matches, key=lambda one: (one[1].start(), -one[1].end())):
        if not found or match.start() >= found[-1].end:
            found.append(ScheduleTime(*match.span(), tuple(rule.meaning(match))))
    return found[:_MOST]
