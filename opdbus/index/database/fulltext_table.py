"""Lexical search: what has words, phrases and values of a question, in the database."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.history.full_text import FullText, quoted
from opdbus.state.object import Json

# Characters of a list of numbers that are read at a time: some milliseconds' work.
_PARSED: Final = 1 << 17
# A number of FTS5 goes on in the next byte if this bit is set.
_MORE: Final = 128


class FulltextTable(FullText):
    """The words of objects through one connection that reads."""

    # of name, text and words
    weights = 4.0, 2.0, 1.0

    def __init__(self, database: sqlite3.Connection) -> None:
        super().__init__(database, "lexicon", *self.weights)

    def mean_length(self) -> float:
        """Return how many words an object has, on the average; at least 1."""
        # the first of FTS5's records: how many rows there are, and the words of each column
        query = "SELECT block FROM lexicon_data WHERE id = 1"
        rows, *words = _varints(self._database.execute(query).fetchone()[0]) or [0]
        return max(1.0, sum(words) / max(1, rows))

    def length(self, number: int) -> int:
        """Return how many words an object has, by id."""
        query = "SELECT sz FROM lexicon_docsize WHERE id = ?"
        return sum(_varints(self._database.execute(query, (number,)).fetchone()[0]))

    def vocabulary(
        self,
    ) -> tuple[bytes, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the stems of all words, their lengths, how many objects have each, and how often.

        The stems are in order, one after the other.
        """
        stems, lengths, objects, times = (
            self._listing("row")
            .execute(
                "SELECT CAST(group_concat(term, '') AS BLOB), group_concat(octets),"
                " group_concat(doc), group_concat(cnt)"
                " FROM (SELECT *, length(CAST(term AS BLOB)) AS octets FROM temp.row)"
            )
            .fetchone()
        )
        return stems or b"", _numbers(lengths), _numbers(objects), _numbers(times)

    def occurrences(self, first: bytes, last: bytes) -> NDArray[np.int64]:
        """Return where the stems from the first to the last one occur, those of each together.

        An occurrence is 4 id + 0, 1 or 2 in a name, a text, or words.
        """
        (found,) = (
            self._listing("instance")
            .execute(
                "SELECT group_concat(4 * doc + (col = 'text') + 2 * (col = 'words'))"
                " FROM temp.instance WHERE term BETWEEN ? AND ?",
                (first.decode(), last.decode()),
            )
            .fetchone()
        )
        return _numbers(found)

    def rows(self, ids: Sequence[int]) -> dict[int, tuple[str, str, str]]:
        """Return the name, the text and the words of objects, by id."""
        query = (
            "SELECT id, name, text, words FROM objects WHERE id IN (SELECT value FROM json_each(?))"
        )
        return {number: row for number, *row in self._database.execute(query, (json.dumps(ids),))}

    def beginning(self, word: str, limit: int) -> list[str]:
        """Return the texts, in lower case, of objects with words that begin so."""
        (texts,) = self._database.execute(
            "SELECT json_group_array(lower(text || ' ' || words)) FROM objects WHERE id IN"
            " (SELECT rowid FROM lexicon WHERE lexicon MATCH ? LIMIT ?)",
            (f"{quoted(word)}*", limit),
        ).fetchone()
        return list(json.loads(texts))

    def known(self, words: Sequence[str]) -> list[str]:
        """Return those of some words that objects have, in any form."""
        (found,) = self._database.execute(
            "SELECT json_group_array(value) FROM json_each(?) WHERE EXISTS"
            " (SELECT 1 FROM lexicon WHERE lexicon MATCH '\"' || value || '\"')",
            (json.dumps(words),),
        ).fetchone()
        return list(json.loads(found))

    def begun(self, beginnings: Sequence[str]) -> list[str]:
        """Return those with which words of objects begin, and go on, of some of letters only."""
        (found,) = (
            self._listing("instance")
            .execute(
                "SELECT json_group_array(value) FROM json_each(?) WHERE EXISTS"
                " (SELECT 1 FROM temp.instance WHERE term BETWEEN value || '0' AND value || '{')",
                (json.dumps(beginnings),),
            )
            .fetchone()
        )
        return list(json.loads(found))

    def properties_having(
        self, phrase: str, limit: int, longest: int
    ) -> list[tuple[int, dict[str, Json]]]:
        """Return (id, properties) of objects that have a phrase; none that is longer."""
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
        """Return (id, properties) of the next objects of which an SQL clause is true."""
        # as one row: see FullText; and as one JSON text, which is read in half of the time
        ids, contents = self._database.execute(
            "SELECT group_concat(id), group_concat(properties) FROM"  # noqa: S608 -- the clause is our own
            f" (SELECT * FROM objects WHERE id > ? AND ({clause}) ORDER BY id LIMIT ?)",
            (after, *values, limit),
        ).fetchone()
        if ids is None:
            return []
        return list(zip(map(int, ids.split(",")), json.loads(f"[{contents}]"), strict=True))

    def _listing(self, kind: str) -> sqlite3.Connection:
        """Make a table of what is indexed: of this connection only, and nothing is stored in it."""
        self._database.execute(
            f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.{kind}"
            f" USING fts5vocab (main, lexicon, {kind})"
        )
        return self._database


def _varints(record: bytes) -> list[int]:
    """Return the numbers of a record of FTS5."""
    found, number = [], 0
    for byte in record:
        number = number << 7 | byte % _MORE
        if byte < _MORE:
            found.append(number)
            number = 0
    return found


def _numbers(listed: str | None) -> NDArray[np.int64]:
    """Read numbers in parts, so that other threads run between: the GIL is held for each."""
    listed, start, found = listed or "", 0, [np.empty(0, np.int64)]
    while start < len(listed):
        end = listed.find(",", start + _PARSED)
        end = len(listed) if end < 0 else end
        found.append(np.fromstring(listed[start:end], np.int64, sep=","))
        start = end + 1
    return np.concatenate(found)
