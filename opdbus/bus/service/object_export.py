"""The file of State1.Export: a line for each object, the same bytes for the same state."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opdbus.bus.service import call_options
from opdbus.bus.service.bulk import MAX_ROWS, Bulk
from opdbus.bus.service.call_options import Given, Options
from opdbus.bus.service.contract import Caller
from opdbus.bus.service.object1 import object_id_at
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.drift.pairs import Pairs, Sides
from opdbus.errors import LimitsExceeded
from opdbus.index.database.store import Content, Entry
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.platform.slices import each, slices
from opdbus.state.database_text import replace_unfit_json
from opdbus.state.object import LIVE, Json, ObjectId, canonical

# Objects of one step: about a millisecond of work on the event loop.
_AT_A_TIME: Final = 100
_MICROSECONDS: Final = 1_000_000


class _Row(NamedTuple):
    """An object, its entries, and its vector (dimension,) with the numerics that made it."""

    object_id: ObjectId
    sides: Sides
    numerics: str = ""
    vector: NDArray[np.float32] | None = None


async def write_objects(
    caller: Caller,
    bulk: Bulk,
    vectors: ObjectVectors,
    pairs: Pairs,
    named: Sequence[str],
    options: Given,
) -> Descriptor:
    """Return a file with a line for each of the objects at some paths, or for all without paths.

    Raises InvalidArgs, UnknownObject, LimitsExceeded.
    """
    checked = Options(options, {"digests": bool, "vectors": bool})
    if len(named) > MAX_ROWS:
        raise LimitsExceeded(
            f"the call names {len(named)} objects, past the limit of {MAX_ROWS}: name fewer at a"
            " time, or none for all"
        )
    memory = vectors.memory
    has_vectors = checked.get("vectors", default=False)
    is_digest = checked.get("digests", default=False)
    with bulk.admit(caller) as threads:
        object_ids: Sequence[ObjectId] = await each(object_id_at, named)
        if not named:
            object_ids = await call_options.find_objects(memory, Options({}, {}))
        with bulk.files.create(caller) as file:
            for part in slices(object_ids, _AT_A_TIME):
                rows = _look_up(part, pairs, vectors if has_vectors else None)
                contents = await memory.content([e for row in rows for e in _entries(row.sides)])
                made = (rows, contents, memory)
                lines = await threads.run(
                    _lines, *made, has_vectors=has_vectors, is_digest=is_digest
                )
                bulk.files.make_room(file, len(lines))
                await threads.run(file.append, lines)
            return await threads.run(file.seal)


def _look_up(
    object_ids: Sequence[ObjectId], pairs: Pairs, vectors: ObjectVectors | None
) -> list[_Row]:
    """Look up entries and vectors on the event loop, where both are written."""
    index = vectors.current if vectors else None
    rows = []
    for object_id in object_ids:
        declared, observed = pairs.joined(object_id)
        row = _Row(object_id, Sides(declared, tuple(sorted(observed, key=_rank))))
        if index and (entries := _entries(row.sides)):
            vector = index.get(entries[0].text_digest)
            if vector is not None:
                row = row._replace(numerics=index.numerics, vector=vector)
        rows.append(row)
    return rows


def _rank(entry: Entry) -> tuple[bool, int, int]:
    """Return the rank of an observed entry: the catalogue's, as it is after a restart."""
    return not entry.identity.source.startswith(LIVE), -entry.updated_at, -entry.id


def _entries(sides: Sides) -> list[Entry]:
    """Return the entries of an object, first the one that represents it."""
    return [*sides.observed, *([sides.declared] if sides.declared else ())]


def _lines(
    rows: Sequence[_Row],
    contents: Mapping[int, Content],
    memory: StateStore,
    *,
    has_vectors: bool,
    is_digest: bool,
) -> bytes:
    """Return the lines of objects; objects that were removed have lines without content."""
    lines = []
    for row in rows:
        meta: list[Json] = []
        body: Json = [*row.object_id]
        entries = _entries(row.sides)
        if entries and all(entry.id in contents for entry in entries):
            meta.append(entries[0].updated_at * _MICROSECONDS)
            if has_vectors:
                meta += [row.numerics, _base64(row.vector)]
            body = _body(row, contents, memory)
        text = replace_unfit_json(canonical(body))
        if is_digest and meta:
            own = [*row.object_id, sha256(text.encode()).hexdigest()]
            text = replace_unfit_json(canonical(own))
        lines.append(f"{canonical(meta)}\t{text}\n")
    return "".join(lines).encode()


def _base64(vector: NDArray[np.float32] | None) -> str:
    return "" if vector is None else b64encode(vector.astype("<f2").tobytes()).decode()


def _body(row: _Row, contents: Mapping[int, Content], memory: StateStore) -> dict[str, Json]:
    (declared, observed), entry = row.sides, _entries(row.sides)[0]
    merged = memory.merge_properties(observed, contents, only_stored=True)
    return {
        **row.object_id._asdict(),
        "source": entry.identity.source,
        "declared": json.loads(contents[declared.id].properties) if declared else None,
        "observed": merged if observed else None,
        "text": contents[entry.id].text,
    }
