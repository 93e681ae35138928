"""Times and spans, and what systemd-analyze(1) reads in them.

`PYTHONPATH=tests python tests/scripts/make_times.py` renews the record, data/times.json, which
test_when.py compares with what op-dbus reads.
"""

import json
import os
import re
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

RECORD = (Path(__file__).parents[1] / "data") / "times.json"
ZONES = ("Europe/Berlin", "UTC", "America/New_York")
SPANS = (
    "1y 2w", "5min 20s", "1h30m", "1M", "1m", "1month", "2 months", "3y", "1Y", "1H", "1D", "90min",
    "1.5h", "0.5s", "2.25 days", "1h 1h", "1w3d", "30 s", "30sec", "30 seconds", "10ms", "10 msec",
    "7us", "7usec", "7\N{GREEK SMALL LETTER MU}s", "7\N{MICRO SIGN}s", "2hr", "2hours", "2 hour",
    "1d2h3m4s", "1 year 2 months 3 weeks 4 days", "1min 1M", "1M1m", "5 minutes", "5 minute",
    "1MIN", "1 Hour", "1000000h", "0s", "1weeks", "", "m", "h1", "-5s", "5x", "1.h", "1..5h",
    "1h,30m", "1h and 2m", "5 parsecs", "30", "infinity", "1e3s", "\N{FULLWIDTH DIGIT ONE}h",
)  # fmt: skip
TIMES = (
    "now", "today", "yesterday", "tomorrow", "TODAY", "@1700000000", "@1700000000.25", "@0",
    "1700000000.123456", "@", "@x", "-2h", "2h ago", "2 hours ago", "5min 20s ago", "1M ago",
    "1m ago", "+5min", "5min left", "1y 2w ago", "-1h30m", "-2h ago", "+2h ago", "ago", "left",
    "11:12", "11:12:13", "9:05", "24:00", "12:60", "11:12:61", "2026-11-26", "2026-1-5",
    "26-11-26", "2026-11-26 13:45", "2026-11-26 13:45:01", "2026-11-26 13:45:01.5",
    "2026-11-26 13:45:01.123456", "2026-11-26 13:45:01 UTC", "2026-11-26 13:45 UTC",
    "2026-11-26 UTC", "Thu 2026-11-26 13:45:01", "Thu 2026-11-26 13:45:01 UTC",
    "Thu 2026-11-26 13:45:01.123456 UTC", "Thursday 2026-11-26 13:45:01", "thu 2026-11-26",
    "Fri 2026-11-26 13:45:01", "Thu, 2026-11-26 13:45:01", "2026-11-26 13:45:01 Europe/Berlin",
    "2026-07-26 13:45:01 Europe/Berlin", "2026-11-26 13:45:01 Asia/Tokyo",
    "2026-11-26 13:45:01 Mars/Base", "2026-11-26 13:45:01 CET", "2026-11-26 13:45:01 CEST",
    "2026-07-26 13:45:01 CEST", "2026-07-26 13:45:01 CET", "2026-11-26 13:45:01 EST",
    "2026-07-26 13:45:01 EDT", "2026-11-26T13:45:01", "2026-11-26T13:45:01Z",
    "2026-11-26T13:45:01+0100", "2026-11-26T13:45:01+01:00", "2026-11-26T13:45:01.123456+0100",
    "2026-11-26T13:45:01.123456789Z", "2026-11-26 13:45:01+0100", "2026-11-26 13:45:01 +0530",
    "Nov 26 13:45:01", "Nov 26 13:45:01.123456", "Nov  6 03:04:05", "nov 26", "Nov 26 2025",
    "Thu Nov 26 13:45:01 2026", "Thu Nov 26 13:45:01 UTC 2026", "Nov 31 13:45:01",
    "Thu 2026-11-26 13:45:01 UTC; 5min ago", "2026-10-25 02:30", "2026-10-25 02:30 CET",
    "2026-10-25 02:30 CEST", "2026-10-25 02:30 +0100", "2026-10-25 03:00", "2026-03-29 02:30",
    "2026-03-29 03:30", "2026-11-01 01:30 EST", "2026-11-01 01:30 EDT", "2024-02-29", "2025-02-29",
    "2026-13-01", "2026-00-10", "2026-11-26 13", "2026-11-26 1:2", "2026/11/26", "26.11.2026",
    "2026-11-26 13:45:01 UTC CET", "2026-11-26  13:45:01", "1969-12-31",
    "0000-00-00", "noon", "midnight", "last week", "monday", "", "5", "1e9",
)  # fmt: skip
_DAYS = ("today", "yesterday", "tomorrow")


def _analyze(*command: str, zone: str = "UTC") -> str:
    environment = {**os.environ, "TZ": zone, "LC_ALL": "C.UTF-8"}
    command = ("systemd-analyze", *command)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return done.stdout


def _span(text: str) -> int | None:
    found = re.search(r"s: (\d+)\n", _analyze("timespan", "--", text))
    return int(found[1]) if found else None


def _time(text: str, zone: str) -> Any:
    """Return when a time is, in microseconds since 1970, or after now or the day's midnight."""
    now = time.time()
    found = re.search(r"UNIX seconds: @([\d.]+)", _analyze("timestamp", "--", text, zone=zone))
    if not found:
        return None
    at = round(float(found[1]) * 1e6)
    if re.fullmatch(r"\d+:\d+(:\d+)?", text) or text.lower() in _DAYS:
        here = datetime.fromtimestamp(now, ZoneInfo(zone))
        midnight = here.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        return {"after_midnight": at - round(midnight * 1e6)}
    is_relative = text == "now" or text[:1] in "+-" or re.search(r"\b(ago|left)$", text)
    return {"after_now": round((at / 1e6 - now) / 10) * 10_000_000} if is_relative else at


if __name__ == "__main__":
    record = {
        "systemd": _analyze("--version").split("\n")[0],
        "spans": {text: _span(text) for text in SPANS},
        "times": {zone: {text: _time(text, zone) for text in TIMES} for zone in ZONES},
    }
    RECORD.write_text(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
