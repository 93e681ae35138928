"""Score boosts for field values, kinds and exact names in a query."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.language.kinds import RequestedKinds
from opdbus.platform.slices import parts

# Weight of the share of named values: fitted on tests/data/value_questions.json, and small enough
# that an exact name still wins.
VALUE_WEIGHT: Final = 0.4
# Boost of an entry of a kind that the query asks for: fitted by benchmarks/host/questions.py.
KIND_WEIGHT: Final = 0.15
# Boost of an entry whose whole name is a word of the query.
NAME_WEIGHT: Final = 0.2
# Boost of an entry whose name is the whole query: larger than any other.
ALONE_WEIGHT: Final = 1.0
# Weight of the share of named values, added to VALUE_WEIGHT, for an entry of a named kind.
BOTH_WEIGHT: Final = 0.4

EVERY: Final = slice(None)


class Boosts(NamedTuple):
    """Boosts of entries (entries,).

    `values` are shares of the values that the query names, from 0 to 1, or None if it names none;
    VALUE_WEIGHT is still to be applied. `kinds` is added to the score for the entry's kind and
    name, and may be negative.
    """

    values: NDArray[np.float32] | None
    kinds: NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class BoostPlan:
    """Boosts of `entries` entries, computed by `at` for the given places only.

    Upper bounds let `rank` skip entries that cannot be among the best: `Boosts.kinds` is at most
    `most`, but for the places `named` (in ascending order), and `Boosts.values` is at most `values`
    (entries,).
    """

    entries: int
    at: Callable[[NDArray[np.intp]], Boosts]
    most: float
    named: NDArray[np.intp]
    values: NDArray[np.float32] | None


def named_values(
    having: Sequence[NDArray[np.bool_]], objects: int, at: NDArray[np.intp] | slice = EVERY
) -> NDArray[np.float32] | None:
    """Return the share of the named values that each entry at `at` has, from 0 to 1.

    `having` has for each value a mask of all entries that have it; the result is None if there are
    no values. The share is the mean rarity of the values that the entry has, log(objects / count) /
    log(objects). An entry with all values gets at least the rarity of that combination.
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
    """Return the boosts for the kinds of entries (entries,): see `Boosts.kinds`.

    `kinds` are bit masks, `less` the penalties of kinds that the query does not name.
    """
    if not asked.named:
        return -less
    more: NDArray[np.float32] = (kinds & asked.subject != 0) * np.float32(KIND_WEIGHT)
    if values is not None:
        more += BOTH_WEIGHT * values
    return np.where(kinds & asked.named != 0, more, -less)


def _rarity(having: int, objects: int) -> float:
    return math.log(objects / having) / math.log(objects) if 0 < having < objects else 0.0
