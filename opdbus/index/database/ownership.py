"""Rules for which user may replace or withdraw an object. Pure."""

from collections.abc import Sequence
from typing import Final

from opdbus.errors import AccessDenied
from opdbus.index.database.store import Entry
from opdbus.state.object import FILE, PUBLISHED

ROOT: Final = 0


def require_owner(entry: Entry, owner: int) -> None:
    """Raise AccessDenied unless `owner` may replace an entry: its owner, or root."""
    if owner not in {ROOT, entry.owner}:
        raise AccessDenied(
            f"{'/'.join(entry.identity[1:])} of {entry.identity.source} belongs to uid"
            f" {entry.owner}: publish under a source name of your own"
        )


def owned(entries: Sequence[Entry], owner: int) -> list[Entry]:
    """Return the published entries of an object that `owner` may withdraw.

    Raises AccessDenied if there is none. `entries` must not be empty.
    """
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
