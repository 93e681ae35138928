"""Validation of options and filters of calls, and the objects that a filter selects."""

from __future__ import annotations

import asyncio
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from opdbus.bus.transport.values import Plain
from opdbus.errors import InvalidArgs
from opdbus.index.catalogue.catalogue import FILTER_KEYS
from opdbus.index.catalogue.declarations import absence_of
from opdbus.index.query import condition_matching
from opdbus.index.search.hits import SearchRequest
from opdbus.index.state_store.state_store import StateStore
from opdbus.language import kinds
from opdbus.language.object_text import NOUNS
from opdbus.platform import name_lists
from opdbus.platform.lines import escape_hidden
from opdbus.state import conditions
from opdbus.state.object import UNIT, ObjectId

T = TypeVar("T")
# The type of an `a{sv}` argument.
Given: TypeAlias = dict[str, Plain]

MAX_LIMIT: Final = 10_000
# Characters of an option: names are compared with many others, and texts are matched by patterns.
MAX_CHARACTERS: Final = 10_000

_WORDS: Final = {str: "string", bool: "boolean", int: "integer", float: "double", list: "list"}
# The most names in a message: publishers may add any number.
_MAX_LISTED_NAMES: Final = 30
LIST_FILTER: Final = {**dict.fromkeys(FILTER_KEYS, str), "where": str}


class Options:
    """A call's `a{sv}`; raises InvalidArgs for an unknown key or a value of a wrong type."""

    def __init__(self, given: Given, accepted: Mapping[str, type]) -> None:
        for key, value in given.items():
            if key not in accepted:
                known = ", ".join(accepted) or "none"
                raise InvalidArgs(f"there is no option {key!r}; this method takes {known}")
            if type(value) is not accepted[key]:
                raise InvalidArgs(
                    f"the option {key!r} must be of type {_WORDS[accepted[key]]}, not"
                    f" {reprlib.repr(value)}"
                )
            if isinstance(value, str) and len(value) > MAX_CHARACTERS:
                raise InvalidArgs(
                    f"the option {key!r} has {len(value)} characters, past the limit of"
                    f" {MAX_CHARACTERS}"
                )
        self._given = given

    def get(self, key: str, default: T) -> T:
        """Return an option's value, or the default."""
        value: T = self._given.get(key, default)
        return value

    def wanted(self, *keys: str) -> dict[str, str]:
        """Return the given ones of some keys with their values, as a filter."""
        return {key: self._given[key] for key in keys if key in self._given}


def require_range(name: str, number: int, least: int, most: int = MAX_LIMIT) -> None:
    """Raise InvalidArgs for a number outside a range."""
    if not least <= number <= most:
        raise InvalidArgs(f"{name} must be from {least} to {most}, not {number}")


def one_of(name: str, given: str, accepted: Collection[str]) -> str:
    """Return a word if it is accepted; otherwise raise InvalidArgs."""
    if given not in accepted:
        raise InvalidArgs(
            f"{name} must be one of {', '.join(filter(None, accepted))}, not {given!r}"
        )
    return given


def page(limit: int, options: Options) -> SearchRequest:
    """Return the page of hits that limit and options define; raise InvalidArgs."""
    offset = options.get("offset", 0)
    require_range("limit", limit, 1)
    require_range("offset", offset, 0)
    where = conditions.parse(options.get("where", ""))
    is_explained = options.get("explain", default=False)
    return SearchRequest(
        limit, offset, options.wanted("plugin", "kind"), where, is_explained=is_explained
    )


async def require_kind(memory: StateStore, plugin: str = "", kind: str = "") -> None:
    """Raise InvalidArgs, with the known names, for a plugin or kind that never had an object.

    Kinds that op-dbus observes are valid before any object exists. Empty names match all.
    """
    known = {*NOUNS, UNIT, *memory.catalogue.kinds}
    if _has_kind(known, plugin, kind):
        return
    if await memory.archive.read(lambda store: store.history.has_kind(plugin, kind)):
        return
    if not _has_kind(known, plugin, ""):
        raise InvalidArgs(
            f"there is no plugin {plugin!r}; there are {_list_some(p for p, _ in known)}"
        )
    of = f" of {plugin}" if plugin else ""
    found = _list_some(k for p, k in known if plugin in {"", p})
    # the kinds that a word names in questions: `port` names `listener`
    named = kinds.requested(kind, frozenset()).named
    rows = (row for number, row in enumerate(kinds.rows()) if named >> number & 1)
    object_ids = {tuple(object_id.split("/")[:2]) for row in rows for object_id in row.object_ids}
    meant = _list_some(k for p, k in known if (p, k) in object_ids)
    hint = f"do you mean {meant}? There" if meant else "there"
    raise InvalidArgs(f"there is no kind {kind!r}{of}; {hint} are {found}")


def _has_kind(known: Iterable[tuple[str, str]], plugin: str, kind: str) -> bool:
    return any(plugin in {"", p} and kind in {"", k} for p, k in known)


def _list_some(names: Iterable[str]) -> str:
    return escape_hidden(name_lists.join_first(sorted(set(names)), _MAX_LISTED_NAMES))


async def find_objects(memory: StateStore, checked: Options) -> Sequence[ObjectId]:
    """Return the objects that match a filter, in listing order; raise InvalidArgs."""
    await require_kind(memory, **checked.wanted("plugin", "kind"))
    where = conditions.parse(checked.get("where", ""))
    within = await condition_matching.found(memory, where) if where else None
    wanted = checked.wanted(*FILTER_KEYS)
    found = await asyncio.to_thread(memory.catalogue.object_ids, wanted, within)
    renamed = memory.declarations.renamed()
    if not renamed:
        return found
    # a filter by plugin or source selects the names that match it
    there, one = frozenset(found), memory.declarations.one
    return [
        object_id for object_id in found if object_id not in renamed or one(object_id) not in there
    ]


async def find_declared_absent(memory: StateStore, declared: Sequence[ObjectId]) -> set[ObjectId]:
    """Return those of some objects, none of them observed, that are declared absent."""
    entries = [
        entry for object_id in declared for entry in memory.catalogue.require_entries(object_id)[:1]
    ]
    contents = await memory.content(entries)
    there = (entry for entry in entries if entry.id in contents)
    declarations = memory.declarations
    return {e.identity.object_id for e in there if absence_of(declarations, e, contents[e.id])}
