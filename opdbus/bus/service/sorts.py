"""Validation of the plugins and kinds that callers name."""

from collections.abc import Iterable
from typing import Final

from opdbus.errors import InvalidArgs
from opdbus.index.changes import connections, history_reader
from opdbus.index.state_store.state_store import StateStore
from opdbus.language import kinds
from opdbus.language.object_text import NOUNS
from opdbus.platform import name_lists

# The most names in a message: publishers may add any number.
_MOST: Final = 30


async def require(memory: StateStore, plugin: str = "", kind: str = "") -> None:
    """Raise InvalidArgs, with the known names, for a plugin or kind that never had an object.

    Kinds that op-dbus observes are valid before any object exists. Empty names match all.
    """
    known = {*NOUNS, connections.UNIT, *memory.catalogue.sorts}
    if _fits(known, plugin, kind):
        return
    known |= {object_id[:2] for object_id in await history_reader.object_ids(memory)}
    if _fits(known, plugin, kind):
        return
    if not _fits(known, plugin, ""):
        raise InvalidArgs(f"there is no plugin {plugin!r}; there are {_some(p for p, _ in known)}")
    of = f" of {plugin}" if plugin else ""
    found = _some(k for p, k in known if plugin in {"", p})
    hint = f"do you mean {meant}? There" if (meant := _meant(kind, known)) else "there"
    raise InvalidArgs(f"there is no kind {kind!r}{of}; {hint} are {found}")


def _fits(known: Iterable[tuple[str, str]], plugin: str, kind: str) -> bool:
    return any(plugin in {"", p} and kind in {"", k} for p, k in known)


def _meant(word: str, known: Iterable[tuple[str, str]]) -> str:
    """Return the kinds that a word names in questions: `port` names `listener`."""
    named = kinds.requested(word, frozenset()).named
    rows = (row for number, row in enumerate(kinds.rows()) if named >> number & 1)
    object_ids = {tuple(object_id.split("/")[:2]) for row in rows for object_id in row.object_ids}
    return _some(kind for plugin, kind in known if (plugin, kind) in object_ids)


def _some(names: Iterable[str]) -> str:
    return name_lists.first(sorted(set(names)), _MOST)
