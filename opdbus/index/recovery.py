"""Recovery of a damaged database: it is set aside, and a new one gets what can still be read."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Event
from typing import Any, Final

import structlog

from opdbus.index.database import Damaged, guarded, open_read_only
from opdbus.index.records import WRITTEN_BY, Recorder
from opdbus.index.store import Record, Store
from opdbus.state.object import Identity, StateObject
from opdbus.state.redact import redact_object

log = structlog.get_logger()

# So many damaged databases are kept for an inspection.
KEPT: Final = 3
_SUFFIXES: Final = ("-wal", "-shm", "")
# Ids past a damage that are looked up, which takes some seconds.
_MAX_LOOKED_UP: Final = 1_000_000
_COLUMNS: Final = (
    "id, source, plugin, kind, name, owner, properties, updated_at, fingerprint, passing"
)


def open_or_recover(path: Path, stopping: Event) -> tuple[Store, str]:
    """Open the database, and say what was recovered if it was damaged.

    Raises StoreError.
    """
    with guarded(path):
        if _mark(path).is_symlink():
            reason = f"the database {path} was found damaged before"
        else:
            try:
                return Store(path, stopping), ""
            except Damaged as error:
                reason = error.reason
            mark_damaged(path)
        return _recover(path, reason, stopping)


def mark_damaged(path: Path) -> None:
    """Make the next start recover the database; raises OSError.

    The mark is a link: it is made completely or not at all, even on a full disk. It names the
    future damaged database, so that a recovery that was interrupted starts again from that one.
    """
    with suppress(FileExistsError):
        _mark(path).symlink_to(
            _with_suffix(path, f".damaged-{max(_numbers(path), default=0) + 1}").name
        )


def _recover(path: Path, reason: str, stopping: Event) -> tuple[Store, str]:
    aside = path.with_name(str(_mark(path).readlink()))
    if aside.exists():
        for suffix in _SUFFIXES:
            _with_suffix(path, suffix).unlink(missing_ok=True)
    else:
        _move(path, aside)
    store = Store(path, stopping)
    try:
        kept = _salvage(aside, store)
    except BaseException:
        store.close()
        raise
    _mark(path).unlink()
    _forget_oldest(path)
    log.error("store rebuilt", reason=reason, path=str(aside), objects=kept)
    return store, f"{reason}; it is kept as {aside}, and a new one has {kept} objects of it"


def _salvage(aside: Path, store: Store) -> int:
    """Store all objects that can be read in a damaged database, and count them."""
    with store.transaction():
        found = {record.identity: record for record in _readable(aside, store)}
        store.put(found.values())
        store.set_fact("written by", WRITTEN_BY)
        if generation := _generation(aside):
            store.set_fact("generation", generation)
    return len(found)


def _readable(aside: Path, store: Store) -> Iterator[Record]:
    """Yield the intact objects: by a scan and, past a damage, by a look-up of each id."""
    with suppress(sqlite3.Error), closing(open_read_only(aside)) as old:
        recorder = Recorder()
        for row in _rows(old):
            store.require_running()
            if record := _checked(row, recorder):
                yield record


def _rows(old: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    last = 0
    try:
        for row in old.execute(f"SELECT {_COLUMNS} FROM objects NOT INDEXED ORDER BY id"):  # noqa: S608 -- our own constant
            last = row[0]
            yield row
    except sqlite3.Error:
        (end,) = old.execute("SELECT max(id) FROM objects").fetchone()
        for number in range(last + 1, min(end or 0, last + _MAX_LOOKED_UP) + 1):
            with suppress(sqlite3.Error):
                yield from old.execute(f"SELECT {_COLUMNS} FROM objects WHERE id = ?", (number,))  # noqa: S608 -- our own constant


def _checked(row: Sequence[Any], recorder: Recorder) -> Record | None:
    """Make the record of an object if it is not transient and its fingerprint is right."""
    _, *identity, owner, properties, updated_at, fingerprint, transient = row
    try:
        item = StateObject(Identity(*identity), json.loads(properties))
        if transient or item.fingerprint() != fingerprint:
            return None
        redacted = redact_object(item.identity, item.properties)
        return recorder.record(redacted, int(owner), int(updated_at), transient=False)
    except (ValueError, TypeError, AttributeError):
        return None


def _generation(aside: Path) -> str:
    """Return the number of the last change, so that numbers never go back."""
    with suppress(sqlite3.Error), closing(open_read_only(aside)) as old:
        row = old.execute("SELECT value FROM facts WHERE name = 'generation'").fetchone()
        return str(int(row[0])) if row and str(row[0]).isdecimal() else ""
    return ""


def _move(path: Path, aside: Path) -> None:
    """Rename a database and its logs, the database last: while it is there, this is not done."""
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            _with_suffix(path, suffix).rename(_with_suffix(aside, suffix))


def _forget_oldest(path: Path) -> None:
    for number in sorted(_numbers(path))[:-KEPT]:
        for suffix in _SUFFIXES:
            _with_suffix(path, f".damaged-{number}{suffix}").unlink(missing_ok=True)


def _numbers(path: Path) -> list[int]:
    found = (file.name.removeprefix(f"{path.name}.damaged-") for file in path.parent.iterdir())
    return [int(number) for number in found if number.isdecimal()]


def _mark(path: Path) -> Path:
    return _with_suffix(path, ".rebuild")


def _with_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
