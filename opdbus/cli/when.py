"""Times and spans as people write them. Pure."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Final

from opdbus.errors import InvalidArgs

TIMES: Final = (
    "a time is now, today, yesterday, boot, a span ago such as -30m or 2h, 03:10 (the last one),"
    " 2026-11-22, 2026-11-22 03:10:00, or that with a zone: 2026-11-22T03:10:00Z"
)
SPANS: Final = "a span is a number with s, m, h, d or w, or several: 30s, 30m, 1h30m, 2d"
_UNITS: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_SPAN: Final = re.compile(r"(?:\d{1,9}[smhdw])+")
_PART: Final = re.compile(r"(\d+)([smhdw])")
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
    return len(words) > 1 and words[-1] != "ago" and any(word.isalpha() for word in words)


def span(text: str) -> int:
    """Return a span in microseconds; raises InvalidArgs."""
    if not _SPAN.fullmatch(word := text.strip().lower()):
        raise InvalidArgs(f"{text!r} is no span of time: {SPANS}")
    return sum(int(number) * _UNITS[unit] * 1_000_000 for number, unit in _PART.findall(word))


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
