"""Lookup of the unit that a control group belongs to, by the group's id."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
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
            entries: list[os.DirEntry[str]] = []
            with suppress(OSError), os.scandir(path) as found:  # it may be removed meanwhile
                entries = [entry for entry in found if entry.is_dir(follow_symlinks=False)]
            for entry in entries:
                seen += 1
                # systemd prefixes `_` to names that collide with kernel files
                name = entry.name.removeprefix("_")
                is_of_unit = name.endswith(_UNITS) and is_unit(name)
                own = unit or (name if is_of_unit else "")
                yield entry.inode(), own
                waiting.append((entry.path, own))
