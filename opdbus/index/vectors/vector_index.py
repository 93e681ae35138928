"""The vector index of one model and precision: a row per distinct text, and cosine scores."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.index.catalogue.arrays import PlainRows, VectorStorage
from opdbus.index.catalogue.entry_view import EntryView
from opdbus.index.catalogue.text_table import NO_ROW, NO_TEXT, TextTable
from opdbus.index.database.store import Entry
from opdbus.index.ranking.scores import TYPICAL_BASELINE, CosineBaseline, Similarity
from opdbus.index.vectors.quantized_rows import SignQuantizedVectors
from opdbus.state.object import digest

log = structlog.get_logger()

# Above this number of vectors, rows are quantized: comparing all exactly takes too long.
MANY: Final = 50_000
_NOWHERE: Final = np.empty(0, np.intp)
# Vectors copied at a time.
_AT_A_TIME: Final = 8192
# Approximate size of the sample of rows for the cosine baseline.
_SAMPLED: Final = 384
# A smaller sample is mixed with the typical baseline, in proportion.
_FEW: Final = 8
# Numbers of texts at which `CosineBaseline.small_host` is 1 and 0.
_FEW_OBJECTS: Final = 48, 128
# At most this many given places are compared exactly. Otherwise all rows are compared, unless the
# places are fewer than one in _SPARSE of the rows.
_FEW_COMPARED: Final = 1024
_SPARSE: Final = 4


def small_host(texts: int) -> float:
    """Return `CosineBaseline.small_host` for a number of texts."""
    few, enough = _FEW_OBJECTS
    return min(1.0, max(0.0, math.log(enough / max(1, texts)) / math.log(enough / few)))


class VectorIndex:
    """Vectors of length 1 by digest of their text, all of the same `numerics`.

    `numerics` names model weights and precision class; vectors with equal values of it are
    comparable. They are plain rows by default. With a `folder`, more than MANY go to a file in it
    as quantized rows, and `similarity` returns estimates.
    """

    def __init__(
        self,
        numerics: str,
        dimension: int,
        texts: TextTable,
        rows: VectorStorage | None = None,
        folder: Path | None = None,
    ) -> None:
        self.numerics = numerics
        self.dimension = dimension
        # digests of texts whose vectors could not be stored yet
        self.unsaved: set[bytes] = set()
        # the key of `numerics` in the database and in file names
        self.numerics_key = digest(numerics.encode())
        self.texts = texts
        self._layer = texts.layer()
        self._rows = rows or PlainRows(dimension)
        # held by a task of the event loop while rows are added or moved
        self._add_lock = asyncio.Lock()
        # Guards row numbers. `_alone` acquires it on a thread and holds it until the loop resumes,
        # so a loop that waited for it would deadlock.
        self._numbering_lock = Lock()
        # cache of the rows of all entries and the places without one; key: versions of view, layer
        self._rows_found = (-1, -1), (_NOWHERE, _NOWHERE)
        # cache of the sample; key: version of the layer
        self._sampled = -1, np.empty((0, dimension), np.float32)
        # file for more than MANY vectors; None: all stay in memory
        self.path = folder / f"{self.numerics_key.hex()}.rows" if folder else None

    def __len__(self) -> int:
        """Return the number of vectors."""
        return self._layer.filled

    def __contains__(self, text_digest: bytes) -> bool:
        """Return whether a text has a vector."""
        return bool(self._layer.rows[self.texts.find(text_digest)] >= 0)

    def needs_vector(self, digests: Sequence[bytes]) -> list[bool]:
        """Return for each text whether an object still has it and it has no vector."""
        numbers = self.texts.find_each(digests)
        is_wanted = (self._layer.rows[numbers] < 0) & self.texts.are_used(numbers)
        found: list[bool] = is_wanted.tolist()
        return found

    @property
    def version(self) -> int:
        """A counter that grows with each change of rows."""
        return self._layer.version

    def missing_object_count(self, view: EntryView) -> int:
        """Return the number of objects with a text that has no vector."""
        return view.count_objects(self._rows_of(view)[1])

    def missing_texts(self, most: int) -> list[bytes]:
        """Return at most `most` digests of objects' texts without a vector, the oldest first."""
        return self.texts.missing_texts(self._layer, most)

    def entries_without_vector(self, entries: Iterable[Entry]) -> list[Entry]:
        """Return the entries whose texts have no vector."""
        return [entry for entry in entries if entry.text_digest not in self]

    def key(self, text_digest: bytes) -> bytes:
        """Return the database key of a text's vector: a hash of numerics and text."""
        return digest(text_digest, key=self.numerics_key)

    def get(self, text_digest: bytes) -> NDArray[np.float32] | None:
        """Return the vector (dimension,) of a text, None if it has none; on the event loop."""
        row = self._layer.rows[self.texts.find(text_digest)]
        if row == NO_ROW:
            return None
        vector: NDArray[np.float32] = self._rows.take(np.array([row]))[0]
        return vector

    def get_on_thread(self, text_digest: bytes) -> NDArray[np.float32] | None:
        """Return the same as `get`; on any other thread."""
        with self._numbering_lock:
            return self.get(text_digest)

    def similarity(
        self,
        query: NDArray[np.float32],
        view: EntryView,
        level: str = "",
        at: NDArray[np.intp] | None = None,
    ) -> Similarity:
        """Compare `query` (dimension,) of length 1 with all entries, or with those at places `at`.

        Cosines with quantized rows are estimates, unless the places are few. On the event loop.
        """
        rows, lacking = self._rows_of(view) if at is None else self._rows_at(view.texts[at])
        baseline = self.baseline(query)
        if at is not None and len(at) <= _FEW_COMPARED:
            return Similarity(self._exact_cosines(query, rows), level, baseline)
        exact = None if self._rows.is_exact else partial(self._exact, query, view, at)
        is_sparse = _SPARSE * len(rows) < self._rows.end
        products = self._rows.products(np.maximum(rows, 0) if is_sparse else None)
        if len(lacking) == len(rows):
            return Similarity(np.full(len(rows), np.nan, np.float32), level, baseline)
        cosines = products(query)
        if not is_sparse:
            cosines = cosines.take(rows, mode="clip")
        cosines[lacking] = np.nan
        return Similarity(cosines, level, baseline, exact)

    def _rows_of(self, view: EntryView) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the row of each entry, and the places of entries without one; cached."""
        versions = view.version, self._layer.version
        if self._rows_found[0] != versions:
            self._rows_found = versions, self._rows_at(view.texts[: view.end])
        return self._rows_found[1]

    def _rows_at(self, texts: NDArray[np.int32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the row of each text, given by number, and the indexes of those without one."""
        # copy the numbers first: texts may be added meanwhile, and each of these has an element
        numbers = texts.astype(np.intp)
        rows = self._layer.rows.take(numbers, mode="clip").astype(np.intp)
        return rows, np.flatnonzero(rows < 0)

    def _exact(
        self,
        query: NDArray[np.float32],
        view: EntryView,
        at: NDArray[np.intp] | None,
        some: NDArray[np.intp],
    ) -> NDArray[np.float32]:
        """Return the exact cosines of the entries `some`: places, or indexes into `at`."""
        rows, _ = self._rows_at(view.texts[some if at is None else at[some]])
        return self._exact_cosines(query, rows)

    def _exact_cosines(
        self, query: NDArray[np.float32], rows: NDArray[np.intp]
    ) -> NDArray[np.float32]:
        """Return the exact cosines of some rows, NaN for row -1."""
        found = np.full(len(rows), np.nan, np.float32)
        found[rows >= 0] = self._rows.take(rows[rows >= 0]) @ query
        return found

    def baseline(self, query: NDArray[np.float32]) -> CosineBaseline | None:
        """Return the baseline of the cosines of `query` with a sample; None without vectors.

        On the event loop.
        """
        vectors = self._sample()
        if not len(vectors):
            return None
        cosines, share = vectors @ query, min(1.0, len(vectors) / _FEW)
        usual_mean, usual_spread, _ = TYPICAL_BASELINE
        mean = share * float(cosines.mean()) + (1 - share) * usual_mean
        spread = share * float(cosines.std()) + (1 - share) * usual_spread
        texts = len(self) + self.texts.count_missing(self._layer)
        return CosineBaseline(mean, spread, small_host(texts))

    def _sample(self) -> NDArray[np.float32]:
        """Return a sample of vectors (sample, dimension), cached until rows change."""
        version = self._layer.version
        if self._sampled[0] != version:
            # only rows of texts: others are forgotten, or were damaged in a file
            of_texts = self._layer.rows
            kept = np.flatnonzero(of_texts >= 0)
            some = self.texts.sample(kept, _SAMPLED) if len(kept) else _NOWHERE
            self._sampled = version, self._rows.take(of_texts[some].astype(np.intp))
        return self._sampled[1]

    async def add(self, digests: Sequence[bytes], vectors: NDArray[np.float32]) -> list[bytes]:
        """Add vectors (digests, dimension) of different texts; return the digests added.

        Texts that have a vector by now are left out. The slow part runs on a thread. A cancelled
        caller does not stop it.
        """
        return await asyncio.shield(self._add(digests, vectors))

    async def _add(self, digests: Sequence[bytes], vectors: NDArray[np.float32]) -> list[bytes]:
        async with self._add_lock:
            new = np.flatnonzero(self._layer.rows[self.texts.find_each(digests)] < 0)
            added = [digests[n] for n in new.tolist()]
            if self.path and self._rows.is_exact and self._rows.end + len(added) > MANY:
                await self._use_file(self.path)
            try:
                rows = await asyncio.to_thread(self._append, added, vectors, new)
            except OSError as error:
                await self._leave_file(error)
                rows = await asyncio.to_thread(self._append, added, vectors, new)
            self._put(added, rows)
            return added

    def _append(
        self, digests: Sequence[bytes], vectors: NDArray[np.float32], which: NDArray[np.intp]
    ) -> range:
        """Append the vectors at `which`, whose texts are `digests`; return their rows."""
        start = self._rows.end
        self._rows.append(digests, vectors[which])
        return range(start, self._rows.end)

    def adopt(self, rows: SignQuantizedVectors) -> None:
        """Use the rows of a file left by an earlier run; call while the index is empty."""
        found = self.texts.find_each(rows.take_recovered_digests())
        # of several rows of a text, the last one counts
        numbers, last = np.unique(found[::-1], return_index=True)
        is_text = numbers != NO_TEXT
        self._rows = rows
        at = (len(found) - 1 - last[is_text]).astype(np.int32)
        self._layer.put(numbers[is_text], at)

    def _put(self, digests: Sequence[bytes], rows: range) -> None:
        numbers = np.array([*map(self.texts.number, digests)], np.intp)
        self._layer.put(numbers, np.array(rows, np.int32))

    async def _use_file(self, path: Path) -> None:
        try:
            await self._move(await asyncio.to_thread(_empty_file, path, self.dimension))
        except OSError as error:
            await self._leave_file(error)

    async def _leave_file(self, error: OSError) -> None:
        """Move all vectors to memory after an error of their file."""
        log.warning("vectors are held in memory", path=str(self.path), reason=error.strerror)
        self.path = None
        if not self._rows.is_exact:
            await self._move(PlainRows(self.dimension))

    async def _move(self, rows: VectorStorage) -> None:
        """Copy all vectors to other rows and use these; vectors dropped meanwhile stay dropped."""
        kept = np.flatnonzero(self._layer.rows >= 0)
        before, digests = self._layer.rows[kept].astype(np.intp), self.texts.digests(kept)
        await asyncio.to_thread(_copy, self._rows, before, digests, rows)
        left = [self._rows]
        async with self._alone():
            self._number(kept)
            self._rows = rows
        await _free(left)

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Keep other threads from reading rows by number; waits for those that do."""
        await asyncio.to_thread(self._numbering_lock.acquire)
        try:
            yield
        finally:
            self._numbering_lock.release()

    def drop(self, digests: Iterable[bytes]) -> None:
        """Forget the vectors of some texts; `shrink` frees their rows."""
        if len(texts := self.texts.find_each(digests)):
            self._layer.put(texts, NO_ROW)

    async def shrink(self) -> None:
        """Free forgotten rows once they are at least half of all.

        A cancelled caller does not stop it.
        """
        await asyncio.shield(self._shrink())

    async def _shrink(self) -> None:
        async with self._add_lock:
            if self._layer.filled * 2 > self._rows.end:
                return
            kept = np.flatnonzero(self._layer.rows >= 0)
            before = self._layer.rows[kept].astype(np.intp)
            try:
                some = await asyncio.to_thread(self._rows.copy_subset, before)
                left = [some]
                async with self._alone():
                    self._rows.replace_with(some)
                    self._number(kept)
                # it has the old rows: drop the last reference but `left`
                del some
                await _free(left)
            except OSError as error:  # the rows stay as they are
                log.warning("vectors not compacted", reason=str(error))

    def _number(self, kept: NDArray[np.intp]) -> None:
        """Assign the rows from 0 to the kept texts, but none to texts dropped meanwhile."""
        of_texts = self._layer.rows
        is_left = of_texts[kept] >= 0
        of_texts[kept[is_left]] = np.flatnonzero(is_left)
        self._layer.version += 1


async def _free(left: list[VectorStorage]) -> None:
    """Free rows on a thread: releasing a large file and its memory would block the event loop."""
    await asyncio.to_thread(left.clear)


def _empty_file(path: Path, dimension: int) -> SignQuantizedVectors:
    path.unlink(missing_ok=True)
    return SignQuantizedVectors(path, dimension)


def _copy(
    source: VectorStorage, rows: NDArray[np.intp], digests: Sequence[bytes], target: VectorStorage
) -> None:
    """Append some rows of `source`, whose texts are `digests`, to `target`."""
    for start in range(0, len(rows), _AT_A_TIME):
        part = slice(start, start + _AT_A_TIME)
        target.append(digests[part], source.take(rows[part]))
