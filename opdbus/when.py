"""Times and spans as people write them. Pure."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Final

from opdbus.errors import InvalidArgs

TIMES: Final = (
    "a time is now, today, yesterday, boot, a span ago such as 30m or 2 hours ago,"
    " 03:10 (the last one), 2026-11-22, 2026-11-22 03:10:00,"
    " or that with a zone: 2026-11-22T03:10:00Z"
)
SPANS: Final = "a span is a number and a unit, or several: 30s, 5 minutes, 1h30m, 2d, 1 week"
# Each unit, in seconds, by all that people and systemd.time(7) call it.
_UNITS: Final[Mapping[str, int]] = {
    word: seconds
    for words, seconds in (
        ("s sec secs second seconds", 1),
        ("m min mins minute minutes", 60),
        ("h hr hour hours", 3600),
        ("d day days", 86400),
        ("w week weeks", 604800),
        ("month months", 30 * 86400),
        ("y year years", 365 * 86400),
    )
    for word in words.split()
}
# How long ago something was is said in the first unit of which it is so many seconds.
_AGES: Final = (
    (2 * 365 * 86400, "years", 365 * 86400),
    (2 * 30 * 86400, "months", 30 * 86400),
    (2 * 86400, "days", 86400),
    (3600, "h", 3600),
    (60, "min", 60),
    (1, "s", 1),
)
_SPAN: Final = re.compile(rf"(?:\d{{1,9}} ?(?:{'|'.join(_UNITS)})(?![a-z]) ?)+")
_PART: Final = re.compile(r"(\d+) ?([a-z]+)")
_CLOCK: Final = re.compile(r"\d{1,2}:\d{2}(:\d{2})?")
_DATE: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}"
    r"([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?(Z|[+-]\d{2}:?\d{2})?"
)


def moment(text: str, now: float, boot: float) -> int:
    """Return a time in microseconds since 1970; raises InvalidArgs.

    `now` and `boot` are in seconds since 1970. What has no zone is local time.
    """
    word = text.strip()
    try:
        found = _named(word, now, boot) or _before(word, now) or _clock(word, now) or _date(word)
    except (ValueError, OverflowError, OSError):
        found = None
    if found is None or found < 0:
        raise InvalidArgs(f"{text!r} is no time: {TIMES}")
    return int(found * 1e6)


def is_said(text: str) -> bool:
    """Return whether a text is rather an event in words, such as `nginx failed`, than a time."""
    words = text.lower().split()
    is_time = words[-1:] == ["ago"] or _SPAN.fullmatch(text.strip().lower())
    return len(words) > 1 and not is_time and any(word.isalpha() for word in words)


def span(text: str) -> int:
    """Return a span in microseconds; raises InvalidArgs."""
    if not _SPAN.fullmatch(word := text.strip().lower()):
        raise InvalidArgs(f"{text!r} is no span of time: {SPANS}")
    return sum(int(number) * _UNITS[unit] * 1_000_000 for number, unit in _PART.findall(word))


def ago(seconds: float) -> str:
    """Say how long ago something was: `3 min ago`."""
    for least, unit, length in _AGES:
        if seconds >= least:
            return f"{seconds // length:.0f} {unit} ago"
    return "just now"


def _named(word: str, now: float, boot: float) -> float | None:
    midnight = datetime.combine(_local(now).date(), time())
    days = {"today": midnight, "yesterday": midnight - timedelta(1)}
    moments = {day: at.timestamp() for day, at in days.items()}
    return {"now": now, "boot": boot, **moments}.get(word.lower())


def _before(word: str, now: float) -> float | None:
    ago = word.lower().removesuffix(" ago").removeprefix("-")
    return now - span(ago) / 1e6 if _SPAN.fullmatch(ago) else None


def _clock(word: str, now: float) -> float | None:
    if not _CLOCK.fullmatch(word):
        return None
    here = _local(now)
    at = datetime.combine(here.date(), time.fromisoformat(word.zfill(5)))
    return (at if at <= here else at - timedelta(1)).timestamp()


def _date(word: str) -> float | None:
    return datetime.fromisoformat(word).timestamp() if _DATE.fullmatch(word) else None


def _local(at: float) -> datetime:
    """Return a local time without its zone, which may be another one at another time."""
    return datetime.fromtimestamp(at, UTC).astimezone().replace(tzinfo=None)
