"""Compact set of the identities of one source."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from opdbus.state.object import Identity


class IdentityHashSet:
    """Set of identities of one source as 64-bit hashes of their object ids.

    Takes 8 bytes an identity. Hash collisions are ignored. Each identity must be added only once.
    """

    def __init__(self, identities: Collection[Identity] = ()) -> None:
        self._parts: list[NDArray[np.int64]] = []
        self.add(identities)

    def __len__(self) -> int:
        """Return the number of identities."""
        return sum(map(len, self._parts))

    def add(self, identities: Collection[Identity]) -> None:
        """Add identities that are not in the set."""
        keys = (hash(identity[1:]) for identity in identities)
        self._parts.append(np.fromiter(keys, np.int64, len(identities)))

    def clear(self) -> None:
        """Remove all identities."""
        self._parts.clear()

    def keys(self) -> NDArray[np.uint64]:
        """Return the hashes, ascending."""
        return np.sort(np.concatenate(self._parts).astype(np.uint64))

    def lacks(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return a mask (keys,) of the hashes that are not in the set, which must not be empty."""
        known = self.keys()
        at = np.searchsorted(known, keys)
        return np.asarray(known.take(at, mode="clip") != keys)
