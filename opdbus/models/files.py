"""Folders that other users read, and that power failures leave whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
        if path.is_dir():
            path.chmod(0o755)
        else:
            path.chmod(0o644)
            _flush(path)


def _flush(path: Path) -> None:
    with path.open("r+b") as file:
        os.fsync(file.fileno())
