"""Which texts searches wanted a vector of that was missing: they get theirs first."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

# Texts remembered; the ones asked for least are forgotten.
_MOST: Final = 4096


class EmbedPriorityQueue:
    """Texts whose vectors were missing, by digest, with how often."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        """Count the texts."""
        return len(self._counts)

    def add(self, digests: Iterable[bytes]) -> None:
        """Count that texts were asked for."""
        self._counts.update(digests)
        if len(self._counts) > 2 * _MOST:
            self._counts = Counter(dict(self._counts.most_common(_MOST)))

    def take(self, limit: int, is_wanted: Callable[[bytes], bool]) -> list[bytes]:
        """Remove and return the wanted ones that were asked for most; unwanted ones are dropped."""
        for text_digest in [one for one in self._counts if not is_wanted(one)]:
            del self._counts[text_digest]
        found = [text_digest for text_digest, _ in self._counts.most_common(limit)]
        for text_digest in found:
            del self._counts[text_digest]
        return found
