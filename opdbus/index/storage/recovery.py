"""Recovery of a database that cannot be used: it is set aside, and a new one is made.

The readable rows of a damaged one are copied to the new one. One with another schema stays as it
is: the host is observed anew.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any, Final

import structlog

from opdbus.index.database.database import Damaged, OtherSchema, open_read_only, translate_errors
from opdbus.index.database.records import REDACTED_BY, Recorder, written_by
from opdbus.index.database.store import Record, Store
from opdbus.index.storage.migration import WRITTEN, hide_history
from opdbus.settings.parsing import decimal
from opdbus.state.object import Identity, StateObject
from opdbus.state.redact import redact_object

log = structlog.get_logger()

# Number of damaged databases kept for inspection.
KEPT: Final = 3
_MARK: Final = ".rebuild"
_SUFFIXES: Final = ("-wal", "-shm", "")
# Maximal number of ids looked up one by one after a damaged page: some seconds.
_MAX_LOOKED_UP: Final = 1_000_000
_OBJECT: Final = (
    "id, source, plugin, kind, name, owner, properties, updated_at, fingerprint, passing"
)
_ROW: Final = (
    "seq, at, boot, source, plugin, kind, name, what, cause, fields, salt, digest, folded, moved,"
    " sentence, hash"
)


def open_or_recover(
    path: Path, stopping: Event, on_progress: Callable[[], None]
) -> tuple[Store, str]:
    """Open the database, and return it with a report of the recovery, "" if there was none.

    `on_progress` is called repeatedly meanwhile. Raises StoreError.
    """
    with translate_errors(path):
        mark = _with_suffix(path, _MARK)
        if mark.is_symlink():
            reason = f"the database {path} was found damaged before"
        else:
            try:
                return Store(path, stopping, on_progress), ""
            except OtherSchema as error:
                aside = _set_aside(path, error.version)
                report = f"{error.reason}; it is kept as {aside}, and the host is observed anew"
                log.warning("store set aside", reason=error.reason, path=str(aside))
                return Store(path, stopping, on_progress), report
            except Damaged as error:
                reason = error.reason
            mark_damaged(path)
        aside = path.with_name(str(mark.readlink()))
        # the database itself is renamed last, so that this can be resumed
        if aside.exists():
            _remove(path)
        else:
            _rename(path, aside)
        store = Store(path, stopping, on_progress)
        try:
            kept = _salvage(aside, store)
        except BaseException:
            store.close()
            raise
        mark.unlink()
        for number in sorted(_damaged_numbers(path))[:-KEPT]:
            _remove(_with_suffix(path, f".damaged-{number}"))
        log.error("store rebuilt", reason=reason, path=str(aside), objects=kept)
        return store, f"{reason}; it is kept as {aside}, and a new one has {kept} objects of it"


def _set_aside(path: Path, version: int) -> Path:
    """Rename the database and its WAL, which are never deleted; return the new name."""
    names = (_with_suffix(path, f".schema-{version}.{number}") for number in count(1))
    aside = next(name for name in names if not name.exists())
    _rename(path, aside)
    return aside


def _rename(path: Path, to: Path) -> None:
    """Rename the database and the files beside it that there are."""
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            _with_suffix(path, suffix).rename(_with_suffix(to, suffix))


def _remove(path: Path) -> None:
    """Remove the database and the files beside it."""
    for suffix in _SUFFIXES:
        _with_suffix(path, suffix).unlink(missing_ok=True)


def mark_damaged(path: Path) -> None:
    """Make the next start recover the database; raises OSError.

    The mark is a symlink, which is created atomically, even on a full disk. Its target is the name
    under which the damaged database is set aside, so that an interrupted recovery can resume.
    """
    number = max(_damaged_numbers(path), default=0) + 1
    with suppress(FileExistsError):
        _with_suffix(path, _MARK).symlink_to(f"{path.name}.damaged-{number}")


def _salvage(aside: Path, store: Store) -> int:
    """Copy the readable objects, history and facts to `store`; return the number of objects."""
    facts: dict[str, str] = {}
    with suppress(sqlite3.Error), closing(open_read_only(aside)) as old:
        facts |= ((str(name), str(value)) for name, value in old.execute("SELECT * FROM facts"))
    recorder, found = Recorder(), dict[Identity, Record]()
    with store.transaction():
        for row in _rows(aside, "objects", _OBJECT):
            store.require_running()
            if record := _intact_record(row, recorder):
                found[record.identity] = record
        store.put(found.values())
        if (generation := facts.get("generation", "")).isdecimal():
            store.set_fact("generation", generation)
        # rows of history are copied unchanged; verification of the chain reports the gaps
        for table, columns in (("sentences", "id, digest, text"), ("history", _ROW)):
            for row in _rows(aside, table, columns):
                store.require_running()
                store.ledger.restore(table, columns, row)
        store.ledger.mend()
        for name in {"history", "history cut", "boot"} & facts.keys():
            store.set_fact(name, facts[name])
        store.set_fact(WRITTEN, written_by())
        if not facts.get(WRITTEN, "").startswith(REDACTED_BY):
            # history may hold values that only the current rules redact
            hide_history(store)
    # the WAL has grown to the size of all copied rows
    store.empty_log()
    return len(found)


def _rows(aside: Path, table: str, columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the readable rows of a table: by a scan and, after an error, by each further key.

    As a generator, it suppresses only read errors, not errors of its caller such as a full disk.
    """
    last, key = 0, columns.split(",", maxsplit=1)[0]
    select = f"SELECT {columns} FROM {table}"  # noqa: S608 -- our own constants
    with suppress(sqlite3.Error), closing(open_read_only(aside)) as old:
        try:
            for row in old.execute(f"{select} NOT INDEXED ORDER BY {key}"):
                last = row[0]
                yield row
        except sqlite3.Error:
            (end,) = old.execute(f"SELECT max({key}) FROM {table}").fetchone()  # noqa: S608 -- our own constants
            for number in range(last + 1, min(end or 0, last + _MAX_LOOKED_UP) + 1):
                with suppress(sqlite3.Error):
                    yield from old.execute(f"{select} WHERE {key} = ?", (number,))


def _intact_record(row: Sequence[Any], recorder: Recorder) -> Record | None:
    """Return the record of a row, None if it is transient or its fingerprint does not match."""
    _, *identity, owner, properties, updated_at, fingerprint, transient = row
    try:
        item = StateObject(Identity(*identity), json.loads(properties))
        if transient or item.fingerprint() != fingerprint:
            return None
        redacted = redact_object(item.identity, item.properties)
        return recorder.record(redacted, int(owner), int(updated_at), transient=False)
    except (ValueError, TypeError, AttributeError):
        return None


def _damaged_numbers(path: Path) -> list[int]:
    """Return the numbers of the damaged databases that are set aside."""
    found = (file.name.removeprefix(f"{path.name}.damaged-") for file in path.parent.iterdir())
    return [number for number in map(decimal, found) if number is not None]


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
