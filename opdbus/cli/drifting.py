"""The command that shows what is other than declared, and follows it."""

from __future__ import annotations

import json
import math
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from opdbus.bus import paths
from opdbus.cli import output, telling
from opdbus.cli.asking import ask, chosen
from opdbus.cli.printing import stamp
from opdbus.cli.root import as_json, kind, plugin, root
from opdbus.config import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opdbus.client import Client

    # As DriftReport gives it: path, class, severity, since, distance, and (path, declared,
    # observed, severity) of each field.
    Row: TypeAlias = Sequence[Any]

FORMAT_VERSION: Final = "1.0"
DRIFTED: Final = 10
# Fields that say by their values alone what they are about.
_PLAIN: Final = frozenset("active_state state status ensure presence running".split())
_COLOURS: Final = {"error": "red", "warning": "yellow", "healed": "green"}
# What the daemon says of an object that the state file would have to declare.
_NOT_DECLARED: Final = "not declared"
_WIDTH: Final = max(map(len, SEVERITIES))


@root.command()
@plugin
@kind
@click.option(
    "--severity", type=click.Choice(SEVERITIES), help="Only what is at least so bad; default: info."
)
@click.option("--exit-code", is_flag=True, help="End with the exit code 10 if anything is listed.")
@click.option("--watch", is_flag=True, help="Print what drifts and heals from now on.")
@as_json
def drift(exit_code: bool, watch: bool, json_: bool, **wanted: str | None) -> int:  # noqa: FBT001
    """List what is other than the state file declares it, the worst first.

    What the file has declared for less than 10 minutes, and the host does not have yet, is marked
    as newly declared. Severities: info, notice, warning, error.
    """
    if watch:
        if exit_code:
            raise click.UsageError("--exit-code goes with a list, not with --watch")
        _follow(chosen(**wanted), _as_lines if json_ else _printed)
        return 0
    rows = ask(lambda client: client.drift(chosen(**wanted)))
    if json_:
        output.as_json({"format_version": FORMAT_VERSION, "drifts": list(map(_value, rows))})
    else:
        for row in rows:
            _print(row)
        if not rows and sys.stdout.isatty():
            print("nothing is other than declared")
    return DRIFTED if rows and exit_code else 0


def _follow(wanted: Mapping[str, str], show: Callable[[str, Row], None]) -> None:
    """Print each crossing as it comes, until interrupted."""

    async def following(client: Client) -> None:
        # refused to callers that would hear nothing
        await client.drift(wanted)
        # what is other, of each object: a crossing does not say what it ends
        known: dict[str, Row] = {}
        async for values in client.crossings():
            if not values:
                known = {row[0]: row for row in await client.drift({})}
                show("", ())
                continue
            path, what, severity, fields = values
            row: Row = (path, what, severity, 0, math.nan, [[name, "", "", ""] for name in fields])
            if fields:
                row = next((r for r in await client.drift(_named(path)) if r[0] == path), row)
                known[path] = row
            if what == "healed":
                row = (*row[:5], known.pop(path, row)[5])
            if _is_wanted(path, severity, wanted):
                show(what, row)

    ask(following)


def _named(path: str) -> dict[str, str]:
    return dict(zip(("plugin", "kind", "name"), paths.parse(path), strict=True))


def _is_wanted(path: str, severity: str, wanted: Mapping[str, str]) -> bool:
    named = _named(path)
    is_bad = SEVERITIES.index(severity) >= SEVERITIES.index(wanted.get("severity", SEVERITIES[0]))
    return is_bad and all(named[key] == wanted[key] for key in named.keys() & wanted.keys())


def _as_lines(what: str, row: Row) -> None:
    """Print a crossing as one line of JSON; the first line says what the others are like."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    # its fields have the declared values now
    row = (*row[:5], []) if what == "healed" else row
    content = {"at": now, **_value(row), "class": what} if what else {"at": now}
    head = {} if what else {"format_version": FORMAT_VERSION}
    print(json.dumps(output.without_nan({**head, **content}), ensure_ascii=False), flush=True)


def _printed(what: str, row: Row) -> None:
    now = f"{stamp(time.time_ns() // 1000)}  "
    if what == "healed":
        fields = ", ".join(field[0] for field in row[5])
        _labelled("healed", f"{_name(row[0])}{fields and f': {fields}'}", now)
    elif what:
        _print(row, now)


def _value(row: Row) -> dict[str, Any]:
    path, what, severity, since, distance, fields = row
    at = datetime.fromtimestamp(since, UTC).isoformat() if since else None
    return {
        "path": path,
        **_named(path),
        "class": what,
        "severity": severity,
        "since": at,
        "distance": distance,
        "fields": [
            {"path": name, "declared": _read(one), "observed": _read(other), "severity": bad}
            for name, one, other, bad in fields
        ],
    }


def _read(text: str) -> Any:  # noqa: ANN401 -- any JSON
    return json.loads(text) if text else None


def _print(row: Row, at: str = "") -> None:
    """Print one line for each field."""
    for severity, text in _lines(row):
        _labelled(severity, text, at)


def _labelled(label: str, text: str, at: str) -> None:
    coloured = output.style(f"{label:{_WIDTH}}", _COLOURS.get(label, "cyan"))
    output.labelled(f"{at}{coloured}", len(at) + _WIDTH, text)
    # a pipe is read as it is written
    sys.stdout.flush()


def _lines(row: Row) -> Iterator[tuple[str, str]]:
    path, what, _, _, _, fields = row
    mark = " (newly declared)" if what == "intended" else ""
    for name, declared, observed, severity in fields:
        field = "" if name in _PLAIN else f"{name} "
        values = f"declared {_said(declared)}, observed {_said(observed)}"
        if _said(declared) == _NOT_DECLARED:
            field, values = "", "is there, and not declared"
        yield severity, f"{_name(path)}: {field}{values}{mark}"


def _name(path: str) -> str:
    """Give the name of an object as people call it."""
    plugin, kind, name = paths.parse(path)
    return telling.subject_of((plugin, kind), name)


def _said(text: str) -> str:
    value = _read(text)
    if isinstance(value, list) and not any(isinstance(one, dict | list) for one in value):
        return ", ".join(map(output.said, value)) or "none"
    if isinstance(value, dict | list):
        return text
    return output.said(value) or "none"
