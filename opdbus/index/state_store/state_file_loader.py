"""The state file is loaded into the memory at start, on change, and on request."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from opdbus import __version__
from opdbus.errors import OpDbusError, StateFileError, StoreError
from opdbus.history.change import STATE_FILE, Change, FieldChange, Why
from opdbus.history.change_sentence import of_change
from opdbus.index.database import record_process
from opdbus.index.database.identity_set import IdentityHashSet
from opdbus.index.database.records import DECLARED, WRITTEN_BY
from opdbus.index.database.store import Record, Store
from opdbus.index.state_store.events import Claimed
from opdbus.index.state_store.state_store import StateStore
from opdbus.models.child import ChildFailed
from opdbus.platform.tasks import cancel
from opdbus.state import watch
from opdbus.state.file import StateFile, signature
from opdbus.state.object import FILE, Identity, StateObject

log = structlog.get_logger()

# What rows of history about the file itself are about.
OF_FILE: Final = ("op-dbus", "state_file")
_FAULT: Final = "state file fault"
# Until an unchanged file is read after a start, for what the next change of it is compared with.
_LATER_SECONDS: Final = 5.0
# Some 20,000 objects: those of fewer are stored before a child process has begun.
_LARGE: Final = 4 << 20


class StateFileLoader:
    """What a state file declares; a bad file changes only `last_error`.

    An `optional` file may be missing: then nothing is declared, unless something was before. One
    of so many bytes as is `large` is read by a child process.
    `on_change` is called on the event loop when `last_error` or `attempted` changes.
    """

    def __init__(
        self,
        path: Path,
        memory: StateStore,
        on_change: Callable[[], None] = lambda: None,
        changes: Callable[[Path], AsyncGenerator[None]] = watch.changes,
        *,
        optional: bool = False,
        large: int = _LARGE,
    ) -> None:
        self.path = path
        self.last_error = ""
        # whether the first load has ended, well or badly
        self.attempted = False
        self.on_change = on_change
        self._changes = changes
        self._optional = optional
        self._large = large
        self._file = StateFile(path)
        self._memory = memory
        self._one_reader = asyncio.Lock()

    async def load(self) -> None:
        """Load the file; raises StateFileError, and StoreError if it cannot be stored."""
        await self._memory.archive.shield(self._load())

    async def _load(self) -> None:
        async with self._one_reader:
            try:
                noted = await self._noted()
                present, changed = await asyncio.to_thread(self._stream, noted)
                await self._record("")
                count = await self._memory.replace(FILE, present, changed)
            except OpDbusError as error:
                # what was read but not stored is read again as soon as it can be stored
                if isinstance(error, StateFileError):
                    await self._record(_reason(str(error.__cause__), self.path))
                else:
                    self._file.forget()
                    self._memory.archive.when_writable(self.try_load)
                self._set_error(str(error))
                raise
            self._set_error("")
            await self._note()
        self._memory.notify(Claimed(self._file.claims))
        log.info("state file read", path=str(self.path), objects=len(present), changed=count)

    async def _record(self, fault: str) -> None:
        """Record that the file cannot be read, or can be again: once, also across restarts."""
        archive, identity = self._memory.archive, Identity("history", *OF_FILE, str(self.path))
        before = await archive.read(lambda store: store.fact(_FAULT)) or ""
        if fault == before:
            return
        fields = [FieldChange(["error"], *([text] if text else [] for text in (before, fault)))]
        row = Change(identity, "changed", Why(STATE_FILE), fields)
        with suppress(StoreError):
            await self._memory.record(
                [of_change(row, f"state file {self.path}")],
                lambda store: store.set_fact(_FAULT, fault),
            )

    async def _note(self) -> None:
        """Note which file was read, for the next start."""
        mark = _mark(self._file.signature)
        if mark != await self._noted():
            with suppress(StoreError):
                await self._memory.archive.write(partial(_note, mark))

    async def _noted(self) -> str:
        return await self._memory.archive.read(lambda store: store.fact(DECLARED)) or ""

    async def _is_unchanged(self) -> bool:
        """Return whether all that the file declares is known from the run before this one."""
        mark = _mark(await asyncio.to_thread(signature, self.path))
        return bool(mark) and mark == await self._noted()

    def _stream(self, noted: str) -> tuple[IdentityHashSet, Iterator[StateObject | Record]]:
        is_new = not self._memory.catalogue.sources[FILE]
        if self._optional and is_new and _is_missing(self.path):
            return IdentityHashSet(), iter(())
        found = signature(self.path)
        same = found if _mark(found) == noted else ""
        if _size(self.path) >= self._large:
            try:
                return record_process.stream(self._file, same)
            except ChildFailed as error:
                # if the file is bad, what follows says why
                log.info("state file not read apart", path=str(self.path), reason=str(error))
        try:
            present, changed = self._file.stream(same)
            return IdentityHashSet(present), changed
        except StateFileError as error:
            kept = "nothing is declared" if is_new else "what it declared last stays declared"
            raise StateFileError(f"{error}; {kept} until {_advice(self.path)}") from error

    async def try_load(self) -> None:
        """Load the file, or say in the log and in `last_error` why not."""
        try:
            await self.load()
        except OpDbusError as error:
            log.warning("state file refused", reason=str(error))
        finally:
            self._set_attempted()

    async def watch(self) -> None:
        """Load the file now and whenever it changes, until cancelled.

        To read 100,000 objects takes seconds: a file that is as it was is read a little later.
        """
        later: list[asyncio.Task[None]] = []
        try:
            async with aclosing(self._changes(self.path)) as changes:
                async for _ in changes:
                    if not self.attempted and await self._is_unchanged():
                        self._set_attempted()
                        later.append(asyncio.create_task(self._load_later()))
                        continue
                    await cancel(later)
                    await self.try_load()
        except OSError as error:
            # such as too many inotify instances of this user; SIGHUP and Reload still work
            log.warning("state file not watched", path=str(self.path), reason=str(error))
            await self.try_load()
            await asyncio.Event().wait()
        finally:
            await cancel(later)

    async def _load_later(self) -> None:
        await asyncio.sleep(_LATER_SECONDS)
        await self.try_load()

    def _set_attempted(self) -> None:
        if not self.attempted:
            self.attempted = True
            self.on_change()

    def _set_error(self, error: str) -> None:
        if error != self.last_error:
            self.last_error = error
            self.on_change()


def _reason(fault: str, path: Path) -> str:
    """Return why the file cannot be read, without its name."""
    begins = (f"cannot read the state file {path}: ", f"{path}: ", f"{path} ")
    return next((fault.removeprefix(each) for each in begins if fault.startswith(each)), fault)


def _mark(signature: str) -> str:
    """Return what is noted of a file that this op-dbus read; "" if that cannot be told."""
    return f"{__version__}, {WRITTEN_BY}: {signature}" if signature else ""


def _note(mark: str, store: Store) -> None:
    with store.transaction():
        store.set_fact(DECLARED, mark)


def _size(path: Path) -> int:
    """Return how many bytes a file has, 0 where that cannot be told."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def _is_missing(path: Path) -> bool:
    """Return whether there is no file, as far as this user may look."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _advice(path: Path) -> str:
    """Say what is to be done about a file that cannot be loaded."""
    if not os.path.exists(path):  # noqa: PTH110 -- Path.exists() raises where it may not look
        nothing = '{"version": 1, "plugins": {}}'
        return f"it is there ({nothing} declares nothing), or OP_DBUS_STATE_FILE names another one"
    if not os.access(path, os.R_OK):
        return "the user that op-dbus runs as may read it"
    return "it is corrected"
