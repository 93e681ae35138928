"""Screen of `top` as lines, drawn from facts and view; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from opdbus.cli.asking import name_of
from opdbus.cli.top import home, pages
from opdbus.cli.top.lines import Line, Piece, beside, chosen, cut, line, spread
from opdbus.cli.top.view import Entry, Page, View
from opdbus.platform import timestamps

if TYPE_CHECKING:
    from opdbus.cli.top.facts import Facts

# With fewer lines than this, blank lines are omitted.
_ROOMY: Final = 20
# Time without an answer of op-dbus after which the screen reports that.
_PATIENCE_SECONDS: Final = 4.0
_STATES: Final = {"ready": "green", "loading": "cyan", "degraded": "yellow", "failed": "red"}
_KEYS: Final = {
    Page.HOME: "q quit  ? help  / search  Enter open  c changes  d drift  o observers",
    Page.SEARCH: "Esc back  Enter open  up, down choose",
    Page.OBJECT: "Esc back  up, down move  / search  q quit",
    Page.OBSERVERS: "Esc back  up, down move  / search  c changes  d drift  q quit",
    Page.HELP: "Esc back  up, down move  / search  c changes  d drift  o observers  q quit",
}
_OTHER_KEYS: Final = "Esc back  Enter open  / search  c changes  d drift  o observers  q quit"
_HEADINGS: Final = {
    Page.CHANGES: "the newest first",
    Page.GROUP: "the newest first",
    Page.DRIFT: "the worst first",
    Page.OBSERVERS: "each observer, how it is and how many objects it has; other sources",
}
_NOTHING: Final = {
    Page.CHANGES: "nothing is known to have changed",
    Page.SEARCH: "ask in plain words: what keeps the clock right?",
    Page.OBSERVERS: "nothing is observed: OP_DBUS_OBSERVE is none",
}


def screen(facts: Facts, view: View, columns: int, rows: int, now: float) -> list[Line]:
    """Return exactly `rows` lines, at least one, each at most `columns` wide."""
    head = [_title(facts, view, columns, now), *_trouble(facts, columns, now)]
    body = _home if view.page is Page.HOME else _page
    middle = body(facts, view, columns, rows - len(head) - 1, now)
    shown = [cut(each, columns) for each in (*head, *middle)][: rows - 1]
    foot = line(Piece(_foot(_KEYS.get(view.page, _OTHER_KEYS), columns), "dim"))
    return [*shown, *[()] * (rows - 1 - len(shown)), cut(foot, columns)]


def _foot(keys: str, columns: int) -> str:
    """Return as many key hints as fit, at least the first."""
    while len(keys) > columns and "  " in keys:
        keys = keys.rpartition("  ")[0]
    return keys


def once(facts: Facts, columns: int, rows: int, now: float) -> list[Line]:
    """Return the first page for output without keys."""
    found = screen(facts, View(at=-1), columns, rows + 1, now)[:rows]
    while found and not found[-1]:
        found.pop()
    return found


def entries(facts: Facts, view: View, columns: int, rows: int, now: float) -> list[Entry]:
    """Return the selectable entries on a screen of this size."""
    if view.page is not Page.HOME:
        return pages.entries(facts, view, columns, now)
    room = rows - 2 - len(_trouble(facts, columns, now))
    _, lists = _split(facts, columns, room, now)
    return [entry for _, found in lists for entry in found]


def room_for_entries(facts: Facts, columns: int, rows: int, now: float) -> int:
    """Return the number of lines that a page has for its entries."""
    return max(1, rows - 3 - len(_trouble(facts, columns, now)))


def _title(facts: Facts, view: View, columns: int, now: float) -> Line:
    # unknown while there is trouble
    state = "" if _trouble(facts, columns, now) else facts.values["State"]
    left = line(Piece("op-dbus", "bold"), f" on {facts.host}" if facts.host else "", "  ")
    left += line(Piece(state, _STATES.get(state, "")))
    if view.page is not Page.HOME:
        left += line("  ", Piece(view.page, "bold"))
    return spread(left, line(pages.clock(now, now)), columns)


def _trouble(facts: Facts, columns: int, now: float) -> list[Line]:
    """Return lines with the reason for missing updates, and the age of the shown facts."""
    age = now - facts.at
    is_late = facts.at and age > _PATIENCE_SECONDS
    parts = [facts.trouble] if facts.trouble else []
    if is_late and not parts:
        parts = ["op-dbus does not answer"]
    if parts and facts.at:
        parts.append(f"what is shown is from {timestamps.ago(age)}")
    if not parts:
        return [] if facts.at else [line(Piece("reading ...", "dim"))]
    return [*beside(Piece("!", "red"), 1, "; ".join(parts), columns, "yellow")]


def _home(facts: Facts, view: View, columns: int, rows: int, now: float) -> Iterator[Line]:
    top, lists = _split(facts, columns, rows, now)
    yield from top
    everything = [entry for _, found in lists for entry in found]
    at = view.chosen(everything) if view.at >= 0 else -1
    for heading, found in lists:
        if rows >= _ROOMY:
            yield ()
        yield heading
        for entry in found:
            marked = at >= 0 and entry is everything[at]
            yield chosen(entry.lines[0], columns) if marked else entry.lines[0]


def _split(
    facts: Facts, columns: int, rows: int, now: float
) -> tuple[list[Line], list[tuple[Line, list[Entry]]]]:
    """Divide the lines of the first page between the summary and the two lists."""
    gaps = 2 if rows >= _ROOMY else 0
    top = home.summary(facts, rows - gaps, now)
    return top, home.lists(facts, columns, rows - len(top) - gaps, now) if top else []


def _page(facts: Facts, view: View, columns: int, rows: int, now: float) -> Iterator[Line]:
    found = pages.entries(facts, view, columns, now)
    yield _heading(view)
    if not found:
        # no answer yet, or unfinished drift, must not read as nothing
        drifted = home.drifted(facts.values) if view.page is Page.DRIFT else ""
        nothing = drifted or _NOTHING.get(view.page, "") if facts.values else ""
        yield from beside(Piece(""), 1, view.note or nothing, columns, "dim")
    elif view.is_text:
        yield from _text(found, view, rows - 1)
    else:
        yield from _list(found, view, columns, rows - 1)


def _heading(view: View) -> Line:
    if view.page is Page.SEARCH:
        note = f"  {view.note}" if view.hits and view.note else ""
        return line(Piece("/", "cyan"), view.query, Piece("_", "dim"), Piece(note, "yellow"))
    if view.page is Page.OBJECT:
        return line(Piece(name_of(view.path), "bold"))
    return line(Piece(_HEADINGS.get(view.page, ""), "dim"))


def _text(found: Sequence[Entry], view: View, rows: int) -> list[Line]:
    lines = [each for entry in found for each in entry.lines]
    first = max(0, min(view.at, len(lines) - rows))
    return lines[first : first + rows]


def _list(found: Sequence[Entry], view: View, columns: int, rows: int) -> Iterator[Line]:
    """Yield the part of a list with the selected entry: as many whole entries as fit."""
    at = view.chosen(found)
    first = used = 0
    for number, entry in enumerate(found[: at + 1]):
        if used + len(entry.lines) > rows and number:
            first, used = number, 0
        used += len(entry.lines)
    for number, entry in enumerate(found[first:], first):
        if number == at and entry.lines:
            yield chosen(entry.lines[0], columns)
            yield from entry.lines[1:]
        else:
            yield from entry.lines
