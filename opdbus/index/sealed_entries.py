"""The entries of all objects in a file, so that a start reads only those that have changed since.

The file belongs to one moment of the database, which notes from then on what changes. It may be
removed at any time: one that is missing, damaged, or of another moment is made anew.
"""

from __future__ import annotations

import json
import os
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from opdbus import __version__, tables
from opdbus.index import columns
from opdbus.index.columns import Columns
from opdbus.index.store import Entry, Store
from opdbus.state.object import Thing

# The fact by which the database notes what changes: the token of the file that it belongs to.
SEALED: Final = "sealed"
# The columns of the file; what things hash to differs from process to process.
_WRITTEN: Final = (
    "ids",
    "sorts",
    "names",
    "sizes_of_names",
    "kinds",
    "less",
    "owners",
    "fingerprints",
    "digests",
    "times",
    "transient",
    "sizes",
    "traits",
)
# Of so many entries, one may have changed before reading all of them takes less time.
_SHARE: Final = 8
_TOKEN_BYTES: Final = 16
_SUM_BYTES: Final = 4
# A header is longer where there are very many sources.
_HEADER_BYTES: Final = 4


class Loaded(NamedTuple):
    """Entries of a moment, which of them have changed or gone since, and those that came.

    So many are in no file.
    """

    entries: Columns
    changed: Sequence[int]
    since: Sequence[Entry]
    unsealed: int


class Moment(NamedTuple):
    """The file of a moment: the last id that there was, and how many changes were noted."""

    token: str
    last: int
    changes: int


def path_of(store: Store) -> Path:
    """Return where the file of a database is."""
    return store.path.with_name("entries.sealed")


def load(store: Store) -> Loaded:
    """Return all entries but those that lived as long as a connection; raises StoreError."""
    token = store.fact(SEALED)
    if token and (sealed := _read(path_of(store), token)):
        entries, moment = sealed
        changed = store.noted.since(moment.changes)
        if _SHARE * len(changed) <= len(entries.ids):
            again = [number for number in changed if number <= moment.last]
            new = columns.read(store, moment.last, again)
            since = sorted(new.entries(range(len(new.ids))), key=lambda entry: entry.updated_at)
            return Loaded(entries, changed, since, len(since) + len(changed))
    found = columns.read(store)
    return Loaded(found, (), (), len(found.ids))


def write(store: Store) -> Moment:
    """Write the file of this moment; raises OSError. The database is to note changes already."""
    with store.snapshot():
        moment = Moment(os.urandom(_TOKEN_BYTES).hex(), store.last_id(), store.noted.count())
        found = columns.read(store)
    parts = [memoryview(getattr(found, name)).cast("B") for name in _WRITTEN]
    header = json.dumps(
        [_made_by(), moment, [*found.numbers_of_sorts], [len(part) for part in parts]]
    ).encode()
    parts = [memoryview(len(header).to_bytes(_HEADER_BYTES, "little")), memoryview(header), *parts]
    path = path_of(store)
    new = path.with_suffix(".new")
    try:
        # who may read it is decided when it is made
        new.unlink(missing_ok=True)
        made = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(made, "wb") as file:
            file.write(_sum(parts).to_bytes(_SUM_BYTES, "little"))
            file.writelines(parts)
            file.flush()
            os.fdatasync(made)
        new.replace(path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    return moment


def remove(store: Store) -> None:
    """Remove the file, and have no changes be noted; raises StoreError."""
    if store.fact(SEALED):
        with store.transaction():
            store.drop_fact(SEALED)
            store.noted.forget(store.noted.count())
        with store.guarded():
            path_of(store).unlink(missing_ok=True)


def _read(path: Path, token: str) -> tuple[Columns, Moment] | None:
    """Return what a file has; None if there is none, or it is another one or damaged."""
    with suppress(OSError, ValueError, TypeError, EOFError), path.open("rb") as file:
        right = int.from_bytes(file.read(_SUM_BYTES), "little")
        size = file.read(_HEADER_BYTES)
        header = file.read(int.from_bytes(size, "little"))
        made_by, moment, sorts, sizes = json.loads(header)
        if made_by != _made_by() or moment[0] != token:
            return None
        found = Columns(numbers_of_sorts={tuple(sort): n for n, sort in enumerate(sorts)})
        parts = [_part(found, name, n, file) for name, n in zip(_WRITTEN, sizes, strict=True)]
        if _sum([memoryview(size), memoryview(header), *parts]) != right:
            return None
        found.keys.extend(map(hash, _things(found)))
        return found, Moment(*moment)
    return None


def _part(found: Columns, name: str, size: int, file: BinaryIO) -> memoryview[int]:
    """Read a column, and return its bytes."""
    column: array[Any] | bytearray = getattr(found, name)
    if isinstance(column, array):
        column.fromfile(file, size // column.itemsize)
    else:
        column += file.read(size)
    return memoryview(column).cast("B")


def _things(found: Columns) -> Iterator[Thing]:
    """Yield what the entries are about."""
    sorts, end = [sort[1:] for sort in found.numbers_of_sorts], 0
    names = bytes(found.names)
    for sort, size in zip(found.sorts, found.sizes_of_names, strict=True):
        start, end = end, end + size
        yield Thing(*sorts[sort], str(names[start:end], "utf-8"))


def _made_by() -> str:
    """Return what entries are made by besides what the objects in the database are."""
    return f"{__version__}, kinds {tables.version('kinds')}"


def _sum(parts: Sequence[memoryview[int]]) -> int:
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found
