"""Topics and outliers of the objects in a state store, computed on one thread and cached."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from opdbus.errors import ModelError, NoVector, ProviderError
from opdbus.index.query import condition_matching
from opdbus.insight import field_reading, topics
from opdbus.insight.gathering import Rows, far_from_all, gather
from opdbus.insight.oddities import outliers
from opdbus.platform.slices import slices

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from opdbus.index.search.hits import Page
    from opdbus.index.vectors.object_vectors import ObjectVectors
    from opdbus.index.vectors.two_stage_search import Cascade
    from opdbus.index.vectors.vector_index import VectorIndex
    from opdbus.insight.oddities import Odd
    from opdbus.insight.topics import Topic
    from opdbus.state.object import ObjectId

T = TypeVar("T")

# Cached results, one for each filter.
_KEPT: Final = 4
# Texts of one read, so that other reads can run between.
_AT_A_TIME: Final = 512


class Insight:
    """Topics and outliers of the objects that match a page; its limit and offset are ignored.

    One result is computed at a time, and never twice for the same objects and vectors.
    """

    def __init__(self, vectors: ObjectVectors, cascade: Cascade | None = None) -> None:
        self._vectors = vectors
        self._memory = vectors.memory
        self._cascade = cascade
        self._one = asyncio.Lock()
        # a thread of its own: a large host takes seconds
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="insight")
        self._topics: _Kept[Sequence[Topic]] = _Kept()
        self._odd: _Kept[Sequence[Odd]] = _Kept()

    async def topics(self, page: Page) -> Sequence[Topic]:
        """Return the topics of the objects that have vectors, the largest first.

        Raises NoModel, NoVector.
        """
        index = await self._index()
        within = (
            await condition_matching.object_ids(self._memory, page.where) if page.where else None
        )
        wanted = page.wanted or {}
        async with self._one:
            versions = self._memory.generation, self._renamed(), index.numerics, index.version
            return await self._topics.get(
                (versions, tuple(wanted.items()), within),
                lambda: self._make_topics(index, wanted, within),
            )

    async def _make_topics(
        self, index: VectorIndex, wanted: Mapping[str, str], within: AbstractSet[ObjectId] | None
    ) -> Sequence[Topic]:
        catalogue = self._memory.catalogue
        renamed = self._renamed()
        rows = await self._run(lambda: gather(catalogue, wanted, within, index, renamed))
        if not rows:
            if len(catalogue) and not len(index):
                raise NoVector(
                    "no object has a vector yet: wait for the signal Vectorized and ask again"
                )
            return []
        assigned = await self._run(lambda: topics.Assigned(rows, index))
        texts = await self._texts(rows, topics.SAMPLE)
        return await self._run(lambda: assigned.topics(texts))

    def _renamed(self) -> frozenset[ObjectId]:
        return frozenset(self._memory.declarations.renamed())

    async def outliers(self, page: Page) -> Sequence[Odd]:
        """Return the objects that are unlike their kind, the worst first.

        Without vectors, only fields count.
        """
        index = await self._index_if_any()
        wanted = page.wanted or {}
        async with self._one:
            version = index and (index.numerics, index.version)
            versions = self._memory.generation, self._renamed(), version
            found = await self._odd.get(
                (versions, tuple(wanted.items())), lambda: self._make_odd(index, wanted)
            )
        if not page.where:
            return found
        within = await condition_matching.object_ids(self._memory, page.where)
        return [odd for odd in found if odd.object_id in within]

    async def _make_odd(
        self, index: VectorIndex | None, wanted: Mapping[str, str]
    ) -> Sequence[Odd]:
        catalogue = self._memory.catalogue
        surveys = await field_reading.surveys(self._memory, wanted, self._run)

        def work() -> Sequence[Odd]:
            found = (
                outliers(one, far_from_all(one.object_ids, catalogue, index)) for one in surveys
            )
            return sorted(chain.from_iterable(found), key=lambda odd: (-odd.score, odd.object_id))

        return await self._run(work)

    async def _texts(self, rows: Rows, most: int) -> list[str]:
        """Return the texts of the first rows; that of a removed object is empty."""
        texts: list[str] = []
        for part in slices(rows.entries[:most], _AT_A_TIME):
            contents = await self._memory.content(part)
            texts += [contents[e.id].text if e.id in contents else "" for e in part]
        return texts

    async def _index(self) -> VectorIndex:
        """Return the vector index of the level, or of static vectors while that is incomplete."""
        cascade = self._cascade
        if cascade and cascade.is_used() and cascade.first.index is not None:
            return cascade.first.index
        return await self._vectors.served()

    async def _index_if_any(self) -> VectorIndex | None:
        try:
            return await self._index()
        except (ModelError, ProviderError):
            return None

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


class _Kept(Generic[T]):
    """A least-recently-used cache of results."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Hashable, T] = OrderedDict()

    async def get(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> T:
        """Return the cached result of a key; compute and cache it if there is none."""
        if key not in self._answers:
            self._answers[key] = await make()
        self._answers.move_to_end(key)
        while len(self._answers) > _KEPT:
            self._answers.popitem(last=False)
        return self._answers[key]
