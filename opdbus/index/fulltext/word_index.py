"""The in-memory full-text index: postings as of one moment, and the terms changed since."""

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.errors import StoreError
from opdbus.history.full_text import TOKENIZED
from opdbus.index.catalogue.entry_view import EntryView
from opdbus.index.database.store import Store
from opdbus.index.fulltext import postings
from opdbus.index.fulltext.postings import Having, Postings
from opdbus.index.fulltext.recent_words import RecentWords, Row
from opdbus.index.storage.archive import Archive
from opdbus.platform import gc_tuning
from opdbus.platform.slices import parts

# The postings are rebuilt after changes of a twentieth of the objects, within these limits.
_SHARE: Final = 20
_LEAST: Final = 100
_MOST: Final = 10_000
# At this multiple of that number, the index is dropped and changes are no longer stored.
_TOO_MANY: Final = 4
# Rebuilds take at most about a twentieth of the time: the pause before one, in durations of the
# last one.
_PAUSES: Final = 20
# A search waits for the first build over at most this many objects, and at most this long.
_FEW: Final = 20_000
_PATIENCE_SECONDS: Final = 0.5
# Terms in the cache of stems; a full cache is emptied.
_KEPT_TERMS: Final = 1024


class Stemmer:
    """Tokenizer and stemmer of query terms, with a cache; for one thread at a time."""

    def __init__(self) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.executescript(
            f"CREATE VIRTUAL TABLE asked USING fts5 (term, {TOKENIZED});"
            "CREATE VIRTUAL TABLE stems USING fts5vocab (asked, instance)"
        )
        self._known: dict[str, list[bytes]] = {}

    def __del__(self) -> None:
        """Close the database."""
        self._database.close()

    def of(self, term: str) -> list[bytes]:
        """Return the stems of a term's words, in order; a phrase has several."""
        if term not in self._known:
            if len(self._known) >= _KEPT_TERMS:
                self._known.clear()
            self._known[term] = self._read(term)
        return self._known[term]

    def _read(self, term: str) -> list[bytes]:
        run = self._database.execute
        run("INSERT INTO asked (term) VALUES (?)", (term,))
        found = run("SELECT term FROM stems ORDER BY offset").fetchall()
        run("DELETE FROM asked")
        return [stem.encode() for (stem,) in found]


class Term(NamedTuple):
    """The number of entries with a term, and its postings at the build and since.

    `then` includes entries that have changed since; `Lookup.is_other` masks them.
    """

    entries: int
    then: Having
    since: Having


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """Postings of a moment together with later changes; for one thread at a time."""

    then: Postings
    since: RecentWords
    # mask (then.size,) of the places whose entries have changed since
    is_other: NDArray[np.bool_]
    stems: Stemmer

    def find(self, word: bytes, mean_length: float) -> Term:
        """Return the postings of a stem; `mean_length` is that of objects now."""
        then, since = self.then.find(word), self.since.find(word, mean_length)
        each = (self.is_other[then.places[part]] for part in parts(len(then.places)))
        others = sum(map(int, map(np.count_nonzero, each)))
        return Term(len(then.places) - others + len(since.places), then, since)

    def find_prefixes(self, beginnings: Sequence[str]) -> list[str]:
        """Return the prefixes with which a longer term begins; prefixes have letters only."""
        since, then = set(self.since.find_prefixes(beginnings)), self.then.vocabulary
        return [one for one in beginnings if one in since or then.begins(one.encode())]

    def places(self, term: Term) -> NDArray[np.int32]:
        """Return the places of entries that have a term."""
        places = term.then.places
        return np.concatenate((places[~self.is_other[places]], term.since.places))

    def scores(self, terms: Sequence[tuple[Term, float]], size: int) -> NDArray[np.float32]:
        """Return BM25 scores (size,) by place, from pairs of a term and its idf."""
        total = np.zeros(max(size, self.then.size), np.float32)
        for term, idf in terms:
            _add(total, term.then, idf)
        total[: self.then.size][self.is_other] = 0
        for term, idf in terms:
            is_there = term.since.places < size
            since = Having(term.since.places[is_there], term.since.impacts[is_there])
            _add(total, since, idf)
        return total[:size]


def _add(total: NDArray[np.float32], having: Having, idf: float) -> None:
    """Add a term's impacts, times its idf, to the scores of its entries."""
    for part in parts(len(having.places)):
        places = having.places[part].astype(np.intp)
        np.add.at(total, places, having.impacts[part] * np.float32(idf))


class WordIndex:
    """Full-text index of all entries of a view, read from the database."""

    def __init__(self, archive: Archive, view: EntryView) -> None:
        self._archive = archive
        self._view = view
        self._stems = Stemmer()
        # None while there is no index
        self.lookup: Lookup | None = None
        # set once an index was built, or the database could not be read
        self.is_read = asyncio.Event()
        # changes during a build
        self._meanwhile: RecentWords | None = None
        self._reading: asyncio.Task[None] | None = None
        self._took = 0.0

    async def ready(self) -> None:
        """Begin a build if there is no index, and wait for it if it is likely to be short.

        The wait is at most _PATIENCE_SECONDS, and only for the first build of few objects.
        """
        if self.lookup is None:
            reading = self.begin()
            is_soon = not self._took and self._archive.no_bulk_load.is_set()
            if is_soon and len(self._view.places) <= _FEW:
                await asyncio.wait([reading], timeout=_PATIENCE_SECONDS)

    def begin(self) -> asyncio.Task[None]:
        """Begin to build the index, unless a build is running; return its task."""
        if self._reading is None or self._reading.done():
            self._reading = self._archive.start(self._read())
        return self._reading

    @property
    def is_kept(self) -> bool:
        """True if `change` must be called: an index exists, or a build is running."""
        return bool(self.lookup or self._meanwhile)

    async def change(self, gone: Sequence[int], rows: Sequence[Row]) -> None:
        """Record that the places `gone` are free now, and the columns of new or changed entries."""
        places = [*gone, *(row.place for row in rows)]
        if now := self.lookup:
            held = np.array(places, np.intp)
            now.is_other[held[held < now.then.size]] = True
            if self._is_over(now.since, places, _TOO_MANY):
                self.lookup = None
        kept = (self.lookup.since if self.lookup else None, self._meanwhile)
        recents = [recent for recent in kept if recent]
        # before the first await: the build may end during the next loop
        for recent in recents:
            recent.changed += places
        for recent in recents:
            if not self._is_over(recent, [], _TOO_MANY):
                await asyncio.to_thread(recent.replace, gone, rows)
        if now and (self.lookup is None or self._is_over(now.since, [], 1)):
            self.begin()

    def _is_over(self, recent: RecentWords, more: Sequence[int], times: int) -> bool:
        """Return whether more places have changed than `times` the limit of a rebuild."""
        most = min(max(len(self._view.places) // _SHARE, _LEAST), _MOST)
        return len(recent.changed) + len(more) > times * most

    async def _read(self) -> None:
        await asyncio.sleep(_PAUSES * self._took)
        await self._archive.no_bulk_load.wait()
        meanwhile = self._meanwhile = RecentWords()
        # later changes are in `meanwhile`
        ids = self._view.ids[: self._view.end].copy()
        began = time.monotonic()
        try:
            then = await self._archive.read_apart(lambda store: _read(store, ids))
            await asyncio.to_thread(gc_tuning.trim)
        except StoreError:
            self.is_read.set()
            return  # searches then use FTS5
        finally:
            self._meanwhile = None
        self._took = time.monotonic() - began
        if self._is_over(meanwhile, [], _TOO_MANY):
            return
        is_other = np.zeros(then.size, np.bool_)
        # the last element stands for objects without a place
        is_other[[*(place for place in meanwhile.changed if place < then.size), -1]] = True
        self.lookup = Lookup(then, meanwhile, is_other, self._stems)
        self.is_read.set()


def _read(store: Store, ids: NDArray[np.int64]) -> Postings:
    with store.snapshot():
        return postings.read(store, ids)
