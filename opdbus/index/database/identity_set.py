"""Which objects a source still has."""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from opdbus.state.object import Identity


class IdentityHashSet:
    """Identities of one source by the hashes of what they name, each given once.

    A million are 8 MB; a set of them takes 110 MB, and nothing else runs for 24 ms when it grows.
    Two have the same hash as seldom as random numbers of 64 bits are the same.
    """

    def __init__(self, identities: Collection[Identity] = ()) -> None:
        self._parts: list[NDArray[np.int64]] = []
        self.add(identities)

    def __len__(self) -> int:
        """Count them."""
        return sum(map(len, self._parts))

    def add(self, identities: Collection[Identity]) -> None:
        """Add some."""
        keys = (hash(identity[1:]) for identity in identities)
        self._parts.append(np.fromiter(keys, np.int64, len(identities)))

    def clear(self) -> None:
        """Forget all."""
        self._parts.clear()

    def keys(self) -> NDArray[np.uint64]:
        """Return their hashes in order."""
        return np.sort(np.concatenate(self._parts).astype(np.uint64))

    def lacks(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which things (keys,), given by their hashes, are not among them; some are."""
        known = self.keys()
        at = np.searchsorted(known, keys)
        return np.asarray(known.take(at, mode="clip") != keys)
