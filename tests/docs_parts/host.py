"""What op-dbus costs on a whole host, and how soon it shows what changes there."""

from typing import Any

from docs_parts.tables import newest, table

_COSTS = """\
From `benchmarks/results/{file}` (`benchmarks/host/run.py`), on {machine}: a host booted from this
machine's files with `make install` done, no state file and the real model. Observed are {count:,}
objects: {observers}.

{costs}

From the end of the command that changes the host until the object shows it, each once:

{events}"""
_BUSY_DAY = """\
From `benchmarks/results/{file}` (`benchmarks/host/busy_day.py`), on {machine}: 24 hours of a busy
host with {objects:,} objects in {minutes:.0f} minutes. Settings are those of `make install`, but
history keeps {rows:,} rows, so that rows are deleted during the day. The report says what happens,
how often, and why so often. Other work ran on the machine: searches were slower for it.
{note}

{bars}

{each}"""
_OF_A_MINUTE = ("Rss", "Pss", "database", "log lines", "search p99 ms")


def host() -> str:
    """Make the tables of the newest report of benchmarks/host/run.py."""
    found = newest("host")
    assert found, "no report of benchmarks/host/run.py is committed"
    file, report = found
    counts = {name: count for name, (_, count, _) in report["observers"].items() if count}
    return _COSTS.format(
        file=file,
        machine=report["machine"],
        count=report["objects"],
        observers=", ".join(f"{name} {counts[name]}" for name in sorted(counts)),
        costs=table(("it costs", "measured"), _costs(report)),
        events=table(("change", "seconds", "at most"), _events(report)),
    )


def _costs(report: dict[str, Any]) -> list[tuple[str, str]]:
    first, again, idle = report["first start"], report["restart"], report["idle"]
    loop = report["restart loop"]
    return [
        ("first start, until every object has its vector", f"{first['ready after s']} s"),
        ("restart", f"{again['ready after s']} s, {again['computed']} vectors computed"),
        ("memory", f"{report['memory MiB']['Rss']} MiB resident"),
        (
            f"{idle['seconds']} s in which nothing happens",
            f"{idle['percent of a core']}% of a core, {idle['bytes written']} bytes written",
        ),
        (
            f"a unit that restarts {loop['restarts a second']} times a second",
            f"{loop['percent of a core']}% of a core",
        ),
        ("`systemd-analyze security`", report["exposure"]),
    ]


def _events(report: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(row["event"], f"{row['seconds']:.2f}", str(row["limit"])) for row in report["events"]]


def busy_day() -> str:
    """Make the tables of the newest report of benchmarks/host/busy_day.py."""
    found = newest("busy-day")
    assert found, "no report of benchmarks/host/busy_day.py is committed"
    file, report = found
    bars = report["bars"]
    ratio = bars["database"]["largest after rows were deleted, of the largest before"]
    measured = {
        "memory": ("growth after minute 2", f"{bars['memory']['growth']:.1%}", "under 3%"),
        "database": ("after rows were deleted, of before", f"{ratio:.0%}", "105%"),
        "log": ("lines an hour of the day", f"{bars['log']['lines an hour']:g}", "under 10"),
    }
    rows = [
        (name, *row, "holds" if bars[name]["holds"] else "does not hold")
        for name, row in measured.items()
    ]
    heads = ("minute", "MiB resident", "proportional", "database", "log lines", "search p99, ms")
    minutes = [
        (str(number), *(f"{row[name]:g}" for name in _OF_A_MINUTE))
        for number, row in enumerate(report["minutes"], 1)
    ]
    return _BUSY_DAY.format(
        file=file,
        machine=report["machine"],
        objects=report["objects"],
        minutes=report["seconds"] / 60,
        rows=report["kept rows of history"],
        note=report.get("note", ""),
        bars=table(("bar", "is", "measured", "limit", ""), rows),
        each=table(heads, minutes),
    )
