"""What raises entries besides what they say: values, sorts and names that a question has."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.language.kinds import RequestedKinds
from opdbus.platform.slices import parts

# Weight of having all values that a question names, if they are rare: measured by questions about
# values (tests/data/value_questions.json), and so that an exact name still wins.
VALUE_WEIGHT: Final = 0.4
# What it is worth to be of the sort that a question asks for: measured by
# benchmarks/host/questions.py.
KIND_WEIGHT: Final = 0.15
# What it counts that a word of a question is the whole name of a thing.
NAME_WEIGHT: Final = 0.2
# What it counts that a question is nothing but the name of a thing: more than anything else.
ALONE_WEIGHT: Final = 1.0
# What it is worth to be both of such a sort and of the values that a question names, if few are.
BOTH_WEIGHT: Final = 0.4

EVERY: Final = slice(None)


class Boosts(NamedTuple):
    """What counts besides what entries say (entries,).

    `values` are shares of the values that a question names, None if it names none; `kinds` is what
    the sort of each entry adds to its score, or takes from it.
    """

    values: NDArray[np.float32] | None
    kinds: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class BoostPlan:
    """What raises so many entries; `at` tells it of those at some places.

    Sorts add at most so much, but for those entries that are `named`, and values no more than
    `values` say: few entries have a chance to be among the best, and the others are not looked at.
    """

    entries: int
    at: Callable[[NDArray[np.intp]], Boosts]
    most: float
    named: NDArray[np.intp]
    values: NDArray[np.float32] | None


def named_values(
    having: Sequence[NDArray[np.bool_]], objects: int, at: NDArray[np.intp] | slice = EVERY
) -> NDArray[np.float32] | None:
    """Return how much some entries have of the values that a question names, at most 1 (entries,).

    `having` says of each value which of all entries have it; None if the question names none. A
    value that few of the `objects` have counts most, one that all have counts nothing; to have all
    of several counts as a value does that so few have.
    """
    if not having:
        return None
    one_by_one = np.zeros(len(having[0][at]), np.float32)
    for mask in having:
        weight = _rarity(int(np.count_nonzero(mask)), objects) / len(having)
        some = mask[at]
        for part in parts(len(one_by_one)):
            one_by_one[part] += some[part] * np.float32(weight)
    if len(having) == 1:
        return one_by_one
    every = reduce(np.logical_and, having)
    together = np.float32(_rarity(int(np.count_nonzero(every)), objects))
    return np.maximum(one_by_one, every[at] * together)


def named_kinds(
    asked: RequestedKinds,
    kinds: NDArray[np.int64],
    less: NDArray[np.float32],
    values: NDArray[np.float32] | None,
) -> NDArray[np.float32]:
    """Return what the sorts of entries (entries,) add to their scores: see Raised."""
    if not asked.named:
        return -less
    more: NDArray[np.float32] = (kinds & asked.subject != 0) * np.float32(KIND_WEIGHT)
    if values is not None:
        more += BOTH_WEIGHT * values
    return np.where(kinds & asked.named != 0, more, -less)


def _rarity(having: int, objects: int) -> float:
    return math.log(objects / having) / math.log(objects) if 0 < having < objects else 0.0
