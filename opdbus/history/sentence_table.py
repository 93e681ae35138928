"""The sentences of history in the database, with their vectors and full-text index."""

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.history.full_text import FullText
from opdbus.history.row_filter import Reader
from opdbus.state.object import ObjectId

# Half precision: cosines differ by less than 0.001, and reads take half the bytes.
_STORED: Final = "<f2"
_BYTES: Final = 2


@dataclass(frozen=True, slots=True)
class SentenceHit:
    """A sentence, the newest of its matching rows, and their number."""

    text: str
    seq: int
    count: int


class Block(NamedTuple):
    """Ids of sentences, and their vectors (sentences, dimension)."""

    ids: Sequence[int]
    vectors: NDArray[np.float32]


class Sentences:
    """Sentences through one connection; methods that write need a transaction."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._history = Reader(database)
        self.words = FullText(database, "sentence_words", newest_first=True)

    def waiting(self, engine: bytes, limit: int) -> list[tuple[int, str]]:
        """Return (id, text) of sentences without a vector of an engine, the newest first."""
        found: list[tuple[int, str]] = []
        for other in self._engines():
            if other != engine:
                # one engine at a time: a query over all would sort a million rows
                found += self._database.execute(
                    "SELECT id, text FROM sentences WHERE engine = ? ORDER BY id DESC LIMIT ?",
                    (other, limit),
                )
        return sorted(found, reverse=True)[:limit]

    def _engines(self) -> Iterator[bytes]:
        """Yield each engine that stored vectors have, and b"" if a vector is missing."""
        query = "SELECT min(engine) FROM sentences"
        (engine,) = self._database.execute(query).fetchone()
        while engine is not None:
            yield engine
            (engine,) = self._database.execute(f"{query} WHERE engine > ?", (engine,)).fetchone()

    def put(self, engine: bytes, ids: Sequence[int], vectors: NDArray[np.float32]) -> None:
        """Store vectors (ids, dimension) of an engine."""
        rows = zip(vectors.astype(_STORED), ids, strict=True)
        self._database.executemany(
            "UPDATE sentences SET engine = ?, vector = ? WHERE id = ?",
            ((engine, vector.tobytes(), number) for vector, number in rows),
        )

    def block(self, engine: bytes, dimension: int, after: int, limit: int) -> Block:
        """Return the next sentences, after an id, with vectors of an engine."""
        return self._block("id > ?", after, engine, dimension, limit)

    def block_of(self, engine: bytes, dimension: int, ids: Collection[int]) -> Block:
        """Return the sentences of these ids that have vectors of an engine."""
        listed = "id IN (SELECT value FROM json_each(?))"
        return self._block(listed, json.dumps([*ids]), engine, dimension, -1)

    def _block(
        self, which: str, value: int | str, engine: bytes, dimension: int, limit: int
    ) -> Block:
        rows = self._database.execute(
            f"SELECT id, vector FROM sentences WHERE {which} AND engine = ? AND length(vector) = ?"  # noqa: S608 -- our own text
            " ORDER BY id LIMIT ?",
            (value, engine, _BYTES * dimension, limit),
        ).fetchall()
        matrix = np.frombuffer(b"".join(row[1] for row in rows), _STORED).astype(np.float32)
        return Block([row[0] for row in rows], matrix.reshape(len(rows), dimension))

    def numbers(self, digests: Iterable[bytes]) -> dict[int, bytes]:
        """Return the digests of sentences by their ids."""
        found = {}
        for digest in digests:
            sql = "SELECT id FROM sentences WHERE digest = ?"
            if row := self._database.execute(sql, (digest,)).fetchone():
                found[int(row[0])] = digest
        return found

    def count(self) -> int:
        """Count the sentences."""
        return int(self._database.execute("SELECT count(*) FROM sentences").fetchone()[0])

    def meant(self, sql: str, values: Sequence[str | int]) -> list[tuple[int, int, int]]:
        """Return (sentence, newest row, number of rows) of the rows that match an SQL clause."""
        return self._database.execute(
            "SELECT sentence, max(seq), count(*) FROM history NOT INDEXED"  # noqa: S608 -- the caller's own SQL
            f" WHERE sentence IS NOT NULL AND seq > ? AND {sql} GROUP BY sentence",
            (self._history.last_unredacted_seq(), *values),
        ).fetchall()

    def object_ids(self, rows: Sequence[int]) -> dict[int, ObjectId]:
        """Return the objects of rows, by row number."""
        found = self._database.execute(
            "SELECT seq, plugin, kind, name FROM history"
            " WHERE seq IN (SELECT value FROM json_each(?))",
            (json.dumps(list(rows)),),
        )
        return {row[0]: ObjectId(*row[1:]) for row in found.fetchall()}

    def hits(
        self, ids: Collection[int], rows: Mapping[int, tuple[int, int]] | None
    ) -> list[tuple[int, SentenceHit]]:
        """Return (id, hit) of sentences; `rows` has newest row and count, None means of all rows.

        Sentences whose newest row may have values that are secret by the present rules are left
        out.
        """
        unchecked, found = self._history.last_unredacted_seq(), []
        texts = self._database.execute(
            "SELECT id, text FROM sentences WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ids)),),
        ).fetchall()
        newest = "SELECT ifnull(max(seq), 0), count(*) FROM history WHERE sentence = ?"
        for number, text in texts:
            row = (
                self._database.execute(newest, (number,)).fetchone()
                if rows is None
                else rows[number]
            )
            if row[0] > unchecked or not unchecked:
                found.append((number, SentenceHit(text, *row)))
        return found
