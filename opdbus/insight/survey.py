"""The values of each field in one kind: the usual ones, and the objects with others. Pure."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from opdbus.insight import fault_rules
from opdbus.language.object_text import DESCRIBING, DOCUMENTS, VOLATILE
from opdbus.state import fields
from opdbus.state.secret_text import REDACTED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opdbus.state.object import Json, ObjectId

# The least number and share of objects that have a usual value.
_USUAL: Final = 3
_USUAL_SHARE: Final = 0.05
# The largest share of objects with unusual values in a field that the rest agrees on.
_OTHERS_SHARE: Final = 0.1
# Fields with more values are left out.
_MOST_VALUES: Final = 256
_MOST_FIELDS: Final = 1000
_LONGEST: Final = 200
# Placeholders inside of values for the object's name and for its part after an @: private-use
# characters, which no text has and JSON leaves unescaped.
_NAME: Final = "\ue000"
_INSTANCE: Final = "\ue001"
_SHORTEST: Final = 3
# Texts and lists of texts that describe an object are no states.
_TEXTS: Final = frozenset((*DESCRIBING, *chain(*DOCUMENTS), "documentation"))
# The score of a violated rule, in bits.
_BITS_OF_FAULT: Final = 64.0
# The number of a missing value.
_NONE: Final = -1


@dataclass(frozen=True, slots=True)
class Quirk:
    """An unusual value of a field as JSON, empty if the object has no such field.

    `having` is the number of objects of the kind with this value; `usual` has the usual values and
    their numbers, with * for the name of each object.
    """

    field: str
    value: str
    having: int
    usual: tuple[tuple[str, int], ...]
    # surprise, in bits
    bits: float

    @property
    def word(self) -> str:
        """The meaning in a word: `masked: true` means the same as `load_state: "masked"`."""
        return self.field if self.value == "true" else self.value.strip('"')


class _Value(NamedTuple):
    field: int
    text: str


class Survey:
    """The fields and values of the objects of one kind."""

    def __init__(self, services: AbstractSet[str] = frozenset()) -> None:
        # names of system accounts
        self._services = services
        self.object_ids: list[ObjectId] = []
        self._fields: dict[str, int] = {}
        self._values: dict[_Value, int] = {}
        # the number of distinct values of each field
        self._counts: list[int] = []
        self._rows: list[array[int]] = []
        self._rules: dict[int, fault_rules.Rule] = {}
        # rows of objects of the distribution or the hardware
        self._ordinary: set[int] = set()

    def add(self, object_id: ObjectId, properties: Mapping[str, Json]) -> None:
        """Add an object without its volatile fields and texts."""
        if rule := fault_rules.rule_of(object_id, properties, self._services):
            self._rules[len(self.object_ids)] = rule
        if fault_rules.is_ordinary(object_id, properties):
            self._ordinary.add(len(self.object_ids))
        row = array("i")
        for path, value in states(properties, partial(_without_name, object_id=object_id)).items():
            field = self._fields.get(path)
            if field is None:
                if len(self._fields) == _MOST_FIELDS:
                    continue
                field = self._fields[path] = len(self._fields)
                self._counts.append(0)
            row.append(self._number(field, value))
        self.object_ids.append(object_id)
        self._rows.append(row)

    def may_be_odd(self, place: int, field: str = "") -> bool:
        """Return whether an object may be odd in a field, or in its text (no field)."""
        return place not in self._ordinary or fault_rules.is_state(field)

    def faults(self) -> Mapping[int, Quirk]:
        """Return the violations of rules, by row."""
        counts = Counter(rule.value for rule in self._rules.values())
        return {
            place: Quirk(
                rule.field,
                json.dumps(rule.value, ensure_ascii=False),
                counts[rule.value],
                ((json.dumps(rule.usual), counts[rule.usual]),),
                _BITS_OF_FAULT,
            )
            for place, rule in self._rules.items()
            # without a usual example, the rule does not apply here
            if rule.is_fault and counts[rule.usual]
        }

    def quirks(self) -> Iterator[Mapping[int, Quirk]]:
        """Yield the objects with each unusual value, by row, in fields that the rest agrees on."""
        rows = np.repeat(np.arange(len(self._rows)), [len(row) for row in self._rows])
        held = np.fromiter(chain.from_iterable(self._rows), np.intp, len(rows))
        texts = list(self._values)
        of = np.array([value.field for value in texts], np.intp)[held]
        order = np.argsort(of, kind="stable")
        starts = np.searchsorted(of[order], np.arange(len(self._fields) + 1))
        for field, number in self._fields.items():
            if self._counts[number] <= _MOST_VALUES:
                having = order[starts[number] : starts[number + 1]]
                has = np.full(len(self._rows), _NONE)
                has[rows[having]] = held[having]
                yield from self._unusual(field, has, texts)

    def _unusual(
        self, field: str, has: NDArray[np.intp], texts: Sequence[_Value]
    ) -> Iterator[Mapping[int, Quirk]]:
        values, places, counts = np.unique(has, return_inverse=True, return_counts=True)
        is_usual = counts >= max(_USUAL, _USUAL_SHARE * len(has))
        others = int(counts[~is_usual].sum())
        if not 0 < others <= _OTHERS_SHARE * len(has):
            return
        said = ["" if value == _NONE else texts[value].text for value in values]
        usual = sorted(
            ((_with_any_name(said[n]), int(counts[n])) for n in np.flatnonzero(is_usual)),
            key=lambda row: -row[1],
        )
        for number in np.flatnonzero(~is_usual):
            having = int(counts[number])
            bits = (math.log2(len(has) / having) + math.log2(len(has) / others)) / 2
            quirk = Quirk(field, said[number], having, tuple(usual), bits)
            found = np.flatnonzero(places == number).tolist()
            yield {place: self._named(quirk, place) for place in found}

    def _named(self, quirk: Quirk, place: int) -> Quirk:
        """Replace the placeholders in a value by the object's name."""
        value = _with_name(quirk.value, self.object_ids[place])
        return quirk if value == quirk.value else replace(quirk, value=value)

    def _number(self, field: int, text: str) -> int:
        """Return the number of a value; past _MOST_VALUES, new values of a field share one."""
        value = _Value(field, text)
        number = self._values.get(value)
        if number is None:
            self._counts[field] += 1
            if self._counts[field] > _MOST_VALUES:
                value = _Value(field, "")
            number = self._values.setdefault(value, len(self._values))
        return number


def states(
    properties: Mapping[str, Json], said: Callable[[str], str] = lambda text: text
) -> Mapping[str, str]:
    """Return each field's value as JSON, with list items sorted; descriptions are left out.

    `said` converts each text before the comparison.
    """
    found: dict[str, list[Json]] = {}
    for path, _, value in fields.leaves(properties):
        if value not in (None, ""):
            found.setdefault(path, []).append(said(value) if isinstance(value, str) else value)
    return {path: _as_json(values) for path, values in found.items() if _is_state(path)}


def _is_state(path: str) -> bool:
    words = fields.split(path.rpartition(".")[2])
    return VOLATILE.isdisjoint(words) and "".join(words) not in _TEXTS


def _as_json(values: list[Json]) -> str:
    """Return the values of a path as JSON; a redacted value becomes one constant."""
    texts = sorted({json.dumps(value, ensure_ascii=False) for value in values})
    whole = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    if REDACTED in whole:
        return json.dumps(REDACTED)
    if len(whole) <= _LONGEST:
        return whole
    return json.dumps(f"{', '.join(map(str, values))[:_LONGEST]}...", ensure_ascii=False)


def _names(object_id: ObjectId) -> Iterator[tuple[str, str]]:
    stem = object_id.name.rpartition(".")[0] if object_id.kind == "unit" else object_id.name
    yield stem, _NAME
    yield stem.partition("@")[2], _INSTANCE


def _without_name(text: str, object_id: ObjectId) -> str:
    for part, sign in _names(object_id):
        if len(part) >= _SHORTEST:
            text = text.replace(part, sign)
    return text


def _with_name(text: str, object_id: ObjectId) -> str:
    for part, sign in _names(object_id):
        text = text.replace(sign, json.dumps(part, ensure_ascii=False)[1:-1])
    return text


def _with_any_name(text: str) -> str:
    return text.replace(_NAME, "*").replace(_INSTANCE, "*")
