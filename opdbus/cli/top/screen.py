"""Screen of `top` as lines, drawn from facts and view; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from opdbus.bus import paths
from opdbus.cli import status
from opdbus.cli.daemon_calls import name_of_path
from opdbus.cli.drifting import COLOURS
from opdbus.cli.find_objects import name_of_row
from opdbus.cli.top.terminal import (
    Line,
    Piece,
    cut_line,
    escape_text,
    lines_beside,
    make_line,
    mark_selected,
    shorten_longest_word,
    spread,
)
from opdbus.cli.top.view import Entry, Page, View
from opdbus.errors import blame
from opdbus.platform import timestamps
from opdbus.wording import change_lines, change_words
from opdbus.wording.drift_words import describe_row

if TYPE_CHECKING:
    from opdbus.cli.top.feed import Facts
    from opdbus.wording.change_words import Change

_DAY: Final = 86400
# limit of the page of changes, which is rebuilt each second
_MOST_LINES: Final = 200
# columns of the label of a change or a drift, and of the state of an observer
_LABEL: Final = 10
_STATE: Final = 10
_FIRST_STATES: Final = ("failed", "starting")
STATES: Final = {"up": "green", "starting": "cyan", "absent": "yellow", "failed": "red"}
# width of the names at the left
_NAMES: Final = 10
_HOME_HEADINGS: Final = 2
# drift gets at most one in this many of the remaining lines
_SHARE: Final = 3
# If fewer than this many lines would remain, these rows are omitted, the first one first.
_LEAST: Final = 3
_SPARED: Final = ("proven", "work", "objects", "absent")
_LONG_SECONDS: Final = 90
# slower rates would print as 0 and are omitted
_SLOW: Final = 0.5
_MARKS: Final = {"failed": "! failed", "starting": "starting", "absent": "absent"}
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
_EMPTY_PAGES: Final = {
    Page.CHANGES: "nothing is known to have changed",
    Page.SEARCH: "ask in plain words: what keeps the clock right?",
    Page.OBSERVERS: "nothing is observed: OP_DBUS_OBSERVE is none",
}
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


def page_entries(facts: Facts, view: View, columns: int, now: float) -> list[Entry]:
    """Return the entries of a page."""
    match view.page:
        case Page.CHANGES:
            return [*islice(change_entries(facts, columns, now), _MOST_LINES)]
        case Page.DRIFT:
            return [*drift_entries(facts, columns, now)]
        case Page.SEARCH:
            return [_hit_entry(*hit) for hit in view.hits]
        case Page.GROUP:
            return [*_group_entries(view.rows, columns, now)]
        case Page.OBSERVERS:
            return [*_observer_entries(facts.values, columns)]
        case Page.OBJECT:
            return [*_pair_entries(view.said, columns)]
        case Page.HELP:
            return [*_pair_entries(HELP, columns)]
    return []


def change_entries(
    facts: Facts, columns: int, now: float, *, is_short: bool = False
) -> Iterator[Entry]:
    """Yield the last changes in the words of `op-dbus changes`, the newest first.

    With `is_short`, each is one line.
    """
    for found in reversed(facts.changes.lines):
        text = str(found)
        lines = _labelled_lines(_time_label(found.at, now), text, columns, is_short=is_short)
        objects = {change["object"] for change in found.of}
        opens = objects.pop() if len(objects) == 1 else found.of
        yield Entry(("change", found.of[-1]["seq"]), lines, opens)


def drift_entries(
    facts: Facts, columns: int, now: float, *, is_short: bool = False
) -> Iterator[Entry]:
    """Yield the drifting fields, the worst first; with `is_short`, one line each."""
    for row in facts.drifts:
        path, _, _, since, *_ = row
        at = f", since {format_clock(since, now)}" if since and not is_short else ""
        for number, (severity, text) in enumerate(describe_row(paths.parse(row[0]), row)):
            label = Piece(f"  {severity}", COLOURS.get(severity, "cyan"))
            lines = _labelled_lines(label, text + at, columns, is_short=is_short)
            yield Entry((path, number), lines, path)


def _labelled_lines(
    label: Piece, text: str, columns: int, *, is_short: bool = False
) -> tuple[Line, ...]:
    """Return a text beside a label, with `is_short` in one line."""
    if not is_short:
        return tuple(lines_beside(label, _LABEL, text, columns))
    shown = shorten_longest_word(escape_text(text), columns - _LABEL - 1)
    return (make_line(Piece(f"{label.text:{_LABEL + 1}}", label.look), shown),)


def _hit_entry(path: str, _score: float, more: Mapping[str, Any]) -> Entry:
    name, snippet = name_of_row(dict(more)), " ".join(more["snippet"].split())
    return Entry(path, (make_line("  ", Piece(name, "bold"), "  ", snippet),), path)


def _group_entries(rows: Sequence[Change], columns: int, now: float) -> Iterator[Entry]:
    """Yield each change of a grouped line, the newest first."""
    for change in reversed(rows):
        why = change_lines.cause_in_brackets(change["cause"])
        text = f"{change_words.describe_change(change)}{why}"
        lines = _labelled_lines(_time_label(change["at"], now), text, columns)
        yield Entry(change["seq"], lines, change["object"])


def _observer_entries(values: Mapping[str, Any], columns: int) -> Iterator[Entry]:
    """Yield each observer with its state, objects and reason, and the other sources."""
    rows = values.get("Observers", ())
    names = max((len(row[0]) for row in rows), default=0) + 2
    for name, state, count, why in sorted(rows, key=lambda r: (r[1] not in _FIRST_STATES, r[0])):
        head = (f"  {name:{names}}", Piece(f"{state:{_STATE}}", STATES.get(state, "")))
        below = lines_beside(Piece(""), 5, why, columns, "dim") if why else ()
        yield Entry(name, (make_line(*head, f"{count:>9,}"), *below))
    for name, count in values.get("Sources", ()):
        if not name.startswith("live:"):
            said = {"file": "declared"}.get(name, name.replace("publish:", "published by "))
            yield Entry(name, (make_line(f"  {said:{names + _STATE}}{count:>9,}"),))


def _pair_entries(said: Mapping[str, str], columns: int) -> Iterator[Entry]:
    width = max(map(len, said), default=0) + 2
    for name, text in said.items():
        yield Entry(name, tuple(lines_beside(Piece(f"  {name}", "cyan"), width, text, columns)))


def _time_label(microseconds: int, now: float) -> Piece:
    return Piece(f"  {format_clock(microseconds / 1e6, now)}")


def format_clock(at: float, now: float) -> str:
    """Format a time in 8 columns: the time of day, or the date if it is over a day ago."""
    local = datetime.fromtimestamp(at, UTC).astimezone()
    return local.strftime("%H:%M:%S" if now - at < _DAY else "%b %d")


def _summary(facts: Facts, rows: int, now: float) -> list[Line]:
    """Return lines on the engine, its work and the objects, for a part of `rows` lines."""
    values = facts.values
    if not values:
        return []
    labelled: list[tuple[str, Sequence[str | Piece]]] = [("serves", [*_describe_engine(values)])]
    if proof := values["Proof"]:
        age = timestamps.ago(max(0.0, now - proof["checked_at"]))
        labelled.append(("proven", [f"{age}: {status.describe_proof(proof)}"]))
    faults = [values["LastError"], *(blame(*row) for row in values["Fallbacks"])]
    labelled += [("! fault", [Piece(text, "red")]) for text in faults if text]
    if failed := status.describe_failed(*facts.failed):
        labelled.append(("! failed", [Piece(failed, "red")]))
    if unknown := status.missing_properties(values):
        labelled.append(("! unknown", [Piece(unknown, "yellow")]))
    labelled.append(("work", [", ".join(_describe_work(values, facts.rate))]))
    objects = status.describe_host(values)["Objects"]
    if values["Pending"] and facts.rate and facts.rate >= _SLOW:
        seconds = values["Pending"] / facts.rate
        is_long = seconds >= _LONG_SECONDS
        objects += f", about {f'{seconds / 60:.0f} min' if is_long else f'{seconds:.0f} s'}"
    labelled += [("objects", [objects]), *_observer_rows(values["Observers"])]
    excess = len(labelled) + _HOME_HEADINGS + _LEAST - rows
    spared = [name for name in _SPARED if name in dict(labelled)][: max(0, excess)]
    return [
        make_line(Piece(f"{name:{_NAMES}}", "red" if name.startswith("!") else "cyan"), *pieces)
        for name, pieces in labelled
        if name not in spared
    ]


def _home_lists(
    facts: Facts, columns: int, rows: int, now: float
) -> list[tuple[Line, list[Entry]]]:
    """Return changes and drift, each with its heading, as many as fit into `rows` lines."""
    left = rows - _HOME_HEADINGS
    drifts = drift_entries(facts, columns, now, is_short=True)
    shown = [*islice(drifts, max(0, left // _SHARE))]
    changes = change_entries(facts, columns, now, is_short=True)
    newest = [*islice(changes, max(0, left - len(shown)))]
    changed = "the newest first" if facts.changes.rows else "nothing is known to have changed"
    drifted, hint = describe_drift_count(facts.values), "d: all" if shown else ""
    lists = []
    for name, text, keys, found in (
        ("changes", changed, "c: all", newest),
        ("drift", drifted, hint, shown),
    ):
        heading = make_line(Piece(f"{name:{_NAMES}}", "cyan"), text)
        lists.append((spread(heading, make_line(Piece(keys, "dim")), columns), found))
    return lists


def _describe_engine(values: Mapping[str, Any]) -> Iterator[str | Piece]:
    """Yield the level and provider that serve, or why none does."""
    level, provider = values["Level"], values["Provider"]
    if level == "none":
        yield "words only: OP_DBUS_VECTOR_LEVEL is none"
    elif not provider:
        static = " and static vectors" if values["FirstStage"] else ""
        yield f"{level} is {values['State']}: searches go by words{static}"
    else:
        yield Piece(f"{level} on {provider}", "bold")
        yield f" in {values['Precision']}: {values['Device']}"


def _describe_work(values: Mapping[str, Any], rate: float | None) -> Iterator[str]:
    """Yield the waiting texts, the rate and latency of vectors, and the memory."""
    if values["Level"] != "none":
        count = values["QueueDepth"]
        yield f"{count:,} text{' waits' if count == 1 else 's wait'}" if count else "idle"
        if rate and rate >= _SLOW:
            yield f"{rate:,.0f} a second"
        if values["Latency"]:
            milliseconds = values["Latency"] * 1000
            yield f"{milliseconds:.{1 if milliseconds < 10 else 0}f} ms to a vector"
    if values["Memory"]:
        yield f"{values['Memory'] >> 20:,} MiB of memory"


def _observer_rows(rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Sequence[str | Piece]]]:
    """Yield the objects of each working observer, and the observers of other states."""
    up = sorted(((row[2], row[0]) for row in rows if row[1] == "up"), reverse=True)
    said = f"{len(up)} up: {', '.join(f'{name} {count:,}' for count, name in up)}"
    yield "observers", [said if up else "none is up" if rows else "none: OP_DBUS_OBSERVE is none"]
    for state, mark in _MARKS.items():
        if found := [row for row in rows if row[1] == state]:
            whys = {row[3] for row in found}
            why = f": {whys.pop()}" if len(whys) == 1 and "" not in whys else ""
            names = ", ".join(row[0] for row in found)
            yield mark, [Piece(f"{names}{why}", STATES[state])]


def describe_drift_count(values: Mapping[str, Any]) -> str:
    """Return the number of drifts, or that nothing drifts or is declared."""
    if waits := values.get("DriftAwaits"):
        return f"not all is known yet: waiting for {' and '.join(waits)}"
    if count := values.get("Drifted"):
        return f"{count:,} other than declared, the worst first"
    if dict(values.get("Sources", ())).get("file"):
        return "nothing is other than declared"
    return "nothing is declared" if values else ""


def draw_screen(facts: Facts, view: View, columns: int, rows: int, now: float) -> list[Line]:
    """Return exactly `rows` lines, at least one, each at most `columns` wide."""
    head = [_title_line(facts, view, columns, now), *_trouble_lines(facts, columns, now)]
    body = _home_lines if view.page is Page.HOME else _page_lines
    middle = body(facts, view, columns, rows - len(head) - 1, now)
    shown = [cut_line(each, columns) for each in (*head, *middle)][: rows - 1]
    # as many key hints as fit, at least the first
    keys = _KEYS.get(view.page, _OTHER_KEYS)
    while len(keys) > columns and "  " in keys:
        keys = keys.rpartition("  ")[0]
    foot = make_line(Piece(keys, "dim"))
    return [*shown, *[()] * (rows - 1 - len(shown)), cut_line(foot, columns)]


def draw_once(facts: Facts, columns: int, rows: int, now: float) -> list[Line]:
    """Return the first page for output without keys."""
    found = draw_screen(facts, View(at=-1), columns, rows + 1, now)[:rows]
    while found and not found[-1]:
        found.pop()
    return found


def entries(facts: Facts, view: View, columns: int, rows: int, now: float) -> list[Entry]:
    """Return the selectable entries on a screen of this size."""
    if view.page is not Page.HOME:
        return page_entries(facts, view, columns, now)
    room = rows - 2 - len(_trouble_lines(facts, columns, now))
    _, lists = _split_home(facts, columns, room, now)
    return [entry for _, found in lists for entry in found]


def room_for_entries(facts: Facts, columns: int, rows: int, now: float) -> int:
    """Return the number of lines that a page has for its entries."""
    return max(1, rows - 3 - len(_trouble_lines(facts, columns, now)))


def _title_line(facts: Facts, view: View, columns: int, now: float) -> Line:
    """Return the first line: the host, the state, the page and the time."""
    # unknown while there is trouble
    state = "" if _trouble_lines(facts, columns, now) else facts.values["State"]
    left = make_line(Piece("op-dbus", "bold"), f" on {facts.host}" if facts.host else "", "  ")
    left += make_line(Piece(state, _STATES.get(state, "")))
    if view.page is not Page.HOME:
        left += make_line("  ", Piece(view.page, "bold"))
    return spread(left, make_line(format_clock(now, now)), columns)


def _trouble_lines(facts: Facts, columns: int, now: float) -> list[Line]:
    """Return lines with the reason for missing updates, and the age of the shown facts."""
    age = now - facts.at
    text = facts.trouble
    if facts.at and age > _PATIENCE_SECONDS:
        text = text or "op-dbus does not answer"
    if not text:
        return [] if facts.at else [make_line(Piece("reading ...", "dim"))]
    if facts.at:
        text += f"; what is shown is from {timestamps.ago(age)}"
    return [*lines_beside(Piece("!", "red"), 1, text, columns, "yellow")]


def _home_lines(facts: Facts, view: View, columns: int, rows: int, now: float) -> Iterator[Line]:
    """Yield the lines of the first page."""
    top, lists = _split_home(facts, columns, rows, now)
    yield from top
    everything = [entry for _, found in lists for entry in found]
    at = view.selected_index(everything) if view.at >= 0 else -1
    for heading, found in lists:
        if rows >= _ROOMY:
            yield ()
        yield heading
        for entry in found:
            marked = at >= 0 and entry is everything[at]
            yield mark_selected(entry.lines[0], columns) if marked else entry.lines[0]


def _split_home(
    facts: Facts, columns: int, rows: int, now: float
) -> tuple[list[Line], list[tuple[Line, list[Entry]]]]:
    """Divide the lines of the first page between the summary and the two lists."""
    gaps = 2 if rows >= _ROOMY else 0
    top = _summary(facts, rows - gaps, now)
    return top, _home_lists(facts, columns, rows - len(top) - gaps, now) if top else []


def _page_lines(facts: Facts, view: View, columns: int, rows: int, now: float) -> Iterator[Line]:
    """Yield the lines of any other page: its heading, and a part of its entries."""
    found = page_entries(facts, view, columns, now)
    yield _page_heading(view)
    if not found:
        # no answer yet, or unfinished drift, must not read as nothing
        drifted = describe_drift_count(facts.values) if view.page is Page.DRIFT else ""
        nothing = drifted or _EMPTY_PAGES.get(view.page, "") if facts.values else ""
        yield from lines_beside(Piece(""), 1, view.note or nothing, columns, "dim")
    elif view.is_text:
        lines = [each for entry in found for each in entry.lines]
        first = max(0, min(view.at, len(lines) - rows + 1))
        yield from lines[first : first + rows - 1]
    else:
        yield from _list_lines(found, view, columns, rows - 1)


def _page_heading(view: View) -> Line:
    if view.page is Page.SEARCH:
        note = f"  {view.note}" if view.hits and view.note else ""
        return make_line(Piece("/", "cyan"), view.query, Piece("_", "dim"), Piece(note, "yellow"))
    if view.page is Page.OBJECT:
        return make_line(Piece(name_of_path(view.path), "bold"))
    return make_line(Piece(_HEADINGS.get(view.page, ""), "dim"))


def _list_lines(found: Sequence[Entry], view: View, columns: int, rows: int) -> Iterator[Line]:
    """Yield the part of a list with the selected entry: as many whole entries as fit."""
    at = view.selected_index(found)
    first = used = 0
    for number, entry in enumerate(found[: at + 1]):
        if used + len(entry.lines) > rows and number:
            first, used = number, 0
        used += len(entry.lines)
    for number, entry in enumerate(found[first:], first):
        if number == at and entry.lines:
            yield mark_selected(entry.lines[0], columns)
            yield from entry.lines[1:]
        else:
            yield from entry.lines
