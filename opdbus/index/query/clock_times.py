"""Clock times, intervals and days of the month in a question: `twenty to five`. Pure.

Each becomes conditions on the fields of timers (`calendar`, `on`) and cron jobs (`schedule`).
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from opdbus.index.query.comparisons import Comparison
from opdbus.state.conditions import Condition

_UNITS: Final = "one two three four five six seven eight nine ten eleven twelve".split()
_HOURS: Final = {word: number for number, word in enumerate(_UNITS, 1)}
_MINUTES: Final = {
    **_HOURS, "a quarter": 15, "quarter": 15, "twenty": 20, "twenty five": 25, "twenty-five": 25,
    "half": 30, "fifteen": 15, "thirty": 30,
}  # fmt: skip
_DAYS: Final = {
    word: number
    for number, word in enumerate(
        "first second third fourth fifth sixth seventh eighth ninth tenth".split(), 1
    )
}
# Hours of the day that the words after a clock time allow.
_PARTS: Final = {
    **dict.fromkeys(("am", "a.m.", "in the morning"), range(12)),
    **dict.fromkeys(("pm", "p.m.", "in the afternoon", "in the evening"), range(12, 24)),
    "at night": (0, 1, 2, 3, 4, 5, 20, 21, 22, 23),
}
_NUMBER: Final = rf"\d{{1,2}}|{'|'.join(sorted(_MINUTES, key=len, reverse=True))}"
_PART: Final = rf"(?: ?({'|'.join(map(re.escape, _PARTS))})(?!\w))"
_CLOCK: Final = (
    # 4:40 and 16.30 h; 3 in the morning; twenty to five; six o'clock
    re.compile(
        r"\b(?:at )?(?P<hour>\d{1,2})(?::|\.(?=\d\d ?(?:h|am|pm)\b))(?P<minute>\d\d)"
        rf"(?![\w:.]*\d){_PART}?", re.IGNORECASE),
    re.compile(rf"\b(?:at )?(?P<hour>{_NUMBER}){_PART}", re.IGNORECASE),
    re.compile(
        rf"\b(?:at )?(?P<minute>{_NUMBER})(?: minutes?)? (?P<to>past|to|before|after)"
        rf" (?P<hour>\d{{1,2}}|{'|'.join(_UNITS)})\b{_PART}?", re.IGNORECASE),
    re.compile(rf"\b(?:at )?(?P<hour>{_NUMBER}) o'?clock\b{_PART}?", re.IGNORECASE),
)  # fmt: skip
_NAMED: Final = re.compile(r"\b(?:at )?(midnight|noon|midday)\b", re.IGNORECASE)
_EVERY: Final = re.compile(
    rf"\b(?:every|each) (?:(?P<count>{_NUMBER}) (?P<unit>minutes|hours)|(?P<part>half|quarter)"
    r"(?: of)?(?: an)? hour)\b", re.IGNORECASE,
)  # fmt: skip
_DAY_OF_MONTH: Final = (
    rf"(?:(?P<day>\d{{1,2}})(?:st|nd|rd|th)|(?P<word>{'|'.join(_DAYS)}))\b(?: day\b)?"
)
_OF_MONTH: Final = (
    re.compile(rf"\bon the {_DAY_OF_MONTH}(?=\W*$)", re.IGNORECASE),
    re.compile(rf"\b{_DAY_OF_MONTH} of (?:the|a|each|every) month\b", re.IGNORECASE),
)
_MOST: Final = 3
_DAY: Final = 24
_HOUR: Final = 60


def find(question: str) -> list[Comparison]:
    """Return the first `_MOST` times of a question, in order; where they overlap, the longest."""
    question = question.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    every = sorted(islice(_all(question), 8 * _MOST), key=lambda one: (one.start, -one.end))
    found: list[Comparison] = []
    for each in every:
        if not found or each.start >= found[-1].end:
            found.append(each)
    return found[:_MOST]


def _all(question: str) -> Iterator[Comparison]:
    for pattern in _CLOCK:
        for match in pattern.finditer(question):
            meant = [condition for hour in _hours(match) for condition in _at(*hour)]
            yield Comparison(*match.span(), tuple(meant))
    for match in _NAMED.finditer(question):
        hour = 0 if match[1].lower() == "midnight" else _DAY // 2
        yield Comparison(*match.span(), _at(hour, 0))
    for match in _EVERY.finditer(question):
        yield Comparison(*match.span(), _repeated(match))
    for pattern in _OF_MONTH:
        for match in pattern.finditer(question):
            day = int(match["day"]) if match["day"] else _DAYS[match["word"].lower()]
            cron = Condition("schedule", "~", f"on the {day}. of")
            yield Comparison(*match.span(), (Condition("calendar", "~", f"-{day:02} "), cron))


def _at(hour: int, minute: int) -> tuple[Condition, ...]:
    """Return the conditions of timers and cron jobs that run at a time of the day."""
    time = f"{hour:02}:{minute:02}"
    return Condition("calendar", "~", f" {time}:"), Condition("schedule", "~", f"at {time}")


def _hours(match: re.Match[str]) -> Iterator[tuple[int, int]]:
    """Yield each (hour, minute) that a match may mean: both halves of the day if that is open."""
    told = match.groupdict()
    hour, minute = _number(match["hour"]), _number(told.get("minute") or "0")
    part = _PARTS.get((match[match.re.groups] or "").lower(), range(_DAY))
    if told.get("to") in {"to", "before"}:
        hour, minute = (hour - 1) % _DAY, _HOUR - minute
    if 0 <= hour < _DAY and 0 <= minute < _HOUR:
        is_half = hour <= _DAY // 2 and not _is_exact(match)
        hours = {hour % _DAY, (hour + _DAY // 2) % _DAY} if is_half else {hour}
        yield from ((each, minute) for each in sorted(hours) if each in part)


def _is_exact(match: re.Match[str]) -> bool:
    """Return whether the hour is written as on a 24-hour clock: `04:40`."""
    return match["hour"].startswith("0") and len(match["hour"]) == 2


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else _MINUTES[text.lower()]


def _repeated(match: re.Match[str]) -> tuple[Condition, ...]:
    """Return the conditions of timers and cron jobs that repeat at the interval of a match."""
    is_hours = (match["unit"] or "").lower() == "hours"
    count = _number(match["count"]) if match["count"] else _MINUTES[match["part"].lower()]
    return (
        Condition("schedule", "~", f"every {count} {'hours' if is_hours else 'minutes'}"),
        Condition("calendar", "~", f"/{count:02}:" if is_hours else f"/{count:02}:00"),
        Condition("on", "~", f"{count} {'h' if is_hours else 'min'} after its unit"),
    )
