"""Objects and vectors on disk: one SQLite file, in WAL mode, readable by its owner only."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opdbus.errors import StoreError
from opdbus.state.object import Identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

_SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE objects (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    source TEXT NOT NULL,
    plugin TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    owner INTEGER NOT NULL,
    properties TEXT NOT NULL,
    text TEXT NOT NULL,
    words TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    text_digest BLOB NOT NULL,
    updated_at INTEGER NOT NULL,
    passing INTEGER NOT NULL,
    UNIQUE (source, plugin, kind, name)
);
CREATE INDEX objects_by_text ON objects (text_digest);
CREATE TABLE vectors (key BLOB PRIMARY KEY, text_digest BLOB NOT NULL, data BLOB NOT NULL);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE VIRTUAL TABLE lexicon USING fts5 (
    name, text, words, content='objects', content_rowid='id', tokenize='porter unicode61'
);
CREATE TRIGGER objects_inserted AFTER INSERT ON objects BEGIN
    INSERT INTO lexicon (rowid, name, text, words) VALUES (new.id, new.name, new.text, new.words);
END;
CREATE TRIGGER objects_deleted AFTER DELETE ON objects BEGIN
    INSERT INTO lexicon (lexicon, rowid, name, text, words)
        VALUES ('delete', old.id, old.name, old.text, old.words);
END;
CREATE TRIGGER objects_updated AFTER UPDATE ON objects BEGIN
    INSERT INTO lexicon (lexicon, rowid, name, text, words)
        VALUES ('delete', old.id, old.name, old.text, old.words);
    INSERT INTO lexicon (rowid, name, text, words) VALUES (new.id, new.name, new.text, new.words);
END;
"""
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
_COLUMNS: Final = (
    "id, source, plugin, kind, name, owner, fingerprint, text_digest, updated_at, passing"
)
# What to do about an error, by SQLite's primary result code.
_RIGHTS: Final = "let the user that op-dbus runs as write it, and files beside it"
_TAKEN: Final = "another program uses it: end that, or set OP_DBUS_STATE_DIR to another folder"
_DAMAGED: Final = "it is damaged: move it away and op-dbus builds a new one"
_ADVICE: Final = {
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _DAMAGED,
    sqlite3.SQLITE_FULL: "make room on its file system",
    sqlite3.SQLITE_BUSY: _TAKEN,
    sqlite3.SQLITE_LOCKED: _TAKEN,
    sqlite3.SQLITE_READONLY: _RIGHTS,
    sqlite3.SQLITE_CANTOPEN: _RIGHTS,
    sqlite3.SQLITE_PERM: _RIGHTS,
    sqlite3.SQLITE_IOERR: "look in the kernel's log for what is wrong with its disk",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """What memory holds of a stored object: enough to find it, not what it says."""

    id: int
    identity: Identity
    owner: int
    fingerprint: str
    text_digest: bytes
    updated_at: int
    passing: bool


@dataclass(frozen=True, slots=True)
class Record:
    """A new or changed object, ready to be stored.

    `words` is what only lexical search sees; a `passing` object does not outlive the daemon.
    """

    identity: Identity
    owner: int
    properties: str
    text: str
    words: str
    fingerprint: str
    text_digest: bytes
    updated_at: int
    passing: bool = False


@dataclass(frozen=True, slots=True)
class Content:
    """What a stored object says."""

    properties: str
    text: str
    text_digest: bytes


class Store:
    """The database. Not for several threads at once: each thread opens its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # set from another thread to have a long transaction end at once, undone
        self.stopping = False
        try:
            self._database = _open(path)
        except OSError as error:
            raise StoreError(f"cannot open the database {path}: {error.strerror}") from None
        try:
            with self.guarded():
                _tune(self._database)
                self._migrate()
        except StoreError:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn what SQLite says into a StoreError."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise StoreError(
                f"cannot use the database {self.path}: {error}{_advice(error)}"
            ) from None

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
        """Give every object's entry."""
        for row in self._database.execute(f"SELECT {_COLUMNS} FROM objects"):  # noqa: S608 -- our own constant
            yield _entry(row)

    def put(self, records: Iterable[Record]) -> list[Entry]:
        """Insert or replace objects and give their entries; call inside a transaction."""
        return [self._put(record) for record in records]

    def remove_all(self) -> None:
        """Delete every object; call inside a transaction."""
        self._database.execute("DELETE FROM objects")

    def remove_passing(self) -> int:
        """Delete the objects that were to live only as long as a connection, and count them."""
        with self.transaction():
            return self._database.execute("DELETE FROM objects WHERE passing").rowcount

    def stored(self) -> Iterator[tuple[Identity, int, str, int, bool]]:
        """Give (identity, owner, properties, updated_at, passing) of every object."""
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
                "SELECT id, properties, text, text_digest FROM objects"  # noqa: S608 -- only `?`
                f" WHERE id IN ({_marks(ids)})",
                ids,
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
        rows = self._database.execute(
            "SELECT rowid, -bm25(lexicon, 4.0, 2.0, 1.0) AS score FROM lexicon"
            " WHERE lexicon MATCH ? ORDER BY score DESC LIMIT ?",
            (joined, limit),
        )
        return [(row[0], row[1]) for row in rows]

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

    def _migrate(self) -> None:
        version = self._database.execute("PRAGMA user_version").fetchone()[0]
        if version == _SCHEMA_VERSION:
            self._require_ours()
            return
        if version > _SCHEMA_VERSION:
            raise StoreError(
                f"the database {self.path} was written by a newer op-dbus (version {version});"
                " install that one, or move the file away"
            )
        self._database.executescript(
            f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_SCHEMA_VERSION}; COMMIT;"
        )

    def _require_ours(self) -> None:
        """Refuse what another program made and happened to give our version."""
        if not self._database.execute("PRAGMA table_info(objects)").fetchone():
            raise StoreError(
                f"the database {self.path} is none of op-dbus: move it away and op-dbus builds a"
                " new one"
            )

    def _put(self, record: Record) -> Entry:
        if self.stopping:
            raise StoreError("op-dbus is stopping: nothing of this was kept")
        values = (
            *record.identity,
            record.owner,
            record.properties,
            record.text,
            record.words,
            record.fingerprint,
            record.text_digest,
            record.updated_at,
            record.passing,
        )
        row = self._database.execute(_UPSERT, values).fetchone()
        return Entry(
            row[0],
            record.identity,
            record.owner,
            record.fingerprint,
            record.text_digest,
            record.updated_at,
            record.passing,
        )


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # SQLite gives its -wal and -shm files the mode of the database itself. Only a new file is
    # opened here: closing one that SQLite has open would take its locks away (fcntl(2)).
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    path.chmod(0o600)
    try:
        return sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    except sqlite3.Error as error:
        raise StoreError(f"cannot open the database {path}: {error}") from None


def _advice(error: sqlite3.DatabaseError) -> str:
    # the low byte of an extended code is the primary one; some errors are the driver's own
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
    return f"; {_ADVICE[code]}" if code in _ADVICE else ""


def _tune(database: sqlite3.Connection) -> None:
    database.execute("PRAGMA journal_mode = WAL")
    # In WAL mode NORMAL loses nothing to a killed process, and stays consistent after a power cut.
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA secure_delete = ON")


def _entry(row: tuple[int, str, str, str, str, int, str, bytes, int, int]) -> Entry:
    return Entry(row[0], Identity(*row[1:5]), *row[5:9], passing=bool(row[9]))


def _quoted(term: str) -> str:
    """Write a term as an FTS5 string, in which nothing is an operator."""
    return '"' + term.replace('"', '""') + '"'


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))
