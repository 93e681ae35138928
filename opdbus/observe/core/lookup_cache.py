"""Cache of lookups for the keys in use, so that only new keys are looked up."""

from collections.abc import Collection, Mapping
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class LookupCache(dict[K, V]):
    """The values of the keys in the last lookup."""

    def __init__(self, otherwise: V) -> None:
        """Take the value for keys without a result."""
        super().__init__()
        self._otherwise = otherwise

    def lacks(self, wanted: Collection[K]) -> bool:
        """Return whether some key has not been looked up."""
        return not self.keys() >= set(wanted)

    def learn(self, wanted: Collection[K], found: Mapping[K, V]) -> None:
        """Keep the results for the wanted keys only."""
        self.clear()
        self.update({key: found.get(key, self._otherwise) for key in wanted})
