"""Opening and verification of the SQLite file, its schema, and advice for its errors."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from opdbus.errors import StoreError
from opdbus.history import ledger
from opdbus.platform.regular_files import set_aside

# application_id in the file header: "opdb".
_APPLICATION: Final = 0x6F706462
_VERSION: Final = 7
# Tables without which a database is damaged.
_TABLES: Final = frozenset({"objects", "vectors", "facts", "lexicon", "history"})
_TABLES_OF_OBJECTS: Final = """
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
    traits BLOB NOT NULL,
    UNIQUE (source, plugin, kind, name)
);
CREATE INDEX objects_by_text ON objects (text_digest);
-- finding objects that are transient, at the start
CREATE INDEX objects_passing ON objects (id) WHERE passing = 1;
CREATE TABLE vectors (key BLOB PRIMARY KEY, text_digest BLOB NOT NULL, data BLOB NOT NULL);
CREATE INDEX vectors_by_text ON vectors (text_digest);
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
# Current drift, with the names of the fields and without values.
_DRIFTS: Final = """
CREATE TABLE drifts (
    plugin TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    what TEXT NOT NULL,
    since REAL NOT NULL,
    fields TEXT NOT NULL,
    PRIMARY KEY (plugin, kind, name)
) WITHOUT ROWID;
"""
_SCHEMA: Final = _TABLES_OF_OBJECTS + ledger.SCHEMA + _DRIFTS
# Advice for SQLite's primary result codes.
_RIGHTS: Final = "let the user that op-dbus runs as write it, and files beside it"
_TAKEN: Final = "another program uses it: end that, or set OP_DBUS_STATE_DIR to another folder"
_ROOM: Final = "make room on its file system"
_ADVICE: Final = {
    sqlite3.SQLITE_FULL: _ROOM,
    sqlite3.SQLITE_BUSY: _TAKEN,
    sqlite3.SQLITE_LOCKED: _TAKEN,
    sqlite3.SQLITE_READONLY: _RIGHTS,
    sqlite3.SQLITE_CANTOPEN: _RIGHTS,
    sqlite3.SQLITE_PERM: _RIGHTS,
    sqlite3.SQLITE_IOERR: "look in the kernel's log for what is wrong with its disk",
}
_UNREADABLE: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
# The driver's error for text that is not UTF-8 has no code; only damage causes it.
_NOT_UTF8: Final = "Could not decode to UTF-8"


class Damaged(StoreError):
    """Error for a damaged or foreign database file, which the next start sets aside."""

    def __init__(self, path: Path, reason: object) -> None:
        """Build the message from the path and the reason, with advice."""
        self.reason = f"the database {path} is damaged: {reason}"
        advice = "op-dbus sets it aside at its next start and builds a new one"
        super().__init__(
            f"{self.reason}; {f'{_RIGHTS}: it must be replaced' if is_read_only(path) else advice}"
        )


class OtherSchema(StoreError):
    """Error for a database of an op-dbus with another schema, which the next start sets aside."""

    def __init__(self, path: Path, version: int) -> None:
        """Build the message from the path and the version of the schema."""
        self.version = version
        self.reason = f"the database {path} has the schema {version} of another op-dbus"
        super().__init__(f"{self.reason}, and this one reads {_VERSION} only")


def is_read_only(path: Path) -> bool:
    """Return whether the database exists, and it or its directory cannot be written."""
    exists = os.path.exists(path)  # noqa: PTH110 -- Path.exists() raises where it may not look
    parts = (path, path.parent)
    return exists and not all(os.access(part, os.W_OK, effective_ids=True) for part in parts)


def connect(path: Path) -> sqlite3.Connection:
    """Open the database for writing, or create it; raises StoreError. The caller closes it."""
    with translate_errors(path):
        _make(path)
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
    try:
        with translate_errors(path):
            is_new = _is_empty(database, path)
            _tune(database)
            if is_new:
                database.executescript(
                    f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {_APPLICATION};"
                    f" PRAGMA user_version = {_VERSION}; COMMIT;"
                )
    except BaseException:
        database.close()
        raise
    return database


def connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a database of op-dbus read-only; raises StoreError. The caller closes it."""
    with translate_errors(path):
        database = open_read_only(path)
        try:
            is_empty = _is_empty(database, path)
        except BaseException:
            database.close()
            raise
        if is_empty:
            database.close()
            raise StoreError(f"the database {path} is empty and cannot be written; {_RIGHTS}")
        return database


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open any SQLite file without writing it or creating a WAL; raises sqlite3.Error."""
    # without `immutable`, SQLite creates a missing WAL
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    uri = f"{path.absolute().as_uri()}?{mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=10)


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Translate sqlite3.DatabaseError and OSError into StoreError, with advice."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        # the low byte of an extended code is the primary one; errors of the driver have none
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_OK) & 0xFF
        if code in _UNREADABLE or str(error).startswith(_NOT_UTF8):
            raise Damaged(path, error) from None
        advice = _ROOM if code in _ADVICE and _is_full(path) else _ADVICE.get(code, "")
        reason = f"{error}; {advice}" if advice else str(error)
        raise StoreError(f"cannot use the database {path}: {reason}") from None
    except OSError as error:
        # a file beside the database, which the error names, has a fault of its own
        place = Path(os.fsdecode(error.filename)) if error.filename else path
        is_own = place in {path, *path.parents}
        what = f"open the database {path}" if is_own else f"use {place}"
        advice = f"; {_ROOM}" if error.errno == errno.ENOSPC or _is_full(place) else ""
        raise StoreError(f"cannot {what}: {error.strerror}{advice}") from None


def _is_full(path: Path) -> bool:
    """Return whether the file system is full, for which SQLite reports various errors."""
    try:
        return os.statvfs(path.parent).f_bavail == 0
    except OSError:
        return False


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # SQLite gives its -wal and -shm files the mode of the database. Only a new file is opened here:
    # closing a file that SQLite has open would release its locks (fcntl(2)).
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    if path.exists() and not path.is_file():
        raise StoreError(f"the database {path} is not a regular file: move it away")
    path.chmod(0o600)
    for suffix in ("-wal", "-shm", "-journal"):
        set_aside(path.with_name(path.name + suffix))


def _is_empty(database: sqlite3.Connection, path: Path) -> bool:
    """Return whether a file is empty; raises OtherSchema, Damaged."""
    application = database.execute("PRAGMA application_id").fetchone()[0]
    version: int = database.execute("PRAGMA user_version").fetchone()[0]
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master")}
    if not tables and not application and not version:
        return True
    if application == _APPLICATION and version not in {0, _VERSION}:
        raise OtherSchema(path, version)
    if application != _APPLICATION or not (tables >= _TABLES and version):
        raise Damaged(path, "another program made it, or a part of it is missing")
    return False


def _tune(database: sqlite3.Connection) -> None:
    (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError("its file system or another program allows no WAL")
    # in WAL mode, NORMAL keeps commits when the process is killed; after a power cut the database
    # is consistent but may lack the last commits
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("PRAGMA secure_delete = ON")
    # in bytes; a longer WAL is truncated after a checkpoint
    database.execute("PRAGMA journal_size_limit = 8388608")
    # in KiB; holds the indexes of 100,000 objects, which are otherwise read again for each insert
    database.execute("PRAGMA cache_size = -8192")
