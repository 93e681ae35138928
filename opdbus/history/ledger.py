"""The rows of history in the database; every method is called inside a transaction.

Rows are inserted many with each SQL statement. With one statement a row, FTS5 flushes its index
after each, which doubles the time. SQLite also releases the GIL for each statement, and has to wait
for it while another thread computes.
"""

import io
import json
import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain, count
from typing import Any, Final, NamedTuple

from opdbus.history import hash_chain
from opdbus.history.change import ERASED, Change, to_json
from opdbus.history.hash_chain import Head
from opdbus.language.object_text import digest_of
from opdbus.platform.slices import batches
from opdbus.state.object import Identity

# Limits of a step of pruning: it takes some milliseconds, for which other writes wait.
MAX_PRUNED: Final = 100
_MAX_PRUNED_BYTES: Final = 1 << 20
# Rows inserted by a statement: some milliseconds; SQLite takes at most 32,766 values.
_AT_A_TIME: Final = 128
# Rows that share a row of `history_times`: reading them takes a millisecond.
BLOCK: Final = 1024
# The fact with the last row that may have values that are secret by the present rules.
UNCHECKED: Final = "history unchecked"
SCHEMA: Final = """
CREATE TABLE history_times (block INTEGER PRIMARY KEY, earliest INTEGER, latest INTEGER);
CREATE TABLE history (
    seq INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    boot TEXT NOT NULL,
    source TEXT NOT NULL,
    plugin TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    what TEXT NOT NULL,
    cause TEXT NOT NULL,
    fields TEXT NOT NULL,
    salt BLOB,
    digest BLOB NOT NULL,
    folded INTEGER NOT NULL,
    moved REAL,
    sentence INTEGER,
    hash BLOB NOT NULL
);
CREATE INDEX history_by_thing ON history (plugin, kind, name);
CREATE INDEX history_by_sentence ON history (sentence);
CREATE TABLE sentences (
    id INTEGER PRIMARY KEY,
    digest BLOB NOT NULL UNIQUE,
    text TEXT NOT NULL,
    engine BLOB NOT NULL DEFAULT x'',
    vector BLOB
);
CREATE INDEX sentences_by_engine ON sentences (engine, id);
CREATE VIRTUAL TABLE sentence_words USING fts5 (
    text, content='sentences', content_rowid='id', tokenize='porter unicode61'
);
CREATE TRIGGER sentences_inserted AFTER INSERT ON sentences BEGIN
    INSERT INTO sentence_words (rowid, text) VALUES (new.id, new.text);
END;
CREATE TRIGGER sentences_deleted AFTER DELETE ON sentences BEGIN
    INSERT INTO sentence_words (sentence_words, rowid, text) VALUES ('delete', old.id, old.text);
END;
"""
_INSERT: Final = """
INSERT INTO history
    (seq, at, boot, source, plugin, kind, name, what, cause, fields, salt, digest, folded,
     sentence, hash)
"""
_EXTEND_TIMES: Final = """
INSERT INTO history_times VALUES (?1, ?2, ?2) ON CONFLICT (block) DO UPDATE SET
    earliest = min(earliest, excluded.earliest), latest = max(latest, excluded.latest)
"""
_FIND_TIMES: Final = f"""
INSERT OR REPLACE INTO history_times SELECT seq / {BLOCK}, min(at), max(at) FROM history GROUP BY 1
"""  # noqa: S608 -- our own constant
_INTO_SENTENCES: Final = "INSERT INTO sentences (id, digest, text)"
# Digests in one query.
_ASKED: Final = 512
_TEXTS: Final = "boot source plugin kind name what cause fields".split()
# Bytes of a row besides its texts, with its index entries, and SQL for its whole size.
_ROW_BYTES: Final = 300
ROW_SIZE: Final = " + ".join([str(_ROW_BYTES), *(f"length({text})" for text in _TEXTS)])
_OLDEST: Final = f"SELECT seq, hash, sentence, {ROW_SIZE} FROM history ORDER BY seq"  # noqa: S608 -- our own constant
_HASH_BYTES: Final = 32
_NO_HASH: Final = bytes(_HASH_BYTES)


class Limits(NamedTuple):
    """The most history that is kept."""

    days: int = 90
    rows: int = 1_000_000
    bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class State:
    """The end of the chain, and the approximate size of the rows in bytes."""

    head: Head = field(default_factory=Head)
    bytes: int = 0


def read_state(database: sqlite3.Connection, name: str = "history") -> State:
    """Return the end of the chain, or for "history cut" the last pruned row, where rows begin.

    Raises ValueError or TypeError if the fact is damaged.
    """
    row = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    if row is None:
        return State()
    seq, last, size = json.loads(row[0])
    head = Head(max(0, seq), bytes.fromhex(last))
    if len(head.hash) != _HASH_BYTES:
        raise ValueError(f"{name} is damaged")
    return State(head, max(0, size))


class Ledger:
    """History through one connection to the database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self.database = database

    def state(self) -> State:
        """Return the end of the chain.

        If the fact is damaged or outdated, it is computed from the rows, so that rows can be added;
        reporting the damage is left to verification.
        """
        (last,) = self.database.execute("SELECT max(seq) FROM history").fetchone()
        with suppress(ValueError, TypeError, AttributeError):
            state = read_state(self.database)
            if state.head.seq >= (last or 0):
                return state
        (seq, before), size = self.cut(), 0
        rows = self.database.execute(f"SELECT seq, hash, {ROW_SIZE} FROM history ORDER BY seq")  # noqa: S608 -- our own constant
        for number, row, more in rows:
            before = row if isinstance(row, bytes) and len(row) == _HASH_BYTES else _NO_HASH
            seq, size = number, size + more
        return State(Head(seq, before), size)

    def cut(self) -> Head:
        """Return the head at which the kept rows begin."""
        with suppress(ValueError, TypeError, AttributeError):
            return read_state(self.database, "history cut").head
        return Head()

    def append(self, changes: Iterable[Change], at: int, boot: str) -> range:
        """Add changes with one time, in microseconds since 1970; return their row numbers."""
        state, changes = self.state(), [*changes]
        (first, last), size, rows = state.head, state.bytes, []
        sentences = self._sentences(change.sentence for change in changes)
        # all salts in one call, which releases the GIL
        salts = io.BytesIO(secrets.token_bytes(hash_chain.SALT_BYTES * len(changes)))
        for seq, change in enumerate(changes, first + 1):
            fields, salt = to_json(change.fields), salts.read(hash_chain.SALT_BYTES)
            digest = hash_chain.values_digest(salt, fields)
            cause, folded, *_ = change.why
            covered = (seq, at, boot, *change.identity, change.change_type, cause)
            last = hash_chain.row_hash(last, [*covered, folded, digest.hex()])
            size += _ROW_BYTES + sum([len(one) for one in (*covered, fields) if type(one) is str])
            sentence = sentences.get(change.sentence)
            blobs = bytearray(salt), bytearray(digest), folded, sentence, bytearray(last)
            rows.append((*covered, fields, *blobs))
        added = range(first + 1, first + len(rows) + 1)
        if rows:
            insert(self.database, _INSERT, rows)
            self.set_state(State(Head(first + len(rows), last), size))
        blocks = {seq // BLOCK for seq in added}
        self.database.executemany(_EXTEND_TIMES, ((block, at) for block in blocks))
        return added

    def latest(self, boot: str) -> int | None:
        """Return the time of the last row, in microseconds since 1970, if it is of this boot."""
        rows = self.database.execute("SELECT boot, at FROM history ORDER BY seq DESC LIMIT 1")
        return next((at for of, at in rows if of == boot), None)

    def set_moved(self, rows: Iterable[tuple[float, int]]) -> None:
        """Set the change of objects' texts: (cosine distance, row number) each."""
        self.database.executemany("UPDATE history SET moved = ? WHERE seq = ?", rows)

    def erase(self, identity: Identity) -> list[int]:
        """Erase the stored values of an object; return the row numbers.

        The chain stays valid without them.
        """
        return self.erase_where(
            "plugin = ? AND kind = ? AND name = ? AND source = ?", *identity[1:], identity.source
        )

    def erase_where(self, clause: str, *values: str | int) -> list[int]:
        """Erase the values of rows that match an SQL clause; return their numbers."""
        rows = self.database.execute(
            "SELECT seq, length(fields), sentence FROM history"  # noqa: S608 -- our own text
            f" WHERE salt IS NOT NULL AND fields <> ? AND {clause}",
            (ERASED, *values),
        ).fetchall()
        self.database.executemany(
            "UPDATE history SET fields = ?, salt = NULL, sentence = NULL WHERE seq = ?",
            ((ERASED, row[0]) for row in rows),
        )
        self._drop_sentences(row[2] for row in rows)
        state = self.state()
        self.set_state(replace(state, bytes=state.bytes - sum(row[1] for row in rows)))
        return [row[0] for row in rows]

    def restore(self, table: str, columns: str, row: Sequence[object]) -> None:
        """Copy a row of another database; a row that violates a constraint is left out."""
        places = ", ".join("?" * len(row))
        with suppress(sqlite3.IntegrityError):
            self.database.execute(f"INSERT INTO {table} ({columns}) VALUES ({places})", row)  # noqa: S608 -- our own names

    def mend(self) -> None:
        """Make rows, block times and sentences agree after rows were restored."""
        self.database.execute("DELETE FROM history_times")
        self.database.execute(_FIND_TIMES)
        self.database.execute(
            "UPDATE history SET sentence = NULL WHERE sentence NOT IN (SELECT id FROM sentences)"
        )
        self.database.execute(
            "DELETE FROM sentences WHERE id NOT IN"
            " (SELECT sentence FROM history WHERE sentence IS NOT NULL)"
        )

    def _drop_sentences(self, ids: Iterable[int | None]) -> None:
        """Delete those of the sentences that no row refers to."""
        self.database.executemany(
            "DELETE FROM sentences WHERE id = ?"
            " AND NOT EXISTS (SELECT 1 FROM history WHERE sentence = sentences.id)",
            {(sentence,) for sentence in ids if sentence is not None},
        )

    def newest(self) -> tuple[int, float]:
        """Return the number and the time, in seconds since 1970, of the last row; 0 without any."""
        rows = self.database.execute("SELECT seq, at / 1e6 FROM history ORDER BY seq DESC LIMIT 1")
        return next(rows, (0, 0.0))

    def surplus(self, limits: Limits, too_old: int) -> int:
        """Return the last row past the limits, 0 if there is none; rows to `too_old` are."""
        state, last = self.state(), 0
        too_many = max(too_old, state.head.seq - limits.rows)
        excess = state.bytes - limits.bytes
        for seq, _, _, size in self.database.execute(_OLDEST):
            if seq > too_many and excess <= 0:
                break
            last, excess = seq, excess - size
        return last

    def prune(self, last: int) -> int:
        """Delete some of the oldest rows up to `last`; return their number.

        The rest stays verifiable: the number and hash of the last deleted row are kept.
        """
        cut, size, sentences = self.cut(), 0, list[int | None]()
        oldest = self.database.execute(f"{_OLDEST} LIMIT {MAX_PRUNED}").fetchall()
        for number, row, sentence, more in oldest:
            if number > last or size > _MAX_PRUNED_BYTES:
                break
            cut, size = Head(number, row), size + more
            sentences.append(sentence)
        if sentences:
            self.database.execute("DELETE FROM history WHERE seq <= ?", (cut.seq,))
            kept = (cut.seq + 1) // BLOCK
            self.database.execute("DELETE FROM history_times WHERE block < ?", (kept,))
            self._drop_sentences(sentences)
            self.set_state(State(cut), "history cut")
            state = self.state()
            self.set_state(State(state.head, max(0, state.bytes - size)))
        return len(sentences)

    def _sentences(self, texts: Iterable[str]) -> dict[str, int]:
        """Return the ids of sentences by text; new ones are inserted, empty ones left out."""
        by_digest = {digest_of(text): text for text in dict.fromkeys(texts) if text}
        known: dict[bytes, int] = {}
        for some in batches(by_digest, _ASKED):
            places = ",".join("?" * len(some))
            query = f"SELECT digest, id FROM sentences WHERE digest IN ({places})"  # noqa: S608 -- placeholders only
            known |= self.database.execute(query, some)
        new = [key for key in by_digest if key not in known]
        (last,) = self.database.execute("SELECT ifnull(max(id), 0) FROM sentences").fetchone()
        known |= zip(new, count(last + 1), strict=False)
        insert(self.database, _INTO_SENTENCES, ((known[key], key, by_digest[key]) for key in new))
        return {text: known[key] for key, text in by_digest.items()}

    def set_state(self, state: State, name: str = "history") -> None:
        """Store the end of the chain, or under another name its beginning."""
        head = state.head
        value = json.dumps([head.seq, head.hash.hex(), state.bytes])
        self.database.execute(
            "INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value)
        )


def insert(
    database: sqlite3.Connection, into: str, rows: Iterable[Sequence[Any]], after: str = ""
) -> None:
    """Insert rows; `into` is as `INSERT INTO it (a, b)`, `after` the rest of the statement.

    Pass bytes as bytearray and bool as int: for other types, the driver looks for an adapter each
    time, which takes as long as three values.
    """
    for part in batches(rows, _AT_A_TIME):
        values = _placeholders(len(part), len(part[0]))
        database.execute(f"{into} VALUES {values} {after}", [*chain.from_iterable(part)])


@lru_cache(maxsize=_AT_A_TIME)
def _placeholders(rows: int, columns: int) -> str:
    return ", ".join([f"({', '.join('?' * columns)})"] * rows)
