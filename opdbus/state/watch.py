"""Watches files and folders with inotify: replaced, edited, created or removed."""

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias

from asyncinotify import Inotify, Mask

# An editor's events within this time count as one change.
SETTLE_SECONDS: Final = 0.02
# A file that is written in place is complete when it is closed. If it is not closed, or was never
# opened (truncate), it counts as complete after this time without a change.
SILENCE_SECONDS: Final = 0.5
# Of each file: where it lies, its size, time and mode; None if it is not there.
_Signatures: TypeAlias = tuple[tuple[int, ...] | None, ...]
# What may happen to a file, as its folder tells it.
IN_FOLDER: Final = (
    Mask.CLOSE_WRITE
    | Mask.MODIFY
    | Mask.MOVED_TO
    | Mask.MOVED_FROM
    | Mask.CREATE
    | Mask.DELETE
    | Mask.ATTRIB
)
_EVENTS: Final = IN_FOLDER | Mask.DELETE_SELF | Mask.MOVE_SELF


async def changes(
    *paths: Path, silence: float = SILENCE_SECONDS, settle: float = SETTLE_SECONDS
) -> AsyncGenerator[None]:
    """Yield at once, and then whenever a file at `paths` has changed since the last yield.

    A folder has changed when a file in it came or went. Events within `settle` seconds count once.

    The watch begins before the first yield, so a caller that reads the file after each yield
    misses no change. Editors replace files, so folders are watched: the file's, that of each link
    on the way to it, and instead of a missing folder the nearest one above it.
    """
    known: _Signatures | None = None
    while True:
        with Inotify() as inotify:
            folders = _folders(paths)
            for folder in folders:
                # If a folder vanishes now, `folders` changes. An unreadable one cannot be watched,
                # but no file in it can be read either.
                with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                    inotify.add_watch(folder, _EVENTS)
            # checked before the first wait: something may have changed before the new watches
            while _folders(paths) == folders:
                if (now := _signatures(paths)) != known:
                    known = now
                    yield
                await _settled(inotify, paths, silence, settle)


async def _settled(inotify: Inotify, paths: Sequence[Path], silence: float, settle: float) -> None:
    """Wait for a change, and until a file that is being written is complete."""
    events = await _burst(inotify, settle)
    while events == Mask.MODIFY:
        before = _signatures(paths)
        try:
            async with asyncio.timeout(silence):
                events = await _burst(inotify, settle)
        except TimeoutError:
            return
        if _signatures(paths) == before:
            return  # another file is being written


async def _burst(inotify: Inotify, settle: float) -> Mask:
    """Wait for a burst of events, which counts as one."""
    events = (await inotify.get()).mask
    await asyncio.sleep(settle)
    while True:
        try:
            async with asyncio.timeout(0):
                events |= (await inotify.get()).mask
        except TimeoutError:
            return events


def _folders(paths: Sequence[Path]) -> frozenset[Path]:
    """Return the folders in which a change may make a path lead to another file."""
    found: set[Path] = set()
    for path in paths:
        found |= _on_the_way(path)
    return frozenset(found)


def _on_the_way(path: Path) -> set[Path]:
    found = {path} if os.path.isdir(path) else set()  # noqa: PTH112 -- see below
    seen: set[Path] = set()
    while path not in seen:  # links may form a circle
        seen.add(path)
        link = _first_link(path)
        found.add(_nearest((link or path).parent))
        if link:
            with suppress(OSError):  # gone since
                path = _target(link) / path.relative_to(link)
    return found


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


def _signatures(paths: Sequence[Path]) -> _Signatures:
    return tuple(map(_signature, paths))


def _signature(path: Path) -> tuple[int, ...] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_mode, stat.st_uid)
