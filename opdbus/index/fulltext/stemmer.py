"""Stems of query terms, made by the tokenizer of the database's FTS5 tables."""

import sqlite3
from typing import Final

from opdbus.history.full_text import TOKENIZED

# Terms in the cache; a full cache is emptied.
_KEPT: Final = 1024


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
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[term] = self._read(term)
        return self._known[term]

    def _read(self, term: str) -> list[bytes]:
        run = self._database.execute
        run("INSERT INTO asked (term) VALUES (?)", (term,))
        found = run("SELECT term FROM stems ORDER BY offset").fetchall()
        run("DELETE FROM asked")
        return [stem.encode() for (stem,) in found]
