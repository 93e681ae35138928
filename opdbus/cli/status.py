"""Commands that show the daemon's state: status, levels, and one object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from opdbus.cli import completing, output
from opdbus.cli.daemon_calls import ask, path_of
from opdbus.cli.root import as_json, root
from opdbus.errors import BusError, ShuttingDown, blame
from opdbus.platform import name_lists
from opdbus.platform.metrics import Family, render

if TYPE_CHECKING:
    from opdbus.client import Client

_TEXTS: Final = (
    "StateFile StateFileError StorageError LastError Level Model ModelRevision State"
    " RequestedProvider Provider Device Precision Version"
)
_NUMBERS: Final = (
    "Generation Count Vectorized Pending FirstStage Drifted Dimension MaxTokens QueueDepth Texts"
    " Latency Memory Truncated"
)
_LISTS: Final = "DriftAwaits Sources Observers Fallbacks Accuracy Jobs"
# The properties that a daemon of this version has, with empty values.
EMPTY: Final[Mapping[str, Any]] = {
    **dict.fromkeys(_TEXTS.split(), ""),
    **dict.fromkeys(_NUMBERS.split(), 0),
    **{name: [] for name in _LISTS.split()},
    "Proof": {},
}
# properties of the engine to show first
_FIRST = "State LastError Level Provider Precision Device Proof Fallbacks".split()
# properties that the lines about the host contain
_OF_HOST = set(
    "Drifted DriftAwaits Count Vectorized Pending FirstStage StateFile StateFileError"
    " StorageError Observers Sources".split()
)
# not shown to people
_INTERNAL = {"Accuracy", "Generation"}
# suffix of ONNX Runtime's provider names
_RUNTIME = "ExecutionProvider"
# state of an observer that has not finished its first listing
STARTING = "starting"
_WELL = {"up", STARTING}
_NO_OBSERVERS = "nothing: OP_DBUS_OBSERVE is none"
# failed units in JSON, and those that are named in a line
_MOST_FAILED = 100
_NAMED_FAILED = 3
# number of observers and publishers to name
_MOST_SOURCES = 20
_GRADE_HEADINGS = ("", "on", "in", "texts/s", "mean", "least", "change")
_EXPLAINED = (
    "texts/s: of 56 tokens, and the spread of the runs. mean, least: of the cosines to fp32."
    " change: of the mean reciprocal rank of the right answers, from fp32's to the same questions,"
    " in points, with a 95% interval."
)
_SIDES: Final = ("Observed", "Declared")
_OF_FAILURE: Final = ("FailedAt", "FailedWhy", "FailedLines")
# Of a daemon that does not answer for so long, the metrics are as of one that is down.
_METRICS_SECONDS: Final = 10.0


class Properties(dict[str, Any]):
    """Values by name; a property that the daemon lacks is empty."""

    def __missing__(self, name: str) -> Any:
        """Return the empty value; raises KeyError for an unknown property."""
        return copy(EMPTY[name])


def missing_properties(values: Mapping[str, Any]) -> str:
    """Return a message with the properties that the daemon lacks; empty if it has all."""
    names = ", ".join(sorted(EMPTY.keys() - values.keys()))
    return names and f"{names}: not sent by this daemon, another version: restart it"


@root.command()
@as_json
def status(json_: bool) -> None:
    """Show what is known of the host, and where the model runs.

    What is not known is named as well, and why.
    """

    async def read(client: Client) -> tuple[dict[str, Any], int, list[str]]:
        return await client.status(), *await client.failed_units(_MOST_FAILED)

    found, total, failed = ask(read)
    values = Properties(found)
    if json_:
        output.print_json({**values, "FailedUnits": failed})
        return
    output.print_pairs(describe_host(values, describe_failed(total, failed)))
    print()
    output.print_pairs(describe_serving(values))


def describe_failed(total: int, names: Sequence[str]) -> str:
    """Return how many units have failed, and the first of them; empty if none has."""
    if not total:
        return ""
    listed = name_lists.join_first(names, _NAMED_FAILED, total=total)
    return f"{total:,} unit{'' if total == 1 else 's'}: {listed}"


def describe_host(values: Mapping[str, Any], failed: str = "") -> dict[str, str]:
    """Return lines on the objects, failed units, their sources, and failed observers."""
    observers, drifted = values["Observers"], values["Drifted"]
    so_far = " so far" if any(row[1] == STARTING for row in observers) else ""
    none_observed = "nothing yet" if observers else _NO_OBSERVERS
    declared, file = dict(values["Sources"]).get("file", 0), values["StateFile"]
    in_file = f"{f'{declared:,}' if declared else 'nothing'} in {file}"
    if declared and values["StateFileError"]:
        in_file = f"{declared:,}, the last that {file} declared: it cannot be read now"
    missing: dict[str, list[str]] = {}
    for name, state, _, detail in observers:
        if state not in _WELL:
            missing.setdefault(f"({state}): {detail}", []).append(name)
    stage = ""
    if values["Pending"] and values["FirstStage"]:
        share = 100 * values["Vectorized"] // values["Count"]
        stage = f"{share}% ready; searches find {values['FirstStage']:,} objects by static vectors"
    lines = {
        "Failed": failed and f"{failed}; `op-dbus ask 'what failed?'` says more",
        "Objects": f"{values['Count']:,}{so_far}{_waiting_objects(values)}",
        "Second stage": stage,
        "Observed": _count_sources("live:", values, so_far) or none_observed,
        "Not observed": output.join_lines(f"{', '.join(of)} {why}" for why, of in missing.items()),
        "Note": output.join_lines(
            f"{row[0]}: {row[3]}" for row in observers if row[3] and row[1] in _WELL
        ),
        "Declared": in_file,
        "Drifted": f"{drifted:,}: `op-dbus drift` lists what is other than declared"
        if drifted
        else "",
        "Published": _count_sources("publish:", values),
        "Unknown": missing_properties(values),
    }
    return {name: line for name, line in lines.items() if line}


def _waiting_objects(values: Mapping[str, Any]) -> str:
    """Return the number of objects that wait, and for what."""
    if values["Pending"]:
        # more pending objects than lack a vector means an update, with or without vectors
        is_update = values["Pending"] > values["Count"] - values["Vectorized"]
        is_update |= values["Level"] == "none"
        what = "to be brought up to this version" if is_update else "for their vectors"
        return f", {values['Pending']:,} of which wait {what}"
    return ", all with vectors" if values["Vectorized"] else ""


def _count_sources(kind: str, values: Mapping[str, Any], so_far: str = "") -> str:
    """Return the number of objects of all sources of a kind, and of each."""
    rows = [(name, count) for name, count in values["Sources"] if name.startswith(kind)]
    shown = [f"{name.removeprefix(kind)} {count:,}" for name, count in rows[:_MOST_SOURCES]]
    more = [f"{len(rows) - _MOST_SOURCES} more"] if len(rows) > _MOST_SOURCES else []
    total = sum(count for _, count in rows)
    return f"{total:,}{so_far}: {', '.join([*shown, *more])}" if rows else ""


def describe_serving(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's properties by name; empty ones are left out."""
    shown = {name: values[name] for name in values.keys() - _OF_HOST - _INTERNAL}
    shown["Proof"] = describe_proof(values["Proof"]) if values["Proof"] else ""
    shown["Fallbacks"] = output.join_lines(blame(*row) for row in values["Fallbacks"])
    shown["Jobs"] = output.join_lines(values["Jobs"])
    shown["Texts"] = f"{values['Texts']:,} turned into vectors so far" if values["Texts"] else ""
    shown["Latency"] = f"{1000 * values['Latency']:.1f} ms" if values["Latency"] else ""
    shown["Memory"] = f"{values['Memory'] >> 20:,} MiB" if values["Memory"] else ""
    ordered = {name: shown.get(name) for name in (*_FIRST, *values)}
    return {output.split_capitals(name): value for name, value in ordered.items() if value}


def describe_proof(proof: Mapping[str, Any]) -> str:
    """Return the nodes of the proof, and the deviation of its vectors from the reference."""
    counts = {name.removesuffix(_RUNTIME): count for name, count in proof["nodes"].items()}
    # a route of a server has no nodes
    kinds = {name: "known texts at" if "/" in name else "nodes on" for name in counts}
    nodes = ", ".join(f"{count} {kinds[name]} {name}" for name, count in counts.items())
    if proof["precision"] == "fp32":
        off, limit = proof["max_deviation"], proof["tolerance"]
        return f"{nodes}, vectors off by {off:.0e} (limit {limit:.0e})"
    # precisions below 32 bits are compared by cosine
    least = 1 - proof["tolerance"]
    return f"{nodes}, cosine to fp32 at least {proof['min_cosine']:.4f} (limit {least:.3f})"


def print_grades(found: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for each level, the questions and refusals, and the meaning of columns."""
    for level, grades in groupby(found, key=lambda grade: grade["level"]):
        measured = sorted(grades, key=lambda grade: -grade["texts_per_second"])
        when = output.format_age(measured[0]["checked_at"])
        print(output.add_style(f"{level}, measured {when}", "bold"))
        output.print_table(_GRADE_HEADINGS, [grade_cells(grade) for grade in measured])
        names = {_grade_name(grade): grade for grade in measured}
        output.print_section("refused", {name: grade["refused"] for name, grade in names.items()})
        asked: dict[str, list[str]] = {}
        for name, grade in names.items():
            asked.setdefault(f"{grade['questions']} of", []).append(name)
        output.print_section("questions", {count: ", ".join(of) for count, of in asked.items()})
        print()
    none = "nothing was measured: no precision had to be chosen"
    output.print_paragraph(_EXPLAINED if found else none)


def grade_cells(grade: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a row of the table; cells are empty for a precision that could not run."""
    verdict = "chosen" if grade["chosen"] else "refused" if grade["refused"] else "passed"
    place = (verdict, *_grade_name(grade).split())
    if not grade["questions"]:
        return (*place, *("",) * (len(_GRADE_HEADINGS) - len(place)))
    low, high = 100 * grade["change_low"], 100 * grade["change_high"]
    return (
        *place,
        f"{grade['texts_per_second']:.0f} \u00b1{grade['spread']:.0%}",
        _format_share(grade["mean_cosine"], 4),
        _format_share(grade["min_cosine"], 4),
        f"{low:+.2f}..{high:+.2f}",
    )


def _format_share(value: float, digits: int) -> str:
    """Format a number of at most 1 without its leading zero."""
    return f"{value:.{digits}f}".removeprefix("0") if round(value, digits) < 1 else "1"


def _grade_name(grade: Mapping[str, Any]) -> str:
    return f"{grade['provider'].removeprefix('cpu:')} {grade['precision']}"


@root.command()
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Replace FILE, for node_exporter's textfile collector.",
)
def metrics(target: Path | None) -> None:
    """Print the daemon's metrics for Prometheus, in its text format.

    No daemon is started. If none answers within 10 seconds, that is an error; with --output it is
    none, and FILE has `opdbus_up 0` alone.
    """
    found = ""
    try:
        found = ask(_read_metrics)
    except (BusError, ShuttingDown):
        if not target:
            raise
    text = render([Family("up", {(): int(bool(found))})]) + found
    if target:
        output.replace_file(target, text)
    else:
        print(text, end="")


async def _read_metrics(client: Client) -> str:
    import asyncio

    try:
        async with asyncio.timeout(_METRICS_SECONDS):
            return await client.metrics()
    except TimeoutError:
        raise BusError(
            f"op-dbus did not answer within {_METRICS_SECONDS:.0f} s: see its log"
        ) from None


@root.command()
@click.option("--detail", is_flag=True, help="Show what the accuracy gate measured.")
@as_json
def levels(detail: bool, json_: bool) -> None:
    """List the levels and their models."""
    if detail:
        found = ask(lambda client: client.accuracy())
        output.print_json(found) if json_ else print_grades(found)
        return
    columns = ("level", "model", "dimension", "status", "detail")
    rows = ask(lambda client: client.levels())
    if json_:
        output.print_json_rows(columns, rows)
        return
    # the reason is too long for a column
    shown = [(*names, dimension or "", status) for *names, dimension, status, _ in rows]
    output.print_table(columns[:-1], shown)
    output.print_section(columns[-1], {row[0]: row[-1] for row in rows})


@root.command()
@click.argument("object", shell_complete=completing.complete_objects)
@as_json
def show(object: str, json_: bool) -> None:
    """Show everything about OBJECT.

    OBJECT is PLUGIN/KIND/NAME, as `list` prints it, a D-Bus path, or a short name: `sshd` for
    systemd/unit/sshd.service. Of several objects of a name, a unit is shown, else a package, else
    an account.
    """

    async def found(client: Client) -> tuple[str, dict[str, Any]]:
        path = await path_of(client, object)
        return path, await client.show(path)

    path, values = ask(found)
    if json_:
        output.print_json({"Path": path, **_parse_object_sides(values)})
        return
    output.print_pairs(describe_object(path, values))


def describe_object(
    path: str, values: Mapping[str, Any], format_time: Callable[[float], str] = output.format_age
) -> dict[str, str]:
    """Return an object's properties for people; `format_time` is for that of the last change."""
    shown = {"Path": path, **_parse_object_sides(values)}
    for side in _SIDES:
        if shown[side] is not None:
            content = json.dumps(shown[side], indent=2, ensure_ascii=False)
            shown[side] = output.join_lines(content.split("\n"))
    # rendered in lines; the rest of a host's text has one
    shown["Text"] = output.join_lines(str(shown.get("Text", "")).split("\n"))
    shown["Updated"] = format_time(shown.pop("UpdatedAt"))
    failed_at, why, lines = (shown.pop(name, None) for name in _OF_FAILURE)
    if failed_at:
        shown["LastFailure"] = f"{format_time(failed_at / 1e6)}: {why}"
        shown["LastLines"] = output.join_lines(lines or ())
    # properties without a value, such as the distance of an unobserved object, are omitted
    texts = {name: name_lists.format_value(value) for name, value in shown.items()}
    return {output.split_capitals(name): text for name, text in texts.items() if text}


def _parse_object_sides(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties with the sides parsed, None for a missing side."""
    return {**values, **{side: json.loads(values[side] or "null") for side in _SIDES}}
