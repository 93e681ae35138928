"""Command `op-dbus status`: the observed host, missing observations, and the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opdbus.cli import output
from opdbus.cli.asking import ask
from opdbus.cli.properties import Properties, untold
from opdbus.cli.root import as_json, root
from opdbus.errors import blame

# properties of the engine to show first
_FIRST = "State LastError Level Provider Precision Device Proof Fallbacks".split()
# properties that the lines about the host contain
_OF_HOST = set(
    "Drifted DriftAwaits Count Vectorized Pending FirstStage StateFile StateFileError"
    " Observers Sources".split()
)
# not shown to people
_INTERNAL = {"Accuracy", "Generation"}
# suffix of ONNX Runtime's provider names
_RUNTIME = "ExecutionProvider"
# state of an observer that has not finished its first listing
STARTING = "starting"
_WELL = {"up", STARTING}
_NONE = "nothing: OP_DBUS_OBSERVE is none"
# number of observers and publishers to name
_MOST = 20


@root.command()
@as_json
def status(json_: bool) -> None:  # noqa: FBT001 -- click passes flags so
    """Show what is known of the host, and where the model runs.

    What is not known is named as well, and why.
    """
    values = Properties(ask(lambda client: client.status()))
    if json_:
        output.as_json(values)
        return
    output.pairs(host(values))
    print()
    output.pairs(serving(values))


def host(values: Mapping[str, Any]) -> dict[str, str]:
    """Return lines on the objects, their sources, and failed observers."""
    observers = values["Observers"]
    so_far = " so far" if any(row[1] == STARTING for row in observers) else ""
    lines = {
        "Objects": f"{values['Count']:,}{so_far}{_waiting(values)}",
        "Second stage": _staged(values),
        "Observed": _counted(_of("live:", values), so_far)
        or ("nothing yet" if observers else _NONE),
        "Not observed": "\n".join(_missing(observers)),
        "Note": "\n".join(f"{row[0]}: {row[3]}" for row in observers if row[3] and row[1] in _WELL),
        "Declared": _declared(values),
        "Drifted": _drifted(values["Drifted"]),
        "Published": _counted(_of("publish:", values)),
        "Unknown": untold(values),
    }
    return {name: line for name, line in lines.items() if line}


def _declared(values: Mapping[str, Any]) -> str:
    count, file = dict(values["Sources"]).get("file", 0), values["StateFile"]
    if count and values["StateFileError"]:
        return f"{count:,}, the last that {file} declared: it cannot be read now"
    return f"{f'{count:,}' if count else 'nothing'} in {file}"


def _drifted(count: int) -> str:
    return f"{count:,}: `op-dbus drift` lists what is other than declared" if count else ""


def _of(kind: str, values: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the sources of a kind, each with its number of objects."""
    found = (row for row in values["Sources"] if row[0].startswith(kind))
    return [(name.removeprefix(kind), count) for name, count in found]


def _waiting(values: Mapping[str, Any]) -> str:
    if values["Pending"]:
        # more pending objects than lack a vector means an update, with or without vectors
        is_update = values["Pending"] > values["Count"] - values["Vectorized"]
        is_update |= values["Level"] == "none"
        what = "to be brought up to this version" if is_update else "for their vectors"
        return f", {values['Pending']:,} of which wait {what}"
    return ", all with vectors" if values["Vectorized"] else ""


def _staged(values: Mapping[str, Any]) -> str:
    """Return the progress of second-stage vectors while searches have two stages, else ""."""
    if not values["Pending"] or not values["FirstStage"]:
        return ""
    share = 100 * values["Vectorized"] // values["Count"]
    return f"{share}% ready; searches find {values['FirstStage']:,} objects by static vectors"


def _counted(rows: Sequence[tuple[str, int]], so_far: str = "") -> str:
    shown = [f"{name} {count:,}" for name, count in rows[:_MOST]]
    more = [f"{len(rows) - _MOST} more"] if len(rows) > _MOST else []
    total = sum(count for _, count in rows)
    return f"{total:,}{so_far}: {', '.join([*shown, *more])}" if rows else ""


def _missing(observers: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yield lines on observers that are not working, with state and reason."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, state, _, detail in observers:
        if state not in _WELL:
            names.setdefault((state, detail), []).append(name)
    for (state, detail), of in names.items():
        yield f"{', '.join(of)} ({state}): {detail}"


def serving(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's properties by name; empty ones are left out."""
    shown = {name: values[name] for name in values.keys() - _OF_HOST - _INTERNAL}
    shown["Proof"] = proven(values["Proof"]) if values["Proof"] else ""
    shown["Fallbacks"] = "\n".join(blame(*row) for row in values["Fallbacks"])
    shown["Jobs"] = "\n".join(values["Jobs"])
    shown["Texts"] = f"{values['Texts']:,} turned into vectors so far" if values["Texts"] else ""
    shown["Latency"] = f"{1000 * values['Latency']:.1f} ms" if values["Latency"] else ""
    shown["Memory"] = f"{values['Memory'] >> 20:,} MiB" if values["Memory"] else ""
    ordered = {name: shown.get(name) for name in (*_FIRST, *values)}
    return {output.in_words(name): value for name, value in ordered.items() if value}


def proven(proof: Mapping[str, Any]) -> str:
    """Return the nodes of the proof, and the deviation of its vectors from the reference."""
    counts = {name.removesuffix(_RUNTIME): count for name, count in proof["nodes"].items()}
    nodes = ", ".join(f"{count} nodes on {name}" for name, count in counts.items())
    if proof["precision"] == "fp32":
        off, limit = proof["max_deviation"], proof["tolerance"]
        return f"{nodes}, vectors off by {off:.0e} (limit {limit:.0e})"
    # precisions below 32 bits are compared by cosine
    least = 1 - proof["tolerance"]
    return f"{nodes}, cosine to fp32 at least {proof['min_cosine']:.4f} (limit {least:.3f})"
