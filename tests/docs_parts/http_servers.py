"""Embedding servers side by side over HTTP, and the gateway beside the bus."""

from statistics import median
from typing import Any

from docs_parts.tables import newest, table

_TEXT = """\
From `benchmarks/results/{file}` (`benchmarks/http_servers.py`), on {machine}: objects of a host of
56 tokens by the medium model. Cells are texts a second, and the 99th percentile of a request's time
in ms; medians of the rounds ({rounds}), in which the servers took turns.

{figures}

A single short text takes {single:.1f} ms more than over the bus ({http:.1f} and {bus:.1f} ms).
Batches of 32 in base64 reach {share:.0%} of the bus's rate."""


def http_servers() -> str:
    """Make the table of the newest report of benchmarks/http_servers.py."""
    found = newest("http-servers")
    assert found, "no report of benchmarks/http_servers.py is committed"
    file, report = found
    figures, beside = report["figures"], report["beside the bus"]
    servers = sorted(
        {each["server"] for each in figures}, key=lambda name: ("op-dbus" not in name, name)
    )
    loads = list(dict.fromkeys((each["clients"], each["batch"]) for each in figures))
    machine = report["machine"]
    return _TEXT.format(
        file=file,
        machine=f"{machine['processors']} processors of {machine['processor']}",
        rounds=len(figures) // (len(servers) * len(loads)),
        figures=table(
            ("clients", "texts a request", *servers),
            [
                (
                    str(clients),
                    str(batch),
                    *(_cell(figures, name, clients, batch) for name in servers),
                )
                for clients, batch in loads
            ],
        ),
        single=beside["single text, more than the bus"],
        http=beside["milliseconds"]["http single"],
        bus=beside["milliseconds"]["bus single"],
        share=beside["batches of 32, of the bus's rate"],
    )


def _cell(figures: list[dict[str, Any]], server: str, clients: int, batch: int) -> str:
    """Return a server's medians under one load."""
    wanted = (server, clients, batch)
    some = [f for f in figures if (f["server"], f["clients"], f["batch"]) == wanted]
    rate, p99 = (median(each[name] for each in some) for name in ("texts_per_second", "p99_ms"))
    return f"{rate:,.0f} / {p99:,.0f}"
