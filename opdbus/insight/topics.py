"""Topics: groups of the host's objects by the meaning of their texts, across kinds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from opdbus.insight import clustering
from opdbus.insight.gathering import ComparedObjects, Residuals
from opdbus.insight.naming import WORDS, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.index.vectors.vector_index import VectorIndex
    from opdbus.state.object import ObjectId

# The most objects from which topics are computed; all objects are then assigned.
SAMPLE: Final = 16_384
# The most topics: people read no longer list.
MOST: Final = 64
# Objects with a smaller fraction of a topic's median cosine are in no topic.
_NEAR: Final = 0.6
# Fewer objects form one topic.
_FEW: Final = 2 * clustering.LEAST


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic: its words, and its objects with their cosine to the centre, best first."""

    words: Sequence[str]
    members: Sequence[tuple[ObjectId, float]]

    @property
    def name(self) -> str:
        """The words, joined by commas."""
        return ", ".join(self.words)


class TopicAssignment:
    """The assignment of objects to the topic of the nearest centre, if it is near enough."""

    def __init__(self, rows: ComparedObjects, index: VectorIndex) -> None:
        self._rows = rows
        residuals = Residuals(rows, index, SAMPLE)
        sample = residuals.part(slice(0, min(SAMPLE, len(rows))))
        centres = clustering.centres(sample, rows.keys()[: len(sample)], count_for(len(rows)))
        del sample
        parts = [clustering.nearest(vectors, centres) for vectors in residuals.parts()]
        self._count = len(centres)
        self._cosines = np.concatenate([cosines for _, cosines in parts])
        labels = np.concatenate([labels for labels, _ in parts])
        # the median cosine of each topic (count,)
        of = (self._cosines[labels == n] for n in range(self._count))
        medians = np.array([np.median(each) if len(each) else 0 for each in of], np.float32)
        middles = medians[labels]
        self._labels = np.where(self._cosines >= _NEAR * middles, labels, -1)
        # the more typical half of a topic gives its name
        self._core = np.where(self._cosines >= middles, labels, -1)

    def topics(self, texts: Sequence[str]) -> list[Topic]:
        """Return the topics, named by the texts of the first rows; the largest first."""
        kinds = self._rows.kinds()[: len(texts)]
        names = Vocabulary(texts).names(self._core[: len(texts)], kinds, self._count)
        object_ids, found = self._rows.object_ids, []
        for number, words in enumerate(names):
            places = np.flatnonzero(self._labels == number).tolist()
            if len(places) >= clustering.LEAST:
                members = [(object_ids[n], float(self._cosines[n])) for n in places]
                members.sort(key=lambda member: (-member[1], member[0]))
                found.append(Topic(words, members))
        found.sort(key=lambda topic: (-len(topic.members), topic.name))
        taken = Counter(topic.name for topic in found)
        for at, topic in enumerate(found):
            if taken[topic.name] > 1 or not topic.words:
                # its first word and most typical objects make its name unique
                first = topic.words[:1]
                typical = [one.name for one, _ in topic.members[: WORDS - len(first)]]
                found[at] = replace(topic, words=list(dict.fromkeys([*first, *typical])))
        return found


def count_for(objects: int) -> int:
    """Return the number of topics for a number of objects: docs/insight.md."""
    return 1 if objects < _FEW else min(MOST, max(2, round(math.sqrt(objects))))
