"""State of the view, and its transitions by keys; pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.cli.top.terminal import Line
from opdbus.wording.change_words import Change


class Page(StrEnum):
    """The pages, with their titles."""

    HOME = "home"
    CHANGES = "changes"
    DRIFT = "drift"
    OBSERVERS = "observers"
    SEARCH = "search"
    GROUP = "the changes of one line"
    OBJECT = "object"
    HELP = "help"


class Entry(NamedTuple):
    """A selectable entry: its lines, and the path of its object or its changes."""

    key: Hashable
    lines: tuple[Line, ...]
    opens: str | Sequence[Change] = ""


@dataclass(frozen=True, slots=True)
class View:
    """A page and the selection on it; Escape goes back to `below`.

    `at` is the index of the selected entry, or of the first line of a text. `key` identifies the
    selected entry when it moves. `note` is a status or error message.
    """

    page: Page = Page.HOME
    at: int = 0
    key: Hashable = None
    query: str = ""
    hits: Sequence[Sequence[Any]] = ()
    rows: Sequence[Change] = ()
    path: str = ""
    said: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    below: View | None = None

    @property
    def is_text(self) -> bool:
        """True if the page is text without selectable entries."""
        return self.page in {Page.OBJECT, Page.HELP, Page.OBSERVERS}

    def selected_index(self, entries: Sequence[Entry]) -> int:
        """Return the index of the selected entry, 0 if there is none."""
        places = (at for at, entry in enumerate(entries) if entry.key == self.key)
        return next(places, max(0, min(self.at, len(entries) - 1)))

    def on(self, page: Page, **more: Any) -> View:
        """Return another page on top of this one."""
        return View(page, below=self, **more)


class Search(NamedTuple):
    """Request to search objects."""

    query: str


class Show(NamedTuple):
    """Request to read an object."""

    path: str


Wish: TypeAlias = Search | Show | None
_PAGES: Final = {
    "c": Page.CHANGES,
    "d": Page.DRIFT,
    "o": Page.OBSERVERS,
    "/": Page.SEARCH,
    "?": Page.HELP,
}


def press(view: View, key: str, entries: Sequence[Entry], rows: int) -> tuple[View | None, Wish]:
    """Return the view after a key, None at the end, and a request.

    `rows` is the number of lines that the page has for its entries.
    """
    if key == "escape":
        return (view.below or view), None
    far = 1 << 30
    moves = {"up": -1, "down": 1, "page up": -rows, "page down": rows, "home": -far, "end": far}
    if steps := moves.get(key):
        return _move(view, steps, entries, rows), None
    if key == "enter":
        return _open(view, entries)
    if view.page is Page.SEARCH:
        return _type(view, key)
    if key == "q":
        return None, None
    if key in _PAGES and _PAGES[key] is not view.page:
        # pages that keys open do not stack
        while view.below and (view.page in _PAGES.values() or view.page is _PAGES[key]):
            view = view.below
        return view.on(_PAGES[key]), None
    return view, None


def _move(view: View, steps: int, entries: Sequence[Entry], rows: int) -> View:
    """Move the selection, or a text."""
    if view.is_text:
        last = sum(len(entry.lines) for entry in entries) - rows
        return replace(view, at=max(0, min(view.at + steps, last)))
    at = max(0, min(view.selected_index(entries) + steps, len(entries) - 1))
    # at the top, the selection stays on the first entry, also when a new one comes
    return replace(view, at=at, key=entries[at].key if at else None)


def _open(view: View, entries: Sequence[Entry]) -> tuple[View, Wish]:
    """Open the object of the selected entry, or the changes that it stands for."""
    opens = entries[view.selected_index(entries)].opens if entries and not view.is_text else ""
    if isinstance(opens, str):
        if not opens:
            return view, None
        return view.on(Page.OBJECT, path=opens, note="reading ..."), Show(opens)
    return view.on(Page.GROUP, rows=opens), None


def _type(view: View, key: str) -> tuple[View, Wish]:
    """Change the query of a search, and request it."""
    words = {"clear": "", "backspace": view.query[:-1]}
    query = words.get(key, view.query + key if len(key) == 1 else view.query)
    if query == view.query:
        return view, None
    if not query.strip():
        return View(Page.SEARCH, query=query, below=view.below), Search("")
    return replace(view, query=query, at=0, key=None, note="searching ..."), Search(query)
