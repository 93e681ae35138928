"""The state file in step with the memory: read at start, on change, and when asked to."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import structlog

from opdbus.errors import OpDbusError, StateFileError
from opdbus.state import watch
from opdbus.state.file import StateFile
from opdbus.state.object import FILE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from opdbus.index.memory import Memory

log = structlog.get_logger()


class Declared:
    """What a state file declares; a bad file changes nothing but `last_error`."""

    def __init__(self, path: Path, memory: Memory) -> None:
        self.path = path
        self.last_error = ""
        # whether the file has been looked at once, with whatever outcome
        self.tried = False
        self.on_error_changed: Callable[[], None] = lambda: None
        self._file = StateFile(path)
        self._memory = memory
        self._one_reader = asyncio.Lock()

    async def load(self) -> None:
        """Take the file in; raises StateFileError, and StoreError if it cannot be kept."""
        await self._memory.archive.finish(self._load())

    async def _load(self) -> None:
        async with self._one_reader:
            try:
                present, changed = await asyncio.to_thread(self._file.read)
                changes = await self._memory.replace(FILE, present, changed)
            except OpDbusError as error:
                # What was read but not kept must be read again.
                if not isinstance(error, StateFileError):
                    self._file.forget()
                self._set_error(str(error))
                raise
            self._set_error("")
        log.info("state file read", path=str(self.path), objects=len(present), changed=len(changes))

    async def try_load(self) -> None:
        """Take the file in, or say in the log and in `last_error` why not."""
        try:
            await self.load()
        except OpDbusError as error:
            log.warning("state file refused", reason=str(error), kept="the last good state")
        finally:
            self.tried = True

    async def watch(self) -> None:
        """Take the file in whenever it changes, until cancelled."""
        try:
            async with aclosing(watch.changes(self.path)) as changes:
                async for _ in changes:
                    await self.try_load()
        except OSError as error:
            # such as too many inotify instances of this user: SIGHUP and Reload still work
            log.warning("state file not watched", path=str(self.path), reason=str(error))
            await asyncio.Event().wait()

    def _set_error(self, error: str) -> None:
        if error != self.last_error:
            self.last_error = error
            self.on_error_changed()
