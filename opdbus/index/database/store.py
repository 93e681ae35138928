"""One connection to the SQLite database, with the statements on objects, vectors and drift."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from pathlib import Path
from threading import Event
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.errors import StoreError
from opdbus.history.ledger import Ledger, insert
from opdbus.history.row_filter import Reader
from opdbus.history.sentence_table import Sentences
from opdbus.index.database import database
from opdbus.index.database.fulltext_table import FulltextTable
from opdbus.language.vocabulary import TRAIT_BYTES
from opdbus.state.object import DIGEST_BYTES, Identity, ObjectId

_INTO: Final = """
INSERT INTO objects
    (id, source, plugin, kind, name, owner, properties, text, words, fingerprint, text_digest,
     updated_at, passing, traits)
"""
_OR_UPDATE: Final = """
ON CONFLICT (source, plugin, kind, name) DO UPDATE SET
    owner = excluded.owner, properties = excluded.properties, text = excluded.text,
    words = excluded.words, fingerprint = excluded.fingerprint,
    text_digest = excluded.text_digest, updated_at = excluded.updated_at,
    passing = excluded.passing, traits = excluded.traits
"""
_VECTORS: Final = "INSERT OR REPLACE INTO vectors (key, text_digest, data)"
_LAST_NUMBER: Final = "SELECT ifnull(max(seq), 0) FROM sqlite_sequence WHERE name = 'objects'"
# SQL for the size of an object in bytes, as Record.size.
_SIZE: Final = " + ".join(
    f"length(CAST({column} AS BLOB))" for column in ("name", "properties", "text", "words")
)
_COLUMNS: Final = (
    "id, source, plugin, kind, name, owner, fingerprint, text_digest, updated_at, passing,"
    f" {_SIZE}, traits"
)
# The fields that an entry copies from its record.
_CATALOGUED: Final = attrgetter(
    "owner", "fingerprint", "text_digest", "updated_at", "transient", "size", "traits"
)
# FTS5 tables; they keep deleted words until they are cleaned.
_WORD_TABLES: Final = ("lexicon", "sentence_words")
# Fact: present while the file may contain deleted words.
UNCLEAN: Final = "unclean"
# Pages of an FTS5 table merged at a time: some milliseconds.
_MERGED: Final = 100
# Records of FTS5's %_data table rewritten in one transaction: about 1 MiB.
_RENEWED: Final = 256
# How long a statement waits for a lock of another connection.
_BUSY_SECONDS: Final = 10.0
# About the size of one write, such as a batch of vectors.
_PROBE_CHARACTERS: Final = 64 << 10
# Virtual machine instructions between two checks for a stop: some milliseconds.
_STEPS: Final = 100_000


class Entry(NamedTuple):
    """Stored object without its content, as the catalogue holds it."""

    id: int
    identity: Identity
    owner: int
    fingerprint: str
    text_digest: bytes
    updated_at: int
    transient: bool
    # in bytes, as Record.size
    size: int = 0
    # vocabulary.Traits as bytes
    traits: bytes = bytes(TRAIT_BYTES)


class Record(NamedTuple):
    """New or changed object, ready to be stored.

    `words` is for lexical search only; a `transient` object is removed at the next start.
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
    # vocabulary.Traits as bytes
    traits: bytes = bytes(TRAIT_BYTES)

    @property
    def size(self) -> int:
        """The size in bytes of name, properties, text and words as UTF-8."""
        name, properties, text, words = self.identity.name, self.properties, self.text, self.words
        if name.isascii() and properties.isascii() and text.isascii() and words.isascii():
            # fast path, which most objects take
            return len(name) + len(properties) + len(text) + len(words)
        return sum(len(part.encode()) for part in (name, properties, text, words))


class StoredObject(NamedTuple):
    """Stored object with its id."""

    id: int
    record: Record


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a stored object; `properties` are JSON."""

    properties: str
    text: str
    text_digest: bytes


class Store:
    """Connection to the database, for one thread at a time. The caller closes it."""

    def __init__(
        self,
        path: Path,
        stopping: Event | None = None,
        on_progress: Callable[[], None] = lambda: None,
        *,
        is_read_only: bool = False,
    ) -> None:
        """Open the database; raises StoreError.

        Setting `stopping` makes long transactions fail and roll back. `on_progress` is called
        repeatedly during long work, on the thread that does it.
        """
        self.path = path
        self.is_read_only = is_read_only
        self._stopping = stopping or Event()
        self._on_progress = on_progress
        self._database = database.connect_to_read(path) if is_read_only else database.connect(path)
        self.ledger = Ledger(self._database)
        self.history = Reader(self._database)
        self.sentences = Sentences(self._database)
        self.words = FulltextTable(self._database)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    def interrupt(self) -> None:
        """Abort the running statement, which then changes nothing; call from another thread."""
        self._database.interrupt()

    def interrupt_when_stopping(self) -> None:
        """Make current and later statements of this connection fail once `stopping` is set."""
        self._database.set_progress_handler(self._stopping.is_set, _STEPS)

    def translate_errors(self) -> AbstractContextManager[None]:
        """Translate errors of SQLite and of the system into StoreError."""
        return database.translate_errors(self.path)

    def require_running(self) -> None:
        """Raise StoreError if the daemon is stopping, else report progress."""
        if self._stopping.is_set():
            raise StoreError("op-dbus is stopping: nothing of this was kept")
        self._on_progress()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the body in a write transaction: commit at its end, roll back on an error."""
        with self.translate_errors(), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Run the body in a read transaction, on the state of the database at its first read."""
        self._database.execute("BEGIN")
        try:
            yield
        finally:
            self._database.execute("COMMIT")

    def sync(self) -> None:
        """Sync all commits to the disk by one more; readers of older states do not prevent it."""
        self._database.execute("PRAGMA synchronous = FULL")
        try:
            self.set_fact("synced", "")
        finally:
            self._database.execute("PRAGMA synchronous = NORMAL")

    def keep_log(self, pages: int) -> None:
        """Set the number of WAL pages after which SQLite checkpoints."""
        self._database.execute(f"PRAGMA wal_autocheckpoint = {pages:d}")

    def clean_words(self) -> Iterator[bool]:
        """Erase deleted words from all FTS5 tables, in steps of some milliseconds; yield True.

        FTS5 keeps deleted words until segments are merged. Its command `merge` with a negative
        number of pages begins to merge all segments into one; a positive number continues. Then
        pages in use may hold remains of moved records: secure_delete overwrites pages only when
        they become free. Rewriting the records frees them, but not the pages at both ends of a
        range: a second pass with other ranges cleans those. Takes 10 ms for each MiB.
        """
        for table in _WORD_TABLES:
            pages = -_MERGED
            while self._merge_words(table, pages):
                pages = _MERGED
                yield True
            with self.transaction():
                self._rewrite(f"{table}_idx", "segid, term, pgno", "TRUE")
            yield True
            for most in (_RENEWED, _RENEWED // 2):
                last, most_of_next = 0, most
                while last := self._renew_words(f"{table}_data", last, most_of_next):
                    most_of_next = _RENEWED
                    yield True

    def _merge_words(self, table: str, pages: int) -> bool:
        with self.transaction():
            before = self._database.total_changes
            self._database.execute(
                f"INSERT INTO {table} ({table}, rank) VALUES ('merge', ?)",  # noqa: S608 -- our own names
                (pages,),
            )
            # FTS5's documentation: a difference of less than 2 means that nothing was merged
            return self._database.total_changes - before > 1

    def _renew_words(self, table: str, after: int, most: int) -> int:
        """Rewrite `most` FTS5 records after an id; return the last id, 0 at the end."""
        with self.transaction():
            rows = f"SELECT id FROM {table} WHERE id > ? ORDER BY id LIMIT ?"  # noqa: S608 -- our own names
            ids = self._database.execute(rows, (after, most)).fetchall()
            last: int = ids[-1][0] if ids else 0
            self._rewrite(table, "id, block", f"id > {after} AND id <= {last}")
            return last

    def _rewrite(self, table: str, columns: str, which: str) -> None:
        """Delete and insert rows; call inside a transaction."""
        select = f"SELECT {columns} FROM {table} WHERE {which}"  # noqa: S608 -- our own names
        rows = self._database.execute(select).fetchall()
        self._database.execute(f"DELETE FROM {table} WHERE {which}")  # noqa: S608 -- our own names
        places = ", ".join("?" * len(columns.split(",")))
        into = f"INSERT INTO {table} ({columns}) VALUES ({places})"  # noqa: S608 -- our own names
        self._database.executemany(into, rows)

    def empty_log(self, seconds: float = _BUSY_SECONDS) -> bool:
        """Checkpoint and truncate the WAL; return False if other connections prevented it.

        Waits at most `seconds` for them.
        """
        self._database.execute(f"PRAGMA busy_timeout = {int(1000 * seconds)}")
        try:
            return not self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        finally:
            self._database.execute(f"PRAGMA busy_timeout = {int(1000 * _BUSY_SECONDS)}")

    # objects

    def entries(self, *, transient: bool | None = None) -> list[Entry]:
        """Return all entries, only transient or only permanent ones; raises Damaged.

        Equal values of different entries are one value in memory.
        """
        which = "TRUE" if transient is None else f"passing = {transient:d}"
        rows = self._database.execute(f"SELECT {_COLUMNS} FROM objects WHERE {which}")  # noqa: S608 -- our own constants
        known: dict[Any, Any] = {}
        try:
            return [_entry(row, known) for row in rows]
        except (TypeError, ValueError) as error:
            raise database.Damaged(self.path, f"an object in it is no object: {error}") from None

    def last_id(self) -> int:
        """Return the highest object id ever used."""
        return int(self._database.execute(_LAST_NUMBER).fetchone()[0])

    def latest(self, source: str) -> int:
        """Return the latest `updated_at` of a source in seconds since 1970, 0 without objects."""
        query = "SELECT max(updated_at) FROM objects WHERE source = ?"
        return int(self._database.execute(query, (source,)).fetchone()[0] or 0)

    def put(self, records: Collection[Record], known: Mapping[Identity, Entry] = {}) -> list[Entry]:
        """Insert objects, or replace the `known` ones, and return their entries.

        Call inside a transaction. Ids of new objects are assigned here, since asking SQLite for
        each would double the time. Raises StoreError if the daemon is stopping.
        """
        new = count(self.last_id() + 1)
        there = (known.get(record.identity) for record in records)
        ids = [entry.id if entry else next(new) for entry in there]

        def rows() -> Iterator[tuple[Any, ...]]:
            for number, record in zip(ids, records, strict=True):
                self.require_running()
                held = bytearray(record.text_digest), record.updated_at, int(record.transient)
                yield number, *record.identity, *record[1:6], *held, bytearray(record.traits)

        insert(self._database, _INTO, rows(), _OR_UPDATE)
        strings: dict[str, str] = {}
        return [
            Entry(number, _shared(record.identity, strings), *_CATALOGUED(record))
            for number, record in zip(ids, records, strict=True)
        ]

    def stored(self, after: int, last: int, limit: int) -> list[StoredObject]:
        """Return at most `limit` objects with ids above `after` and up to `last`, by id."""
        rows = self._database.execute(
            "SELECT id, source, plugin, kind, name, owner, properties, text, words, fingerprint,"
            " text_digest, updated_at, passing, traits"
            " FROM objects WHERE id > ? AND id <= ? ORDER BY id LIMIT ?",
            (after, last, limit),
        ).fetchall()
        return [
            StoredObject(
                number, Record._make((Identity(*row[:4]), *row[4:11], bool(row[11]), row[12]))
            )
            for number, *row in rows
        ]

    def remove(self, ids: Iterable[int]) -> None:
        """Delete objects by id, but not their vectors; call inside a transaction."""
        self._database.executemany("DELETE FROM objects WHERE id = ?", ((i,) for i in ids))

    def content(self, ids: Sequence[int]) -> dict[int, Content]:
        """Return the content of the existing objects among `ids`, by id."""
        return {
            row[0]: Content(*row[1:])
            for row in self._database.execute(
                "SELECT id, properties, text, text_digest FROM objects"
                " WHERE id IN (SELECT value FROM json_each(?))",
                (json.dumps(ids),),
            )
        }

    def texts(self, digests: Sequence[bytes]) -> dict[bytes, str]:
        """Return the texts that objects have among `digests`, by digest."""
        places = ",".join("?" * len(digests))
        return dict(
            self._database.execute(
                f"SELECT text_digest, text FROM objects WHERE text_digest IN ({places})"  # noqa: S608 -- only places
                " GROUP BY text_digest",
                digests,
            )
        )

    # vectors

    def put_vectors(
        self, keys: Sequence[bytes], digests: Sequence[bytes], vectors: NDArray[np.float32]
    ) -> None:
        """Store vectors (keys, dimension) of texts in one transaction."""
        columns = keys, digests, vectors.astype("<f4", copy=False)
        rows = zip(*(map(bytearray, column) for column in columns), strict=True)
        with self.transaction():
            insert(self._database, _VECTORS, rows)

    def vectors_of(self, keys: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
        """Return (key, little-endian float32) of the stored vectors among `keys`."""
        places = ",".join("?" * len(keys))
        query = f"SELECT key, data FROM vectors WHERE key IN ({places})"  # noqa: S608 -- only places
        return self._database.execute(query, keys).fetchall()

    def vectors(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield (key, text digest, little-endian float32) of every vector."""
        yield from self._database.execute("SELECT key, text_digest, data FROM vectors")

    def probe(self) -> None:
        """Write and delete 64 KiB; raises StoreError if the database cannot be written."""
        self.set_fact("probe", "." * _PROBE_CHARACTERS)
        self.drop_fact("probe")

    def prune_vectors(self, first: int) -> None:
        """Delete vectors of unused texts whose digests begin with the byte `first`."""
        after = bytes([first + 1]) if first < 0xFF else b"\xff" * 32
        with self.transaction():
            self._database.execute(
                "DELETE FROM vectors WHERE text_digest >= ? AND text_digest < ?"
                " AND NOT EXISTS"
                " (SELECT 1 FROM objects WHERE objects.text_digest = vectors.text_digest)",
                (bytes([first]), after),
            )

    def forget_vectors(self, digests: Sequence[bytes]) -> set[bytes]:
        """Delete vectors of the unused texts among `digests`; return the texts that had any."""
        query = (
            "DELETE FROM vectors WHERE text_digest = ?1 AND NOT EXISTS"
            " (SELECT 1 FROM objects WHERE text_digest = ?1) RETURNING 1"
        )
        with self.transaction():
            return {one for one in digests if self._database.execute(query, (one,)).fetchall()}

    def prune_history(self, last: int) -> int:
        """Delete some of the oldest rows of history up to `last`, and return their number."""
        with self.transaction():
            return self.ledger.prune(last)

    def put_sentence_vectors(
        self, engine: bytes, numbers: Sequence[int], vectors: NDArray[np.float32]
    ) -> None:
        """Store vectors (numbers, dimension) of sentences of history in one transaction."""
        with self.transaction():
            self.sentences.put(engine, numbers, vectors)

    def put_moved(self, rows: Sequence[tuple[float, int]]) -> None:
        """Store (distance between the texts before and after, number) for rows of history."""
        with self.transaction():
            self.ledger.set_moved(rows)

    # drift

    def drifts(self) -> Iterator[tuple[ObjectId, str, float, str]]:
        """Yield the stored drift: (object, class, since, field names as JSON)."""
        query = "SELECT plugin, kind, name, what, since, fields FROM drifts"
        for row in self._database.execute(query):
            yield ObjectId(*row[:3]), *row[3:]

    def put_drifts(
        self, rows: Iterable[tuple[ObjectId, str, float, str]], gone: Iterable[ObjectId]
    ) -> None:
        """Insert or replace drift rows, and delete those of `gone`; call inside a transaction."""
        self._database.executemany(
            "DELETE FROM drifts WHERE plugin = ? AND kind = ? AND name = ?", gone
        )
        self._database.executemany(
            "INSERT OR REPLACE INTO drifts VALUES (?, ?, ?, ?, ?, ?)",
            ((*object_id, *rest) for object_id, *rest in rows),
        )

    # facts

    def fact(self, name: str) -> str | None:
        """Return the value of a fact, None if it is not stored."""
        row = self._database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return row[0] if row else None

    def set_fact(self, name: str, value: str) -> None:
        """Set a fact, in the present transaction or one of its own."""
        self._database.execute(
            "INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value)
        )

    def drop_fact(self, name: str) -> None:
        """Delete a fact, in the present transaction or one of its own."""
        self._database.execute("DELETE FROM facts WHERE name = ?", (name,))


def _entry(row: tuple[Any, ...], known: dict[Any, Any]) -> Entry:
    """Return the entry of a row of _COLUMNS; a damaged row raises TypeError or ValueError.

    Values that rows often share are taken from `known`.
    """
    number, source, plugin, kind, name, owner, hashed, text, at, passing, size, traits = row
    if not (isinstance(owner, int) and isinstance(at, int)):
        raise TypeError("owner and time are no integers")
    if (len(text), len(traits)) != (DIGEST_BYTES, TRAIT_BYTES):
        raise ValueError("a digest or its traits have the wrong length")
    identity = _shared((source, plugin, kind, name), known)
    at, traits = known.setdefault(at, at), known.setdefault(traits, traits)
    return Entry(number, identity, owner, hashed, text, at, bool(passing), size, traits)


def _shared(identity: tuple[str, str, str, str], known: dict[Any, Any]) -> Identity:
    """Return an identity whose strings are those of `known` that equal them."""
    return Identity(*[known.setdefault(part, part) for part in identity])
