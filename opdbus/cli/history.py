"""The command that tells what changed."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import click

from opdbus.cli import output, when
from opdbus.cli.asking import ask, chosen
from opdbus.cli.root import kind, number, plugin, root

# of the lines that a program reads: the second number grows with what is added
FORMAT = "1.0"


@root.command()
@click.option("--since", metavar="TIME", help="Only changes from then on: yesterday, -2h, 03:10.")
@click.option("--before", metavar="TIME", help="Only changes before then.")
@plugin
@kind
@click.option("-n", "--limit", type=number, metavar="N", default=1000, help="How many. [1000]")
@click.option("--json", "json_", is_flag=True, help="Print JSON, one object a line.")
def changes(
    limit: int,
    since: str | None,
    before: str | None,
    json_: bool,  # noqa: FBT001 -- click passes flags so
    **wanted: Any,  # noqa: ANN401 -- click's values
) -> None:
    """Tell what changed on this host, the newest last."""
    asked = chosen(**wanted, since=_moment(since), before=_moment(before))
    rows = ask(lambda client: client.changes(asked, limit))[::-1]
    if json_:
        _print_json(rows)
        return
    columns = ("time", "what", "object", "cause")
    output.table(
        columns, [(_time(row["at"]), row["what"], row["name"], row["cause"]) for row in rows]
    )


def _moment(text: str | None) -> int:
    if not text:
        return 0
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return when.moment(text, time.time(), boot)


def _time(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _print_json(rows: list[dict[str, Any]]) -> None:
    first = {"format_version": FORMAT}
    for row in rows:
        line = {**first, **row, "fields": [_field(*field) for field in row["fields"]]}
        print(json.dumps(line, ensure_ascii=False))
        first = {}


def _field(path: str, before: str, after: str) -> dict[str, Any]:
    """Give a field; a side that had no value is left out."""
    sides = {"before": before, "after": after}
    return {"path": path} | {side: json.loads(text) for side, text in sides.items() if text}
