"""The words of the objects that changed last, in a small database in memory, by their places."""

import sqlite3
from collections.abc import Sequence
from threading import Lock
from typing import Final, NamedTuple

import numpy as np

from opdbus.history.full_text import TOKENIZED
from opdbus.index.postings import Having, Said, impacts, once
from opdbus.index.words import Words

_LEXICON: Final = f"CREATE VIRTUAL TABLE lexicon USING fts5 (name, text, words, {TOKENIZED})"
_PUT: Final = "REPLACE INTO lexicon (rowid, name, text, words) VALUES (?, ?, ?, ?)"
# A number of FTS5 goes on in the next byte if this bit is set.
_MORE: Final = 128


class Row(NamedTuple):
    """The words of the entry at a place."""

    place: int
    name: str
    text: str
    words: str


class RecentWords:
    """What has changed since some moment; may be used by several threads."""

    def __init__(self) -> None:
        # places whose entries are others since then
        self.changed: list[int] = []
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.execute(_LEXICON)
        self._words = Words(self._database)
        # how many words each entry has, by place
        self._lengths: dict[int, int] = {}
        self._said = Said(0, 0)
        self._one_at_a_time = Lock()

    def replace(self, gone: Sequence[int], rows: Sequence[Row]) -> None:
        """Forget what was at some places, and learn what is there now; takes 15 us a row."""
        with self._one_at_a_time, self._database:
            self._database.execute("BEGIN")
            for place in gone:
                self._database.execute("DELETE FROM lexicon WHERE rowid = ?", (place,))
            self._database.executemany(_PUT, rows)
            self._lengths |= {row.place: self._length(row.place) for row in rows}
            self._said = Said(sum(self._lengths.values()), len(self._lengths))

    def find(self, word: bytes, before: Said) -> Having:
        """Return what has a word: see Postings.find; `before` is what was said in others."""
        with self._one_at_a_time:
            said = self._words.occurrences(word, word)
            places, times, _ = once(said, np.array([len(said)]), self._words.weights)
            lengths = np.array([self._lengths[place] for place in places.tolist()], np.float32)
        words, objects = (sum(both) for both in zip(self._said, before, strict=True))
        found = impacts(times, lengths, Said(words, objects).mean).astype(np.float16)
        return Having(places.astype(np.int32), found)

    def begun(self, beginnings: Sequence[str]) -> list[str]:
        """Return those with which words begin, and go on: see Words.begun."""
        with self._one_at_a_time:
            return self._words.begun(beginnings)

    def _length(self, place: int) -> int:
        """Return how many words an entry has: FTS5 keeps them by column."""
        counting = "SELECT sz FROM lexicon_docsize WHERE id = ?"
        found = number = 0
        for byte in self._database.execute(counting, (place,)).fetchone()[0]:
            number = number << 7 | byte % _MORE
            if byte < _MORE:
                found, number = found + number, 0
        return found
