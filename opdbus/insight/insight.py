"""Topics and outliers of the objects in a state store, computed on one thread and cached."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar

from opdbus.errors import ModelError, NoVector, ProviderError
from opdbus.index.query import condition_matching
from opdbus.insight import field_reading, topics
from opdbus.insight.gathering import gather
from opdbus.insight.kind_survey import far_from_all, outliers
from opdbus.platform.slices import slices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Sequence

    from opdbus.index.search.hits import SearchRequest
    from opdbus.index.vectors.object_vectors import ObjectVectors
    from opdbus.index.vectors.two_stage_search import TwoStageSearch
    from opdbus.index.vectors.vector_index import VectorIndex
    from opdbus.insight.kind_survey import Odd
    from opdbus.insight.topics import Topic
    from opdbus.state.object import ObjectId

T = TypeVar("T")

# Cached results, of topics and of outliers, one for each filter.
_KEPT: Final = 8
# Texts of one read, so that other reads can run between.
_AT_A_TIME: Final = 512


class Insight:
    """Topics and outliers of the objects that match a page; its limit and offset are ignored.

    One result is computed at a time, and never twice for the same objects and vectors.
    """

    def __init__(self, vectors: ObjectVectors, two_stage: TwoStageSearch | None = None) -> None:
        self._vectors = vectors
        self._store = vectors.memory
        self._two_stage = two_stage
        self._one = asyncio.Lock()
        # a thread of its own: a large host takes seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="insight")
        # the least recently used result comes first
        self._results: OrderedDict[Hashable, Any] = OrderedDict()

    async def topics(self, page: SearchRequest) -> Sequence[Topic]:
        """Return the topics of the objects that have vectors, the largest first.

        Raises NoModel, NoVector.
        """
        index, within = await self._index(), None
        if page.where:
            within = await condition_matching.object_ids(self._store, page.where)
        wanted, catalogue = page.wanted or {}, self._store.catalogue

        async def make(renamed: frozenset[ObjectId]) -> Sequence[Topic]:
            rows = await self._run(lambda: gather(catalogue, wanted, within, index, renamed))
            if not rows:
                if len(catalogue) and not len(index):
                    raise NoVector(
                        "no object has a vector yet: wait for the signal Vectorized and ask again"
                    )
                return []
            assignment = await self._run(lambda: topics.TopicAssignment(rows, index))
            # the text of a removed object is empty
            texts: list[str] = []
            for part in slices(rows.entries[: topics.SAMPLE], _AT_A_TIME):
                contents = await self._store.content(part)
                texts += [contents[e.id].text if e.id in contents else "" for e in part]
            return await self._run(lambda: assignment.topics(texts))

        version = (index.numerics, index.version)
        return await self._get(("topics", version, tuple(wanted.items()), within), make)

    async def outliers(self, page: SearchRequest) -> Sequence[Odd]:
        """Return the objects that are unlike their kind, the worst first.

        Without vectors, only fields count.
        """
        try:
            index = await self._index()
        except (ModelError, ProviderError):
            index = None
        wanted, catalogue = page.wanted or {}, self._store.catalogue

        async def make(_renamed: frozenset[ObjectId]) -> Sequence[Odd]:
            surveys = await field_reading.surveys(self._store, wanted, self._run)

            def work() -> Sequence[Odd]:
                found = (
                    outliers(one, far_from_all(one.object_ids, catalogue, index)) for one in surveys
                )
                return sorted(
                    chain.from_iterable(found), key=lambda odd: (-odd.score, odd.object_id)
                )

            return await self._run(work)

        version = index and (index.numerics, index.version)
        found = await self._get(("outliers", version, tuple(wanted.items())), make)
        if not page.where:
            return found
        within = await condition_matching.object_ids(self._store, page.where)
        return [odd for odd in found if odd.object_id in within]

    async def _get(self, key: Hashable, make: Callable[[frozenset[ObjectId]], Awaitable[T]]) -> T:
        """Return the result of a key for the present objects, computed if it is not cached.

        `make` gets the objects that are included under another name.
        """
        async with self._one:
            renamed = frozenset(self._store.declarations.renamed())
            full = self._store.generation, renamed, key
            if full not in self._results:
                self._results[full] = await make(renamed)
            self._results.move_to_end(full)
            while len(self._results) > _KEPT:
                self._results.popitem(last=False)
            found: T = self._results[full]
            return found

    async def _index(self) -> VectorIndex:
        """Return the vector index of the level, or of static vectors while that is incomplete."""
        two_stage = self._two_stage
        if two_stage and two_stage.is_used() and two_stage.first.index is not None:
            return two_stage.first.index
        return await self._vectors.current_index()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)
