"""Lexical search: what has words, phrases and values of a question, in the database."""

import json
import sqlite3
from collections.abc import Sequence

from opdbus.history.sentences import quoted
from opdbus.state.object import Json


class Words:
    """The words of objects through one connection that reads."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def match(
        self, terms: Sequence[str], limit: int, *, every: bool = False
    ) -> list[tuple[int, float]]:
        """Return (id, BM25 score, larger is better) of the best matches of any or `every` term."""
        joined = (" AND " if every else " OR ").join(map(quoted, terms))
        # as one row: the driver releases the GIL for each row, and gets it back from a busy thread
        # only after 5 ms
        ids, scores = self._database.execute(
            "SELECT group_concat(id), group_concat(score) FROM ("
            "SELECT rowid AS id, -bm25(lexicon, 4.0, 2.0, 1.0) AS score FROM lexicon"
            " WHERE lexicon MATCH ? ORDER BY score DESC LIMIT ?)",
            (joined, limit),
        ).fetchone()
        if ids is None:
            return []
        return list(zip(map(int, ids.split(",")), map(float, scores.split(",")), strict=True))

    def count_matches(self, term: str) -> int:
        """Count the objects that match a term, in any word form."""
        counting = "SELECT count(*) FROM lexicon WHERE lexicon MATCH ?"
        return int(self._database.execute(counting, (quoted(term),)).fetchone()[0])

    def having(self, phrase: str, limit: int) -> list[int]:
        """Return the ids of objects that have a phrase, in any word form; at most so many."""
        (ids,) = self._database.execute(
            "SELECT group_concat(rowid) FROM"
            " (SELECT rowid FROM lexicon WHERE lexicon MATCH ? LIMIT ?)",
            (quoted(phrase), limit),
        ).fetchone()
        return [int(number) for number in ids.split(",")] if ids else []

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
        # as one row: see `match`; and as one JSON text, which is read in half of the time
        ids, contents = self._database.execute(
            "SELECT group_concat(id), group_concat(properties) FROM"  # noqa: S608 -- the clause is our own
            f" (SELECT * FROM objects WHERE id > ? AND ({clause}) ORDER BY id LIMIT ?)",
            (after, *values, limit),
        ).fetchone()
        if ids is None:
            return []
        return list(zip(map(int, ids.split(",")), json.loads(f"[{contents}]"), strict=True))
