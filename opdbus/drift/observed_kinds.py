"""The kinds that op-dbus observes itself, and suggestions for misspelled kinds and fields."""

import difflib
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final

from opdbus.drift import equality, rule_table, word_values
from opdbus.language import kinds
from opdbus.state.object import SETTINGS, KindId, StateObject

# Similarity from which a name counts as a misspelling of another.
_ALIKE: Final = 0.85

_SETTINGS: Final = (
    "settings are compared of system and sysctl alone; objects are written as"
    ' [{"name": ...}] or {NAME: {...}}'
)


def is_observed(kind_id: KindId) -> bool:
    """Return whether op-dbus itself observes objects for a declared kind."""
    return "/".join(kind_id) in observed_kinds()


def why_not(kind_id: KindId) -> str:
    """Return the reason why no object of a kind is observed, with a suggestion."""
    if kind_id[1] == SETTINGS:
        return _SETTINGS
    name = "/".join(kind_id)
    close = difflib.get_close_matches(name, observed_kinds() - {name}, 1, _ALIKE)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"nothing observes such things, unless a program publishes them{meant}"


def puzzles(objects: Iterable[StateObject]) -> Iterator[str]:
    """Yield messages about unknown words, each with the first object that has it.

    A field is misspelled if its name is similar to one that is compared.
    """
    found: dict[str, list[str]] = {}
    for item in objects:
        rules = rule_table.of_declared((item.plugin, item.kind)).rules
        for key, value in item.properties.items():
            field = equality.normalize_key(key)
            rule = rules.get(field)
            if puzzle := word_values.puzzle(rule.means, value) if rule else _suggest(field, rules):
                name = "/".join((item.plugin, item.kind, item.name))
                found.setdefault(f"{field}: {puzzle}", []).append(name)
    for puzzle, (first, *more) in found.items():
        yield f"{first}{f' and {len(more)} more' if more else ''}: {puzzle}"


def _suggest(field: str, known: Iterable[str]) -> str:
    close = next(iter(difflib.get_close_matches(field, known, 1, _ALIKE)), field)
    # singular and plural both exist, such as an account's `group` and `groups`
    return "" if close.rstrip("s") == field.rstrip("s") else f"did you mean {close}?"


@cache
def observed_kinds() -> frozenset[str]:
    """Return all observed kinds, as PLUGIN/KIND."""
    object_ids = (
        object_id
        for row in kinds.rows()
        for object_id in row.object_ids
        if object_id.count("/") > 1
    )
    observed = {"/".join(object_id.split("/")[:2]) for object_id in object_ids}
    return frozenset(observed | {"/".join(kind_id) for kind_id in rule_table.DECLARED})
