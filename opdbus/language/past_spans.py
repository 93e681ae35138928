"""Spans of the past in a question: `last night`, `since the reboot`, `at 3 yesterday`.

They become the options `since` and `before` of `op-dbus changes`, which `timestamps` reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Final, TypeAlias

from opdbus.language.tables import NUMBERS
from opdbus.platform.timestamps import MONTH, YEAR

Span: TypeAlias = tuple[datetime, datetime]
Meaning: TypeAlias = Callable[[re.Match[str], datetime], Span]

# No bound; a mark for the boot time, which only `timestamps` resolves.
_FIRST, _BOOT = datetime(1970, 1, 1), datetime(1970, 1, 2)  # noqa: DTZ001 -- local time
_LAST: Final = datetime(9999, 1, 1)  # noqa: DTZ001 -- local time
# The first time that is in 1970 or later in every time zone.
_OLDEST: Final = _FIRST + timedelta(hours=14)
# Tolerance on both sides of a time of the day, and of one with seconds.
_ABOUT: Final = timedelta(minutes=30)
_EXACTLY: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
_HALF_DAY: Final = 12
_HOURS: Final = [word for word, number in NUMBERS.items() if number]
_NUMBERS: Final[Mapping[str, float]] = {
    **{word: NUMBERS[word] for word in _HOURS}, "a": 1, "an": 1, "a couple of": 2,
    "couple of": 2, "a few": 4, "few": 4, "several": 5, "half an": 0.5,
    **{word: number for number, word in enumerate(
        "thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split(), 13)},
}  # fmt: skip
_TENS: Final = {
    word: 10 * number
    for number, word in enumerate(
        "twenty thirty forty fifty sixty seventy eighty ninety".split(), 2
    )
}
_UNITS: Final = {
    "second": timedelta(seconds=1), "minute": timedelta(minutes=1), "min": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": _DAY, "night": _DAY, "week": 7 * _DAY, "month": MONTH, "year": YEAR,
}  # fmt: skip
_DAYS: Final = "monday tuesday wednesday thursday friday saturday sunday".split()
_MONTHS: Final = "jan feb mar apr may jun jul aug sep oct nov dec".split()
# Parts of a day, in hours after midnight.
_PARTS: Final = {"morning": (4, 12), "afternoon": (12, 18), "evening": (17, 24), "night": (20, 32)}

_COUNT: Final = (
    rf"(?:(?P<count>\d{{1,4}}|(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_HOURS[:9])}))?"
    rf"|{'|'.join(sorted(_NUMBERS, key=len, reverse=True))}) )?"
)
_UNIT: Final = rf"(?P<unit>{'|'.join(_UNITS)})s?"
_NAMED_DAY: Final = rf"(?:on |last |on last )?(?:{'|'.join(_DAYS)})"
_PART: Final = rf"(?P<part>{'|'.join(_PARTS)})"
_MONTH: Final = rf"(?P<month>{'|'.join(_MONTHS)})[a-z]*"
# A dot separates hour and minute only next to `at` or `pm`: elsewhere 22.04 is a version or a port.
_DOT: Final = "|".join(
    (
        r"\.(?=[0-5]\d ?(?:[ap]\.?m\b|o'?clock))",
        *(rf"(?<=\b{at} {n})\." for at in ("at", "around", "at about") for n in (r"\d", r"\d\d")),
    )
)
_HOUR: Final = (
    rf"(?P<hour>[01]?\d|2[0-4]|{'|'.join(_HOURS)}|noon|midnight)"
    rf"(?:(?::|{_DOT})(?P<minute>[0-5]\d)(?::(?P<seconds>[0-5]\d))?)?"
    r"(?: ?(?P<half>[ap])\.?m\b| o'?clock)?(?![\w:.]*\w)"
)
_OF_DAY: Final = (
    r"(?: (?P<day>last night|yesterday(?: (?:morning|afternoon|evening|night))?|today|tonight"
    rf"|this (?:morning|afternoon|evening)|(?:in the|at) (?:{'|'.join(_PARTS)})"
    rf"|{_NAMED_DAY}(?: (?:{'|'.join(_PARTS)}))?))?"
)


def find_span(question: str, now: datetime) -> tuple[dict[str, str], str]:
    """Return the options for the first span in a question, and the question without it.

    The question is as `routes.plain` returns it; `now` is local time without a zone. A span that
    begins in the future is ignored.
    """
    for form, meaning in _FORMS:
        for match in form.finditer(question):
            since, before = meaning(match, now)
            if since < now:
                rest = _without(question, match)
                if meaning in {_clock, _between}:
                    at = since if meaning is _between else since + (before - since) / 2
                    moved, rest = _day_beside(rest, at, now)
                    since, before = since + moved, before + moved
                options = {"since": _option(since)} if since > _FIRST else {}
                return options | ({"before": _option(before)} if before < now else {}), rest
    return {}, question


def _without(question: str, match: re.Match[str]) -> str:
    return " ".join(f"{question[: match.start()]} {question[match.end() :]}".split())


def _day_beside(question: str, at: datetime, now: datetime) -> tuple[timedelta, str]:
    """Return the offset of a time to the day named elsewhere in a question, and the rest of it."""
    for form, meaning in _FORMS:
        if meaning in {_date, _weekday} and (match := form.search(question)):
            day, _ = meaning(match, now)
            if day < now:
                return day - _midnight(at), _without(question, match)
    return timedelta(), question


def pattern() -> str:
    """Return a regular expression that matches every span."""
    return "|".join(f"(?:{_unnamed(form.pattern)})" for form, _ in _FORMS)


def _unnamed(form: str) -> str:
    return re.sub(r"\?P<\w+>", "?:", form)


def _option(at: datetime) -> str:
    if at == _BOOT:
        return "boot"
    at = max(at, _OLDEST)
    if at.time() == time():
        return f"{at:%Y-%m-%d}"
    return f"{at:%Y-%m-%d %H:%M:%S}".removesuffix(":00")


def _midnight(now: datetime, days: int = 0) -> datetime:
    return datetime.combine(now.date(), time()) - days * _DAY


def _count(word: str | None) -> float:
    word = word or "one"
    if word.isdecimal():
        return int(word)
    known = {**_NUMBERS, **_TENS}
    return known[word] if word in known else sum(known[part] for part in re.split("[ -]", word))


def _day_of(said: str, now: datetime) -> datetime:
    """Return the midnight of the day that words name, the last one for a weekday; default today."""
    for word in said.split():
        if word in _DAYS:
            return _midnight(now, (now.weekday() - _DAYS.index(word) - 1) % 7 + 1)
    return _midnight(now, "yesterday" in said)


def _at(match: re.Match[str], now: datetime) -> datetime:
    """Return the last occurrence of a time of the day."""
    day, word, half = match["day"] or "", match["hour"], match["half"]
    hour = {"noon": 12, "midnight": 24}.get(word) or int(_count(word))
    is_late = half == "p" or any(part in day for part in ("afternoon", "evening", "tonight"))
    # `at 11 last night` is before midnight, `at 3 last night` after it
    is_night = "night" in day
    is_late |= not half and is_night and 6 <= hour < _HALF_DAY
    hour = hour % _HALF_DAY + _HALF_DAY * is_late if half or (is_late and hour <= 12) else hour
    is_open = not day or day.startswith(("in ", "at ", "last night"))
    if is_night and half != "p" and word != "noon":
        # a night continues into the next day, from which `last night` is counted
        hour = 24 if hour in {0, _HALF_DAY} else hour + 24 * (hour < 6 and not is_open)
    minute, seconds = (int(match[name] or 0) for name in ("minute", "seconds"))
    at = _day_of(day, now) + timedelta(hours=hour, minutes=minute, seconds=seconds)
    return at - _DAY if at > now and is_open else at


def _clock(match: re.Match[str], now: datetime) -> Span:
    at, about = _at(match, now), _EXACTLY if match["seconds"] else _ABOUT
    return at - about, at + about


def _part(match: re.Match[str], now: datetime) -> Span:
    first, last = _PARTS[match["part"]]
    start = _day_of(match[0], now)
    is_before = match["part"] == "night" or "last" in match[0]
    is_named = "yesterday" in match[0] or any(day in match[0] for day in _DAYS)
    start -= _DAY * (is_before and not is_named and "tonight" not in match[0])
    return start + timedelta(hours=first), start + timedelta(hours=last)


def _back(at: datetime, span: timedelta) -> datetime:
    """Return the time `span` before another, not before 1970."""
    return at - min(span, at - _FIRST)


def _ago(match: re.Match[str], now: datetime) -> Span:
    unit = _UNITS[match["unit"]]
    at = _back(now, _count(match["count"]) * unit)
    return _back(at, unit / 2), at + unit / 2


def _past(match: re.Match[str], now: datetime) -> Span:
    """Return a span up to now; `last week` and `last month` begin with the calendar's."""
    unit = match["unit"]
    if not match["count"] and unit == "week":
        return _midnight(now, now.weekday() + 7), _LAST
    if not match["count"] and unit == "month":
        return _midnight(now, now.day).replace(day=1), _LAST
    return _back(now, _count(match["count"]) * _UNITS[unit]), _LAST


def _date(match: re.Match[str], now: datetime) -> Span:
    """Return the last such day: 2026-11-22, `22 november`, `november 22nd`, `on the 5th`."""
    given = match.groupdict()
    year, month = given.get("year"), given.get("month") or str(now.month)
    number = int(month) if month.isdecimal() else _MONTHS.index(month) + 1
    for back in range(13):
        # without a year go back by years, without a month by months
        step = 0 if year else 12 if given.get("month") else 1
        months = int(year or now.year) * 12 + number - 1 - back * step
        try:
            at = datetime(months // 12, months % 12 + 1, int(match["date"]))  # noqa: DTZ001 -- local
        except ValueError:
            continue
        if at <= now:
            return at, at + _DAY
    return _LAST, _LAST


def _days(back: int, length: int = 1) -> Meaning:
    return lambda _match, now: (_midnight(now, back), _midnight(now, back - length))


def _weekday(match: re.Match[str], now: datetime) -> Span:
    is_weekend = "weekend" in match[0]
    start = _day_of("saturday" if is_weekend else match[0], now)
    return start, start + _DAY * (1 + is_weekend)


def _bound(match: re.Match[str], now: datetime) -> Span:
    """Return the span that `since` begins or `before` ends."""
    is_since = match["word"] in {"since", "after", "from", "ever since"}
    for form, meaning in _BOUNDS:
        if found := form.fullmatch(match["bound"]):
            start = _at(found, now) if meaning is _clock else meaning(found, now)[0]
            return (start, _LAST) if is_since else (_FIRST, start)
    return _LAST, _LAST


def _between(match: re.Match[str], now: datetime) -> Span:
    day = f" {match['on']}" if match["on"] else ""
    found = [_CLOCK.fullmatch(f"{match[key]}{day}") for key in ("first", "second")]
    first, last = (_at(each, now) if each else _LAST for each in found)
    return (first, last) if first < last else (first, last + _DAY)


_CLOCK: Final = re.compile(rf"(?<![\w.:])(?:(?:at|around|about|near) )*{_HOUR}{_OF_DAY}")
# A number alone is not a time.
_CLEAR: Final = (
    r"(?=(?:at|around|about|near) |\d{1,2}[:.]\d\d|\w+ ?(?:[ap]\.?m\b|o'?clock)|noon|midnight)"
)
# Pattern, meaning, and words that it reads (tested); the first row that matches counts.
SPANS: Final[Sequence[tuple[str, Meaning, str]]] = (
    (_CLEAR + _CLOCK.pattern, _clock, "at 15:00"),
    (r"\b(?:on )?(?P<year>\d{4})-(?P<month>\d\d)-(?P<date>\d\d)\b", _date, "on 2026-11-20"),
    (rf"\b(?:on )?(?:the )?(?P<date>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? {_MONTH}\b", _date,
     "on the 20th of november"),
    (rf"\b(?:on )?{_MONTH} (?:the )?(?P<date>\d{{1,2}})(?:st|nd|rd|th)?\b", _date,
     "on december 24th"),
    (r"\b(?:on )?the (?P<date>\d{1,2})(?:st|nd|rd|th)\b", _date, "on the 5th"),
    (r"\b(?:the )?day before yesterday\b", _days(2), "the day before yesterday"),
    (rf"\b(?:last|this|yesterday|over|to|(?:during|in|over) the|{_NAMED_DAY}) ?{_PART}\b", _part,
     "last night"),
    (rf"\b(?:about )?{_COUNT}{_UNIT} (?:ago|back|earlier)\b", _ago, "a few minutes ago"),
    (rf"\b(?:(?:in|during|over|within) )?(?:the )?(?:last|past|previous) {_COUNT}{_UNIT}\b", _past,
     "in the last two hours"),
    (r"\b(?:this|the current) week\b", lambda _m, now: (_midnight(now, now.weekday()), _LAST),
     "this week"),
    (r"\b(?:this|the current) month\b", lambda _m, now: (_midnight(now, now.day - 1), _LAST),
     "this month"),
    (r"\b(?:this|the current) year\b",
     lambda _m, now: (_midnight(now, now.timetuple().tm_yday - 1), _LAST), "this year"),
    (r"\b(?:(?:on|over|at|during|the|this|last) )+weekend\b", _weekday, "over the weekend"),
    (rf"\b{_NAMED_DAY}\b", _weekday, "on monday"),
    (r"\byesterday\b", _days(1), "yesterday"),
    (r"\b(?:earlier |so far )?today\b", _days(0), "today"),
    (r"\b(?:recently|lately|these days)\b", lambda _m, now: (_midnight(now, 7), _LAST), "lately"),
    (r"\b(?:just now|a moment ago)\b", lambda _m, now: (now - 2 * _ABOUT, _LAST), "just now"),
)  # fmt: skip
_BOUNDS: Final[Sequence[tuple[re.Pattern[str], Meaning]]] = (
    (re.compile(
        r"(?:(?:the|its|our|it) )?(?:(?:last|latest|previous) )?(?:re)?(?:boot|start|startup)"
        r"(?:ed)?(?: of (?:the|this) (?:machine|host|server|system|computer|box))?"),
     lambda _match, _now: (_BOOT, _LAST)),
    *((re.compile(form), meaning) for form, meaning, _ in SPANS[1:]),
    (re.compile(rf"{_COUNT}{_UNIT}"), _past),
    (_CLOCK, _clock),
)  # fmt: skip
_BOUND: Final = "|".join(f"(?:{_unnamed(form.pattern)})" for form, _ in _BOUNDS)
# `from 14 to 15` without a day is a range of versions, not of times.
_VERSIONS: Final = (
    rf" \d+ (?:and|to|until) \d+(?![\d:.]| ?[ap]\.?m\b| o'?clock|{_unnamed(_OF_DAY)[:-1]})"
)
_FORMS: Final[Sequence[tuple[re.Pattern[str], Meaning]]] = (
    (re.compile(
        rf"\b(?:between|from(?!{_VERSIONS})) (?P<first>{_unnamed(_HOUR)}) (?:and|to|until) "
        rf"(?P<second>{_unnamed(_HOUR)})(?: (?P<on>{_unnamed(_OF_DAY)[4:-2]}))?"), _between),
    (re.compile(
        rf"\b(?<!day )(?P<word>since|after|before|until|till|up to) (?P<bound>{_BOUND})(?!\w)"),
     _bound),
    *((re.compile(form), meaning) for form, meaning, _ in SPANS),
)  # fmt: skip
