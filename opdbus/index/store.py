"""Objects and vectors on disk: one SQLite file, in WAL mode, readable by its owner only."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Final

from opdbus.errors import StoreError
from opdbus.index import database
from opdbus.state.object import Identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

_UPSERT: Final = """
INSERT INTO objects
    (source, plugin, kind, name, owner, properties, text, words, fingerprint, text_digest,
     updated_at, passing)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (source, plugin, kind, name) DO UPDATE SET
    owner = excluded.owner, properties = excluded.properties, text = excluded.text,
    words = excluded.words, fingerprint = excluded.fingerprint,
    text_digest = excluded.text_digest, updated_at = excluded.updated_at,
    passing = excluded.passing
RETURNING id
"""
# What an object takes, in bytes: the same as Record.size.
_SIZE: Final = " + ".join(
    f"length(CAST({column} AS BLOB))" for column in ("name", "properties", "text", "words")
)
_COLUMNS: Final = (
    f"id, source, plugin, kind, name, owner, fingerprint, text_digest, updated_at, passing, {_SIZE}"
)
# As much as what is written at a time, such as a batch of vectors.
_PROBE_CHARACTERS: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class Entry:
    """What memory holds of a stored object: enough to find it, not what it says."""

    id: int
    identity: Identity
    owner: int
    fingerprint: str
    text_digest: bytes
    updated_at: int
    transient: bool
    # in bytes, see Record.size
    size: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """A new or changed object, ready to be stored.

    `words` is what only lexical search sees; a `transient` object does not outlive the daemon.
    """

    identity: Identity
    owner: int
    properties: str
    text: str
    words: str
    fingerprint: str
    text_digest: bytes
    updated_at: int
    transient: bool = False

    @property
    def size(self) -> int:
        """What it takes in the database, in bytes of name, properties and texts."""
        parts = (self.identity.name, self.properties, self.text, self.words)
        return sum(len(part.encode()) for part in parts)


@dataclass(frozen=True, slots=True)
class Content:
    """What a stored object says."""

    properties: str
    text: str
    text_digest: bytes


class Store:
    """The database. Not for several threads at once: each thread opens its own."""

    def __init__(
        self, path: Path, stopping: Event | None = None, *, is_read_only: bool = False
    ) -> None:
        """Open the database; raises StoreError. Set `stopping` to end a long transaction undone."""
        self.path = path
        self.is_read_only = is_read_only
        self._stopping = stopping or Event()
        self._database = database.connect_to_read(path) if is_read_only else database.connect(path)

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def interrupt(self) -> None:
        """End the statement that another thread runs; it changes nothing."""
        self._database.interrupt()

    def guarded(self) -> AbstractContextManager[None]:
        """Turn what SQLite says into a StoreError."""
        return database.guarded(self.path)

    def require_going_on(self) -> None:
        """Raise StoreError if the daemon stops meanwhile."""
        if self._stopping.is_set():
            raise StoreError("op-dbus is stopping: nothing of this was kept")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit everything inside, or, after an error, nothing."""
        with self.guarded(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield

    def scrub(self) -> None:
        """Leave no byte in the files of what was deleted or replaced before."""
        with self.transaction():
            self._database.execute("INSERT INTO lexicon (lexicon) VALUES ('rebuild')")
        self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    # objects

    def entries(self) -> Iterator[Entry]:
        """Give every object's entry, those that were changed last at the end."""
        for row in self._database.execute(f"SELECT {_COLUMNS} FROM objects ORDER BY updated_at"):  # noqa: S608 -- our own constant
            yield _entry(row)

    def put(self, records: Iterable[Record]) -> list[Entry]:
        """Insert or replace objects and give their entries; call inside a transaction."""
        return [self._put(record) for record in records]

    def remove_all(self) -> None:
        """Delete every object; call inside a transaction."""
        self._database.execute("DELETE FROM objects")

    def remove_transient(self) -> int:
        """Delete the objects that were to live only as long as a connection, and count them."""
        with self.transaction():
            return self._database.execute("DELETE FROM objects WHERE passing").rowcount

    def stored(self) -> Iterator[tuple[Identity, int, str, int, bool]]:
        """Give (identity, owner, properties, updated_at, transient) of every object."""
        rows = self._database.execute(
            "SELECT source, plugin, kind, name, owner, properties, updated_at, passing FROM objects"
        )
        for row in rows.fetchall():
            yield Identity(*row[:4]), row[4], row[5], row[6], bool(row[7])

    def remove(self, ids: Iterable[int]) -> None:
        """Delete objects, not their vectors; call inside a transaction."""
        self._database.executemany("DELETE FROM objects WHERE id = ?", ((i,) for i in ids))

    def content(self, ids: Sequence[int]) -> dict[int, Content]:
        """Give what objects say, by id."""
        return {
            row[0]: Content(*row[1:])
            for row in self._database.execute(
                "SELECT id, properties, text, text_digest FROM objects"
                " WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(ids),),
            )
        }

    # vectors

    def put_vectors(
        self, keys: Sequence[bytes], digests: Sequence[bytes], vectors: NDArray[np.float32]
    ) -> None:
        """Keep vectors (keys, dimension) of the texts with these digests, in one commit."""
        rows = zip(keys, digests, (v.astype("<f4").tobytes() for v in vectors), strict=True)
        with self.transaction():
            self._database.executemany(
                "INSERT OR REPLACE INTO vectors (key, text_digest, data) VALUES (?, ?, ?)", rows
            )

    def vectors(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Give (key, digest of the text, little-endian float32) of every vector."""
        yield from self._database.execute("SELECT key, text_digest, data FROM vectors")

    def probe(self) -> None:
        """See whether there is room to write, by writing what goes again; raises StoreError."""
        with self.transaction():
            self.remember("probe", "." * _PROBE_CHARACTERS)
        with self.transaction():
            self._database.execute("DELETE FROM facts WHERE name = 'probe'")

    def prune_vectors(self) -> set[bytes]:
        """Delete the vectors of texts that no object has any more, and give the texts' digests."""
        with self.transaction():
            rows = self._database.execute(
                "DELETE FROM vectors WHERE text_digest NOT IN (SELECT text_digest FROM objects)"
                " RETURNING text_digest"
            ).fetchall()
        return {row[0] for row in rows}

    # lexical search

    def match(
        self, terms: Sequence[str], limit: int, *, every: bool = False
    ) -> list[tuple[int, float]]:
        """Give (id, BM25 score, larger is better) of the objects that best match any term.

        With `every`, only of those that match all terms.
        """
        joined = (" AND " if every else " OR ").join(map(_quoted, terms))
        # one row of all: for each row the driver lets go of the interpreter, and while another
        # thread is busy it has that back after 5 ms only
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
        """Count the objects that a term matches, in any of its word forms."""
        counting = "SELECT count(*) FROM lexicon WHERE lexicon MATCH ?"
        return int(self._database.execute(counting, (_quoted(term),)).fetchone()[0])

    # values that outlive a run

    def fact(self, name: str) -> str | None:
        """Give a remembered value."""
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def remember(self, name: str, value: str) -> None:
        """Remember a value; call inside a transaction."""
        self._database.execute(
            "INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value)
        )

    def _put(self, record: Record) -> Entry:
        self.require_going_on()
        values = (
            *record.identity,
            record.owner,
            record.properties,
            record.text,
            record.words,
            record.fingerprint,
            record.text_digest,
            record.updated_at,
            record.transient,
        )
        row = self._database.execute(_UPSERT, values).fetchone()
        return Entry(
            row[0],
            record.identity,
            record.owner,
            record.fingerprint,
            record.text_digest,
            record.updated_at,
            record.transient,
            record.size,
        )


def _entry(row: tuple[int, str, str, str, str, int, str, bytes, int, int, int]) -> Entry:
    return Entry(row[0], Identity(*row[1:5]), *row[5:9], transient=bool(row[9]), size=row[10])


def _quoted(term: str) -> str:
    """Write a term as an FTS5 string, in which nothing is an operator."""
    return '"' + term.replace('"', '""') + '"'
