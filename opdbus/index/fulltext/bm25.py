"""BM25 scores and matches of query terms, from the word index or from FTS5."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue.entry_view import EntryView
from opdbus.index.database.store import Store
from opdbus.index.fulltext.postings import Having
from opdbus.index.fulltext.word_index import Lookup, Term
from opdbus.index.ranking.scores import idf

# Most entries that FTS5 returns. FTS5 scores at most _SCORED entries, or this share of all entries
# if that is more: it takes 4 us for each.
_CANDIDATES: Final = 1000
_SCORED: Final = 5000
_SCORED_SHARE: Final = 0.02
_NOWHERE: Final = Having(np.empty(0, np.int32), np.empty(0, np.float16))


class Bm25Scores(Protocol):
    """Matches of query terms; entries are identified by their places in the view."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of entries that have each term."""

    def scores(self) -> NDArray[np.float32]:
        """Return the BM25 score of each entry (entries,); 0 for entries that are not scored."""

    def having(self, term: str) -> NDArray[np.int32]:
        """Return the places of entries that have a term; perhaps not all of very many."""


def bm25_scores(
    store: Store, lookup: Lookup | None, terms: Sequence[str], view: EntryView
) -> Bm25Scores:
    """Return the scores of the terms from memory, or from the database without a `lookup`."""
    return InMemory(store, lookup, terms, view) if lookup else InDatabase(store, terms, view)


class InDatabase:
    """BM25 scores from FTS5; if very many entries have a term, only some are scored."""

    def __init__(self, store: Store, terms: Sequence[str], view: EntryView) -> None:
        self._words = store.words
        self._view = view
        self._enough = _enough(view)
        self.counts = {term: self._words.count_matches(term) for term in terms}

    def scores(self) -> NDArray[np.float32]:
        """Return the BM25 score of each entry."""
        found = dict(self._words.best(self.counts, _CANDIDATES, self._enough))
        total = np.zeros(self._view.end, np.float32)
        there = self._view.refs_of(found)
        total[there.places] = [found[number] for number in there.ids.tolist()]
        return total

    def having(self, term: str) -> NDArray[np.int32]:
        """Return the places of entries that have a term."""
        return _places(self._view, self._words.having(term, self._enough))


class InMemory:
    """BM25 scores from the word index; phrases are looked up in FTS5."""

    def __init__(self, store: Store, lookup: Lookup, terms: Sequence[str], view: EntryView) -> None:
        self._words = store.words
        self._lookup = lookup
        self._view = view
        self._mean_length = self._words.mean_length()
        self._terms = {term: self._find(term) for term in terms}
        self.counts = {term: found.entries for term, found in self._terms.items()}

    def scores(self) -> NDArray[np.float32]:
        """Return the BM25 score of each entry."""
        objects = len(self._view.places)
        terms = [(found, idf(found.entries, objects)) for found in self._terms.values()]
        return self._lookup.scores(terms, self._view.end)

    def having(self, term: str) -> NDArray[np.int32]:
        """Return the places of entries that have a term."""
        return self._lookup.places(self._terms[term])

    def _find(self, term: str) -> Term:
        stems = self._lookup.stems.of(term)
        if len(stems) != 1:
            return self._phrase(term)
        return self._lookup.find(stems[0], self._mean_length)

    def _phrase(self, term: str) -> Term:
        enough = _enough(self._view)
        found = dict(self._words.match([term], enough))
        there = self._view.refs_of(found)
        count = len(found) if len(found) < enough else self._words.count_matches(term)
        scores = np.array([found[number] for number in there.ids.tolist()])
        impacts = (scores / idf(count, len(self._view.places))).astype(np.float16)
        return Term(count, _NOWHERE, Having(there.places.astype(np.int32), impacts))


def _enough(view: EntryView) -> int:
    return max(_SCORED, round(_SCORED_SHARE * len(view.places)))


def _places(view: EntryView, ids: Iterable[int]) -> NDArray[np.int32]:
    """Return the places of ids, without entries removed since they were looked up."""
    return view.refs_of(ids).places.astype(np.int32)
