"""Objects unlike their kind, by unusual values of fields and the distance of texts."""

from __future__ import annotations

import json
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from opdbus.index.catalogue.catalogue import representative
from opdbus.insight import fault_rules
from opdbus.insight.gathering import vectors_of
from opdbus.language.object_text import DESCRIBING, DOCUMENTS, VOLATILE
from opdbus.state import fields
from opdbus.state.secret_text import REDACTED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from opdbus.index.catalogue.catalogue import Catalogue
    from opdbus.index.vectors.vector_index import VectorIndex
    from opdbus.insight.clustering import Vectors
    from opdbus.state.object import Json, ObjectId

    Take: TypeAlias = Callable[[NDArray[np.intp]], Vectors]

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
# The least number of objects of a kind for a comparison.
LEAST: Final = 10
# An object stands out by a score of at least these bits, ...
_LEAST_BITS: Final = 3.0
# ... by a value that at most these many objects, or this share of them, have,
_ALIKE: Final = 1
_ALIKE_SHARE: Final = 0.001
# ... if no larger share of the kind is as odd.
_MOST_SHARE: Final = 0.08
_FEW: Final = 2
# Weight of each further field, relative to the one before.
_FURTHER: Final = 0.5
# The most objects that represent a kind; candidates are then compared with all objects.
_SAMPLE: Final = 1024
_AT_A_TIME: Final = 4096
_CHECKED: Final = 64
# Bits for each interquartile range (at least _LEAST_RANGE) by which the cosine to the nearest
# object is below the median cosine of two objects; _MOST_BITS at most.
_BITS: Final = 6.0
_LEAST_RANGE: Final = 0.1
_MOST_BITS: Final = 6.0


class Lonely(NamedTuple):
    """Distance and row of the nearest other object, median distance of two, and score in bits."""

    distance: float
    nearest: int
    usual: float
    bits: float


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


@dataclass(frozen=True, slots=True)
class Odd:
    """An object that is unlike its kind of `objects` objects; the worst field first."""

    object_id: ObjectId
    score: float
    objects: int
    quirks: tuple[Quirk, ...]
    # None if its text is similar to others, or is not compared
    distance: float | None = None
    usual_distance: float | None = None
    nearest: ObjectId | None = None


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

        def without_name(text: str) -> str:
            for part, sign in _placeholders(object_id):
                text = text.replace(part, sign) if len(part) >= _SHORTEST else text
            return text

        row = array("i")
        for path, value in states(properties, without_name).items():
            field = self._fields.get(path)
            if field is None:
                if len(self._fields) == _MOST_FIELDS:
                    continue
                field = self._fields[path] = len(self._fields)
                self._counts.append(0)
            key = _Value(field, value)
            if key not in self._values:
                self._counts[field] += 1
                if self._counts[field] > _MOST_VALUES:
                    # further values of a field share a number
                    key = _Value(field, "")
            row.append(self._values.setdefault(key, len(self._values)))
        self.object_ids.append(object_id)
        self._rows.append(row)

    def may_be_odd(self, place: int, field: str = "") -> bool:
        """Return whether an object may be odd in a field, or in its text (no field)."""
        return place not in self._ordinary or field in fault_rules.STATES

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
        held = ["" if value == _NONE else texts[value].text for value in values]
        usual = sorted(
            (
                (held[n].replace(_NAME, "*").replace(_INSTANCE, "*"), int(counts[n]))
                for n in np.flatnonzero(is_usual)
            ),
            key=lambda row: -row[1],
        )
        for number in np.flatnonzero(~is_usual):
            having, found = int(counts[number]), {}
            bits = (math.log2(len(has) / having) + math.log2(len(has) / others)) / 2
            for place in np.flatnonzero(places == number).tolist():
                value = held[number]
                for part, sign in _placeholders(self.object_ids[place]):
                    value = value.replace(sign, json.dumps(part, ensure_ascii=False)[1:-1])
                found[place] = Quirk(field, value, having, tuple(usual), bits)
            yield found


def states(
    properties: Mapping[str, Json], convert: Callable[[str], str] = lambda text: text
) -> Mapping[str, str]:
    """Return each field's value as JSON, with list items sorted; descriptions are left out.

    `convert` is applied to each text before.
    """
    found: dict[str, list[Json]] = {}
    for path, _, value in fields.leaves(properties):
        if value not in (None, ""):
            found.setdefault(path, []).append(convert(value) if isinstance(value, str) else value)
    result = {}
    for path, values in found.items():
        words = fields.split(path.rpartition(".")[2])
        if VOLATILE.isdisjoint(words) and "".join(words) not in _TEXTS:
            result[path] = _as_json(values)
    return result


def _as_json(values: list[Json]) -> str:
    """Return the values of a path as JSON; a redacted value becomes one constant."""
    texts = sorted({json.dumps(value, ensure_ascii=False) for value in values})
    whole = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    if REDACTED in whole:
        return json.dumps(REDACTED)
    if len(whole) <= _LONGEST:
        return whole
    return json.dumps(f"{', '.join(map(str, values))[:_LONGEST]}...", ensure_ascii=False)


def _placeholders(object_id: ObjectId) -> Iterator[tuple[str, str]]:
    """Yield the parts of values that name the object, and their placeholders."""
    stem = object_id.name.rpartition(".")[0] if object_id.kind == "unit" else object_id.name
    yield stem, _NAME
    yield stem.partition("@")[2], _INSTANCE


def outliers(survey: Survey, lonely: Mapping[int, Lonely]) -> list[Odd]:
    """Return the objects of one kind that stand out, the worst first; keys are survey rows.

    Violations of a rule are returned for small kinds, too.
    """
    faults = survey.faults()
    wrong = [_odd(survey.object_ids, n, [quirk], None) for n, quirk in faults.items()]
    wrong.sort(key=lambda odd: odd.object_id)
    size = len(survey.object_ids)
    if size < LEAST:
        return wrong
    quirks = _quirks(survey)
    lonely = {place: each for place, each in lonely.items() if survey.may_be_odd(place)}
    places = {*quirks, *lonely} - faults.keys()
    found = [_odd(survey.object_ids, n, quirks.get(n, ()), lonely.get(n)) for n in places]
    # few objects are odd in the same way
    rare = max(_ALIKE, _ALIKE_SHARE * size)
    found = [
        odd
        for odd in found
        if odd.score >= _LEAST_BITS and (odd.distance is not None or odd.quirks[0].having <= rare)
    ]
    found.sort(key=lambda odd: (-odd.score, odd.object_id))
    # at most 8 % of the kind or 2; ties at the limit are left out
    most = max(_FEW, int(_MOST_SHARE * size))
    limit = found[most].score if len(found) > most else 0.0
    return [*wrong, *(odd for odd in found if odd.score > limit)]


def _quirks(survey: Survey) -> Mapping[int, Sequence[Quirk]]:
    """Return the odd fields of each object, the worst first.

    Of several fields that mean the same for the same objects, one is returned: a masked unit has
    two.
    """
    by_word: dict[tuple[frozenset[int], str], list[Mapping[int, Quirk]]] = {}
    for every in survey.quirks():
        one = next(iter(every.values()))
        having = {n: quirk for n, quirk in every.items() if survey.may_be_odd(n, one.field)}
        by_word.setdefault((frozenset(having), one.word), []).append(having)
    found: dict[int, list[Quirk]] = {}
    for (objects, _), same in by_word.items():
        for place in objects:
            found.setdefault(place, []).append(max((each[place] for each in same), key=_oddness))
    return {place: sorted(each, key=_oddness, reverse=True) for place, each in found.items()}


def _oddness(quirk: Quirk) -> tuple[float, bool, int]:
    """Return the sort key of a quirk: odder, present, and shorter ones are larger."""
    return quirk.bits, bool(quirk.value), -len(quirk.field) - len(quirk.value)


def _odd(
    object_ids: Sequence[ObjectId], place: int, quirks: Sequence[Quirk], lonely: Lonely | None
) -> Odd:
    bits = sorted([*(q.bits for q in quirks), *([lonely.bits] if lonely else [])], reverse=True)
    score = sum(each * _FURTHER**n for n, each in enumerate(bits))
    odd = Odd(object_ids[place], score, len(object_ids), tuple(quirks))
    if lonely is None:
        return odd
    near = object_ids[lonely.nearest]
    return replace(odd, distance=lonely.distance, usual_distance=lonely.usual, nearest=near)


def far_from_all(
    object_ids: Sequence[ObjectId], catalogue: Catalogue, index: VectorIndex | None
) -> Mapping[int, Lonely]:
    """Return the objects of a kind that differ from all others, if all have vectors."""
    about = [catalogue.entries(object_id) for object_id in object_ids]
    digests = [representative(entries).text_digest for entries in about if entries]
    if index is None or len(digests) < len(object_ids) or not all(d in index for d in digests):
        return {}
    return lonely(len(digests), lambda rows: vectors_of(index, [digests[n] for n in rows]))


def lonely(count: int, take: Take) -> dict[int, Lonely]:
    """Return the rows of `count` objects that differ from all others.

    Such an object is further from the nearest other one than the median distance of two objects.
    `take` returns the vectors (rows, dimension) of rows.
    """
    if count == 1:
        return {}
    sample = np.sort(np.random.default_rng(0).permutation(count)[:_SAMPLE])
    vectors = take(sample)
    pairs = (vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]
    low, middle, high = np.quantile(pairs, (0.25, 0.5, 0.75)).tolist()
    cosines, nearest = _nearest(np.arange(count), take, sample)
    far = np.flatnonzero(cosines < middle)
    far = far[np.argsort(cosines[far], kind="stable")][:_CHECKED]
    if count > _SAMPLE:
        # objects outside the sample may be nearer: compare with all, in bounded memory
        cosines[far] = -np.inf
        for at in range(0, count, _AT_A_TIME):
            others = np.arange(at, min(at + _AT_A_TIME, count))
            best, places = _nearest(far, take, others)
            is_nearer = best > cosines[far]
            rows = far[is_nearer]
            cosines[rows], nearest[rows] = best[is_nearer], places[is_nearer]
    found = {}
    for row in far[cosines[far] < middle].tolist():
        further = (middle - float(cosines[row])) / max(_LEAST_RANGE, high - low)
        bits = min(_MOST_BITS, _BITS * further)
        found[row] = Lonely(1 - float(cosines[row]), int(nearest[row]), 1 - middle, bits)
    return found


def _nearest(
    rows: NDArray[np.intp], take: Take, others: NDArray[np.intp]
) -> tuple[Vectors, NDArray[np.intp]]:
    """Return the cosine of each row to the nearest other row of `others`, and that row."""
    known = take(others)
    cosines, nearest = np.empty(len(rows), np.float32), np.empty(len(rows), np.intp)
    for at in range(0, len(rows), _AT_A_TIME):
        part = rows[at : at + _AT_A_TIME]
        found = take(part) @ known.T
        found[part[:, None] == others[None, :]] = -1
        best = found.argmax(axis=1)
        cosines[at : at + len(part)] = found[np.arange(len(part)), best]
        nearest[at : at + len(part)] = others[best]
    return cosines, nearest
