"""Paths and what is found at them, with a memory of one object."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opdbus.bus import names, paths
from opdbus.bus.service import contract
from opdbus.bus.service.job1 import Jobs
from opdbus.bus.service.tree import Tree
from opdbus.config import load
from opdbus.drift.tracker import Tracker
from opdbus.index.search.finder import Finder
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.serving.serving import Serving
from opdbus.state.object import Identity, StateObject

FIXED = (names.VECTORIZER, names.STATE, names.HISTORY, names.LOG_CONTROL)
OBJECT = StateObject(Identity("publish:test", "systemd", "unit", "ssh"), {"a": 1})


class BusInterface:
    """An interface that nobody calls."""

    def __init__(self, name: str) -> None:
        self.info = contract.interface(name)

    async def properties(self) -> dict[str, Any]:
        """Give none."""
        return {}


@pytest.fixture
def children(tmp_path: Path) -> Callable[[str], list[str] | None]:
    """Give the names of the nodes below a path, None where there is no node."""

    async def find(path: str) -> list[str] | None:
        async with StateStore(tmp_path / "memory.db") as memory:
            await memory.publish([OBJECT], 1000)
            interfaces = map(BusInterface, FIXED)
            vectors = ObjectVectors(memory, Serving(load({})))
            tree = Tree(
                *interfaces, vectors, Finder(vectors), Tracker(memory), Jobs(lambda *_: None)
            )
            node = tree.find(path)
            return None if node is None else list(node.children())

    return lambda path: asyncio.run(find(path))


@pytest.mark.parametrize(
    ("path", "below"),
    [
        (paths.STATE, ["systemd"]),
        (f"{paths.STATE}/systemd", ["unit"]),
        (f"{paths.STATE}/systemd/unit", ["ssh"]),
        (f"{paths.STATE}/systemd/unit/ssh", []),
    ],
)
def test_each_part_of_a_path_leads_to_the_next(
    children: Callable[[str], list[str] | None], path: str, below: list[str]
) -> None:
    """Find the folders of plugins and kinds, and in them the object."""
    assert children(path) == below


@pytest.mark.parametrize(
    "path",
    [
        "/systemd",
        "/systemd/unit",
        "/systemd/unit/ssh",
        f"{paths.STATE}x/systemd",
        f"{paths.STATE}x",
        f"{paths.ROOT}/systemd",
        f"{paths.STATE}/system",
        f"{paths.STATE}/systemd/unit/ssh/x",
    ],
)
def test_an_object_has_one_path(children: Callable[[str], list[str] | None], path: str) -> None:
    """Find nothing at a path that is not below the one of the state."""
    assert children(path) is None
