"""A damaged database set aside, a new one in its place, and in that what could still be read."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

import structlog

from opdbus.index.database import Damaged, guarded
from opdbus.index.records import WRITTEN_BY, record_of
from opdbus.index.store import Store
from opdbus.state.object import Identity, StateObject
from opdbus.state.redact import redact_object

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from threading import Event
    from typing import Any

    from opdbus.index.store import Record

log = structlog.get_logger()

# Damaged databases that are kept: someone may want to know what happened, but not of years ago.
KEPT: Final = 3
_BESIDE: Final = ("-wal", "-shm", "")
# Numbers past a damage that are looked up, most of them used: some seconds' work.
_MOST_TRIED: Final = 1_000_000
_COLUMNS: Final = (
    "id, source, plugin, kind, name, owner, properties, updated_at, fingerprint, passing"
)


def opened(path: Path, stopping: Event) -> tuple[Store, str]:
    """Open the database, and say what became of the one before if that was damaged.

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
            mark(path)
        return _rebuilt(path, reason, stopping)


def mark(path: Path) -> None:
    """Have the next start rebuild the database; raises OSError.

    A link is made whole or not at all, also where no file has room. It names what the damaged
    database will be called, so that a rebuild that was cut short is done again from the same one.
    """
    with suppress(FileExistsError):
        _mark(path).symlink_to(_beside(path, f".damaged-{max(_numbers(path), default=0) + 1}").name)


def _rebuilt(path: Path, reason: str, stopping: Event) -> tuple[Store, str]:
    aside = path.with_name(str(_mark(path).readlink()))
    if aside.exists():
        for suffix in _BESIDE:
            _beside(path, suffix).unlink(missing_ok=True)
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
    """Store what can be read of a damaged database, all or nothing, and count the objects."""
    with store.transaction():
        found = {record.identity: record for record in _readable(aside, store)}
        store.put(found.values())
        store.remember("written by", WRITTEN_BY)
        if generation := _generation(aside):
            store.remember("generation", generation)
    return len(found)


def _readable(aside: Path, store: Store) -> Iterator[Record]:
    """Give the objects that are whole: row after row and, past a damage, each by its number."""
    with suppress(sqlite3.Error), closing(_connected(aside)) as old:
        for row in _rows(old):
            store.require_going_on()
            if record := _checked(*row[1:]):
                yield record


def _rows(old: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    last = 0
    try:
        for row in old.execute(f"SELECT {_COLUMNS} FROM objects NOT INDEXED ORDER BY id"):  # noqa: S608 -- our own constant
            last = row[0]
            yield row
    except sqlite3.Error:
        (end,) = old.execute("SELECT max(id) FROM objects").fetchone()
        for number in range(last + 1, min(end or 0, last + _MOST_TRIED) + 1):
            with suppress(sqlite3.Error):
                yield from old.execute(f"SELECT {_COLUMNS} FROM objects WHERE id = ?", (number,))  # noqa: S608 -- our own constant


def _checked(
    source: str,
    plugin: str,
    kind: str,
    name: str,
    owner: int,
    properties: str,
    updated_at: int,
    fingerprint: str,
    passing: int,
) -> Record | None:
    """Make an object ready for the store if it is to stay, and is what was once stored."""
    identity = Identity(source, plugin, kind, name)
    try:
        content = json.loads(properties)
        if passing or StateObject(identity, content).fingerprint() != fingerprint:
            return None
        item = redact_object(identity, content)
        return record_of(item, int(owner), int(updated_at), passing=False)
    except (ValueError, TypeError, AttributeError):
        return None


def _generation(aside: Path) -> str:
    """Give the number of the last change, so that numbers go on and never back."""
    with suppress(sqlite3.Error), closing(_connected(aside)) as old:
        row = old.execute("SELECT value FROM facts WHERE name = 'generation'").fetchone()
        return str(int(row[0])) if row and str(row[0]).isdecimal() else ""
    return ""


def _connected(aside: Path) -> sqlite3.Connection:
    # SQLite makes a log beside what it may write, even to read only
    mode = "mode=ro" if _beside(aside, "-wal").exists() else "mode=ro&immutable=1"
    return sqlite3.connect(f"{aside.absolute().as_uri()}?{mode}", uri=True)


def _move(path: Path, aside: Path) -> None:
    """Set a database aside, itself last: while it is there, the move is not done."""
    for suffix in _BESIDE:
        with suppress(FileNotFoundError):
            _beside(path, suffix).rename(_beside(aside, suffix))


def _forget_oldest(path: Path) -> None:
    for number in sorted(_numbers(path))[:-KEPT]:
        for suffix in _BESIDE:
            _beside(path, f".damaged-{number}{suffix}").unlink(missing_ok=True)


def _numbers(path: Path) -> list[int]:
    found = (file.name.removeprefix(f"{path.name}.damaged-") for file in path.parent.iterdir())
    return [int(number) for number in found if number.isdecimal()]


def _mark(path: Path) -> Path:
    return _beside(path, ".rebuild")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)
