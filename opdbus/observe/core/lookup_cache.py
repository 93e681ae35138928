"""Cache of lookups for the keys in use, so that only new keys are looked up."""

from collections.abc import Collection, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LookupCache(dict[K, V]):
    """The values of the keys that were wanted last."""

    def __init__(self, otherwise: V) -> None:
        """Take the value of keys for which nothing is found."""
        super().__init__()
        self._otherwise = otherwise

    def lacks(self, wanted: Collection[K]) -> bool:
        """Return whether some key has not been looked up."""
        return not self.keys() >= set(wanted)

    def learn(self, wanted: Collection[K], found: Mapping[K, V]) -> None:
        """Keep what was found for the keys that are wanted now, and forget the others."""
        self.clear()
        self.update({key: found.get(key, self._otherwise) for key in wanted})
