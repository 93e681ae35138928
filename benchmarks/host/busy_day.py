"""A busy day of a host, 24 hours in ten minutes: memory, database, log and searches of the service.

As root: `python benchmarks/host/busy_day.py [--seconds 600] [--json FILE]`. Boots a host, lets the
service observe it with the settings that `make install` leaves, and lets a busy day pass: what
happens and how often is in `busy_acts.py`. One setting differs: history keeps 1,000 rows, the
fewest that are accepted, so that rows are deleted during the day as on a host whose history is
full. The service deletes rows and writes a checkpoint every ten minutes by the clock, which no
compression makes faster: rows are deleted once, after 70% of the day, and the log's bar counts the
checkpoints of a real day. A day before it, which is not measured, makes history as long as it
becomes until rows are deleted: in a real day those are a few rows, here a day's. Ends with 1 where
a bar does not hold.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from busy_acts import ACTS, CALLS, TIMERS
from inside import ASKER, asked_by_a_member, parser, python, report, start
from run import Process
from system.service import STATE, STORE, UNIT

from opdbus.index.state_store.history_retention import CHECKPOINT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from system.host import Entry, Host

HOURS = 24
HISTORY_ROWS = 1000
MOST_GROWTH, MOST_LINES_AN_HOUR, MOST_DATABASE = 0.03, 10.0, 1.05
# Rows are deleted when so much of the day has passed: more than come after it.
_PRUNED_AT = 0.7
_SAMPLE_SECONDS = 2.0
# Graphs are built from the models, once.
_NOT_DATABASE = ("graphs", "models")
_CHECKPOINT = "history_checkpoint"
_WARNING = 4
_MEMORY, _PARTS = ("Rss", "Pss"), ("host", "clients")
Sample = dict[str, float]


def sample(process: Process, store: Path, began: float) -> Sample:
    """Read memory and the size of the database's files, in MiB, and when."""
    size = 0
    for path in store.rglob("*"):
        with suppress(FileNotFoundError):  # a file of a transaction that has ended
            if path.relative_to(store).parts[0] not in _NOT_DATABASE:
                size += path.stat().st_size
    return {"at": time.monotonic() - began, **process.memory(), "database": size / (1 << 20)}


def lived(host: Host, seconds: float) -> dict[str, Any]:
    """Let the day pass, and return what was done and what was read meanwhile."""
    service = asked_by_a_member(host)
    python(host, "populate.py")
    service.configure(OBSERVE="auto", HISTORY_ROWS=HISTORY_ROWS)
    first, started = start(service), time.monotonic()
    # the day before, after which history is as long as it becomes
    pass_day(host, seconds, lambda: None)
    # rows are deleted every ten minutes after the start
    passed = time.monotonic() - started + _PRUNED_AT * seconds
    time.sleep(-passed % CHECKPOINT_SECONDS)
    cursor, began, begun_at = host.cursor(), time.monotonic(), time.time()
    process = Process(host, service.pid)
    samples: list[Sample] = []
    done = pass_day(host, seconds, lambda: samples.append(sample(process, host.path(STORE), began)))
    entries = host.journal(after=cursor, _SYSTEMD_UNIT=UNIT)
    count, status = service.get("Count", STATE), host.ask("op-dbus", "status", user=ASKER)
    service.systemctl("stop")
    last = host.journal(after=cursor, _SYSTEMD_UNIT=UNIT, OPDBUS_EVENT=_CHECKPOINT)[-1]
    return {
        "first start": first,
        "objects": count,
        "status": status.splitlines()[:2],
        "samples": samples,
        "log times": [int(e["__REALTIME_TIMESTAMP"]) / 1e6 - begun_at for e in entries],
        "entries": entries,
        "history": {"rows": int(last["OPDBUS_SIZE"]), "first kept": int(last["OPDBUS_FIRST"])},
        **done,
    }


def pass_day(host: Host, seconds: float, look: Callable[[], None]) -> dict[str, Any]:
    """Let the acts of a day happen, look every two seconds, and return what was done."""
    run = partial(python, host, "busy_acts.py", seconds=seconds + 120)
    with ThreadPoolExecutor() as pool:
        acts = pool.submit(run, "host", str(seconds))
        calls = pool.submit(run, "clients", str(seconds), user=ASKER)
        while wait((acts, calls), _SAMPLE_SECONDS).not_done:
            look()
        return {"host": json.loads(acts.result()), "clients": json.loads(calls.result())}


def log_lines(entries: list[Entry]) -> dict[str, Any]:
    """Count log lines by event; a day has a checkpoint every ten minutes, unlike the run."""
    counts = Counter(entry.get("OPDBUS_EVENT", "none of ours") for entry in entries)
    others = sum(count for name, count in counts.items() if name != _CHECKPOINT)
    return {
        "by event": dict(counts.most_common()),
        "an hour of the day": round(others / HOURS + 3600 / CHECKPOINT_SECONDS, 1),
        "warnings and errors": [e["MESSAGE"] for e in entries if int(e["PRIORITY"]) <= _WARNING],
    }


def by_minute(found: dict[str, Any], seconds: float) -> list[dict[str, Any]]:
    """Give a row a minute: median memory and largest database in MiB, log lines, searches."""
    rows = []
    for minute in range(round(seconds / 60)):
        span = range(minute * 60, minute * 60 + 60)
        some = [each for each in found["samples"] if int(each["at"]) in span]
        p99 = [ms for at, ms in found["clients"]["search p99 ms"].items() if int(float(at)) in span]
        rows.append(
            {name: round(statistics.median(each[name] for each in some), 1) for name in _MEMORY}
            | {
                "database": round(max(each["database"] for each in some), 2),
                "log lines": sum(int(at) in span for at in found["log times"]),
                "search p99 ms": statistics.median(p99),
                "worst of 5 s": max(p99),
            }
        )
    return rows


def bars(found: dict[str, Any]) -> dict[str, Any]:
    """Judge memory from the second minute on, the database after rows were deleted, and the log."""
    minutes, lines = found["minutes"], found["log"]["an hour of the day"]
    growth = {
        name: round(max(each[name] for each in minutes[2:]) / minutes[1][name] - 1, 4)
        for name in _MEMORY
    }
    sizes = [each["database"] for each in minutes]
    pruned = round(_PRUNED_AT * len(sizes))
    ratio = round(max(sizes[pruned + 1 :]) / max(sizes[: pruned + 1]), 3)
    complaints = found["log"]["warnings and errors"]
    return {
        "memory": {
            "growth": max(growth.values()),
            "growth of each": growth,
            "holds": max(growth.values()) < MOST_GROWTH,
        },
        "database": {
            "largest after rows were deleted, of the largest before": ratio,
            "holds": ratio <= MOST_DATABASE and found["history"]["first kept"] > 1,
        },
        "log": {"lines an hour": lines, "holds": lines < MOST_LINES_AN_HOUR and not complaints},
    }


def rates(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Give what is assumed of a day, why, and how often it was done."""
    done = found["host"]["done"] | found["clients"]["done"]
    rows = [
        {"what": each.name, "a day": each.a_day, "done": done.get(each.name, 0), "why": each.reason}
        for each in (*ACTS, *CALLS)
    ]
    for name, (a_day, reason) in TIMERS.items():
        rows.append({"what": f"timer {name}", "a day": a_day, "why": reason})
    return rows


def measure(host: Host, seconds: float) -> dict[str, Any]:
    """Let a busy day pass on a host that was booted just now, and judge it."""
    found = lived(host, seconds)
    found["minutes"] = by_minute(found, seconds)
    found["log"] = log_lines(found.pop("entries"))
    failed = {part: {k: found[part][k] for k in ("failed", "faults")} for part in _PARTS}
    kept = ("objects", "status", "first start", "history", "log", "minutes")
    return {
        "seconds": seconds,
        "kept rows of history": HISTORY_ROWS,
        "bars": bars(found),
        **{name: found[name] for name in kept},
        "failed": failed,
        "signals followed": found["clients"]["done"].get("signals followed", 0),
        "rates": rates(found),
    }


def main() -> int:
    """Boot, let the day pass, and write the report."""
    options = parser(__doc__)
    options.add_argument("--seconds", type=float, default=600.0)
    given = options.parse_args()
    found = report(given, lambda host: measure(host, given.seconds))
    broken = [name for name, bar in found["bars"].items() if not bar["holds"]]
    for name in broken:
        print(f"failed: {name}: {found['bars'][name]}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
