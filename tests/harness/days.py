"""Days of hosts in a store, and questions about their changes: day.json and school.json."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from opdbus import config
from opdbus.history.change import FIRST, Cause, Change, FieldChange
from opdbus.history.change_sentence import of_change
from opdbus.history.row_filter import Filter
from opdbus.index.changes.change_finder import ChangeFinder
from opdbus.index.changes.connections import nothing_more
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.indexer import Indexer
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.serving.serving import Serving
from opdbus.state.object import Identity, StateObject

DATA = Path(__file__).parents[1] / "data"


@asynccontextmanager
async def lived(path: Path, name: str) -> AsyncIterator[tuple[ChangeFinder, dict[int, str]]]:
    """Let a day pass in a memory, and give what finds changes in it, and the act of each row."""
    day = json.loads((DATA / f"{name}.json").read_text())
    clock = [1_800_000_000.0]
    given = {"OP_DBUS_STATE_DIR": str(path), "OP_DBUS_PRECISION": "fp32"}
    settings = config.load({"HOME": "/nonexistent", **given})
    async with (
        StateStore(path / "memory.db", clock=lambda: clock[0]) as memory,
        Serving(settings) as serving,
    ):
        vectors = ObjectVectors(memory, serving)
        first = [StateObject(Identity(*row[:4]), row[4]) for row in day["first"]]
        await memory.observe(first, set(), {}, lambda _: Cause(FIRST))
        acts = {}
        for act, what, cause, *names, properties in day["changes"]:
            clock[0] += 1.0
            await see(memory, what, Cause(cause), Identity(*names), properties)
            acts[int(clock[0])] = act
        embedder = await serving.embedder()
        engine = (await vectors.index(embedder.numerics, embedder.dimension)).numerics_key
        indexing = asyncio.create_task(Indexer(vectors).run())
        async with asyncio.timeout(120):
            while await memory.archive.read(lambda store: store.sentences.waiting(engine, 1)):  # noqa: ASYNC110 -- nothing says when a sentence has its vector
                await asyncio.sleep(0.05)
        indexing.cancel()
        yield ChangeFinder(vectors, nothing_more), acts


async def see(
    memory: StateStore, what: str, why: Cause, identity: Identity, properties: dict[str, Any] | None
) -> None:
    """Observe a change as it was recorded."""
    if what == "drift":
        fields = [
            FieldChange([key], *([side] for side in sides)) for key, sides in properties.items()
        ]
        change = of_change(Change(identity, what, why, fields), "")
        await memory.record([change], lambda _: None)
    elif what == "event":
        await memory.observe([], set(), {}, events={identity: why._replace(is_event=True)})
    elif what == "gone":
        await memory.observe([], {identity}, {}, lambda _: why)
    else:
        await memory.observe([StateObject(identity, properties or {})], set(), {}, lambda _: why)


async def ranks(finder: ChangeFinder, question: dict[str, Any], acts: dict[int, str]) -> list[int]:
    """Give the place of the first right row for each wording, 0 where there is none."""
    find = finder.about if question["ask"] == "about" else finder.before
    found = []
    for wording in question["wordings"]:
        rows = [each.row for each in await find(wording, Filter(), 3)]
        right = [
            place
            for place, row in enumerate(rows, 1)
            for wanted in question["rows"]
            if wanted["act"] == acts[row.at // 1_000_000]
            and any(
                fnmatchcase("/".join(row.identity[1:]), object_id.replace("[", "[[]"))
                for object_id in wanted["things"]
            )
        ]
        found.append(right[0] if right else 0)
    return found
