"""Full-text index of recently changed entries, an in-memory FTS5 table with places as row ids."""

import sqlite3
from collections.abc import Sequence
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from opdbus.history.full_text import TOKENIZED
from opdbus.index.database.fulltext_table import FulltextTable
from opdbus.index.fulltext.postings import Having, impacts, once

_LEXICON: Final = f"CREATE VIRTUAL TABLE lexicon USING fts5 (name, text, words, {TOKENIZED})"
_PUT: Final = "REPLACE INTO lexicon (rowid, name, text, words) VALUES (?, ?, ?, ?)"


class Row(NamedTuple):
    """The indexed columns of the entry at a place."""

    place: int
    name: str
    text: str
    words: str


class RecentWords:
    """Terms of entries that changed since a `Postings` was read; safe for several threads."""

    def __init__(self) -> None:
        # places whose entries changed, repeated if they changed again
        self.changed: list[int] = []
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.execute(_LEXICON)
        self._words = FulltextTable(self._database)
        # number of words of each entry, by place
        self._lengths: dict[int, int] = {}
        self._one_at_a_time = Lock()

    def __del__(self) -> None:
        """Close the database."""
        self._database.close()

    def replace(self, gone: Sequence[int], rows: Sequence[Row]) -> None:
        """Remove the rows of the places `gone`, and insert or replace `rows`."""
        with self._one_at_a_time, self._database:
            self._database.execute("BEGIN")
            for place in gone:
                self._database.execute("DELETE FROM lexicon WHERE rowid = ?", (place,))
            self._database.executemany(_PUT, rows)
            self._lengths |= {row.place: self._words.length(row.place) for row in rows}

    def find(self, word: bytes, mean_length: float) -> Having:
        """Return the entries with a stem, as `Postings.find` does."""
        with self._one_at_a_time:
            said = self._words.occurrences(word, word)
            places, times, _ = once(said, np.array([len(said)]), self._words.weights)
            lengths = np.array([self._lengths[place] for place in places.tolist()], np.float32)
        found = impacts(times, lengths, mean_length).astype(np.float16)
        return Having(places.astype(np.int32), found)

    def find_prefixes(self, beginnings: Sequence[str]) -> list[str]:
        """Return the prefixes with which a longer term begins: see `FulltextTable.begun`."""
        with self._one_at_a_time:
            return self._words.find_prefixes(beginnings)
