"""Snapshot files of entries, words and fields, so that startup reads only later changes.

All files of a snapshot share one token, and the database logs changes made after it. A file that is
missing, damaged or of another snapshot is not used; its contents are then read from the database.
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

# Fact: the token of the current snapshot. Any value makes the database log changes.
SNAPSHOT_TOKEN: Final = "sealed"
# The columns in the file; hashes are left out, since they differ between processes.
_WRITTEN: Final = (
    "ids",
    "source_kind_ids",
    "names",
    "sizes_of_names",
    "kind_masks",
    "penalties",
    "owners",
    "fingerprints",
    "digests",
    "times",
    "transient",
    "sizes",
    "traits",
)
# The snapshot is not used if more than one in this many entries has changed.
_SHARE: Final = 8
_TOKEN_BYTES: Final = 16


class SnapshotId(NamedTuple):
    """Identification of a snapshot: token, last object id, and number of changes logged before."""

    token: str
    last: int
    changes: int


class LoadedEntries(NamedTuple):
    """Entries loaded at startup, and the differences of the database from their snapshot.

    `changed` are ids of objects changed or removed since the snapshot; `since` are the current
    entries of changed and new objects. `unwritten_changes` counts the changes that no snapshot
    contains. Without a `moment`, all entries were read from the database.
    """

    entries: Columns
    changed: Sequence[int]
    since: Sequence[Entry]
    unwritten_changes: int
    moment: SnapshotId | None = None


class WordSnapshot(NamedTuple):
    """Postings of a snapshot, and the ids (places,) of the entries at their places."""

    then: Postings
    ids: NDArray[np.int64]


def path_of(store: Store, name: str = "entries") -> Path:
    """Return the path of a snapshot file, beside the database."""
    return store.path.with_name(f"{name}.sealed")


def load(store: Store) -> LoadedEntries:
    """Load all permanent entries, from the snapshot if there is one; raises Damaged."""
    token = store.fact(SNAPSHOT_TOKEN)
    if token and (snapshot := snapshot_file.read(path_of(store), token)):
        last, changes, source_kinds = snapshot.about
        moment, entries = SnapshotId(token, last, changes), _columns(snapshot.arrays, source_kinds)
        changed = store.changed_since(moment.changes)
        if _SHARE * len(changed) <= len(entries.ids):
            again = [number for number in changed if number <= moment.last]
            new = entry_columns.read(store, moment.last, again)
            since = sorted(new.entries(range(len(new.ids))), key=lambda entry: entry.updated_at)
            return LoadedEntries(entries, changed, since, len(since) + len(changed), moment)
    found = entry_columns.read(store)
    return LoadedEntries(found, (), (), len(found.ids))


def words(store: Store, moment: SnapshotId) -> WordSnapshot | None:
    """Return the postings of a snapshot, None without a valid file.

    Also None if the mean length of objects has changed, since the impacts depend on it.
    """
    snapshot = snapshot_file.read(path_of(store, "words"), moment.token)
    if snapshot is None:
        return None
    ids = snapshot.arrays.pop("ids")
    then = Postings.of(snapshot.about, snapshot.arrays)
    return WordSnapshot(then, ids) if then.mean_length == postings.mean_length(store) else None


def fields(store: Store, moment: SnapshotId) -> SnapshotFile | None:
    """Return the FieldIndex arrays of a snapshot, None without a valid file."""
    return snapshot_file.read(path_of(store, "fields"), moment.token)


def write(store: Store, changes: int) -> SnapshotId:
    """Write the files of entries and words from one state of the database; raises OSError.

    The database must log changes already; `changes` is the number logged before this call.
    """
    with store.snapshot():
        moment = SnapshotId(os.urandom(_TOKEN_BYTES).hex(), store.last_id(), changes)
        ids = _write_entries(store, moment)
        # the columns of entries are freed by now
        then = postings.read(store, ids)
    arrays = {**then.arrays(), "ids": ids}
    snapshot_file.write(path_of(store, "words"), moment.token, then.about, arrays)
    return moment


def remove(store: Store) -> None:
    """Remove the snapshot and stop logging changes; raises StoreError."""
    if store.fact(SNAPSHOT_TOKEN):
        with store.transaction():
            store.drop_fact(SNAPSHOT_TOKEN)
            store.drop_fact(postings.MEAN_LENGTH)
            store.forget_changes(store.count_changes())
        remove_values(store)
        with store.translate_errors():
            path_of(store).unlink(missing_ok=True)


def remove_values(store: Store) -> None:
    """Remove the files of words and fields; raises StoreError."""
    with store.translate_errors():
        for name in ("words", "fields"):
            path_of(store, name).unlink(missing_ok=True)


def _write_entries(store: Store, moment: SnapshotId) -> NDArray[np.int64]:
    """Write the file of entries, and return their ids in the order of `_by_place`."""
    found = entry_columns.read(store)
    arrays = {name: _array(getattr(found, name)) for name in _WRITTEN}
    about = [moment.last, moment.changes, [*found.source_kinds]]
    snapshot_file.write(path_of(store), moment.token, about, arrays)
    return _by_place(found)


def _by_place(found: Columns) -> NDArray[np.int64]:
    """Return the ids of entries in the order in which `Catalogue.load` assigns places."""
    is_alone = found.is_alone()
    others = np.flatnonzero(~is_alone)
    times = np.frombuffer(found.times, np.int64)[others]
    order = np.append(np.flatnonzero(is_alone), others[np.argsort(times, kind="stable")])
    ids: NDArray[np.int64] = np.frombuffer(found.ids, np.int64)[order]
    return ids


def _array(column: array[Any] | bytearray) -> NDArray[Any]:
    return np.frombuffer(column, column.typecode if isinstance(column, array) else np.uint8)


def _columns(arrays: Arrays, source_kinds: Sequence[Sequence[str]]) -> Columns:
    found = Columns()
    for number, (source, plugin, kind) in enumerate(source_kinds):
        found.source_kinds[source, plugin, kind] = number
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
    """Yield the object ids of the entries."""
    source_kinds, end = [source_kind[1:] for source_kind in found.source_kinds], 0
    names = bytes(found.names)
    for source_kind, size in zip(found.source_kind_ids, found.sizes_of_names, strict=True):
        start, end = end, end + size
        yield ObjectId(*source_kinds[source_kind], str(names[start:end], "utf-8"))
