"""Command that lists and follows drift from the declared state."""

from __future__ import annotations

import json
import math
import sys
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from opdbus.bus import paths
from opdbus.cli import output, telling
from opdbus.cli.asking import ask, chosen, name_of, named
from opdbus.cli.field_values import NOT_DECLARED, least_of
from opdbus.cli.printing import stamp
from opdbus.cli.root import as_json, kind, plugin, root
from opdbus.config import SEVERITIES
from opdbus.language import routes
from opdbus.platform import name_lists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from opdbus.client import Client

    # A row of DriftReport: path, class, severity, since, distance, and (path, declared, observed,
    # severity) of each field.
    Row: TypeAlias = Sequence[Any]

FORMAT_VERSION: Final = "1.1"
DRIFTED: Final = 10
# exit code if nothing is listed, but not all is known
UNKNOWN: Final = 11
# Wait after a start of op-dbus until its observers have listed the host.
_PATIENCE_SECONDS: Final = 15.0
_PAUSE_SECONDS: Final = 0.3
# Limits in a line about unobserved objects: names of a kind, and kinds.
_MOST_NAMES: Final = 3
_MOST_SORTS: Final = 5
# Longer values are cut, around the difference.
_MAX_VALUE: Final = 1000
# Fields whose values are understood without the field's name.
_PLAIN: Final = frozenset("active_state state status ensure presence running".split())
COLOURS: Final = {"error": "red", "warning": "yellow", "healed": "green"}
# Ends of a drift: a label, and words after the object's name.
_ENDS: Final = {
    "healed": ("healed", ""),
    "undeclared": ("ended", " is no longer declared"),
    # some fields are as declared again while others still drift
    "ended": ("ended", ""),
}
_WIDTH: Final = max(map(len, SEVERITIES))


@root.command()
@plugin
@kind
@click.option(
    "--severity", type=click.Choice(SEVERITIES), help="Only what is at least so bad; default: info."
)
@click.option("--about", metavar="QUESTION", help="First what QUESTION names: 'packages', 'sshd'.")
@click.option(
    "--exit-code",
    is_flag=True,
    help="End with 10 if anything is listed, else with 11 while not all is known yet.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Print what drifts and heals from now on, of at least OP_DBUS_DRIFT_THRESHOLD.",
)
@as_json
def drift(exit_code: bool, watch: bool, json_: bool, **wanted: str | None) -> int:  # noqa: FBT001
    """List what is other than the state file declares it.

    The worst comes first. What changed in the file within 10 minutes, and the host does not
    have yet, is marked as newly declared; a first file changes nothing. Severities: info,
    notice, warning, error.
    """
    if watch:
        if exit_code:
            raise click.UsageError("--exit-code goes with a list, not with --watch")
        _follow(chosen(**wanted), _as_lines if json_ else _printed)
        return 0
    rows, waits, fault, unobserved = ask(lambda client: _listed(client, chosen(**wanted)))
    names = routes.subject_of(wanted["about"] or "")
    answers = ask(partial(_answers, names)) if names else {}
    if answers:
        rows = _of_those(rows, answers)
    elif names:
        output.note(f"no object is called {output.visible(names[0])}")
    unknown = f"not all is known yet; still waiting for {' and '.join(waits)}" if waits else ""
    for note in filter(None, (fault, unknown)):
        output.note(f"op-dbus: {note}")
    if json_:
        found = {"drifts": list(map(_value, rows)), "not_observed": [*map(_unseen, unobserved)]}
        said = {"answers": [*answers.values()]} if answers else {}
        output.as_json({"format_version": FORMAT_VERSION, **said, **found})
    else:
        for answer in answers.values():
            print(output.visible(answer))
        _print_all(rows, [] if answers else unobserved)
        if not (rows or waits or fault or answers):
            output.note(_nothing(" of what is observed" if unobserved else ""))
    if not exit_code:
        return 0
    return DRIFTED if rows else UNKNOWN if waits else 0


async def _answers(names: Sequence[str], client: Client) -> dict[str, str]:
    """Return answers by path: is the object as declared? The first existing name counts."""
    for name in names:
        found, _ = await client.resolve(name)
        shown = {path: await client.show(path) for path, *_ in found}
        if declared := {path: one for path, one in shown.items() if one["Declared"]}:
            return {path: _answer(name_of(path), one) for path, one in declared.items()}
        if shown:
            listed = name_lists.first([*map(name_of, shown)], _MOST_NAMES)
            return dict.fromkeys([*shown][:1], f"nothing is declared of {name}: {listed}")
    return {}


def _answer(name: str, shown: Mapping[str, Any]) -> str:
    """Return whether an object is as declared; daemons of other versions omit `Drift`."""
    drift = shown.get("Drift", "")
    if drift == "none":
        return f"yes: {name} is as declared"
    if drift:
        return f"no: {name} is other than declared"
    return f"{name} is declared, and nothing observes it: it is not compared"


def _of_those(rows: Sequence[Row], answers: Mapping[str, str]) -> list[Row]:
    """Return the rows of drifting objects in answers, also by name without suffix; else all."""
    if not any(answer.startswith("no:") for answer in answers.values()):
        return []
    names = {named(path)["name"] for path in answers}
    names |= {name.rpartition(".")[0] for name in names}
    return [row for row in rows if named(row[0])["name"] in names] or [*rows]


def _print_all(rows: Sequence[Row], unobserved: Sequence[Row]) -> None:
    for row in rows:
        _print(row)
    for text in _not_observed(unobserved):
        output.note(f"not observed: {text}")


def _nothing(of: str) -> str:
    """Return that nothing drifts, or that nothing is declared."""
    values = ask(lambda client: client.status())
    if dict(values["Sources"]).get("file"):
        return f"nothing{of} is other than declared"
    return f"nothing is declared in {values['StateFile']}: there is nothing to compare with"


async def _listed(
    client: Client, wanted: Mapping[str, str]
) -> tuple[Sequence[Row], Sequence[str], str, Sequence[Row]]:
    """Return drift rows, the sources awaited, the state file's error, and unobserved kinds.

    Waits up to 15 seconds until all is known.
    """
    import asyncio

    state = await client.state()
    until = time.monotonic() + _PATIENCE_SECONDS
    # only just after a start; no signal announces its end
    while state["DriftAwaits"] and time.monotonic() < until:
        await asyncio.sleep(_PAUSE_SECONDS)
        state = await client.state()
    unobserved = [row for row in await client.unobserved() if _is_of(_unseen(row), wanted)]
    return await client.drift(wanted), state["DriftAwaits"], state["StateFileError"], unobserved


def _is_of(object_id: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    return all(object_id[key] == wanted[key] for key in object_id.keys() & wanted.keys())


def _follow(wanted: Mapping[str, str], show: Callable[[str, Row], None]) -> None:
    """Print each drift transition as it comes, until interrupted."""

    async def following(client: Client) -> None:
        # fails for callers that may not receive the signals
        await client.drift(wanted)
        # last drift row of each object: a transition does not name the fields that it ends
        known: dict[str, Row] = {}
        async for values in client.transitions():
            if not values:
                known = {row[0]: row for row in await client.drift({})}
                show("", ())
                continue
            path, what, severity, fields = values
            row: Row = (path, what, severity, 0, math.nan, [[name, "", "", ""] for name in fields])
            if fields:
                row = next((r for r in await client.drift(named(path)) if r[0] == path), row)
                _show_ended(known.get(path, row), row, wanted, show)
                known[path] = row
            if what in _ENDS:
                row = (*row[:5], known.pop(path, row)[5])
            if _is_wanted(path, severity, wanted):
                show(what, row)

    ask(following)


def _show_ended(
    before: Row, after: Row, wanted: Mapping[str, str], show: Callable[[str, Row], None]
) -> None:
    """Show fields of an object that no longer drift, while others still do."""
    names = {field[0] for field in after[5]}
    ended = [field for field in before[5] if field[0] not in names]
    if ended and _is_wanted(before[0], before[2], wanted):
        show("ended", (*before[:5], ended))


def _is_wanted(path: str, severity: str, wanted: Mapping[str, str]) -> bool:
    is_bad = SEVERITIES.index(severity) >= SEVERITIES.index(wanted.get("severity", SEVERITIES[0]))
    return is_bad and _is_of(named(path), wanted)


def _as_lines(what: str, row: Row) -> None:
    """Print a transition as one line of JSON; the first line has the format version."""
    if what == "ended":
        return  # the next line has the fields that still drift
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    # these fields do not drift now
    row = (*row[:5], []) if what in _ENDS else row
    content = {"at": now, **_value(row), "class": what} if what else {"at": now}
    head = {} if what else {"format_version": FORMAT_VERSION}
    print(output.json_text({**head, **content}), flush=True)


def _printed(what: str, row: Row) -> None:
    now = f"{stamp(time.time_ns() // 1000)}  "
    if what in _ENDS:
        fields = ", ".join(field[0] for field in row[5])
        label, end = _ENDS[what]
        _labelled(label, f"{_name(row[0])}{end}{fields and f': {fields}'}", now)
    elif what:
        _print(row, now)


def _value(row: Row) -> dict[str, Any]:
    path, what, severity, since, distance, fields = row
    at = datetime.fromtimestamp(since, UTC).isoformat() if since else None
    return {
        "path": path,
        **named(path),
        "class": what,
        "severity": severity,
        "since": at,
        "distance": distance,
        "fields": [
            {"path": name, "declared": _read(one), "observed": _read(other), "severity": bad}
            for name, one, other, bad in fields
        ],
    }


def _not_observed(rows: Sequence[Row]) -> Iterator[str]:
    """Yield lines on unobserved declared objects, grouped by reason."""
    whys: dict[str, list[str]] = {}
    for *sort, count, names, why in rows:
        said = name_lists.first([*names, *[""] * (count - len(names))], _MOST_NAMES)
        whys.setdefault(why, []).append(f"{'/'.join(sort)} {said}")
    for why, sorts in whys.items():
        yield f"{name_lists.first(sorts, _MOST_SORTS, '; ')}: {why}"


def _unseen(row: Row) -> dict[str, Any]:
    return dict(zip(("plugin", "kind", "count", "names", "why"), row, strict=True))


def _read(text: str) -> Any:  # noqa: ANN401 -- any JSON
    return json.loads(text) if text else None


def _print(row: Row, at: str = "") -> None:
    """Print one line for each field."""
    since = f" ({output.since(row[3])})" if row[3] and sys.stdout.isatty() else ""
    for severity, text in told(row):
        _labelled(severity, text + since, at)


def _labelled(label: str, text: str, at: str) -> None:
    coloured = output.style(f"{label:{_WIDTH}}", COLOURS.get(label, "cyan"))
    output.labelled(f"{at}{coloured}", len(at) + _WIDTH, text)
    # readers of a pipe get each line at once
    sys.stdout.flush()


def told(row: Row) -> Iterator[tuple[str, str]]:
    """Yield the severity and a sentence for each field that drifts."""
    path, what, _, _, _, fields = row
    mark = " (newly declared)" if what == "intended" else ""
    for name, declared, observed, severity in fields:
        field = "" if name in _PLAIN else f"{name} "
        sides = _said(declared), _said(observed)
        # JSON shows the difference of, for example, a number and the same digits in quotes
        sides = (declared, observed) if sides[0] == sides[1] else sides
        sides = name_lists.distinct(*sides, _MAX_VALUE)
        values = f"declared {least_of(paths.parse(path)[:2], name)}{sides[0]}, observed {sides[1]}"
        if _said(declared) == NOT_DECLARED:
            field, values = "", "is there, and not declared"
        yield severity, f"{_name(path)}: {field}{values}{mark}"


def _name(path: str) -> str:
    """Return the name of an object as used in sentences."""
    plugin, kind, name = paths.parse(path)
    return telling.subject_of((plugin, kind), name)


def _said(text: str) -> str:
    value = _read(text)
    if isinstance(value, list) and not any(isinstance(one, dict | list) for one in value):
        return ", ".join(map(output.said, value)) or "none"
    if isinstance(value, dict | list):
        return text
    return output.said(value) or "none"
