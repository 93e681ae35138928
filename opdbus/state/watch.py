"""Tells when a file has been replaced, edited, created or removed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from asyncinotify import Inotify, Mask

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

# Long enough for an editor's burst of events, short enough that nobody waits for it.
SETTLE_SECONDS = 0.02
_EVENTS = (
    Mask.CLOSE_WRITE
    | Mask.MOVED_TO
    | Mask.MOVED_FROM
    | Mask.CREATE
    | Mask.DELETE
    | Mask.ATTRIB
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
)


async def changes(path: Path) -> AsyncGenerator[None]:
    """Yield once whenever the file at `path` is not what it was when last yielded.

    Editors replace files, so folders are watched: the file's, that of what it links to, and
    where a folder is missing, the nearest one above it.
    """
    known = _signature(path)
    while True:
        with Inotify() as inotify:
            folders = _folders(path)
            for folder in folders:
                inotify.add_watch(folder, _EVENTS)
            # A change between the last look and the new watches would otherwise go unseen.
            while _folders(path) == folders:
                if (now := _signature(path)) != known:
                    known = now
                    yield
                await inotify.get()
                await asyncio.sleep(SETTLE_SECONDS)
                await _drain(inotify)


async def _drain(inotify: Inotify) -> None:
    """Take the rest of a burst of events, so that it counts as one."""
    while True:
        try:
            async with asyncio.timeout(0):
                await inotify.get()
        except TimeoutError:
            return


def _folders(path: Path) -> set[Path]:
    return {_nearest(path.parent), _nearest(path.resolve().parent)}


def _nearest(folder: Path) -> Path:
    while not folder.is_dir():
        folder = folder.parent
    return folder


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_mode, stat.st_uid)
