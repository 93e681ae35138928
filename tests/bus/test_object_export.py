"""Lines of exported objects: without volatile values, fit for PostgreSQL, and within the limits."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from harness.running import PATIENCE_SECONDS, work_of

from opdbus.bus import paths
from opdbus.bus.admission.limits import MAX_BULK_BYTES
from opdbus.bus.service.bulk import Bulk
from opdbus.bus.service.contract import Caller
from opdbus.bus.service.job1 import Jobs
from opdbus.bus.service.object_export import write_objects
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.config import load
from opdbus.drift.pairs import Pairs
from opdbus.errors import LimitsExceeded
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.serving.serving import Serving
from opdbus.state.object import Identity, Json, StateObject

CALLER = Caller(":1.5", 1000)
Export = Callable[..., Awaitable[Descriptor]]


def run(folder: Path, work: Callable[[StateStore, Export, Bulk], Awaitable[None]]) -> None:
    """Do work with a state store and what exports its objects."""

    async def live() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), StateStore(folder / "memory.db") as memory:
            vectors = ObjectVectors(memory, Serving(load({"OP_DBUS_VECTOR_LEVEL": "none"})))
            bulk, pairs = Bulk(Jobs(lambda *_: None)), Pairs(memory.catalogue)

            async def export(*named: str, **options: bool) -> Descriptor:
                return await write_objects(CALLER, bulk, vectors, pairs, named, dict(options))

            await work(memory, export, bulk)

    asyncio.run(live())


def box(name: str, source: str = "live:x", **fields: Json) -> StateObject:
    """Make an observed object."""
    return StateObject(Identity(source, "lab", "box", name), fields)


def content(file: Descriptor) -> bytes:
    """Read a file as a receiver does, and close it."""
    found = os.pread(file.fileno(), 1 << 30, 0)
    file.close()
    return found


def rows(file: Descriptor) -> list[list[Any]]:
    """Read the two parts of each line."""
    return [[json.loads(part) for part in line.split(b"\t")] for line in content(file).splitlines()]


@work_of(run, "tmp_path", handed=2)
async def test_volatile_values_and_unfit_characters_are_left_out(
    memory: StateStore, export: Export
) -> None:
    """Leave out what has no fingerprint, and replace NUL in keys and values, at any depth."""
    odd = box("a", description="nul\0end", inner={
        "k\0": 0, "k\ufffd": 1, "l\0": ["\0", {"x": "\\u0000"}]
    })  # fmt: skip
    await memory.observe([odd], set(), {odd.identity: {"since": 5}})
    assert memory.volatile.get(odd.identity) == {"since": 5}
    data = content(await export())
    assert data.count(b"\n") == 1
    assert b"\0" not in data
    body = json.loads(data.split(b"\t")[1])
    inner = {"k\ufffd": 1, "l\ufffd": ["\ufffd", {"x": "\\u0000"}]}
    assert body["observed"] == {"description": "nul\ufffdend", "inner": inner}
    assert "\0" not in body["text"]


@work_of(run, "tmp_path", handed=2)
async def test_a_removed_object_has_a_line_without_content(
    memory: StateStore, export: Export
) -> None:
    """Tell who names an object that it is gone, and leave it out where all are asked for."""
    await memory.observe([box("a"), box("b", size=1)], set(), {})
    await memory.observe([], {box("a").identity}, {})
    path = paths.of("lab", "box", "a")
    assert rows(await export(path, digests=True)) == [[[], ["lab", "box", "a"]]]
    ((meta, body),) = rows(await export())
    assert (len(meta), body["name"], body["declared"]) == (1, "b", None)


@work_of(run, "tmp_path", handed=2)
async def test_an_order_of_sources_is_that_after_a_restart(
    memory: StateStore, export: Export
) -> None:
    """Merge what observers report by what is stored, not by what came last in a second."""
    first, second = box("a", "live:x", size=1), box("a", "live:y", size=2, more=1)
    await memory.observe([first], set(), {})
    await memory.observe([second], set(), {})
    await memory.observe([box("a", "live:x", size=3)], set(), {})
    ((_, body),) = rows(await export())
    entries = memory.catalogue.require_entries(first.identity.object_id)
    latest = max(entries, key=lambda entry: (entry.updated_at, entry.id))
    assert body["source"] == latest.identity.source
    assert body["observed"]["more"] == 1


@work_of(run, "tmp_path", handed=3)
async def test_a_file_counts_as_it_grows(memory: StateStore, export: Export, bulk: Bulk) -> None:
    """Count a file by its bytes until it is closed, and end a call that goes past the limit."""
    await memory.observe([box(f"n{n}", note="x" * 40_000) for n in range(300)], set(), {})
    file = await export()
    size = os.fstat(file.fileno()).st_size
    assert size > 12_000_000
    most = MAX_BULK_BYTES["user"]
    # as much as leaves a byte too little for another one
    with bulk.files.create(CALLER, besides=most - 2 * size + 1):
        with pytest.raises(LimitsExceeded, match="close the files that you have read"):
            await export()
        file.close()
        (await export()).close()
    with bulk.files.create(CALLER) as made:
        made.end = most
        with pytest.raises(LimitsExceeded, match="past the limit of 512 MiB a call"):
            bulk.files.make_room(made, 1)
