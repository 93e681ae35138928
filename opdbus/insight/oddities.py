"""Objects that are unlike their kind: which fields make them so, and how their text is unlike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from opdbus.insight.survey import Quirk, Survey
    from opdbus.insight.text_outliers import Lonely
    from opdbus.state.object import ObjectId

# Of fewer objects nobody knows what is usual.
LEAST: Final = 10
# What stands out: as surprising as one of eight, ...
_LEAST_BITS: Final = 3.0
# ... by a value that so many others may have at most, ...
_ALIKE: Final = 1
_ALIKE_SHARE: Final = 0.001
# ... and not more of a kind than this share: what many are is not odd.
_MOST_SHARE: Final = 0.08
_FEW: Final = 2
# Each further field tells half as much as the one before it.
_FURTHER: Final = 0.5


@dataclass(frozen=True, slots=True)
class Odd:
    """An object that is unlike its kind, which has so many objects; the worst field first."""

    object_id: ObjectId
    score: float
    objects: int
    quirks: tuple[Quirk, ...]
    # None where its text is like that of others, or is not compared
    distance: float | None = None
    usual_distance: float | None = None
    nearest: ObjectId | None = None


def outliers(survey: Survey, lonely: Mapping[int, Lonely]) -> list[Odd]:
    """Return what stands out of one kind, the worst first; rows are those of the survey.

    What is not as a rule has it stands out of few objects, too.
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
    """Return the fields of each object that are odd, the worst first.

    Of several that say the same of the same objects one is told: a masked unit is so in two.
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
    """Order fields: by how odd they are, one that is there, one that is told in few words."""
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
    """Return whether few are odd in the same way."""
    most = max(_ALIKE, _ALIKE_SHARE * odd.objects)
    return odd.distance is not None or odd.quirks[0].having <= most


def _fewest(found: Sequence[Odd], size: int) -> list[Odd]:
    """Leave out the less odd ones where they are many, all that are as odd included."""
    most = max(_FEW, int(_MOST_SHARE * size))
    limit = found[most].score if len(found) > most else 0.0
    return [odd for odd in found if odd.score > limit]
