"""A memory that a test fills, with objects as programs publish them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, StateObject

OWNER = 1000
SOURCE = "publish:probe"


def unit(name: str, **properties: object) -> StateObject:
    """Make an object as a program publishes it."""
    return StateObject(Identity(SOURCE, "systemd", "unit", name), properties)


def run(folder: Path, work: Callable[[StateStore], Awaitable[Any]]) -> Any:
    """Do work with the memory in a folder, and give what it gives."""

    async def both() -> Any:
        async with StateStore(folder / "memory.db", boot="b1") as memory:
            return await work(memory)

    return asyncio.run(both())
