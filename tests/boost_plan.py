"""What raises entries, given as it is for all of them."""

import numpy as np
from numpy.typing import NDArray

from opdbus.index.ranking.boosts import BoostPlan, Boosts


def boost_plan(values: NDArray[np.float32] | None, kinds: NDArray[np.float32]) -> BoostPlan:
    """Return what tells it of some."""

    def at(places: NDArray[np.intp]) -> Boosts:
        return Boosts(None if values is None else values[places], kinds[places])

    return BoostPlan(len(kinds), at, float(kinds.max()), np.empty(0, np.intp), values)
