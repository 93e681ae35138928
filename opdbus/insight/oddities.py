"""Objects that are unlike their kind, with the fields and the text distance that make them so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opdbus.insight.survey import Quirk, Survey
    from opdbus.insight.text_outliers import Lonely
    from opdbus.state.object import ObjectId

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
    found = [odd for odd in found if odd.score >= _LEAST_BITS and _is_rare(odd)]
    return [*wrong, *_fewest(sorted(found, key=lambda odd: (-odd.score, odd.object_id)), size)]


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
            found.setdefault(place, []).append(max((each[place] for each in same), key=_telling))
    return {place: sorted(each, key=_telling, reverse=True) for place, each in found.items()}


def _telling(quirk: Quirk) -> tuple[float, bool, int]:
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


def _is_rare(odd: Odd) -> bool:
    """Return whether few objects are odd in the same way."""
    most = max(_ALIKE, _ALIKE_SHARE * odd.objects)
    return odd.distance is not None or odd.quirks[0].having <= most


def _fewest(found: Sequence[Odd], size: int) -> list[Odd]:
    """Return the oddest objects, at most 8 % of the kind or 2; ties at the limit are left out."""
    most = max(_FEW, int(_MOST_SHARE * size))
    limit = found[most].score if len(found) > most else 0.0
    return [odd for odd in found if odd.score > limit]
