"""Whose objects may be replaced and withdrawn by whom. Pure."""

from collections.abc import Sequence
from typing import Final

from opdbus.errors import AccessDenied
from opdbus.index.database.store import Entry
from opdbus.state.object import FILE, PUBLISHED

ROOT: Final = 0


def require_owner(entry: Entry, owner: int) -> None:
    """Raise AccessDenied if an entry that is to be replaced is another's."""
    if owner not in {ROOT, entry.owner}:
        raise AccessDenied(
            f"{'/'.join(entry.identity[1:])} of {entry.identity.source} belongs to uid"
            f" {entry.owner}: publish under a source name of your own"
        )


def owned(entries: Sequence[Entry], owner: int) -> list[Entry]:
    """Return those of the entries about a thing that an owner published; raises AccessDenied."""
    published = [e for e in entries if e.identity.source.startswith(PUBLISHED)]
    mine = [e for e in published if owner in {ROOT, e.owner}]
    if not mine:
        first = entries[0].identity
        other = "the state file declares it" if first.source == FILE else "op-dbus observes it"
        raise AccessDenied(
            f"{'/'.join(first[1:])} was not published by you, so you cannot withdraw it;"
            f" {'its publisher can' if published else other}"
        )
    return mine
