"""inotify watches of files and folders that follow replacement, editing, creation and removal."""

import asyncio
import errno
import os
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

from asyncinotify import Event, Inotify, Mask

from opdbus.platform.regular_files import answers

# Events of one save within this time count as one change.
SETTLE_SECONDS: Final = 0.02
# A file that is written in place is complete when it is closed. If it is not closed, or was never
# opened (truncate), it counts as complete after this time without a change.
SILENCE_SECONDS: Final = 0.5
# After more pending events, all files may have changed.
_MAX_EVENTS: Final = 1000
_MAX_LINKS: Final = 40
# The event loop may wait for it.
_LOOK_SECONDS: Final = 0.5
# Device, inode, size, mtime, mode and owner.
_Signature: TypeAlias = tuple[int, ...]
_IN_FOLDER: Final = (
    Mask.CLOSE_WRITE
    | Mask.MODIFY
    | Mask.MOVED_TO
    | Mask.MOVED_FROM
    | Mask.CREATE
    | Mask.DELETE
    | Mask.ATTRIB
)
_SELF: Final = Mask.DELETE_SELF | Mask.MOVE_SELF
# Errors for a folder that is missing or not readable: its content cannot be read either.
_NOT_WATCHED: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP})


class Change(NamedTuple):
    """The files and folders that may have changed, with the inotify masks of each."""

    masks: Mapping[str, Mask]

    @property
    def paths(self) -> set[str]:
        """Return the paths that may have changed."""
        return set(self.masks)

    def was_closed(self, path: str) -> bool:
        """Return whether a program that had opened a file for writing has closed it."""
        return bool(self.masks.get(path, Mask(0)) & Mask.CLOSE_WRITE)


class Watch:
    """A watch of files and folders; no change after its construction is missed.

    Editors replace files, so that folders are watched: the folder of each file, that of each link
    on the way to it, and for a missing folder its parent. In watched folders, all files count. The
    set of paths is fixed. Close it as a context manager. Raises OSError.
    """

    def __init__(self, files: Iterable[str], folders: Iterable[str] = ()) -> None:
        way = _Way()
        self._files: dict[str, set[str]] = {}
        for path in files:
            self._files.setdefault(way.real(path), set()).add(path)
        self._folders = {way.real(folder) for folder in folders}
        # paths whose change may lead to other files
        self._on_the_way = way.links
        self._inotify = Inotify(sync_timeout=0)
        try:
            self._begin(way.folders)
        except BaseException:
            self._inotify.close()
            raise

    def __enter__(self) -> Self:
        """Return the watch."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop watching."""
        self._inotify.close()

    async def change(self, settle: float) -> Change | None:
        """Wait for a change; events within `settle` seconds count as one.

        Returns None if a path on the way has changed or events were lost: make a new watch then.
        No event is lost if this is cancelled.
        """
        while True:
            await self._until_readable()
            await asyncio.sleep(settle)
            events: list[Event] = []
            while len(events) <= _MAX_EVENTS and (event := self._inotify.sync_get()):
                events.append(event)
            change = self._select(events)
            if change is None or change.masks:
                return change

    async def _until_readable(self) -> None:
        """Wait until there are events; `Inotify.get` loses those it has read if it is cancelled."""
        loop, descriptor = asyncio.get_running_loop(), self._inotify.fd
        readable = asyncio.Event()
        loop.add_reader(descriptor, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(descriptor)

    def _select(self, events: Collection[Event]) -> Change | None:
        """Return the change that events make; None if a new watch is needed."""
        if len(events) > _MAX_EVENTS:
            return None
        masks: dict[str, Mask] = {}
        for event in events:
            if event.watch is None or event.name is None:
                return None  # events were lost, or a folder was removed
            folder = str(event.watch.path)
            path = os.path.join(folder, str(event.name))  # noqa: PTH118 -- many of them
            if path in self._on_the_way:
                return None
            for watched in self._files.get(path, set()) | ({folder} & self._folders):
                masks[watched] = masks.get(watched, Mask(0)) | event.mask
        return Change(masks)

    def _begin(self, folders: set[str]) -> None:
        """Watch the folders on the way to files, and the content of those with files or links."""
        above = os.path.dirname  # Path() takes most of the time of thousands of paths
        holding = {above(path) for path in (*self._files, *self._on_the_way)} | self._folders
        # parents first: a folder that is created meanwhile is reported by its parent's watch
        for folder in sorted(folders | holding):
            mask = _SELF | (_IN_FOLDER if folder in holding else Mask(0))
            if not self._add(folder, mask):
                self._on_the_way.add(folder)
                self._add(above(folder), _SELF | _IN_FOLDER)
                # it may have been created meanwhile
                self._add(folder, mask)

    def _add(self, folder: str, mask: Mask) -> bool:
        try:
            # links were followed before, but those to what hangs
            how = Mask.ONLYDIR | Mask.MASK_ADD | Mask.DONT_FOLLOW
            self._inotify.add_watch(folder, mask | how)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                advice = "no watches are left: raise the sysctl fs.inotify.max_user_watches"
                raise OSError(errno.ENOSPC, advice, folder) from None
            if error.errno not in _NOT_WATCHED:
                raise
            return False
        return True


class _Way:
    """Resolver of paths; collects the folders and links on the way, by their real paths."""

    def __init__(self) -> None:
        self.folders = {"/"}
        self.links: set[str] = set()
        self._real = {"/": "/"}

    def real(self, path: str, links: int = 0) -> str:
        """Return a path with links resolved; the file need not exist."""
        if path not in self._real:
            folder, name = os.path.split(path)
            above = self.real(folder, links)
            self.folders.add(above)
            at = os.path.normpath(os.path.join(above, name))  # noqa: PTH118 -- thousands of them
            target = ""
            if links < _MAX_LINKS:
                with suppress(OSError):  # no link
                    target = os.readlink(at)  # noqa: PTH115 -- thousands of them
            # what lies on a file system that hangs cannot be watched
            if target and answers(at, _LOOK_SECONDS):
                self.links.add(at)
                at = self.real(os.path.join(above, target), links + 1)  # noqa: PTH118 -- see above
            self._real[path] = at
        return self._real[path]


async def changes(
    *paths: Path, silence: float = SILENCE_SECONDS, settle: float = SETTLE_SECONDS
) -> AsyncGenerator[None]:
    """Yield at once, and then whenever a file at `paths` has changed since the last yield.

    A folder has changed when a file in it was created or removed. Events within `settle` seconds
    count once. The watch begins before the first yield, so that a caller that reads the file after
    each yield misses no change.
    """
    files = [str(path.absolute()) for path in paths]
    known: tuple[_Signature | None, ...] | None = None
    while True:
        folders = _folders(files)
        with Watch(files, folders) as watch:
            change: Change | None = Change({})
            # checked before the first wait: something may have changed before the new watch
            while change is not None and _folders(files) == folders:
                if (now := tuple(map(_signature, files))) != known:
                    known = now
                    yield
                change = await watch.change(settle)
                # wait until a file that is being written is complete
                with suppress(TimeoutError):
                    while change and set(change.masks.values()) == {Mask.MODIFY}:
                        async with asyncio.timeout(silence):
                            change = await watch.change(settle)


async def edits(
    files: Iterable[str], folders: Iterable[str], settle: float
) -> AsyncGenerator[None]:
    """Yield at once, and then after each write to one of the files or any file in the folders.

    Unlike `changes`, this reports files in a folder that are edited in place. Missing paths are
    reported when they are created.
    """
    files, folders = list(files), list(folders)
    while True:
        with Watch([*files, *folders], folders) as watch:
            yield
            while await watch.change(settle):
                yield


def _folders(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if os.path.isdir(path)]  # noqa: PTH112 -- Path.is_dir() raises where it may not look


def _signature(path: str) -> _Signature | None:
    try:
        stat = Path(path).stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_mode, stat.st_uid)
