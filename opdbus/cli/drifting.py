"""Command that lists and follows drift from the declared state."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from opdbus.bus import paths
from opdbus.cli import drift_answers, output
from opdbus.cli.daemon_calls import ask, describe_storage_error, id_of_path, without_empty
from opdbus.cli.root import as_json, kind, plugin, root
from opdbus.config import SEVERITIES
from opdbus.language import routes
from opdbus.platform import name_lists
from opdbus.wording.change_lines import describe_origin
from opdbus.wording.change_words import format_stamp, subject_of
from opdbus.wording.drift_words import describe_row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import TypeVar

    from opdbus.client import Client

    T = TypeVar("T")
    # A row of DriftReport: path, class, severity, since, distance, and (path, declared, observed,
    # severity) of each field.
    Row: TypeAlias = Sequence[Any]
    # The change that made a field differ, by the field's path.
    Origins: TypeAlias = Mapping[str, Mapping[str, Any]]

FORMAT_VERSION: Final = "1.2"
DRIFTED: Final = 10
# exit code if nothing is listed, but not all is known, or no object that is compared has the name
UNKNOWN: Final = 11
# Wait after a start of op-dbus until its observers have listed the host.
_PATIENCE_SECONDS: Final = 15.0
_PAUSE_SECONDS: Final = 0.3
# Limits in a line about unobserved objects: names of a kind, and kinds.
_MOST_NAMES: Final = 3
_MOST_KINDS: Final = 5
# Characters that names have, and words of a question have not; with more words, it is a question.
_NAME: Final = re.compile(r"[/:@]\S|\w\.\w")
_MOST_WORDS: Final = 2
# Longer questions are no name of an object.
_MAX_NAME: Final = 200
COLOURS: Final = {"error": "red", "warning": "yellow", "healed": "green"}
# Ends of a drift: a label, and words after the object's name.
_ENDS: Final = {
    "healed": ("healed", ""),
    "undeclared": ("ended", " is no longer declared"),
    # some fields are as declared again while others still drift
    "ended": ("ended", ""),
}
# Failed units that may be the reason of closed ports.
_MOST_FAILED: Final = 100
_WIDTH: Final = max(map(len, SEVERITIES))


@root.command()
@plugin
@kind
@click.option(
    "--severity", type=click.Choice(SEVERITIES), help="Only what is at least so bad; default: info."
)
@click.option(
    "--about",
    metavar="QUESTION",
    help="First what QUESTION names: 'packages'; of one object, such as 'sshd', only that.",
)
@click.option(
    "--exit-code",
    is_flag=True,
    help="End with 10 if anything is listed, else with 11 if not all is known, the state file"
    " cannot be read, or --about asks for an object that is not compared.",
)
@click.option(
    "--watch",
    is_flag=True,
    help="Print what drifts and heals from now on, of at least OP_DBUS_DRIFT_THRESHOLD.",
)
@as_json
def drift(exit_code: bool, watch: bool, json_: bool, **wanted: str | None) -> int:
    """List what is other than the state file declares it.

    The worst comes first. What changed in the file within 10 minutes, and the host does not
    have yet, is marked as newly declared; a first file changes nothing. Severities: info,
    notice, warning, error.
    """
    chosen = without_empty(**wanted)
    if watch:
        if exit_code:
            raise click.UsageError("--exit-code goes with a list, not with --watch")
        _follow(chosen, _print_transition_json if json_ else _print_transition)
        return 0
    rows, waits, faults, unobserved = ask(lambda client: _read_drift(client, chosen))
    origins = ask(lambda client: _read_origins(client, rows)) if rows else {}
    names = _find_subject(question := wanted["about"] or "")
    answers = ask(partial(drift_answers.find_answers, names, rows)) if names else {}
    if names:
        rows = [*{row[0]: row for answer in answers.values() for row in answer.rows}.values()]
        if not answers:
            output.print_note(f"no object is called {output.escape_hidden(names[0])}")
    is_negated = routes.asks_for_difference(question)
    texts = [answer.text(is_negated=is_negated) for answer in answers.values()]
    unknown = f"not all is known yet; still waiting for {' and '.join(waits)}" if waits else ""
    for note in filter(None, (*faults, unknown)):
        output.print_note(f"op-dbus: {note}")
    if json_:
        said = {"answers": texts} if answers else {}
        drifts = {"drifts": [_row_json(row, origins.get(row[0], {})) for row in rows]}
        unseen = {"not_observed": [*map(_unobserved_json, unobserved)]}
        output.print_json({"format_version": FORMAT_VERSION, **said, **drifts, **unseen})
    else:
        for text in texts:
            print(output.escape_hidden(text))
        _print_all(rows, origins, [] if names else unobserved)
        if not (rows or waits or any(faults) or names):
            output.print_note(_nothing_drifts(" of what is observed" if unobserved else ""))
    if not exit_code:
        return 0
    judged = [answer.drifts for answer in answers.values()]
    is_unknown = bool(waits) or any(faults) or (bool(names) and False not in judged)
    return DRIFTED if rows or True in judged else UNKNOWN if is_unknown else 0


def _find_subject(about: str) -> Sequence[str]:
    """Return candidates for the name of the one object that a question or a plain name is about."""
    if names := routes.subject_of(about):
        return names
    if not about or len(about) > _MAX_NAME:
        return []
    # the name of a port or file is none of a topic, even if there is no such object
    is_name = bool(_NAME.search(about)) and len(about.split()) <= _MOST_WORDS
    return [about] if is_name or ask(lambda client: client.resolve(about))[0] else []


def _print_all(
    rows: Sequence[Row], origins: Mapping[str, Origins], unobserved: Sequence[Row]
) -> None:
    """Print the drifting fields, and on stderr the unobserved objects, grouped by reason."""
    for row in rows:
        _print_row(row, origins.get(row[0], {}))
    whys: dict[str, list[str]] = {}
    for *kind_id, count, names, why in unobserved:
        listed = name_lists.join_first(names, _MOST_NAMES, total=count)
        whys.setdefault(why, []).append(f"{'/'.join(kind_id)} {listed}")
    for why, kind_ids in whys.items():
        shown = name_lists.join_first(kind_ids, _MOST_KINDS, "; ")
        output.print_note(f"not observed: {shown}: {why}")


def _nothing_drifts(of: str) -> str:
    """Return that nothing drifts, or that nothing is declared."""
    values = ask(lambda client: client.status())
    if dict(values["Sources"]).get("file"):
        return f"nothing{of} is other than declared"
    return f"nothing is declared in {values['StateFile']}: there is nothing to compare with"


async def _read_drift(
    client: Client, wanted: Mapping[str, str]
) -> tuple[Sequence[Row], Sequence[str], Sequence[str], Sequence[Row]]:
    """Return drift rows, the sources awaited, faults of state file and store, and unobserved kinds.

    Waits up to 15 seconds until all is known.
    """
    state = await wait_until(client.state, lambda state: not state["DriftAwaits"])
    listed = await client.unobserved()
    unobserved = [row for row in listed if _matches(_unobserved_json(row), wanted)]
    faults = [state["StateFileError"], describe_storage_error(state.get("StorageError", ""))]
    return await client.drift(wanted), state["DriftAwaits"], faults, unobserved


async def _read_origins(client: Client, rows: Sequence[Row]) -> Mapping[str, Origins]:
    """Return by object and field the change that made it differ, as far as it is known.

    The unit of a closed port has `failed` if it did.
    """
    objects = [row[0] for row in rows]
    origins = dict(zip(objects, await client.drift_origins(objects), strict=True))
    of_units = [one for found in origins.values() for one in found.values() if one.get("unit")]
    _, failed = await client.failed_units(_MOST_FAILED) if of_units else (0, [])
    for one in of_units:
        one["failed"] = one["unit"] in failed
    return origins


async def wait_until(read: Callable[[], Awaitable[T]], is_ready: Callable[[T], bool]) -> T:
    """Return what is read once it is as wanted, or after 15 seconds."""
    import asyncio

    state = await read()
    until = time.monotonic() + _PATIENCE_SECONDS
    # only just after a start; no signal announces its end
    while not is_ready(state) and time.monotonic() < until:
        await asyncio.sleep(_PAUSE_SECONDS)
        state = await read()
    return state


def _matches(object_id: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Return whether an object has the wanted plugin and kind."""
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
                row = next((r for r in await client.drift(id_of_path(path)) if r[0] == path), row)
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
    return is_bad and _matches(id_of_path(path), wanted)


def _print_transition_json(what: str, row: Row) -> None:
    """Print a transition as one line of JSON; the first line has the format version."""
    if what == "ended":
        return  # the next line has the fields that still drift
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    # these fields do not drift now
    row = (*row[:5], []) if what in _ENDS else row
    content = {"at": now, **_row_json(row), "class": what} if what else {"at": now}
    head = {} if what else {"format_version": FORMAT_VERSION}
    print(output.json_text({**head, **content}), flush=True)


def _print_transition(what: str, row: Row) -> None:
    now = f"{format_stamp(time.time_ns() // 1000)}  "
    if what in _ENDS:
        fields = ", ".join(field[0] for field in row[5])
        label, end = _ENDS[what]
        plugin, kind, name = paths.parse(row[0])
        said = f"{subject_of((plugin, kind), name)}{end}{fields and f': {fields}'}"
        _print_labelled(label, said, now)
    elif what:
        _print_row(row, {}, now)


def _row_json(row: Row, origins: Origins | None = None) -> dict[str, Any]:
    path, what, severity, since, distance, fields = row
    at = datetime.fromtimestamp(since, UTC).isoformat() if since else None
    return {
        "path": path,
        **id_of_path(path),
        "class": what,
        "severity": severity,
        "since": at,
        "distance": distance,
        "fields": [
            {
                "path": name,
                "declared": _parse(one),
                "observed": _parse(other),
                "severity": bad,
                **_origin_json((origins or {}).get(name, {})),
            }
            for name, one, other, bad in fields
        ],
    }


def _origin_json(change: Mapping[str, Any]) -> dict[str, Any]:
    """Return the time, cause and author of the change that made a field differ."""
    if not change:
        return {}
    at = datetime.fromtimestamp(change["at"] / 1e6, UTC).isoformat()
    as_root = [act for act, _ in change.get("as_root", ())]
    known = {key: change.get(key) for key in ("cause", "by", "unit", "failed")}
    known["as_root"] = as_root
    return {"since": at, **{key: value for key, value in known.items() if value}}


def _unobserved_json(row: Row) -> dict[str, Any]:
    return dict(zip(("plugin", "kind", "count", "names", "why"), row, strict=True))


def _parse(text: str) -> Any:
    return json.loads(text) if text else None


def _print_row(row: Row, origins: Origins, at: str = "") -> None:
    """Print one line for each field."""
    since = f" ({output.format_age(row[3])})" if row[3] and sys.stdout.isatty() else ""
    for (severity, text), (name, *_) in zip(
        describe_row(paths.parse(row[0]), row), row[5], strict=True
    ):
        origin = origins.get(name)
        _print_labelled(
            severity, f"{text}, {describe_origin(origin)}" if origin else text + since, at
        )


def _print_labelled(label: str, text: str, at: str) -> None:
    coloured = output.add_style(f"{label:{_WIDTH}}", COLOURS.get(label, "cyan"))
    output.print_labelled(f"{at}{coloured}", len(at) + _WIDTH, text)
    # readers of a pipe get each line at once
    sys.stdout.flush()
