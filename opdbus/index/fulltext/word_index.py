"""The words of all objects in memory: those of one moment, and what has changed since."""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.errors import StoreError
from opdbus.index.catalogue.entry_view import EntryView
from opdbus.index.database.store import Store
from opdbus.index.fulltext.recent_words import RecentWords, Row
from opdbus.index.fulltext.stemmer import Stemmer
from opdbus.index.snapshot import postings
from opdbus.index.snapshot.entry_snapshot import WordSnapshot
from opdbus.index.snapshot.postings import Having, Postings
from opdbus.index.storage.archive import Archive
from opdbus.platform import gc_tuning
from opdbus.platform.slices import parts

# After so many changes the words of all are read again: of a twentieth of the objects, or these.
_SHARE: Final = 20
_LEAST: Final = 100
_MOST: Final = 10_000
# Of so many times as many changes the words are not remembered.
_TOO_MANY: Final = 4
# To read takes at most a twentieth of the time.
_PAUSES: Final = 20
# A search waits for the words of so many objects, and no longer than this.
_FEW: Final = 20_000
_PATIENCE_SECONDS: Final = 0.5


class Term(NamedTuple):
    """How many entries have a term, those that had it then, and those that have it since."""

    entries: int
    then: Having
    since: Having


@dataclass(frozen=True, slots=True, eq=False)
class Lookup:
    """What has words now; for one thread at a time."""

    then: Postings
    since: RecentWords
    # whether the entry at each place (then.size,) has changed since then
    is_other: NDArray[np.bool_]
    stems: Stemmer

    def find(self, word: bytes, mean_length: float) -> Term:
        """Return what has a word, given as its stem; the mean length of objects is today's."""
        then, since = self.then.find(word), self.since.find(word, mean_length)
        each = (self.is_other[then.places[part]] for part in parts(len(then.places)))
        others = sum(map(int, map(np.count_nonzero, each)))
        return Term(len(then.places) - others + len(since.places), then, since)

    def begun(self, beginnings: Sequence[str]) -> list[str]:
        """Return those with which words begin, and go on, of some of letters only."""
        since, then = set(self.since.begun(beginnings)), self.then.vocabulary
        return [one for one in beginnings if one in since or then.begins(one.encode())]

    def places(self, term: Term) -> NDArray[np.int32]:
        """Return the places of entries that have a term."""
        places = term.then.places
        return np.concatenate((places[~self.is_other[places]], term.since.places))

    def scores(self, terms: Sequence[tuple[Term, float]], size: int) -> NDArray[np.float32]:
        """Return BM25 scores (size,) by place, from terms and the idf of each."""
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
    """Add what a term counts to the scores of what has it."""
    for part in parts(len(having.places)):
        places = having.places[part].astype(np.intp)
        np.add.at(total, places, having.impacts[part] * np.float32(idf))


class WordIndex:
    """Keeps the words of all entries of a view; derived from the database."""

    def __init__(self, archive: Archive, view: EntryView) -> None:
        self._archive = archive
        self._view = view
        self._stems = Stemmer()
        # None while the words are not there
        self.lookup: Lookup | None = None
        # set once they were there, or the database cannot be read
        self.is_read = asyncio.Event()
        # what changes while all is read
        self._meanwhile: RecentWords | None = None
        self._reading: asyncio.Task[None] | None = None
        self._took = 0.0

    async def ready(self) -> None:
        """Begin to read the words, and wait for them if that takes no longer than a search may."""
        if self.lookup is None:
            reading = self.begin()
            is_soon = not self._took and self._archive.calm.is_set()
            if is_soon and len(self._view.places) <= _FEW:
                await asyncio.wait([reading], timeout=_PATIENCE_SECONDS)

    async def recall(self, words: WordSnapshot, changed: Collection[int]) -> None:
        """Take the words of a moment, and of the database what has changed since.

        Before anything else changes. Where too much has changed, all is to be read. Raises
        StoreError.
        """
        view, then = self._view, words.then
        here = view.ids[: view.end]
        size = min(len(words.ids), view.end)
        is_other = np.ones(then.size, np.bool_)
        is_other[:size] = (words.ids[:size] != here[:size]) | np.isin(here[:size], [*changed])
        is_new = np.append(is_other[:size], np.ones(view.end - size, np.bool_))
        new = np.flatnonzero(is_new & (here > 0))
        since = RecentWords()
        since.changed += np.flatnonzero(is_new).tolist()
        if not self._is_over(since, [], _TOO_MANY):
            ids = here[new].tolist()
            found = await self._archive.read(lambda store: store.words.rows(ids))
            rows = [
                Row(place, *found[number]) for place, number in zip(new.tolist(), ids, strict=True)
            ]
            await asyncio.to_thread(since.replace, [], rows)
            self.lookup = Lookup(then, since, is_other, self._stems)
            self.is_read.set()

    def begin(self) -> asyncio.Task[None]:
        """Begin to read the words of all entries, unless that is going on."""
        if self._reading is None or self._reading.done():
            self._reading = self._archive.start(self._read())
        return self._reading

    @property
    def is_kept(self) -> bool:
        """Whether changes have to be noted: words are in memory, or are being read."""
        return bool(self.lookup or self._meanwhile)

    async def change(self, gone: Sequence[int], rows: Sequence[Row]) -> None:
        """Note which places are free now, and what is at others."""
        places = [*gone, *(row.place for row in rows)]
        if now := self.lookup:
            held = np.array(places, np.intp)
            now.is_other[held[held < now.then.size]] = True
            if self._is_over(now.since, places, _TOO_MANY):
                self.lookup = None
        kept = (self.lookup.since if self.lookup else None, self._meanwhile)
        recents = [recent for recent in kept if recent]
        # at once: the reading may end while what follows goes on
        for recent in recents:
            recent.changed += places
        for recent in recents:
            if not self._is_over(recent, [], _TOO_MANY):
                await asyncio.to_thread(recent.replace, gone, rows)
        if now and (self.lookup is None or self._is_over(now.since, [], 1)):
            self.begin()

    def _is_over(self, recent: RecentWords, more: Sequence[int], times: int) -> bool:
        """Return whether more has changed than so many times what may."""
        most = min(max(len(self._view.places) // _SHARE, _LEAST), _MOST)
        return len(recent.changed) + len(more) > times * most

    async def _read(self) -> None:
        await asyncio.sleep(_PAUSES * self._took)
        await self._archive.calm.wait()
        meanwhile = self._meanwhile = RecentWords()
        # without what comes from now on, which is in `meanwhile`
        ids = self._view.ids[: len(self._view.entries)].copy()
        began = time.monotonic()
        try:
            then = await self._archive.read_apart(lambda store: _read(store, ids))
            await asyncio.to_thread(gc_tuning.trim)
        except StoreError:
            self.is_read.set()
            return  # the database, if it can be read at all, has the words, too
        finally:
            self._meanwhile = None
        self._took = time.monotonic() - began
        if self._is_over(meanwhile, [], _TOO_MANY):
            return
        is_other = np.zeros(then.size, np.bool_)
        # what has no place is none of the entries
        is_other[[*(place for place in meanwhile.changed if place < then.size), -1]] = True
        self.lookup = Lookup(then, meanwhile, is_other, self._stems)
        self.is_read.set()


def _read(store: Store, ids: NDArray[np.int64]) -> Postings:
    with store.snapshot():
        return postings.read(store, ids)
