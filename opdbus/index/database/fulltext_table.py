"""Full-text search of objects in SQLite's FTS5 table `lexicon`, and reads of its index."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.history.full_text import FullText, quoted
from opdbus.state.object import Json

# Characters of a number list parsed at a time: some milliseconds.
_PARSED: Final = 1 << 17
# Continuation bit of an FTS5 varint.
_MORE: Final = 128


class FulltextTable(FullText):
    """FTS5 table of objects on one connection."""

    # BM25 weights of the columns name, text and words
    weights = 4.0, 2.0, 1.0

    def __init__(self, database: sqlite3.Connection) -> None:
        super().__init__(database, "lexicon", *self.weights)

    def mean_length(self) -> float:
        """Return the mean number of words of an object, at least 1."""
        # FTS5's averages record: number of rows, then number of words in each column
        query = "SELECT block FROM lexicon_data WHERE id = 1"
        rows, *words = _varints(self._database.execute(query).fetchone()[0]) or [0]
        return max(1.0, sum(words) / max(1, rows))

    def length(self, number: int) -> int:
        """Return the number of words of the object with an id."""
        query = "SELECT sz FROM lexicon_docsize WHERE id = ?"
        return sum(_varints(self._database.execute(query, (number,)).fetchone()[0]))

    def vocabulary(
        self,
    ) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return all stems, and by stem its bytes, its objects, and its occurrences.

        The stems are sorted and concatenated as UTF-8; the arrays have their order.
        """
        self._make_listing("row")
        stems, lengths, objects, times = self._database.execute(
            "SELECT CAST(group_concat(term, '') AS BLOB), group_concat(octets),"
            " group_concat(doc), group_concat(cnt)"
            " FROM (SELECT *, length(CAST(term AS BLOB)) AS octets FROM temp.row)"
        ).fetchone()
        return stems or b"", _parse_numbers(lengths), _parse_numbers(objects), _parse_numbers(times)

    def occurrences(self, first: bytes, last: bytes) -> NDArray[np.int64]:
        """Return the occurrences of all stems between `first` and `last` inclusive, by stem.

        An occurrence is 4 * id + column, where the column is 0 (name), 1 (text) or 2 (words).
        """
        self._make_listing("instance")
        (found,) = self._database.execute(
            "SELECT group_concat(4 * doc + (col = 'text') + 2 * (col = 'words'))"
            " FROM temp.instance WHERE term BETWEEN ? AND ?",
            (first.decode(), last.decode()),
        ).fetchone()
        return _parse_numbers(found)

    def rows(self, ids: Sequence[int]) -> dict[int, tuple[str, str, str]]:
        """Return (name, text, words) of objects, by id."""
        query = (
            "SELECT id, name, text, words FROM objects WHERE id IN (SELECT value FROM json_each(?))"
        )
        return {number: row for number, *row in self._database.execute(query, (json.dumps(ids),))}

    def beginning(self, word: str, limit: int) -> list[str]:
        """Return text and words, in lower case, of at most `limit` objects with a word prefix."""
        (texts,) = self._database.execute(
            "SELECT json_group_array(lower(text || ' ' || words)) FROM objects WHERE id IN"
            " (SELECT rowid FROM lexicon WHERE lexicon MATCH ? LIMIT ?)",
            (f"{quoted(word)}*", limit),
        ).fetchone()
        return list(json.loads(texts))

    def existing_words(self, words: Sequence[str]) -> list[str]:
        """Return the words that an object has, compared by stem."""
        (found,) = self._database.execute(
            "SELECT json_group_array(value) FROM json_each(?) WHERE EXISTS"
            " (SELECT 1 FROM lexicon WHERE lexicon MATCH '\"' || value || '\"')",
            (json.dumps(words),),
        ).fetchone()
        return list(json.loads(found))

    def find_prefixes(self, beginnings: Sequence[str]) -> list[str]:
        """Return the `beginnings`, of letters only, that are proper prefixes of indexed stems."""
        self._make_listing("instance")
        (found,) = self._database.execute(
            "SELECT json_group_array(value) FROM json_each(?) WHERE EXISTS"
            " (SELECT 1 FROM temp.instance WHERE term BETWEEN value || '0' AND value || '{')",
            (json.dumps(beginnings),),
        ).fetchone()
        return list(json.loads(found))

    def properties_having(
        self, phrase: str, limit: int, longest: int
    ) -> list[tuple[int, dict[str, Json]]]:
        """Return (id, properties) of objects with a phrase, of the first `limit` in the index.

        Objects whose properties have more than `longest` characters of JSON are left out.
        """
        listed = json.dumps(self.having(phrase, limit))
        return self.sift(
            0,
            "id IN (SELECT value FROM json_each(?)) AND length(properties) <= ?",
            [listed, longest],
            limit,
        )

    def sift(
        self, after: int, clause: str, values: Sequence[str | int], limit: int
    ) -> list[tuple[int, dict[str, Json]]]:
        """Return (id, properties) of objects after an id that meet an SQL clause, by id.

        At most `limit`. The clause must be a constant; its parameters are `values`.
        """
        # as one row, for the reason in FullText, and as one JSON text, which parses faster
        ids, contents = self._database.execute(
            "SELECT group_concat(id), group_concat(properties) FROM"  # noqa: S608 -- the clause is our own
            f" (SELECT * FROM objects WHERE id > ? AND ({clause}) ORDER BY id LIMIT ?)",
            (after, *values, limit),
        ).fetchone()
        if ids is None:
            return []
        return list(zip(map(int, ids.split(",")), json.loads(f"[{contents}]"), strict=True))

    def _make_listing(self, kind: str) -> None:
        """Create the fts5vocab table temp.KIND of the index, which this connection alone has."""
        self._database.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.{kind}"
            f" USING fts5vocab (main, lexicon, {kind})"
        )


def _varints(record: bytes) -> list[int]:
    """Decode the varints of an FTS5 record."""
    found, number = [], 0
    for byte in record:
        number = number << 7 | byte % _MORE
        if byte < _MORE:
            found.append(number)
            number = 0
    return found


def _parse_numbers(listed: str | None) -> NDArray[np.int64]:
    """Parse comma-separated integers in parts, since parsing holds the GIL."""
    listed, start, found = listed or "", 0, [np.empty(0, np.int64)]
    while start < len(listed):
        end = listed.find(",", start + _PARSED)
        end = len(listed) if end < 0 else end
        found.append(np.fromstring(listed[start:end], np.int64, sep=","))
        start = end + 1
    return np.concatenate(found)
