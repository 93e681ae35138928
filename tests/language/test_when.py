"""Times and spans as people write them."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from scripts.make_times import RECORD

from opdbus.errors import InvalidArgs
from opdbus.platform import timestamps

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
    assert timestamps.moment(text, NOW, BOOT) == pytest.approx(expected * 1e6)


BAD = ["", " ", "25:00", "2026-13-01", "2026-10-25 3", "-", "5", "1e9", "9" * 400 + "d"]
BAD += [
    "1900-01-01",
    "0000-00-00",
    "12:60",
    "2026-10-25 03:10 Mars",
    "99999999999999h",
    "+9999y",
    "+99999999999999999999y",
    "@253402300800",
    "10000-01-01",
    "\x00",
    "2 moons ago",
    "minutes ago",
]


@pytest.mark.parametrize("text", BAD)
def test_what_is_no_time_is_refused(text: str) -> None:
    """Say what is accepted, whatever was given."""
    with pytest.raises(InvalidArgs, match="is no time: a time is now, today, yesterday, boot"):
        timestamps.moment(text, NOW, BOOT)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("30m", 1800), ("2h", 7200), ("1d", 86400), ("1h30m", 5400)]
)
def test_spans_add_up(text: str, seconds: int) -> None:
    """Read each number with its unit."""
    assert timestamps.span(text) == seconds * 1_000_000


@pytest.mark.parametrize(
    "text", ["", "30", "-30m", "m", "1..5h", "1h,30m", "10 moons", "9" * 30 + "s"]
)
def test_what_is_no_span_is_refused(text: str) -> None:
    """Say what is accepted."""
    with pytest.raises(InvalidArgs, match="is no span of time: a span is a number and a unit"):
        timestamps.span(text)


KNOWN = json.loads(RECORD.read_text())
# Systemd reads these, and we do not.
REFUSED = {
    "30": "a number without a unit may be minutes as well",
    "infinity": "it is no span after which anything ends",
    "2025-02-29": "there is no such day: systemd takes the next one",
    "Nov 31 13:45:01": "there is no such day: systemd takes the next one",
    "11:12:61": "there is no such second",
    "2026-11-26 1:2": "whether 01:02 or 01:20 is meant, nobody can see",
}
# We read these as well.
MORE = {
    "1Y", "1H", "1D", "1MIN", "1 Hour", "TODAY", "1700000000.123456", "nov 26", "Nov 26 2025",
    "Thu, 2026-11-26 13:45:01", "Thu Nov 26 13:45:01 2026", "Thu Nov 26 13:45:01 UTC 2026",
    "Thu 2026-11-26 13:45:01 UTC; 5min ago", "2026-11-26T13:45:01", "2026-11-26T13:45:01Z",
    "2026-11-26T13:45:01+0100", "2026-11-26T13:45:01+01:00", "2026-11-26T13:45:01.123456+0100",
    "2026-11-26T13:45:01.123456789Z", "2026-11-26 13:45:01+0100", "2026-11-26 13:45:01 +0530",
    "2026-11-26 13:45:01 Europe/Berlin", "2026-07-26 13:45:01 Europe/Berlin",
    "2026-11-26 13:45:01 Asia/Tokyo", "2026-11-26 13:45:01 CET", "2026-11-26 13:45:01 CEST",
    "2026-07-26 13:45:01 CET", "2026-07-26 13:45:01 CEST", "2026-11-26 13:45:01 EST",
    "2026-07-26 13:45:01 EDT", "2026-10-25 02:30 CET", "2026-10-25 02:30 CEST",
    "2026-10-25 02:30 +0100", "2026-11-01 01:30 EST", "2026-11-01 01:30 EDT",
}  # fmt: skip
# Of an hour that comes twice the C library may take either: we take the first.
TWICE = {"2026-10-25 02:30"}
# Ours is the last one that has been, systemd's that of this day or year.
LATEST = {"11:12", "11:12:13", "9:05", "Nov 26 13:45:01", "Nov 26 13:45:01.123456"}
LATEST |= {"Nov  6 03:04:05"}


@pytest.mark.parametrize("text", KNOWN["spans"])
def test_spans_are_read_as_systemd_reads_them(text: str) -> None:
    """Read each span as systemd-analyze(1) does, or refuse it; M is a month and m a minute."""
    meant = KNOWN["spans"][text]
    if text in REFUSED or (meant is None and text not in MORE):
        with pytest.raises(InvalidArgs, match="is no span of time"):
            timestamps.span(text)
    else:
        assert timestamps.span(text) == (timestamps.span(text.lower()) if meant is None else meant)


@pytest.mark.parametrize(
    ("zone", "text"), [(zone, text) for zone, texts in KNOWN["times"].items() for text in texts]
)
def test_times_are_read_as_systemd_reads_them(
    zone: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read each time as systemd-analyze(1) does in the same zone, or refuse it.

    What we read besides, and the few that are read in another way, are named with the reason.
    """
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    now = datetime(2026, 12, 1, 23, tzinfo=UTC).timestamp()
    meant = KNOWN["times"][zone][text]
    if text in REFUSED or (meant is None and text not in MORE):
        with pytest.raises(InvalidArgs, match="is no time"):
            timestamps.moment(text, now, now)
        return
    found = timestamps.moment(text, now, now)
    if meant is None or text in TWICE | LATEST:
        return
    if isinstance(meant, dict):
        start = timestamps.moment("today" if "after_midnight" in meant else "now", now, now)
        (meant,) = (start + after for after in meant.values())
    # a day may have 23 hours
    assert found == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        # pasted from systemctl, journalctl with each of its formats, dmesg -T and date
        ("Thu 2026-11-26 13:45:01 CET", "2026-11-26T12:45:01"),
        ("Thu 2026-11-26 13:45:01 UTC", "2026-11-26T13:45:01"),
        ("Thu 2026-11-26 13:45:01 CET; 1 month 2 days ago", "2026-11-26T12:45:01"),
        ("Nov 26 13:45:01", "2025-11-26T12:45:01"),
        ("Nov 26 13:45:01.123456", "2025-11-26T12:45:01.123456"),
        ("Oct 24 13:45:01", "2026-10-24T11:45:01"),
        ("2026-11-26T13:45:01+0100", "2026-11-26T12:45:01"),
        ("2026-11-26T13:45:01.123456+01:00", "2026-11-26T12:45:01.123456"),
        ("Sat Oct 24 13:45:01 2026", "2026-10-24T11:45:01"),
        ("[Sat Oct 24 13:45:01 2026]", "2026-10-24T11:45:01"),
        ("Sat Oct 24 13:45:01 CEST 2026", "2026-10-24T11:45:01"),
        ("Sat, 24 Oct 2026 13:45:01 +0200", "2026-10-24T11:45:01"),
        ("24-Oct-2026 13:45:01", "2026-10-24T11:45:01"),
        ("24 Oct", "2026-10-23T22:00:00"),
        ("1792842301.123456", "2026-10-24T11:45:01.123456"),
        ("Feb 29", "2024-02-28T23:00:00"),
        ("Oct 23 2025", "2025-10-22T22:00:00"),
        # zones by their names, those of other hosts too
        ("2026-07-26 12:00 CET", "2026-07-26T11:00:00"),
        ("2026-07-26 12:00 cest", "2026-07-26T10:00:00"),
        ("2026-12-26 12:00 CEST", "2026-12-26T10:00:00"),
        ("2026-07-26 12:00 EDT", "2026-07-26T16:00:00"),
        ("2026-12-26 12:00 PST", "2026-12-26T20:00:00"),
        ("2026-12-26 12:00 Asia/Kolkata", "2026-12-26T06:30:00"),
        # the hour that comes twice, and the one that does not come
        ("2026-10-25 02:30", "2026-10-25T00:30:00"),
        ("2026-10-25 02:30 CEST", "2026-10-25T00:30:00"),
        ("2026-10-25 02:30 CET", "2026-10-25T01:30:00"),
        ("2026-10-25T02:30:00+0100", "2026-10-25T01:30:00"),
        ("02:30", "2026-10-25T01:30:00"),
        ("02:30 CEST", "2026-10-25T00:30:00"),
        ("2026-03-29 02:30", "2026-03-29T01:30:00"),
        ("1M ago", "2026-09-24T22:30:00"),
        ("1m ago", "2026-10-25T08:59:00"),
        ("+5min", "2026-10-25T09:05:00"),
        ("tomorrow", "2026-10-25T23:00:00"),
    ],
)
def test_times_that_are_pasted(text: str, meant: str) -> None:
    """Read what programs print of times, each to the same moment."""
    expected = datetime.fromisoformat(meant).replace(tzinfo=UTC).timestamp()
    assert timestamps.moment(text, NOW, BOOT) == round(expected * 1e6)
    assert not timestamps.is_event(text)


@pytest.mark.parametrize("text", ["nginx failed", "the disk was full", "2 services failed", "a b"])
def test_events_are_no_times(text: str) -> None:
    """Take words that are no time as an event."""
    assert timestamps.is_event(text)


@pytest.mark.parametrize(
    "token", ["1h ", "1", "1.", "a", "Thu ", "-", "2026-", "+01:", ":", " ", "Z"]
)
def test_reading_a_time_is_linear(token: str) -> None:
    """Refuse a text four times as long in less than ten times the time, whatever it repeats."""

    def spent(count: int) -> float:
        text = f"{token * count}!"
        began = time.thread_time()
        timestamps.is_event(text)
        with pytest.raises(InvalidArgs):
            timestamps.moment(text, NOW, BOOT)
        return time.thread_time() - began

    small, large = min(spent(5_000) for _ in range(3)), min(spent(20_000) for _ in range(3))
    assert large < 10 * small + 0.01
