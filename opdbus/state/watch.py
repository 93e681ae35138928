"""Tells when a file has been replaced, edited, created or removed."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from asyncinotify import Inotify, Mask

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

# Long enough for an editor's burst of events, short enough that nobody waits for it.
SETTLE_SECONDS = 0.02
# Who writes a file in place says when it is done by closing it. Who does not close it, or never
# opened it (truncate), says nothing: then this long without a change is taken for the end.
SILENCE_SECONDS = 0.5
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


async def changes(path: Path) -> AsyncGenerator[None]:
    """Yield at once, and then whenever the file at `path` is not what it was when last yielded.

    The watch is on before the first yield: who reads the file after each misses no change.
    Editors replace files, so folders are watched: the file's, that of each link on the way to
    it, and where a folder is missing, the nearest one above it.
    """
    known: tuple[int, ...] | None = ()  # as no file is, so that the first look finds a change
    while True:
        with Inotify() as inotify:
            folders = _folders(path)
            for folder in folders:
                # A folder that vanished just now changes `folders`; one that may not be read
                # cannot be watched, and neither can a file in it be read.
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    inotify.add_watch(folder, _EVENTS)
            # A change between the last look and the new watches would otherwise go unseen.
            while _folders(path) == folders:
                if (now := _signature(path)) != known:
                    known = now
                    yield
                await _done(inotify, path)


async def _done(inotify: Inotify, path: Path) -> None:
    """Wait until something was done; a file that is being written is waited for."""
    events = await _burst(inotify)
    while events == Mask.MODIFY:
        before = _signature(path)
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                events = await _burst(inotify)
        except TimeoutError:
            return
        if _signature(path) == before:
            return  # it is another file that is written to


async def _burst(inotify: Inotify) -> Mask:
    """Wait for a burst of events, which count as one."""
    events = (await inotify.get()).mask
    await asyncio.sleep(SETTLE_SECONDS)
    while True:
        try:
            async with asyncio.timeout(0):
                events |= (await inotify.get()).mask
        except TimeoutError:
            return events


def _folders(path: Path) -> frozenset[Path]:
    """Give the folders where something may happen that makes `path` another file."""
    found: set[Path] = set()
    seen: set[Path] = set()
    while path not in seen:  # links may lead in a circle
        seen.add(path)
        link = _first_link(path)
        found.add(_nearest((link or path).parent))
        if link:
            with suppress(OSError):  # gone since
                path = _target(link) / path.relative_to(link)
    return frozenset(found)


def _target(link: Path) -> Path:
    # What comes before the first link is no link, so `..` means what it says.
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
