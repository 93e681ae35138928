"""Full-text search in an FTS5 table."""

import itertools
import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final

# The tokenizer of all FTS5 tables.
TOKENIZED: Final = "tokenize='porter unicode61'"


class FullText:
    """An FTS5 table through one connection; `weights` are the BM25 weights of its columns.

    Results come as one SQL row of JSON: the driver releases the GIL for each row and, beside a busy
    thread, gets it back only after 5 ms.
    """

    def __init__(
        self, database: sqlite3.Connection, table: str, *weights: float, newest_first: bool = False
    ) -> None:
        self._database = database
        self._table = table
        self._score = f"-bm25({', '.join([table, *map(str, weights)])})"
        self._order = "ORDER BY rowid DESC" if newest_first else ""

    def match(self, terms: Sequence[str], limit: int) -> list[tuple[int, float]]:
        """Return (row id, BM25 score, larger is better) of the best matches of any term."""
        return self._best(_any(terms), limit)

    def best(self, matches: Mapping[str, int], limit: int, enough: int) -> list[tuple[int, float]]:
        """Return the same as `match` with bounded work; `matches` has the row count of each term.

        SQLite scores every matching row, which takes too long for half of all rows. If the terms
        match more than `enough` rows, only rows of the rarest terms are scored, by all terms; if
        the rarest term alone matches more, only its first `enough` rows.
        """
        terms = sorted((term for term in matches if matches[term]), key=matches.__getitem__)
        if not terms:
            return []
        totals = list(itertools.accumulate(matches[term] for term in terms))
        rare = max(1, sum(total <= enough for total in totals))
        found = dict(self._best(_any(terms[:rare]), limit, enough))
        if rare < len(terms):
            # the rarest terms match fewer than `limit` rows: add the next term
            first = rare + (totals[rare - 1] < limit)
            both = f"({_any(terms[:first])})"
            both += f" AND ({_any(terms[first:])})" if terms[first:] else ""
            found |= self._best(both, limit, enough)
        return sorted(found.items(), key=lambda row: -row[1])[:limit]

    def _best(self, wanted: str, limit: int, most: int = -1) -> list[tuple[int, float]]:
        """Return (row id, score) of the best of the first `most` matches; -1 for all matches."""
        ids, scores = self._database.execute(
            "SELECT json_group_array(id), json_group_array(score) FROM ("  # noqa: S608 -- our own names
            f"SELECT * FROM (SELECT rowid AS id, {self._score} AS score FROM {self._table}"
            f" WHERE {self._table} MATCH ? LIMIT ?) ORDER BY score DESC LIMIT ?)",
            (wanted, most, limit),
        ).fetchone()
        return list(zip(json.loads(ids), json.loads(scores), strict=True))

    def having(self, phrase: str, limit: int) -> list[int]:
        """Return at most `limit` ids of rows that contain a phrase, in any word form."""
        (ids,) = self._database.execute(
            "SELECT json_group_array(rowid) FROM"  # noqa: S608 -- our own names
            f" (SELECT rowid FROM {self._table} WHERE {self._table} MATCH ? {self._order} LIMIT ?)",
            (quoted(phrase), limit),
        ).fetchone()
        return list(json.loads(ids))

    def count_matches(self, term: str) -> int:
        """Count the rows that match a term, in any word form."""
        counting = f"SELECT count(*) FROM {self._table} WHERE {self._table} MATCH ?"  # noqa: S608 -- our own names
        return int(self._database.execute(counting, (quoted(term),)).fetchone()[0])


def _any(terms: Sequence[str]) -> str:
    return " OR ".join(map(quoted, terms))


def quoted(term: str) -> str:
    """Quote a term for FTS5, so that it contains no operators."""
    return '"' + term.replace('"', '""') + '"'
