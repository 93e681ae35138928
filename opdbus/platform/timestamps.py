"""Times and spans as in systemd.time(7), and timestamps pasted from journals.

Reads times given as options: `M` is a month and `m` a minute, as in systemd. Times in questions are
read by `index.query.schedule_times` (`twenty to five`) and `past_spans` (`last night`, with months
and years of the same length).
"""

import re
import time as clock
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Final
from zoneinfo import ZoneInfo

from opdbus.errors import InvalidArgs

TIMES: Final = (
    "a time is now, today, yesterday, boot, a span ago such as 30m or 2 hours ago,"
    " 03:10 (the last one), 2026-11-22, 2026-11-22 03:10:00, Nov 22 03:10:00, @1700000000,"
    " or that with a zone: 2026-11-22T03:10:00Z, 2026-11-22 03:10:00 CET"
)
SPANS: Final = (
    "a span is a number and a unit, or several: 30s, 5 minutes, 1h30m, 2d, 1 week, 1M (a month)"
)
# Average month and year, as in systemd.time(7).
MONTH: Final = timedelta(days=30.4375)
YEAR: Final = timedelta(days=365.25)
# Microseconds of each unit, by every name in systemd.time(7): M is a month, m a minute.
_UNITS: Final[Mapping[str, int]] = {
    word: microseconds
    for words, microseconds in (
        ("us usec \N{GREEK SMALL LETTER MU}s \N{MICRO SIGN}s", 1),
        ("ms msec", 1000),
        ("s sec secs second seconds", 1_000_000),
        ("m min mins minute minutes", 60_000_000),
        ("h hr hour hours", 3_600_000_000),
        ("d day days", 86_400_000_000),
        ("w week weeks", 604_800_000_000),
        ("M month months", MONTH // timedelta.resolution),
        ("y year years", YEAR // timedelta.resolution),
    )
    for word in words.split()
}
# (least seconds, unit, seconds in the unit); the first that fits is shown.
_AGES: Final = (
    (2 * YEAR.total_seconds(), "years", YEAR.total_seconds()),
    (2 * MONTH.total_seconds(), "months", MONTH.total_seconds()),
    (2 * 86400, "days", 86400),
    (3600, "h", 3600),
    (60, "min", 60),
    (1, "s", 1),
)
_PART: Final = re.compile(
    r"(\d{1,20}(?:\.\d{1,9})?)"
    rf" ?({'|'.join(sorted(_UNITS, key=len, reverse=True))})(?![a-z]) ?",
    re.IGNORECASE | re.ASCII,
)
_SPAN: Final = re.compile(rf"(?:{_PART.pattern})+", _PART.flags)
_UNIX: Final = re.compile(r"(?:@|(?=\d{9}))(\d{1,11}(?:\.\d{1,9})?)", re.ASCII)
_WEEKDAYS: Final = "mon tue wed thu fri sat sun".split()
_MONTHS: Final = "jan feb mar apr may jun jul aug sep oct nov dec".split()
_WEEKDAY: Final = (
    r"(?:(?P<weekday>mon|tue|wed|thu|fri|sat|sun)(?:day|sday|nesday|rsday|urday)?,? +)?"
)
_DATE: Final = r"(?P<year>\d\d(?:\d\d)?)-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
_MONTH_AND_DAY: Final = rf"(?P<name>{'|'.join(_MONTHS)}) +(?P<day>\d{{1,2}})"
_DAY_AND_MONTH: Final = (
    rf"(?P<day>\d{{1,2}})[ -](?P<name>{'|'.join(_MONTHS)})(?:[ -](?P<year>\d{{4}}))?"
)
_CLOCK: Final = (
    r"(?P<hour>\d{1,2}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?)?"
)
_ZONE: Final = r"(?: ?(?P<zone>[+-]\d\d(?::?\d\d)?|[a-z][\w+/-]{0,40}))?"
# Formats of systemctl, journalctl and RFC 3339; of syslog, dmesg -T and date; of mail; a clock
# time.
_STAMPS: Final = tuple(
    re.compile(text, re.IGNORECASE | re.ASCII)
    for text in (
        rf"{_WEEKDAY}{_DATE}(?:(?:T| +){_CLOCK})?{_ZONE}",
        rf"{_WEEKDAY}{_MONTH_AND_DAY}(?: +{_CLOCK}{_ZONE})?(?: +(?P<year>\d{{4}}))?",
        rf"{_WEEKDAY}{_DAY_AND_MONTH}(?: +{_CLOCK}{_ZONE})?",
        _CLOCK + _ZONE,
    )
)
# `systemctl status` appends the age to a time.
_SINCE: Final = re.compile(r"; [^;]{1,60} ago")
# Abbreviations of summer time that are not zone names, by a zone that has them.
_DAYLIGHT: Final = {
    "CEST": "CET", "EEST": "EET", "WEST": "WET", "BST": "Europe/London", "PST": "PST8PDT",
    "EDT": "EST5EDT", "CST": "CST6CDT", "CDT": "CST6CDT", "MDT": "MST7MDT", "PDT": "PST8PDT",
}  # fmt: skip
_MOST_YEARS: Final = 8
# The end of the year 9999, after which no program writes a date.
_LAST: Final = 253_402_300_799.0


def moment(text: str, now: float, boot: float) -> int:
    """Return a time in microseconds since 1970; raises InvalidArgs.

    `now` and `boot` are in seconds since 1970. A time without a zone is local. Of the hour that
    occurs twice in autumn the first is returned, the second with a zone such as CET or an offset.
    In the hour that is skipped in spring the clock is taken as not yet set forward.
    """
    word = _strip_decoration(text)
    try:
        found = _parse_name(word, now, boot)
        found = _parse_relative(word, now) if found is None else found
        found = _parse_stamp(word, now) if found is None else found
    except (ValueError, OverflowError, OSError, KeyError):
        found = None
    if found is None or not 0 <= found <= _LAST:
        raise InvalidArgs(f"{text!r} is no time: {TIMES}")
    return round(found * 1e6)


def moment_here(text: str) -> int:
    """Return a time in microseconds since 1970, by the clock of this host; raises InvalidArgs."""
    now = clock.time()
    return moment(text, now, now - uptime())


def uptime() -> float:
    """Return the seconds since the boot, with those of suspension; no clock that is set."""
    return clock.clock_gettime(clock.CLOCK_BOOTTIME)


def is_event(text: str) -> bool:
    """Return whether a text is an event in words, such as `nginx failed`, rather than a time."""
    words, word = text.lower().split(), _strip_decoration(text)
    is_time = words[-1:] in (["ago"], ["left"]) or any(
        pattern.fullmatch(word) for pattern in (_SPAN, *_STAMPS)
    )
    return len(words) > 1 and not is_time and any(word.isalpha() for word in words)


def _strip_decoration(text: str) -> str:
    """Remove what programs print around a time."""
    return _SINCE.sub("", text).strip(" \t\n[]")


def span(text: str) -> int:
    """Return a span in microseconds; raises InvalidArgs."""
    if not _SPAN.fullmatch(word := text.strip()):
        raise InvalidArgs(f"{text!r} is no span of time: {SPANS}")
    # case matters only for M, a month
    parts = (
        (each[1], _UNITS.get(each[2]) or _UNITS[each[2].lower()]) for each in _PART.finditer(word)
    )
    return sum(round(float(number) * unit) for number, unit in parts)


def ago(seconds: float) -> str:
    """Return an age as text: `3 min ago`."""
    for least, unit, length in _AGES:
        if seconds >= least:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"


def _parse_name(word: str, now: float, boot: float) -> float | None:
    midnight = datetime.combine(_local(now).date(), time())
    days = {"today": 0, "yesterday": -1, "tomorrow": 1}
    moments = {day: (midnight + timedelta(n)).timestamp() for day, n in days.items()}
    return {"now": now, "boot": boot, **moments}.get(word.lower())


def _parse_relative(word: str, now: float) -> float | None:
    if found := _UNIX.fullmatch(word):
        return float(found[1])
    lower = word.lower()
    is_later = lower.startswith("+") or lower.endswith(" left")
    plain = word[1:] if lower.startswith(("-", "+")) else word
    if plain == word and lower.endswith((" ago", " left")):
        plain = word.rpartition(" ")[0]
    if not _SPAN.fullmatch(plain := plain.strip()):
        return None
    return now + (span(plain) if is_later else -span(plain)) / 1e6


def _parse_stamp(word: str, now: float) -> float | None:
    found = next(filter(None, (pattern.fullmatch(word) for pattern in _STAMPS)), None)
    if not found:
        return None
    part = {key: value or "" for key, value in found.groupdict().items()}
    hour, minute, second = (int(part.get(key) or 0) for key in ("hour", "minute", "second"))
    at = time(hour, minute, second, int(part["fraction"][:6].ljust(6, "0")))

    def meant(year: int, month: int, day: int) -> list[float]:
        """Return the Unix times of the clock time on a day; [] for an invalid day or weekday."""
        with suppress(ValueError):
            begin = datetime.combine(date(year, month, day), at)
            if part.get("weekday", "").lower() in {"", _WEEKDAYS[begin.weekday()]}:
                return _in_zone(begin, part["zone"])
        return []

    month = _MONTHS.index(part["name"].lower()) + 1 if "name" in part else part.get("month")
    if year := part.get("year"):
        # two-digit years as in strptime
        whole = int(year) + (0 if len(year) == 4 else 2000 if int(year) < 69 else 1900)
        return next(iter(meant(whole, int(month or 0), int(part["day"]))), None)
    # the last one that is not in the future
    here = _local(now)
    if month:
        years = range(here.year + 1, here.year - _MOST_YEARS, -1)
        every = [meant(each, int(month), int(part["day"]))[:1] for each in years]
    else:
        days = (here.date() - timedelta(n) for n in (-1, 0, 1, 2))
        every = [meant(day.year, day.month, day.day) for day in days]
    return max((one for each in every for one in each if one <= now), default=None)


def _in_zone(at: datetime, zone: str) -> list[float]:
    """Return the Unix times at which a clock in a zone shows a time; two if it shows it twice.

    An abbreviation such as CET keeps its offset even while summer time is in force.
    """
    name = zone.upper()
    if not zone:
        return list(dict.fromkeys((at.timestamp(), at.replace(fold=1).timestamp())))
    if name in {"Z", "UTC", "GMT"}:
        return [at.replace(tzinfo=UTC).timestamp()]
    if name[0] in "+-":
        return [at.replace(tzinfo=datetime.strptime(zone.ljust(5, "0"), "%z").tzinfo).timestamp()]
    local: Callable[[datetime], datetime] = datetime.astimezone
    places = [local] if name in map(str.upper, clock.tzname) else []
    if name in _DAYLIGHT:
        other = ZoneInfo(_DAYLIGHT[name])
        places.append(lambda each: each.replace(tzinfo=other))
    probes = [at, at.replace(fold=1), *(at.replace(month=n, day=15) for n in range(1, 13))]
    for probe in (place(each) for place in places for each in probes):
        if (probe.tzname() or "").upper() == name:
            return [at.replace(tzinfo=timezone(probe.utcoffset() or timedelta())).timestamp()]
    return [at.replace(tzinfo=ZoneInfo(zone)).timestamp()]


def _local(at: float) -> datetime:
    """Return a local time without its zone, since the zone may differ at another time."""
    return datetime.fromtimestamp(at, UTC).astimezone().replace(tzinfo=None)


def format_utc(at: int) -> str:
    """Return microseconds since 1970 as UTC, as `op-dbus changes --since` reads it."""
    try:
        return f"{datetime.fromtimestamp(at / 1e6, UTC):%Y-%m-%d %H:%M:%SZ}"
    except (ValueError, OverflowError, OSError):
        return "an unknown time"
