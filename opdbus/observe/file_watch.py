"""Watches many files at once, and says which of them may have changed."""

import asyncio
import errno
import os
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple, Self

from asyncinotify import Event, Inotify, Mask

from opdbus.observe.report import LostSource
from opdbus.state.watch import IN_FOLDER

# Events within this time are read together.
_SETTLE_SECONDS: Final = 0.3
# After more events at once, all files are checked instead.
_MAX_EVENTS: Final = 1000
_MAX_LINKS: Final = 40
# Of a folder that is not there, or that may not be read: what is in it cannot be read either.
_NOT_WATCHED: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP})


class Wanted(NamedTuple):
    """What to watch: files by path, and folders with all files in them."""

    files: Collection[str]
    folders: Collection[str]


class _Route:
    """The way to each file: its folders, and the links on it."""

    def __init__(self) -> None:
        # what leads to another file when it changes; each without links before its last name
        self.on_the_way: set[str] = set()
        self._real = {"/": "/"}

    def real(self, path: str, links: int = 0) -> str:
        """Return a path without links, whether or not there is a file."""
        if path in self._real:
            return self._real[path]
        folder, name = os.path.split(path)
        at = os.path.join(self.real(folder, links), name)  # noqa: PTH118 -- thousands of them
        self.on_the_way.add(at)
        if links < _MAX_LINKS and os.path.islink(at):  # noqa: PTH114 -- thousands of them
            at = self.real(_target(at), links + 1)
        self._real[path] = at
        return at


def _target(link: str) -> str:
    try:
        target = os.readlink(link)  # noqa: PTH115 -- see above
    except OSError:
        return link  # gone since
    return os.path.normpath(os.path.join(os.path.dirname(link), target))  # noqa: PTH118, PTH120


class FileWatch:
    """A watch of files: from the moment it is made, no change of them is missed.

    For other files, make another watch. Raises OSError, and LostSource where this user has no
    watches left.
    """

    def __init__(self, wanted: Wanted) -> None:
        route = _Route()
        self._files: dict[str, set[str]] = {}
        for path in wanted.files:
            self._files.setdefault(route.real(path), set()).add(path)
        self._folders = {route.real(folder) for folder in wanted.folders}
        self._on_the_way = route.on_the_way
        self._inotify = Inotify(sync_timeout=0)
        try:
            self._add({os.path.dirname(path) for path in route.on_the_way} | self._folders)  # noqa: PTH120 -- thousands of them
        except BaseException:
            self._inotify.close()
            raise

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop watching."""
        self._inotify.close()

    async def changed(self) -> set[str] | None:
        """Wait, and return what may have changed: files and folders that were wanted.

        None if the way to a file has changed, or too much: then another watch has to be made.
        """
        while True:
            events = [await self._inotify.get()]
            await asyncio.sleep(_SETTLE_SECONDS)
            while event := self._inotify.sync_get():
                events.append(event)
                if len(events) > _MAX_EVENTS:
                    return None
            changed = self._meant(events)
            if changed is None or changed:
                return changed

    def _meant(self, events: Iterable[Event]) -> set[str] | None:
        changed: set[str] = set()
        for event in events:
            if event.watch is None or event.name is None:
                return None  # events were lost, or a folder went away
            folder = str(event.watch.path)
            path = os.path.join(folder, str(event.name))  # noqa: PTH118 -- many of them
            if path in self._files:
                changed |= self._files[path]
            elif path in self._on_the_way:
                return None
            elif folder in self._folders:
                changed.add(folder)
        return changed

    def _add(self, folders: Iterable[str]) -> None:
        for folder in folders:
            try:
                self._inotify.add_watch(folder, IN_FOLDER | Mask.ONLYDIR)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise LostSource(
                        "this user has no inotify watches left: raise the sysctl"
                        " fs.inotify.max_user_watches"
                    ) from None
                if error.errno not in _NOT_WATCHED:
                    raise
