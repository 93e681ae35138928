"""Folders of unit files: changed units, and descriptions of units that are not loaded."""

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from opdbus.observe.core.file_reading import changed_at, in_thread
from opdbus.observe.core.report import LostSource
from opdbus.observe.systemd import unit_files
from opdbus.observe.systemd.pid1 import UnitFile
from opdbus.state.object import Json

_GENERATED: Final = re.compile(r"/generator(?:\.\w+)?/?$")


class UnitFolders:
    """Reader of the folders in order of precedence; a hanging folder yields no changes."""

    def __init__(self, folders: Iterable[str] = ()) -> None:
        # what generators make is made anew at each reload, after which all units are read anyway
        self._folders = [name for name in folders if not _GENERATED.search(name)]
        self._stamps: Mapping[Path, unit_files.Stamp] = {}

    async def changed(self) -> Mapping[str, float]:
        """Return units whose files changed since the last call, with the times of change.

        Times are in seconds since 1970.
        """
        before = self._stamps
        with suppress(LostSource):
            self._stamps = await in_thread(lambda: unit_files.scan(self._folders))
        return unit_files.changed(before, self._stamps)

    async def texts(self, names: Iterable[str]) -> Mapping[str, dict[str, Json]]:
        """Return the description and documentation of units from their files; empty on a hang."""
        if wanted := list(names):
            with suppress(LostSource):
                return await in_thread(lambda: unit_files.described(wanted, self._folders))
        return {}

    @staticmethod
    async def changed_at(files: Mapping[str, Iterable[str]]) -> Mapping[str, float]:
        """Return the latest change time of each name's files; empty if a file system hangs."""
        if files:
            with suppress(LostSource):
                return await in_thread(
                    lambda: {name: max(map(changed_at, paths)) for name, paths in files.items()}
                )
        return {}

    def is_alias(self, file: UnitFile) -> bool:
        """Return whether a unit file is a link to a unit of another name."""
        stamp = self._stamps.get(Path(file.path))
        target = Path(stamp.target).name if stamp else ""
        return unit_files.is_unit(target) and target != Path(file.path).name
