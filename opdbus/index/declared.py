"""The state file is loaded into the memory at start, on change, and on request."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path

import structlog

from opdbus.errors import OpDbusError, StateFileError
from opdbus.index.events import Claimed
from opdbus.index.memory import Memory
from opdbus.state import watch
from opdbus.state.file import StateFile
from opdbus.state.object import FILE, Identity, StateObject

log = structlog.get_logger()


class Declared:
    """What a state file declares; a bad file changes only `last_error`.

    An `optional` file may be missing: then nothing is declared, unless something was before.
    `on_change` is called on the event loop when `last_error` or `attempted` changes.
    """

    def __init__(
        self,
        path: Path,
        memory: Memory,
        on_change: Callable[[], None] = lambda: None,
        changes: Callable[[Path], AsyncGenerator[None]] = watch.changes,
        *,
        optional: bool = False,
    ) -> None:
        self.path = path
        self.last_error = ""
        # whether the first load has ended, well or badly
        self.attempted = False
        self.on_change = on_change
        self._changes = changes
        self._optional = optional
        self._file = StateFile(path)
        self._memory = memory
        self._one_reader = asyncio.Lock()

    async def load(self) -> None:
        """Load the file; raises StateFileError, and StoreError if it cannot be stored."""
        await self._memory.archive.shield(self._load())

    async def _load(self) -> None:
        async with self._one_reader:
            try:
                present, changed = await asyncio.to_thread(self._read)
                changes = await self._memory.replace(FILE, present, changed)
            except OpDbusError as error:
                # what was read but not stored is read again as soon as it can be stored
                if not isinstance(error, StateFileError):
                    self._file.forget()
                    self._memory.archive.when_writable(self.try_load)
                self._set_error(str(error))
                raise
            self._set_error("")
        self._memory.notify(Claimed(self._file.claims))
        log.info("state file read", path=str(self.path), objects=len(present), changed=len(changes))

    def _read(self) -> tuple[set[Identity], list[StateObject]]:
        is_new = not self._memory.catalogue.sources[FILE]
        if self._optional and is_new and _is_missing(self.path):
            return set(), []
        try:
            return self._file.read()
        except StateFileError as error:
            raise StateFileError(f"{error}; {_meanwhile(self.path)}") from None

    async def try_load(self) -> None:
        """Load the file, or say in the log and in `last_error` why not."""
        try:
            await self.load()
        except OpDbusError as error:
            log.warning("state file refused", reason=str(error))
        finally:
            if not self.attempted:
                self.attempted = True
                self.on_change()

    async def watch(self) -> None:
        """Load the file now and whenever it changes, until cancelled."""
        try:
            async with aclosing(self._changes(self.path)) as changes:
                async for _ in changes:
                    await self.try_load()
        except OSError as error:
            # such as too many inotify instances of this user; SIGHUP and Reload still work
            log.warning("state file not watched", path=str(self.path), reason=str(error))
            await self.try_load()
            await asyncio.Event().wait()

    def _set_error(self, error: str) -> None:
        if error != self.last_error:
            self.last_error = error
            self.on_change()


def _is_missing(path: Path) -> bool:
    """Return whether there is no file, as far as this user may look."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _meanwhile(path: Path) -> str:
    """Say what to do about a file that cannot be loaded, and what is served until then."""
    served = "the stored objects are served until"
    if not os.path.exists(path):  # noqa: PTH110 -- Path.exists() raises where it may not look
        nothing = '{"version": 1, "plugins": {}}'
        return f"write it ({nothing} declares nothing) or set OP_DBUS_STATE_FILE; {served} then"
    if not os.access(path, os.R_OK):
        return f"let the user that op-dbus runs as read it; {served} then"
    return f"{served} it is corrected"
