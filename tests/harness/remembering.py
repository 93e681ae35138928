"""A memory that a test fills, with objects as programs publish them."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from opdbus.history.checkpoint import Checkpoint
from opdbus.history.verify import Report, verify
from opdbus.index.database.database import connect_to_read
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import Identity, StateObject

OWNER = 1000
SOURCE = "publish:probe"


def unit(name: str, **properties: object) -> StateObject:
    """Make an object as a program publishes it."""
    return StateObject(Identity(SOURCE, "systemd", "unit", name), properties)


def verified(path: Path, *points: Checkpoint) -> Report:
    """Verify a database."""
    with closing(connect_to_read(path)) as database:
        return verify(database, points)


def disown(path: Path, written: str = "redaction 0, text 0") -> None:
    """Have a database be as if a version of op-dbus with other rules had written it."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE facts SET value = ? WHERE name = 'written by'", (written,))


def flipped(value: Any) -> Any:
    """Flip one bit of one byte."""
    if isinstance(value, int):
        return value ^ 1
    data = bytearray((value or "x").encode() if not isinstance(value, bytes) else value)
    data[len(data) // 2] ^= 1
    return bytes(data) if isinstance(value, bytes) else data.decode()


def run(folder: Path, work: Callable[[StateStore], Awaitable[Any]]) -> Any:
    """Do work with the memory in a folder, and give what it gives."""

    async def both() -> Any:
        async with StateStore(folder / "memory.db", boot="b1") as memory:
            return await work(memory)

    return asyncio.run(both())
