"""Priority queue of texts whose vectors searches needed and did not find."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

# Texts kept when the queue is cut: those requested most often.
_MOST: Final = 4096


class EmbedPriorityQueue:
    """Digests of texts without a vector, ordered by the number of requests."""

    def __init__(self) -> None:
        self._counts: Counter[bytes] = Counter()

    def __len__(self) -> int:
        """Count the texts."""
        return len(self._counts)

    def add(self, digests: Iterable[bytes]) -> None:
        """Count a request for each text."""
        self._counts.update(digests)
        if len(self._counts) > 2 * _MOST:
            self._counts = Counter(dict(self._counts.most_common(_MOST)))

    def take(self, limit: int, is_wanted: Callable[[bytes], bool]) -> list[bytes]:
        """Remove and return the most requested wanted texts; all unwanted ones are dropped."""
        for text_digest in [one for one in self._counts if not is_wanted(one)]:
            del self._counts[text_digest]
        found = [text_digest for text_digest, _ in self._counts.most_common(limit)]
        for text_digest in found:
            del self._counts[text_digest]
        return found
