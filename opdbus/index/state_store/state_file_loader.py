"""Loading of the state file into the state store at start, on change, and on request."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final

import structlog

from opdbus import __version__
from opdbus.errors import OpDbusError, StateFileError, StoreError
from opdbus.history.change import STATE_FILE, Cause, Change, FieldChange
from opdbus.history.change_sentence import of_change
from opdbus.index.database import record_process
from opdbus.index.database.records import DECLARED, written_by
from opdbus.index.database.store import Record
from opdbus.index.state_store.events import Claimed
from opdbus.index.state_store.state_store import StateStore
from opdbus.models.child import ChildFailed
from opdbus.platform import gc_tuning
from opdbus.platform.tasks import cancel
from opdbus.state import watch
from opdbus.state.file import StateFile, signature
from opdbus.state.object import FILE, Identity, StateObject

log = structlog.get_logger()

# The plugin and kind of rows of history about the file itself; the name is its path.
OF_FILE: Final = ("op-dbus", "state_file")
_FAULT: Final = "state file fault"
# Delay after which an unchanged file is read at a start; the next change is compared with it.
_LATER_SECONDS: Final = 5.0
# Bytes of some 20,000 objects; a smaller file is stored before a child process has started.
_LARGE: Final = 4 << 20


class StateFileLoader:
    """Loader of the objects that a state file declares; a bad file changes only `last_error`.

    If an `optional` file is missing and nothing was declared before, nothing is declared. A file of
    at least `large` bytes is read by a child process. `on_change` is called on the event loop when
    `last_error` or `attempted` changes.
    """

    def __init__(
        self,
        path: Path,
        store: StateStore,
        on_change: Callable[[], None] = lambda: None,
        changes: Callable[[Path], AsyncGenerator[None]] = watch.changes,
        *,
        optional: bool = False,
        large: int = _LARGE,
    ) -> None:
        self.path = path
        self.last_error = ""
        # whether the first load has ended or failed, or was postponed for an unchanged file
        self.attempted = False
        self.on_change = on_change
        self._changes = changes
        self._optional = optional
        self._large = large
        self._file = StateFile(path)
        self._store = store
        self._one_reader = asyncio.Lock()

    async def load(self) -> None:
        """Load the file, to the end if cancelled; raises StateFileError and StoreError."""
        await self._store.archive.shield(self._load())

    async def _load(self) -> None:
        async with self._one_reader:
            try:
                mark = await self._stored_mark()
                present, changed = await asyncio.to_thread(self._stream, mark)
                await self._record("")
                count = await self._store.replace(FILE, present, changed)
            except OpDbusError as error:
                if isinstance(error, StateFileError):
                    # without the leading path of the file
                    reason, path = str(error.__cause__), self.path
                    begins = (f"cannot read the state file {path}: ", f"{path}: ", f"{path} ")
                    begin = next(filter(reason.startswith, begins), "")
                    await self._record(reason.removeprefix(begin))
                else:
                    # read the file again as soon as the database can be written
                    self._file.forget()
                    self._store.archive.when_writable(self.try_load)
                self._set_error(str(error))
                raise
            self._set_error("")
            mark = _mark(self._file.signature)
            if mark != await self._stored_mark():
                with suppress(StoreError):
                    await self._store.archive.write(lambda store: store.set_fact(DECLARED, mark))
        self._store.notify(Claimed(self._file.claims))
        log.info("state file read", path=str(self.path), objects=len(present), changed=count)
        # its objects were read and are forgotten
        await asyncio.to_thread(gc_tuning.trim)

    async def _record(self, fault: str) -> None:
        """Record a change of the file's fault in history; "" if it can be read.

        The last fault is stored, so a restart does not record it again.
        """
        archive, identity = self._store.archive, Identity("history", *OF_FILE, str(self.path))
        before = await archive.read(lambda store: store.fact(_FAULT)) or ""
        if fault == before:
            return
        fields = [FieldChange(["error"], *([text] if text else [] for text in (before, fault)))]
        row = Change(identity, "changed", Cause(STATE_FILE), fields)
        with suppress(StoreError):
            await self._store.record(
                [of_change(row, f"state file {self.path}")],
                lambda store: store.set_fact(_FAULT, fault),
            )

    async def _stored_mark(self) -> str:
        """Return the mark of the file that an earlier run stored completely."""
        return await self._store.archive.read(lambda store: store.fact(DECLARED)) or ""

    def _stream(self, mark: str) -> tuple[AbstractSet[Identity], Iterator[StateObject | Record]]:
        is_new = not self._store.catalogue.sources[FILE]
        if self._optional and is_new and _is_missing(self.path):
            return frozenset(), iter(())
        found = signature(self.path)
        same = found if _mark(found) == mark else ""
        if _size(self.path) >= self._large:
            try:
                return record_process.stream(self._file, same)
            except ChildFailed as error:
                # reading it here raises an error with the reason if the file is bad
                log.info("state file not read apart", path=str(self.path), reason=str(error))
        try:
            return self._file.stream(same)
        except StateFileError as error:
            kept = "nothing is declared" if is_new else "what it declared last stays declared"
            raise StateFileError(f"{error}; {kept} until {_advice(self.path)}") from error

    async def try_load(self) -> None:
        """Load the file, or log the reason why not; it is also in `last_error`."""
        try:
            await self.load()
        except OpDbusError as error:
            log.warning("state file refused", reason=str(error))
        finally:
            self._set_attempted()

    async def watch(self) -> None:
        """Load the file now and whenever it changes, until cancelled.

        Reading a large file takes seconds, so a file unchanged since the last run is read later.
        """
        later: list[asyncio.Task[None]] = []
        try:
            async with aclosing(self._changes(self.path)) as changes:
                async for _ in changes:
                    mark = _mark(await asyncio.to_thread(signature, self.path))
                    if mark and not self.attempted and mark == await self._stored_mark():
                        self._set_attempted()
                        later.append(asyncio.create_task(self._load_later()))
                        continue
                    await cancel(later)
                    await self.try_load()
        except OSError as error:
            # for example, the user has too many inotify instances; SIGHUP and Reload still work
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


def _mark(signature: str) -> str:
    """Return the stored mark of a file with a signature, read by this version; "" without one."""
    return f"{__version__}, {written_by()}: {signature}" if signature else ""


def _size(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it cannot be determined."""
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0


def _is_missing(path: Path) -> bool:
    """Return whether a file is missing; false if this user may not look."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _advice(path: Path) -> str:
    """Return the condition under which a file can be loaded, as the end of an error message."""
    if not os.path.exists(path):  # noqa: PTH110 -- Path.exists() raises where it may not look
        nothing = '{"version": 1, "plugins": {}}'
        return f"it is there ({nothing} declares nothing), or OP_DBUS_STATE_FILE names another one"
    if not os.access(path, os.R_OK):
        return "the user that op-dbus runs as may read it"
    return "it is corrected"
