"""Times and spans as people write them."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from opdbus import when
from opdbus.errors import InvalidArgs

# a Sunday in Berlin, 10:00 local time; daylight saving ended at 03:00 that day
NOW = datetime(2026, 10, 25, 9, tzinfo=UTC).timestamp()
BOOT = NOW - 5


@pytest.fixture(autouse=True)
def _berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be in a zone that has daylight saving."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-10-25T09:00:00"),
        ("boot", "2026-10-25T08:59:55"),
        ("today", "2026-10-24T22:00:00"),
        ("Yesterday", "2026-10-23T22:00:00"),
        ("-30m", "2026-10-25T08:30:00"),
        ("2h", "2026-10-25T07:00:00"),
        ("1d 2h", "2026-10-24T07:00:00"),
        ("2 minutes ago", "2026-10-25T08:58:00"),
        ("1 hour 30min ago", "2026-10-25T07:30:00"),
        ("1hour30min", "2026-10-25T07:30:00"),
        ("3 weeks", "2026-10-04T09:00:00"),
        ("1d2h ago", "2026-10-24T07:00:00"),
        ("09:15", "2026-10-25T08:15:00"),
        ("9:15", "2026-10-25T08:15:00"),
        ("23:10:05", "2026-10-24T21:10:05"),
        ("2026-10-25", "2026-10-24T22:00:00"),
        ("2026-10-25 03:10", "2026-10-25T02:10:00"),
        ("2026-10-25T03:10:01.5Z", "2026-10-25T03:10:01.500000"),
        ("2026-10-25T03:10+05:30", "2026-10-24T21:40:00"),
        (" 2026-10-25 03:10:00-0100 ", "2026-10-25T04:10:00"),
    ],
)
def test_times_are_local(text: str, meant: str) -> None:
    """Read a time in the zone that it names, or in that of this host."""
    expected = datetime.fromisoformat(meant).replace(tzinfo=UTC).timestamp()
    assert when.moment(text, NOW, BOOT) == pytest.approx(expected * 1e6)


BAD = ["", " ", "tomorrow", "25:00", "2026-13-01", "2026-10-25 3", "-", "5", "1e9", "9" * 400 + "d"]
BAD += [
    "1900-01-01",
    "0000-00-00",
    "12:60",
    "2026-10-25 03:10 Mars",
    "99999999999999h",
    "\x00",
    "2 moons ago",
    "minutes ago",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_time_is_refused(text: str) -> None:
    """Say what is accepted, whatever was given."""
    with pytest.raises(InvalidArgs, match="is no time: a time is now, today, yesterday, boot"):
        when.moment(text, NOW, BOOT)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1h30M", 5400)]
)
def test_spans_add_up(text: str, seconds: int) -> None:
    """Read each number with its unit."""
    assert when.span(text) == seconds * 1_000_000


@pytest.mark.parametrize(
    "text", ["", "30", "-30m", "m", "1.5h", "1h,30m", "10 moons", "9" * 30 + "s"]
)
def test_what_is_no_span_is_refused(text: str) -> None:
    """Say what is accepted."""
    with pytest.raises(InvalidArgs, match="is no span of time: a span is a number and a unit"):
        when.span(text)
