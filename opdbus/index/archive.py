"""The store on threads of its own: one that writes, one that reads while the other writes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from opdbus.index.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Self

T = TypeVar("T")


class Archive:
    """Two connections to one database; what is written is seen by reads that begin later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="store-write")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="store-read")
        self._writer: Store
        self._reader: Store

    async def __aenter__(self) -> Self:
        """Open the database; raises StoreError."""
        loop = asyncio.get_running_loop()
        self._writer = await loop.run_in_executor(self._writing, Store, self._path)
        self._reader = await loop.run_in_executor(self._reading, Store, self._path)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Finish what was begun and close."""
        await self.read(Store.close)
        await self.write(Store.close)
        self._reading.shutdown()
        self._writing.shutdown()

    async def write(self, work: Callable[[Store], T]) -> T:
        """Run work that changes the database. It is finished even if the caller is cancelled."""
        future = asyncio.get_running_loop().run_in_executor(self._writing, work, self._writer)
        return await asyncio.shield(future)

    async def read(self, work: Callable[[Store], T]) -> T:
        """Run work that only reads."""
        return await asyncio.get_running_loop().run_in_executor(self._reading, work, self._reader)
