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
