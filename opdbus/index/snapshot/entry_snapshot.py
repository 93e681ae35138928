"""What is known of all objects in files, so that a start reads only those that changed since.

The files belong to one moment of the database, which notes from then on what changes. Those that
are missing, damaged, or of another moment are made anew.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.index.catalogue import entry_columns
from opdbus.index.catalogue.entry_columns import Columns
from opdbus.index.database.store import Entry, Store
from opdbus.index.snapshot import postings, snapshot_file
from opdbus.index.snapshot.postings import Postings
from opdbus.index.snapshot.snapshot_file import Arrays, SnapshotFile
from opdbus.state.object import ObjectId

# The fact by which the database notes what changes: the token of the files that it belongs to.
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


class SnapshotId(NamedTuple):
    """The files of a moment: the last id that there was, and how many changes were noted."""

    token: str
    last: int
    changes: int


class LoadedEntries(NamedTuple):
    """Entries of a moment, which of them have changed or gone since, and those that came.

    So many are in no file. Without a moment, all were read from the database.
    """

    entries: Columns
    changed: Sequence[int]
    since: Sequence[Entry]
    unsealed: int
    moment: SnapshotId | None = None


class WordSnapshot(NamedTuple):
    """The words of a moment, and the ids of the entries (places,) that had them then."""

    then: Postings
    ids: NDArray[np.int64]


def path_of(store: Store, name: str = "entries") -> Path:
    """Return where a file of a database is."""
    return store.path.with_name(f"{name}.sealed")


def load(store: Store, unrendered: range = range(0)) -> LoadedEntries:
    """Return all entries but those that lived as long as a connection; raises StoreError.

    There are no files while objects are `unrendered`.
    """
    token = store.fact(SEALED)
    if token and (sealed := snapshot_file.read(path_of(store), token)):
        last, changes, sorts = sealed.about
        moment, entries = SnapshotId(token, last, changes), _columns(sealed.arrays, sorts)
        changed = store.noted.since(moment.changes)
        if _SHARE * len(changed) <= len(entries.ids):
            again = [number for number in changed if number <= moment.last]
            new = entry_columns.read(store, moment.last, again)
            since = sorted(new.entries(range(len(new.ids))), key=lambda entry: entry.updated_at)
            return LoadedEntries(entries, changed, since, len(since) + len(changed), moment)
    found = entry_columns.read(store, unrendered=unrendered)
    return LoadedEntries(found, (), (), len(found.ids))


def words(store: Store, moment: SnapshotId) -> WordSnapshot | None:
    """Return the words of a moment, if its file is there, and texts are as long as then."""
    sealed = snapshot_file.read(path_of(store, "words"), moment.token)
    if sealed is None:
        return None
    ids = sealed.arrays.pop("ids")
    then = Postings.of(sealed.about, sealed.arrays)
    return WordSnapshot(then, ids) if then.mean_length == postings.mean_length(store) else None


def fields(store: Store, moment: SnapshotId) -> SnapshotFile | None:
    """Return the fields of a moment as FieldIndex gave them, if their file is there."""
    return snapshot_file.read(path_of(store, "fields"), moment.token)


def write(store: Store, changes: int) -> SnapshotId:
    """Write the files of entries and words; raises OSError.

    The database is to note changes already; so many were noted.
    """
    with store.snapshot():
        moment = SnapshotId(os.urandom(_TOKEN_BYTES).hex(), store.last_id(), changes)
        ids = _write_entries(store, moment)
        # by now the entries take no memory
        then = postings.read(store, ids)
    arrays = {**then.arrays(), "ids": ids}
    snapshot_file.write(path_of(store, "words"), moment.token, then.about, arrays)
    return moment


def remove(store: Store) -> None:
    """Remove the files, and have no changes be noted; raises StoreError."""
    if store.fact(SEALED):
        with store.transaction():
            store.drop_fact(SEALED)
            store.drop_fact(postings.MEAN_LENGTH)
            store.noted.forget(store.noted.count())
        remove_values(store)
        with store.guarded():
            path_of(store).unlink(missing_ok=True)


def remove_values(store: Store) -> None:
    """Remove the files of words and fields; raises StoreError."""
    with store.guarded():
        for name in ("words", "fields"):
            path_of(store, name).unlink(missing_ok=True)


def _write_entries(store: Store, moment: SnapshotId) -> NDArray[np.int64]:
    """Write the file of entries, and return their ids in the order of the places they get."""
    found = entry_columns.read(store)
    arrays = {name: _array(getattr(found, name)) for name in _WRITTEN}
    about = [moment.last, moment.changes, [*found.numbers_of_sorts]]
    snapshot_file.write(path_of(store), moment.token, about, arrays)
    return _by_place(found)


def _by_place(found: Columns) -> NDArray[np.int64]:
    """Return the ids of entries in the order in which a start gives them places."""
    is_alone = found.is_alone()
    others = np.flatnonzero(~is_alone)
    times = np.frombuffer(found.times, np.int64)[others]
    order = np.append(np.flatnonzero(is_alone), others[np.argsort(times, kind="stable")])
    ids: NDArray[np.int64] = np.frombuffer(found.ids, np.int64)[order]
    return ids


def _array(column: array[Any] | bytearray) -> NDArray[Any]:
    return np.frombuffer(column, column.typecode if isinstance(column, array) else np.uint8)


def _columns(arrays: Arrays, sorts: Sequence[Sequence[str]]) -> Columns:
    found = Columns()
    for number, (source, plugin, kind) in enumerate(sorts):
        found.numbers_of_sorts[source, plugin, kind] = number
    for name in _WRITTEN:
        column: array[Any] | bytearray = getattr(found, name)
        if isinstance(column, array):
            column.frombytes(arrays[name].tobytes())
        else:
            column += arrays[name].tobytes()
    for object_id in _object_ids(found):
        found.keys.append(hash(object_id))
        found.name_keys.append(hash(object_id.name))
    return found


def _object_ids(found: Columns) -> Iterator[ObjectId]:
    """Yield what the entries are about."""
    sorts, end = [sort[1:] for sort in found.numbers_of_sorts], 0
    names = bytes(found.names)
    for sort, size in zip(found.sorts, found.sizes_of_names, strict=True):
        start, end = end, end + size
        yield ObjectId(*sorts[sort], str(names[start:end], "utf-8"))
