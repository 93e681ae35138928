"""Folders that other users read, and that power failures leave whole."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it, which every user may enter; raises OSError.

    Root makes it with a command, whatever its umask, and the daemon is another user.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        path.chmod(0o755)


def settle(folder: Path) -> None:
    """Let every user read a new folder, and see all of it to the disk; raises OSError.

    Only then may it get its name: power may fail between.
    """
    for path in [folder, *folder.rglob("*")]:
        path.chmod(_mode(path))
        if path.is_file():
            with path.open("r+b") as file:
                os.fsync(file.fileno())


def open_to_all(folder: Path, names: Iterable[str]) -> None:
    """Let every user read the named files of a folder that was there before; raises OSError."""
    paths = {folder / name for name in names}
    for path in {folder, *paths, *(path.parent for path in paths)}:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode | _mode(path) != mode:
            path.chmod(mode | _mode(path))


def _mode(path: Path) -> int:
    return 0o755 if path.is_dir() else 0o644
