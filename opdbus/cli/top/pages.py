"""Entries of each page, from facts and view; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from opdbus.cli import printing, telling
from opdbus.cli.drifting import COLOURS, told
from opdbus.cli.rows import name_of
from opdbus.cli.top.lines import Line, Piece, beside, line, safe, squeezed
from opdbus.cli.top.view import Entry, Page, View

if TYPE_CHECKING:
    from opdbus.cli.telling import Change
    from opdbus.cli.top.facts import Facts

_DAY: Final = 86400
# limit of the page of changes, which is rebuilt each second
_MOST_LINES: Final = 200
# columns of the label of a change or a drift, and of the state of an observer
_LABEL: Final = 10
_STATE: Final = 10
_FIRST: Final = ("failed", "starting")
STATES: Final = {"up": "green", "starting": "cyan", "absent": "yellow", "failed": "red"}
HELP: Final = {
    "up, down": "choose a line, or move in a text; also page up, page down, home and end",
    "Enter": "open the object of the chosen line, or the changes that the line stands for",
    "/": "search as you type, in plain words: who may become root",
    "c": "what changed, and why; the newest first",
    "d": "what is other than the state file declares it, the worst first",
    "o": "observers: what of this host is seen, what is not, and why",
    "Esc": "back",
    "q": "quit; on a page where you type, Esc first, or Ctrl-C",
    "serves": "the level and the provider that runs its model, proven by measuring: not what was"
    " asked for, but what ran",
    "work": "texts that wait for their vectors; texts a second over the last 10 seconds; the"
    " median time from few texts to their vectors; memory",
}


def entries(facts: Facts, view: View, columns: int, now: float) -> list[Entry]:
    """Return the entries of a page."""
    match view.page:
        case Page.CHANGES:
            return [*islice(changes(facts, columns, now), _MOST_LINES)]
        case Page.DRIFT:
            return [*drifts(facts, columns, now)]
        case Page.SEARCH:
            return [*_hits(view.hits)]
        case Page.GROUP:
            return [*_each(view.rows, columns, now)]
        case Page.OBSERVERS:
            return [*_observers(facts.values, columns)]
        case Page.OBJECT:
            return [*_pairs(view.said, columns)]
        case Page.HELP:
            return [*_pairs(HELP, columns)]
    return []


def changes(facts: Facts, columns: int, now: float, *, is_short: bool = False) -> Iterator[Entry]:
    """Yield the last changes in the words of `op-dbus changes`, the newest first.

    With `is_short`, each is one line.
    """
    for found in reversed(facts.changes.lines):
        text = found.text + printing.why(found.cause)
        lines = _labelled(_at(found.at, now), text, columns, is_short=is_short)
        objects = {change["object"] for change in found.of}
        opens = objects.pop() if len(objects) == 1 else found.of
        yield Entry(("change", found.of[-1]["seq"]), lines, opens)


def drifts(facts: Facts, columns: int, now: float, *, is_short: bool = False) -> Iterator[Entry]:
    """Yield the drifting fields, the worst first; with `is_short`, one line each."""
    for row in facts.drifts:
        path, _, _, since, *_ = row
        at = f", since {clock(since, now)}" if since and not is_short else ""
        for number, (severity, text) in enumerate(told(row)):
            label = Piece(f"  {severity}", COLOURS.get(severity, "cyan"))
            lines = _labelled(label, text + at, columns, is_short=is_short)
            yield Entry((path, number), lines, path)


def _labelled(label: Piece, text: str, columns: int, *, is_short: bool = False) -> tuple[Line, ...]:
    if not is_short:
        return tuple(beside(label, _LABEL, text, columns))
    shown = squeezed(safe(text), columns - _LABEL - 1)
    return (line(Piece(f"{label.text:{_LABEL + 1}}", label.look), shown),)


def _hits(hits: Sequence[Sequence[Any]]) -> Iterator[Entry]:
    for path, _, more in hits:
        snippet = " ".join(more["snippet"].split())
        yield Entry(path, (line("  ", Piece(name_of(more), "bold"), "  ", snippet),), path)


def _each(rows: Sequence[Change], columns: int, now: float) -> Iterator[Entry]:
    """Yield each change of a grouped line, the newest first."""
    for change in reversed(rows):
        text = f"{telling.tell(change)}{printing.why(change['cause'])}"
        lines = _labelled(_at(change["at"], now), text, columns)
        yield Entry(change["seq"], lines, change["object"])


def _observers(values: Mapping[str, Any], columns: int) -> Iterator[Entry]:
    """Yield each observer with its state, objects and reason, and the other sources."""
    rows = sorted(values.get("Observers", ()), key=lambda row: (row[1] not in _FIRST, row[0]))
    names = max((len(row[0]) for row in rows), default=0) + 2
    for name, state, count, why in rows:
        head = (f"  {name:{names}}", Piece(f"{state:{_STATE}}", STATES.get(state, "")))
        lines = (line(*head, f"{count:>9,}"), *_below(why, columns))
        yield Entry(name, lines)
    for name, count in values.get("Sources", ()):
        if not name.startswith("live:"):
            said = {"file": "declared"}.get(name, name.replace("publish:", "published by "))
            yield Entry(name, (line(f"  {said:{names + _STATE}}{count:>9,}"),))


def _below(why: str, columns: int) -> Iterator[Line]:
    if why:
        yield from beside(Piece(""), 5, why, columns, "dim")


def _pairs(said: Mapping[str, str], columns: int) -> Iterator[Entry]:
    width = max(map(len, said), default=0) + 2
    for name, text in said.items():
        yield Entry(name, tuple(beside(Piece(f"  {name}", "cyan"), width, text, columns)))


def _at(microseconds: int, now: float) -> Piece:
    return Piece(f"  {clock(microseconds / 1e6, now)}")


def clock(at: float, now: float) -> str:
    """Format a time in 8 columns: the time of day, or the date if it is over a day ago."""
    local = datetime.fromtimestamp(at, UTC).astimezone()
    return local.strftime("%H:%M:%S" if now - at < _DAY else "%b %d")
