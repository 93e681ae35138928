"""Watches a file with inotify: replaced, edited, created or removed."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Final

from asyncinotify import Inotify, Mask

# An editor's events within this time count as one change.
SETTLE_SECONDS: Final = 0.02
# A file that is written in place is complete when it is closed. If it is not closed, or was never
# opened (truncate), it counts as complete after this time without a change.
SILENCE_SECONDS: Final = 0.5
_EVENTS = (
    Mask.CLOSE_WRITE
    | Mask.MODIFY
    | Mask.MOVED_TO
    | Mask.MOVED_FROM
    | Mask.CREATE
    | Mask.DELETE
    | Mask.ATTRIB
    | Mask.DELETE_SELF
    | Mask.MOVE_SELF
)


async def changes(path: Path, silence: float = SILENCE_SECONDS) -> AsyncGenerator[None]:
    """Yield at once, and then whenever the file at `path` has changed since the last yield.

    The watch begins before the first yield, so a caller that reads the file after each yield
    misses no change. Editors replace files, so folders are watched: the file's, that of each link
    on the way to it, and instead of a missing folder the nearest one above it.
    """
    known: tuple[int, ...] | None = ()  # equal to no signature: the first look finds a change
    while True:
        with Inotify() as inotify:
            folders = _folders(path)
            for folder in folders:
                # If a folder vanishes now, `folders` changes. An unreadable one cannot be watched,
                # but no file in it can be read either.
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    inotify.add_watch(folder, _EVENTS)
            # checked before the first wait: something may have changed before the new watches
            while _folders(path) == folders:
                if (now := _signature(path)) != known:
                    known = now
                    yield
                await _settled(inotify, path, silence)


async def _settled(inotify: Inotify, path: Path, silence: float) -> None:
    """Wait for a change, and until a file that is being written is complete."""
    events = await _burst(inotify)
    while events == Mask.MODIFY:
        before = _signature(path)
        try:
            async with asyncio.timeout(silence):
                events = await _burst(inotify)
        except TimeoutError:
            return
        if _signature(path) == before:
            return  # another file is being written


async def _burst(inotify: Inotify) -> Mask:
    """Wait for a burst of events, which counts as one."""
    events = (await inotify.get()).mask
    await asyncio.sleep(SETTLE_SECONDS)
    while True:
        try:
            async with asyncio.timeout(0):
                events |= (await inotify.get()).mask
        except TimeoutError:
            return events


def _folders(path: Path) -> frozenset[Path]:
    """Return the folders in which a change may make `path` lead to another file."""
    found: set[Path] = set()
    seen: set[Path] = set()
    while path not in seen:  # links may form a circle
        seen.add(path)
        link = _first_link(path)
        found.add(_nearest((link or path).parent))
        if link:
            with suppress(OSError):  # gone since
                path = _target(link) / path.relative_to(link)
    return frozenset(found)


def _target(link: Path) -> Path:
    # there is no link before the first one, so `..` can be resolved by name
    return type(link)(os.path.normpath(link.parent / link.readlink()))


def _first_link(path: Path) -> Path | None:
    parts = (*reversed(path.parents), path)
    return next((part for part in parts if os.path.islink(part)), None)  # noqa: PTH114 -- see below


def _nearest(folder: Path) -> Path:
    while not os.path.isdir(folder):  # noqa: PTH112 -- Path.is_dir() raises where it may not look
        folder = folder.parent
    return folder


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_mode, stat.st_uid)
