"""First page: engine, work, observers, last changes and drift; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from opdbus.cli import status
from opdbus.cli.properties import untold
from opdbus.cli.top import pages
from opdbus.cli.top.lines import Line, Piece, line, spread
from opdbus.errors import blame
from opdbus.platform import timestamps

if TYPE_CHECKING:
    from opdbus.cli.top.facts import Facts
    from opdbus.cli.top.view import Entry

# width of the names at the left
_NAMES: Final = 10
_HEADINGS: Final = 2
# drift gets at most one in this many of the remaining lines
_SHARE: Final = 3
# If fewer than this many lines would remain, these rows are omitted, the first one first.
_LEAST: Final = 3
_SPARED: Final = ("proven", "work", "objects", "absent")
_LONG_SECONDS: Final = 90
# slower rates would print as 0 and are omitted
_SLOW: Final = 0.5
_MARKS: Final = {"failed": "! failed", "starting": "starting", "absent": "absent"}


def summary(facts: Facts, rows: int, now: float) -> list[Line]:
    """Return lines on the engine, its work and the objects, for a part of `rows` lines."""
    values = facts.values
    if not values:
        return []
    said: list[tuple[str, Sequence[str | Piece]]] = [
        ("serves", [*_serves(values)]),
        *(("proven", [text]) for text in _proof(values, now)),
        *(("! fault", [Piece(text, "red")]) for text in _faults(values)),
        *(("! unknown", [Piece(text, "yellow")]) for text in filter(None, [untold(values)])),
        ("work", [", ".join(_work(values, facts.rate))]),
        ("objects", [status.host(values)["Objects"] + _remaining(values, facts.rate)]),
        *_observers(values["Observers"]),
    ]
    excess = len(said) + _HEADINGS + _LEAST - rows
    spared = [name for name in _SPARED if name in dict(said)][: max(0, excess)]
    return [_labelled(name, *pieces) for name, pieces in said if name not in spared]


def lists(facts: Facts, columns: int, rows: int, now: float) -> list[tuple[Line, list[Entry]]]:
    """Return changes and drift, each with its heading, as many as fit into `rows` lines."""
    left = rows - _HEADINGS
    drifts = pages.drifts(facts, columns, now, is_short=True)
    shown = [*islice(drifts, max(0, left // _SHARE))]
    changes = pages.changes(facts, columns, now, is_short=True)
    newest = [*islice(changes, max(0, left - len(shown)))]
    return [
        (_heading("changes", _changed(facts), "c: all", columns), newest),
        (_heading("drift", drifted(facts.values), "d: all" if shown else "", columns), shown),
    ]


def _labelled(name: str, *pieces: str | Piece) -> Line:
    return line(Piece(f"{name:{_NAMES}}", "red" if name.startswith("!") else "cyan"), *pieces)


def _heading(name: str, said: str, hint: str, columns: int) -> Line:
    left = line(Piece(f"{name:{_NAMES}}", "cyan"), said)
    return spread(left, line(Piece(hint, "dim")), columns)


def _serves(values: Mapping[str, Any]) -> Iterator[str | Piece]:
    level, provider = values["Level"], values["Provider"]
    if level == "none":
        yield "words only: OP_DBUS_VECTOR_LEVEL is none"
    elif not provider:
        static = " and static vectors" if values["FirstStage"] else ""
        yield f"{level} is {values['State']}: searches go by words{static}"
    else:
        yield Piece(f"{level} on {provider}", "bold")
        yield f" in {values['Precision']}: {values['Device']}"


def _proof(values: Mapping[str, Any], now: float) -> Iterator[str]:
    """Yield the age of the proof, and its measurements."""
    if proof := values["Proof"]:
        yield f"{timestamps.ago(max(0.0, now - proof['checked_at']))}: {status.proven(proof)}"


def _faults(values: Mapping[str, Any]) -> Iterator[str]:
    if values["LastError"]:
        yield values["LastError"]
    for row in values["Fallbacks"]:
        yield blame(*row)


def _work(values: Mapping[str, Any], rate: float | None) -> Iterator[str]:
    if values["Level"] != "none":
        count = values["QueueDepth"]
        yield f"{count:,} text{' waits' if count == 1 else 's wait'}" if count else "idle"
        if rate and rate >= _SLOW:
            yield f"{rate:,.0f} a second"
        if values["Latency"]:
            yield f"{_milliseconds(values['Latency'])} to a vector"
    if values["Memory"]:
        yield f"{values['Memory'] >> 20:,} MiB of memory"


def _observers(rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Sequence[str | Piece]]]:
    """Yield the objects of each working observer, and the observers of other states."""
    up = sorted(((row[2], row[0]) for row in rows if row[1] == "up"), reverse=True)
    said = f"{len(up)} up: {', '.join(f'{name} {count:,}' for count, name in up)}"
    yield "observers", [said if up else "none is up" if rows else "none: OP_DBUS_OBSERVE is none"]
    for state, mark in _MARKS.items():
        if found := [row for row in rows if row[1] == state]:
            whys = {row[3] for row in found}
            why = f": {whys.pop()}" if len(whys) == 1 and "" not in whys else ""
            names = ", ".join(row[0] for row in found)
            yield mark, [Piece(f"{names}{why}", pages.STATES[state])]


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.{1 if seconds < 0.01 else 0}f} ms"


def _remaining(values: Mapping[str, Any], rate: float | None) -> str:
    if not values["Pending"] or not rate or rate < _SLOW:
        return ""
    seconds = values["Pending"] / rate
    return f", about {f'{seconds:.0f} s' if seconds < _LONG_SECONDS else f'{seconds / 60:.0f} min'}"


def _changed(facts: Facts) -> str:
    return "the newest first" if facts.changes.rows else "nothing is known to have changed"


def drifted(values: Mapping[str, Any]) -> str:
    """Return the number of drifts, or that nothing drifts or is declared."""
    if waits := values.get("DriftAwaits"):
        return f"not all is known yet: waiting for {' and '.join(waits)}"
    if count := values.get("Drifted"):
        return f"{count:,} other than declared, the worst first"
    if dict(values.get("Sources", ())).get("file"):
        return "nothing is other than declared"
    return "nothing is declared" if values else ""
