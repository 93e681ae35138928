"""Things in listing order: by plugin, kind and name."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.entry_view import View
from opdbus.state.object import Thing


def in_order(view: View, places: NDArray[np.intp]) -> list[Thing]:
    """Return the things of the entries at some places."""
    of_number, sorts = view.of_number, view.sorts[places]
    numbers: dict[tuple[str, str], list[int]] = {}
    for number in np.unique(sorts).tolist():
        numbers.setdefault(of_number[number][1:], []).append(number)
    found: list[Thing] = []
    for sort in sorted(numbers):
        names = {*view.names.of(places[np.isin(sorts, numbers[sort])].tolist())}
        found += [Thing(*sort, name) for name in sorted(names)]
    return found


class Listing:
    """All things in order, put in order only after some came or left: see `known`."""

    def __init__(self, known: Callable[[], Sequence[Thing]]) -> None:
        self._known = known
        # as of so many comings
        self._ordered: tuple[int, Sequence[Thing]] = 0, ()

    def all(self, comings: int) -> Sequence[Thing]:
        """Return all things, as of so many comings or later ones."""
        done, order = self._ordered
        if done != comings:
            known = {*self._known()}
            # two sorted runs, which sorting merges in one pass
            kept = [thing for thing in order if thing in known]
            order = sorted([*kept, *sorted(known - set(kept))])
            self._ordered = comings, order
        return order
