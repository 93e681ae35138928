"""What History1 means by an object: rows of other names, and those that are no changes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from opdbus.bus.service import node
from opdbus.bus.service.history import HistoryInterface
from opdbus.config import load
from opdbus.drift.tracker import Tracker
from opdbus.history.change import Change, FieldChange, What, Why
from opdbus.index import past
from opdbus.index.change_finder import ChangeFinder
from opdbus.index.memory import Memory
from opdbus.index.object_vectors import ObjectVectors
from opdbus.serving.serving import Serving
from opdbus.state.object import Identity

PACKAGE = "/org/opdbus/state/packages/package/x"
ROOT = node.Caller(":1.1", 0)


def run(
    folder: Path,
    rows: Sequence[tuple[str, What, str]],
    work: Callable[[Memory, HistoryInterface], Awaitable[Any]],
) -> Any:
    """Run something with a history of (object, what, cause) each."""

    async def nothing(_: str) -> list[str]:
        return []

    async def live() -> Any:
        async with Memory(folder / "memory.db") as memory:
            fields = [FieldChange(["version"], ["3.0"], ["2.0"])]
            changes = [
                Change(Identity("file", *name.split("/")), what, Why(cause), fields)
                for name, what, cause in rows
            ]
            await memory.record(changes, lambda _: None)
            finder = ChangeFinder(ObjectVectors(memory, Serving(load({}))))
            return await work(memory, HistoryInterface(memory, finder, Tracker(memory), nothing))

    return asyncio.run(live())


def test_drift_is_forgotten_with_its_object(tmp_path: Path) -> None:
    """Erase what says of an object's declaration how the host was other, and nothing else of it."""
    told: dict[tuple[str, What, str], bool] = {
        ("packages/package/x", "changed", ""): True,
        ("packagekit/package/x", "appeared", ""): False,
        ("packagekit/package/x", "drift", ""): True,
        ("packagekit/package/x", "healed", ""): True,
        ("apt/package/x:amd64", "intended", ""): True,
        ("packagekit/package/y", "drift", ""): False,
        ("systemd/unit/x", "drift", ""): False,
    }

    async def work(memory: Memory, history: HistoryInterface) -> list[bool]:
        await history.forget(ROOT, {"object": PACKAGE})
        kept = await past.numbered(memory, range(1, len(told) + 1))
        return [row.fields[0].path == [] for row in kept]

    assert run(tmp_path, list(told), work) == list(told.values())


def test_what_was_listed_first_is_no_change_around_an_object(tmp_path: Path) -> None:
    """Leave out what was there when it was first listed, unless a cause is asked for."""
    rows: list[tuple[str, What, str]] = [
        ("packages/package/x", "appeared", "first"),
        ("packages/package/x", "changed", "apt:1"),
    ]

    async def work(_memory: Memory, history: HistoryInterface) -> list[list[Any]]:
        asked = ({"around": PACKAGE}, {"around": PACKAGE, "cause": "first"}, {"object": PACKAGE})
        found = [await history.changes(ROOT, dict(each), 9) for each in asked]
        return [[row["seq"].value for row in rows] for rows in found]

    assert run(tmp_path, rows, work) == [[2], [1], [2, 1]]
