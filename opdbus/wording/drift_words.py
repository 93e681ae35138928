"""Drift in words: a sentence for each field that differs from its declaration."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from opdbus.platform import name_lists
from opdbus.wording.change_words import (
    NOT_DECLARED,
    at_least_prefix,
    describe_difference,
    subject_of,
)

# Longer values are cut, around the difference.
_MAX_VALUE: Final = 1000
# Fields whose values are understood without the field's name.
_CLEAR_FIELDS: Final = frozenset("active_state state status ensure presence running".split())


def describe_row(object_id: tuple[str, str, str], row: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the severity and a sentence for each field of a row of DriftReport.

    `object_id` is plugin, kind and name, from the path in the row.
    """
    _, what, _, _, _, fields = row
    kind_id, who = object_id[:2], subject_of(object_id[:2], object_id[2])
    mark = " (newly declared)" if what == "intended" else ""
    for name, declared, observed, severity in fields:
        field = "" if name in _CLEAR_FIELDS else f"{name} "
        sides = _format_side(declared), _format_side(observed)
        # JSON shows the difference of, for example, a number and the same digits in quotes
        sides = (declared, observed) if sides[0] == sides[1] else sides
        sides = name_lists.show_difference(*sides, _MAX_VALUE)
        least = at_least_prefix(kind_id, name)
        values = f"declared {least}{sides[0]}, observed {sides[1]}"
        said = describe_difference(name, _value_of(declared), _value_of(observed))
        if said and not least:
            field, values = "", said
        if _format_side(declared) == NOT_DECLARED:
            field, values = "", "is there, and not declared"
        yield severity, f"{who}: {field}{values}{mark}"


def _format_side(text: str) -> str:
    value = _value_of(text)
    if isinstance(value, list) and not any(isinstance(one, dict | list) for one in value):
        return ", ".join(map(name_lists.format_value, value)) or "none"
    if isinstance(value, dict | list):
        return text
    return name_lists.format_value(value) or "none"


def _value_of(text: str) -> object:
    return json.loads(text) if text else None
