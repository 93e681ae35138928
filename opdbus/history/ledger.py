"""The rows of history in the database; every method is called inside a transaction."""

import json
import secrets
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from opdbus.history import chain
from opdbus.history.chain import Head
from opdbus.history.change import ERASED, Change, to_json
from opdbus.state.object import Identity
from opdbus.text import digest_of

SCHEMA: Final = """
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
CREATE INDEX history_by_time ON history (at);
CREATE INDEX history_by_sentence ON history (sentence);
CREATE TABLE sentences (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text TEXT NOT NULL);
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
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
# What a row takes besides its texts, with its places in the indexes.
_ROW_BYTES: Final = 300


@dataclass(frozen=True, slots=True)
class State:
    """The end of the chain, and about how many bytes the rows take."""

    head: Head = field(default_factory=Head)
    bytes: int = 0


def read_state(database: sqlite3.Connection) -> State:
    """Return where the chain ends."""
    return _read(database, "history")


def read_cut(database: sqlite3.Connection) -> Head:
    """Return where the rows that are kept begin: after the last one that was pruned."""
    return _read(database, "history cut").head


def _read(database: sqlite3.Connection, name: str) -> State:
    row = database.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    if row is None:
        return State()
    seq, last, frontier, size = json.loads(row[0])
    return State(Head(seq, bytes.fromhex(last), tuple(map(bytes.fromhex, frontier))), size)


class Ledger:
    """History through one connection to the database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def state(self) -> State:
        """Return where the chain ends."""
        return read_state(self._database)

    def cut(self) -> Head:
        """Return where the rows that are kept begin."""
        return read_cut(self._database)

    def append(self, changes: Iterable[Change], at: int, boot: str) -> range:
        """Add changes at one moment, in microseconds since 1970; return their numbers."""
        state = self.state()
        head, size, rows = state.head, state.bytes, []
        for change in changes:
            head, row = self._row(head, change, at, boot)
            size += _ROW_BYTES + sum(len(value) for value in row if isinstance(value, str))
            rows.append(row)
        if rows:
            self._database.executemany(_INSERT, rows)
            self.set_state(State(head, size))
        return range(state.head.seq + 1, head.seq + 1)

    def set_moved(self, rows: Iterable[tuple[float, int]]) -> None:
        """Set how far the texts of objects moved: (cosine distance, number of the row) each."""
        self._database.executemany("UPDATE history SET moved = ? WHERE seq = ?", rows)

    def erase(self, identity: Identity) -> None:
        """Erase the values that are kept of an object; the chain still holds without them."""
        self._erase(
            "plugin = ? AND kind = ? AND name = ? AND source = ?", *identity[1:], identity.source
        )

    def _erase(self, clause: str, *values: str | int) -> list[int]:
        """Erase the values of the rows of which a clause is true, and return their numbers."""
        rows = self._database.execute(
            "SELECT seq, length(fields), sentence FROM history"  # noqa: S608 -- our own text
            f" WHERE salt IS NOT NULL AND {clause}",
            values,
        ).fetchall()
        self._database.executemany(
            "UPDATE history SET fields = ?, salt = NULL, sentence = NULL WHERE seq = ?",
            ((ERASED, row[0]) for row in rows),
        )
        self._database.executemany(
            "DELETE FROM sentences WHERE id = ?"
            " AND NOT EXISTS (SELECT 1 FROM history WHERE sentence = sentences.id)",
            {(sentence,) for *_, sentence in rows if sentence is not None},
        )
        state = self.state()
        self.set_state(replace(state, bytes=state.bytes - sum(row[1] for row in rows)))
        return [row[0] for row in rows]

    def _row(
        self, head: Head, change: Change, at: int, boot: str
    ) -> tuple[Head, tuple[str | int | bytes | None, ...]]:
        fields, salt = to_json(change.fields), secrets.token_bytes(chain.SALT_BYTES)
        covered = chain.values_digest(salt, fields)
        cause, folded, _ = change.why
        first = (head.seq + 1, at, boot, *change.identity, change.what, cause)
        row = chain.row_hash(head.hash, [*first, folded, covered.hex()])
        sentence = self._sentence(change.sentence)
        return head.next(row), (*first, fields, salt, covered, folded, sentence, row)

    def _sentence(self, text: str) -> int | None:
        """Return the number of a sentence, which is kept once."""
        if not text:
            return None
        key = digest_of(text)
        found = self._database.execute("SELECT id FROM sentences WHERE digest = ?", (key,))
        if row := found.fetchone():
            return int(row[0])
        added = self._database.execute(
            "INSERT INTO sentences (digest, text) VALUES (?, ?) RETURNING id", (key, text)
        )
        return int(added.fetchone()[0])

    def set_state(self, state: State, name: str = "history") -> None:
        """Note where the chain ends, or under another name where it begins."""
        head = state.head
        value = json.dumps(
            [head.seq, head.hash.hex(), [node.hex() for node in head.frontier], state.bytes]
        )
        self._database.execute(
            "INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value)
        )
