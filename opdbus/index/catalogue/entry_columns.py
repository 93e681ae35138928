"""Entries as columns, read from the database at startup or built from new entries."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus.index.database.database import Damaged
from opdbus.index.database.store import Entry, Store
from opdbus.language import kinds
from opdbus.language.vocabulary import TRAIT_BYTES
from opdbus.state.object import DIGEST_BYTES, Identity, ObjectId

# (source, plugin, kind).
SourceKind: TypeAlias = tuple[str, str, str]


@dataclass(slots=True)
class Columns:
    """Columns of entries, one array for each field of Entry.

    `source_kind_ids` are values of `source_kinds`, `keys` hashes of object ids, `name_keys` hashes
    of names. `kind_masks` and `penalties` are the results of `kinds.of_object`. `names`,
    `fingerprints`, `digests` and `traits` are concatenated.
    """

    ids: array[int] = field(default_factory=lambda: array("q"))
    source_kind_ids: array[int] = field(default_factory=lambda: array("i"))
    names: bytearray = field(default_factory=bytearray)
    sizes_of_names: array[int] = field(default_factory=lambda: array("I"))
    kind_masks: array[int] = field(default_factory=lambda: array("q"))
    penalties: array[float] = field(default_factory=lambda: array("f"))
    owners: array[int] = field(default_factory=lambda: array("q"))
    fingerprints: bytearray = field(default_factory=bytearray)
    digests: bytearray = field(default_factory=bytearray)
    times: array[int] = field(default_factory=lambda: array("q"))
    transient: bytearray = field(default_factory=bytearray)
    sizes: array[int] = field(default_factory=lambda: array("q"))
    traits: bytearray = field(default_factory=bytearray)
    keys: array[int] = field(default_factory=lambda: array("q"))
    name_keys: array[int] = field(default_factory=lambda: array("q"))
    source_kinds: dict[SourceKind, int] = field(default_factory=dict)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fixed-width columns by name, as views; fingerprints are (entries, 2)."""
        return {
            "ids": np.frombuffer(self.ids, np.int64),
            "owners": np.frombuffer(self.owners, np.int64),
            "times": np.frombuffer(self.times, np.int64),
            "sizes": np.frombuffer(self.sizes, np.int64),
            "kind_masks": np.frombuffer(self.kind_masks, np.int64),
            "penalties": np.frombuffer(self.penalties, np.float32),
            "transient": np.frombuffer(self.transient, np.bool_),
            "fingerprints": np.frombuffer(self.fingerprints, np.uint64).reshape(-1, 2),
            "traits": np.frombuffer(self.traits, np.uint64).reshape(-1, TRAIT_BYTES // 8),
        }

    def is_alone(self) -> NDArray[np.bool_]:
        """Return a mask (entries,) of the entries whose object id occurs once."""
        _, which, counts = np.unique(
            np.frombuffer(self.keys, np.int64), return_inverse=True, return_counts=True
        )
        found: NDArray[np.bool_] = counts[which] == 1
        return found

    def digest_rows(self) -> NDArray[np.uint8]:
        """Return the digests of the texts, (entries, 16)."""
        return np.frombuffer(self.digests, np.uint8).reshape(-1, DIGEST_BYTES)

    def entries(self, places: Iterable[int]) -> Iterator[Entry]:
        """Yield the entries at indexes of these columns."""
        source_kinds, ends = [*self.source_kinds], [*accumulate(self.sizes_of_names)]
        for at in places:
            name = self.names[ends[at] - self.sizes_of_names[at] : ends[at]].decode()
            yield Entry(
                self.ids[at],
                Identity._make((*source_kinds[self.source_kind_ids[at]], name)),
                self.owners[at],
                self.fingerprints[16 * at : 16 * at + 16].hex(),
                bytes(self.digests[DIGEST_BYTES * at : DIGEST_BYTES * (at + 1)]),
                self.times[at],
                bool(self.transient[at]),
                self.sizes[at],
                bytes(self.traits[TRAIT_BYTES * at : TRAIT_BYTES * (at + 1)]),
            )

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Append rows of `Store.entry_rows`.

        A damaged row raises TypeError, ValueError or OverflowError.
        """
        ids, *identities, owners, prints, digests, times, transient, sizes, traits = zip(
            *rows, strict=True
        )
        sources, plugins, kinds_, names = identities
        self.ids.extend(ids)
        known, source_kinds = self.source_kinds, zip(sources, plugins, kinds_, strict=True)
        self.source_kind_ids.extend(
            [known.setdefault(source_kind, len(known)) for source_kind in source_kinds]
        )
        encoded = [name.encode() for name in names]
        self.names += b"".join(encoded)
        self.sizes_of_names.extend(map(len, encoded))
        object_ids = [*map(ObjectId, plugins, kinds_, names)]
        of, less = zip(*map(kinds.of_object, object_ids), strict=True)
        self.kind_masks.extend(of)
        self.penalties.extend(less)
        self.keys.extend(map(hash, object_ids))
        self.name_keys.extend(map(hash, names))
        self.owners.extend(owners)
        self.fingerprints += bytes.fromhex("".join(prints))
        self.digests += b"".join(digests)
        self.times.extend(times)
        self.transient += bytes(transient)
        self.sizes.extend(sizes)
        self.traits += b"".join(traits)
        widths = (self.fingerprints, 16), (self.digests, DIGEST_BYTES), (self.traits, TRAIT_BYTES)
        if any(len(column) != width * len(self.ids) for column, width in widths):
            raise ValueError


def read(store: Store) -> Columns:
    """Return all entries but those of transient objects; raises Damaged."""
    columns = Columns()
    try:
        for rows in store.entry_rows():
            columns.add(rows)
    except (TypeError, ValueError, OverflowError) as error:
        raise Damaged(store.path, f"an object in it is no object: {error}") from None
    return columns
