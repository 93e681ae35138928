"""Lookup of the unit that a control group belongs to, by the group's id."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from opdbus.observe.core.lookup_cache import LookupCache
from opdbus.observe.systemd.unit_files import is_unit

# Mount points of the unified hierarchy: alone, and beside the version 1 hierarchies.
FOLDERS: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_MARK: Final = "cgroup.controllers"
_MAX_GROUPS: Final = 50_000
_UNITS: Final = (".service", ".scope", ".socket", ".mount", ".swap")


class ControlGroups:
    """Cache of units by control group id; the kernel never reuses an id.

    The tree is read only for an id that is not in the cache.
    """

    def __init__(self, folders: Collection[Path] = FOLDERS) -> None:
        self._folders = folders
        self._units = LookupCache[int, str]("")

    def units(self, ids: Collection[int]) -> Mapping[int, str]:
        """Return units by group id; empty for a group outside any unit or already removed."""
        if self._units.lacks(ids):
            self._units.learn(ids, dict(self._walk()))
        return self._units

    def _walk(self) -> Iterator[tuple[int, str]]:
        top = next((folder for folder in self._folders if (folder / _MARK).exists()), None)
        waiting = [(str(top), "")] if top else []
        seen = 0
        while waiting and seen < _MAX_GROUPS:
            path, unit = waiting.pop()
            for entry in _folders_in(path):
                seen += 1
                own = unit or _unit(entry.name)
                yield entry.inode(), own
                waiting.append((entry.path, own))


def _folders_in(path: str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # the group was removed meanwhile


def _unit(name: str) -> str:
    """Return the unit with a group's name, or empty.

    systemd prefixes `_` to names that collide with kernel files.
    """
    unit = name.removeprefix("_")
    return unit if name.endswith(_UNITS) and is_unit(unit) else ""
