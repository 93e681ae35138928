"""The vectors of many objects in one file, with their descriptions (State1.Vectors)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from opdbus.bus import paths
from opdbus.bus.service import listed
from opdbus.bus.service.formats import chosen
from opdbus.bus.service.options import Options, require_range
from opdbus.index.catalogue.catalogue import representative
from opdbus.index.catalogue.declarations import marked
from opdbus.platform.slices import slices
from opdbus.state.object import FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opdbus.bus.service.bulk import Bulk
    from opdbus.bus.service.formats import Format
    from opdbus.bus.service.node import Caller
    from opdbus.bus.service.options import Given
    from opdbus.bus.transport.descriptors import Descriptor
    from opdbus.index.database.store import Content, Entry
    from opdbus.index.state_store.state_store import StateStore
    from opdbus.index.vectors.object_vectors import ObjectVectors
    from opdbus.index.vectors.vector_index import VectorIndex
    from opdbus.state.object import Json, ObjectId


# The most rows of a call, so that its descriptions take some tens of megabytes.
MAX_ROWS: Final = 100_000
# Rows of one step: about a millisecond of work.
_AT_A_TIME: Final = 250
# The pause between steps, for small calls that need many turns of the event loop.
_REST_SECONDS: Final = 0.001
# State fields; a unit has the first two.
_STATES: Final = ("active_state", "sub_state", "state", "status", "ensure")
_MOST_STATES: Final = 2
_MOST_CHARACTERS: Final = 48
# Names of the types in safetensors: https://huggingface.co/docs/safetensors
_TYPES: Final = {"float32": "F32", "float16": "F16", "int8": "I8", "ubinary": "U8"}
_ALIGNED: Final = 64
_PART: Final = {"offset": int, "limit": int, "sample": int}


@dataclass(frozen=True, slots=True)
class _Rows:
    """The objects that have a vector, row by row, and those that have none yet."""

    about: list[tuple[ObjectId, Sequence[Entry]]] = field(default_factory=list)
    # encoded rows, many in one item
    vectors: list[bytes] = field(default_factory=list)
    waiting: list[ObjectId] = field(default_factory=list)


async def write(caller: Caller, bulk: Bulk, vectors: ObjectVectors, given: Given) -> Descriptor:
    """Return a file with the vectors of the objects that match a filter.

    Raises InvalidArgs, LimitsExceeded, NoModel, ProviderError.
    """
    checked = Options(given, {**listed.FILTER, **_PART, "dtype": str, "dimensions": int})
    with bulk.admitted(caller) as threads:
        index = await vectors.served()
        wanted = chosen(checked, index.dimension)
        object_ids = await listed.object_ids(vectors.memory, checked)
        rows = await _look_up(_part(object_ids, checked), vectors.memory, index, wanted)
        lines = [
            await threads.run(_lines, each, await _contents(vectors.memory, each), vectors.memory)
            for each in slices(rows.about, _AT_A_TIME)
        ]
        said, count = b"".join(lines), len(rows.about)
        counts = {"total": len(object_ids), "waiting": len(rows.waiting)}
        about = {**counts, "renamed": json.dumps(await _renamed(vectors.memory))}
        head = _header(wanted, count, len(said), about)
        with bulk.files.create(caller, wanted, count, besides=len(head) + len(said)) as file:
            for content in (head, *rows.vectors, said):
                await threads.run(file.append, content)
            return await threads.run(file.sealed)


async def _renamed(memory: StateStore) -> dict[str, str]:
    """Return the paths of observed objects by those of their differently named declarations."""
    one, found = memory.declarations.one, dict[str, str]()
    for part in slices([*memory.declarations.renamed()], _AT_A_TIME):
        found |= {paths.of(*each): paths.of(*one(each)) for each in part}
        await asyncio.sleep(_REST_SECONDS)
    return found


def _part(object_ids: Sequence[ObjectId], checked: Options) -> Sequence[ObjectId]:
    """Return the objects that a call wants: a page of an even sample."""
    limit, offset = checked.get("limit", MAX_ROWS), checked.get("offset", 0)
    sample = checked.get("sample", len(object_ids))
    require_range("limit", limit, 1, MAX_ROWS)
    if sample < len(object_ids):
        object_ids = [object_ids[n * len(object_ids) // sample] for n in range(sample)]
    return object_ids[offset : offset + limit]


async def _look_up(
    object_ids: Sequence[ObjectId], memory: StateStore, index: VectorIndex, wanted: Format
) -> _Rows:
    """Look up vectors on the event loop, where the index is written, in small steps."""
    rows = _Rows()
    for part in slices(object_ids, _AT_A_TIME):
        found = []
        for object_id in filter(memory.catalogue.has, part):
            entries = memory.catalogue.about(object_id)
            vector = index.get(representative(entries).text_digest)
            if vector is None:
                rows.waiting.append(object_id)
            else:
                rows.about.append((object_id, entries))
                found.append(vector)
        if found:
            rows.vectors.append(wanted.encode(np.stack(found)))
        await asyncio.sleep(_REST_SECONDS)
    return rows


async def _contents(
    memory: StateStore, rows: Sequence[tuple[ObjectId, Sequence[Entry]]]
) -> Mapping[int, Content]:
    return await memory.content([entry for _, entries in rows for entry in entries])


def _lines(
    rows: Sequence[tuple[ObjectId, Sequence[Entry]]],
    contents: Mapping[int, Content],
    memory: StateStore,
) -> bytes:
    """Return the descriptions of objects: a line of JSON each."""
    return b"".join(
        json.dumps([*object_id, *_described(entries, contents, memory)]).encode() + b"\n"
        for object_id, entries in rows
    )


def _described(
    entries: Sequence[Entry], contents: Mapping[int, Content], memory: StateStore
) -> tuple[str, str]:
    """Return the first line of an object's text, and its state; empty if it was removed."""
    entry = representative(entries)
    content, fields = contents.get(entry.id), memory.merge_properties(entries, contents)
    states = [_word(fields[key]) for key in _STATES if key in fields]
    line = content.text.partition("\n")[0] if content else ""
    text = marked(memory.declarations, entry, content, line) if content else ""
    state = ", ".join(dict.fromkeys(filter(None, states[:_MOST_STATES])))
    return text, f"declared {state}" if state and entry.identity.source == FILE else state


def _word(value: Json) -> str:
    return value[:_MOST_CHARACTERS] if isinstance(value, str) else ""


def _header(wanted: Format, rows: int, said: int, about: Mapping[str, object]) -> bytes:
    """Return the header of a safetensors file; `said` is the size of the descriptions."""
    size = rows * wanted.row_bytes
    width = wanted.row_bytes if wanted.dtype == "ubinary" else wanted.dimensions
    tensors = {
        "__metadata__": {key: str(value) for key, value in about.items()},
        "vectors": _tensor(_TYPES[wanted.dtype], [rows, width], 0, size),
        "objects": _tensor("U8", [said], size, size + said),
    }
    text = json.dumps(tensors).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def _tensor(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Json]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
