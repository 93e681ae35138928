"""Kinds and unique names of mirrored D-Bus objects."""

import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from opdbus.observe.core.batch import Key
from opdbus.observe.dbus.mirror_table import MAIN, NAMED_BY_PATH, NAMING, NOT_MIRRORED
from opdbus.observe.dbus.mirror_values import Value, field_name

_MAX_NAME: Final = 512
# The version of an interface: the kind of BlueZ's Device1 is `device`.
_VERSION: Final = re.compile("(?:_|(?<![0-9_]))[0-9]+$")


class MirrorNames:
    """Unique names for the objects of one service."""

    def __init__(self, service: str, plugin: str) -> None:
        self._service = service
        self._plugin = plugin
        self._keys: dict[str, Key] = {}
        self._holders: dict[Key, str] = {}

    def key_at(self, path: str) -> Key | None:
        """Return the kind and name of the object at a path; None if it is not mirrored."""
        return self._keys.get(path)

    def at(self, path: str) -> str:
        """Return the name of the object at a path; the path if it has no name."""
        key = self._keys.get(path)
        return key.name if key else path

    def give(self, path: str, interfaces: Mapping[str, Mapping[str, Value]]) -> Key | None:
        """Name an object and return its key; without interfaces, free the name and return None."""
        if before := self._keys.pop(path, None):
            self._holders.pop(before, None)
        if not interfaces:
            return None
        main = self.main(interfaces)
        kind = _VERSION.sub("", field_name(self._short(main)))
        if (self._plugin, kind) in NOT_MIRRORED:
            return None
        end = PurePosixPath(path).name or self._plugin
        name = self._name(kind, interfaces[main]) or end
        names = (name, f"{name} ({end})", path)
        key = next(k for n in names if (k := Key(kind, n)) not in self._holders or n == path)
        self._keys[path], self._holders[key] = key, path
        return key

    def main(self, interfaces: Iterable[str]) -> str:
        """Return the interface that determines an object's kind."""

        def rank(interface: str) -> tuple[int, bool, int, str]:
            short = self._short(interface)
            main = MAIN.index(short) if short in MAIN else len(MAIN)
            is_foreign = not interface.startswith(self._service)
            return main, is_foreign, short.count("."), interface

        return min(interfaces, key=rank)

    def own(self, interface: str, main: str) -> str:
        """Return the prefix for fields of an interface that is not the main one."""
        return self._short(interface).removeprefix(f"{self._short(main)}.")

    def _name(self, kind: str, values: Mapping[str, Value]) -> str:
        if (self._plugin, kind) in NAMED_BY_PATH:
            return ""
        given = (values.get(name) for name in NAMING)
        found = next((n for n in given if type(n) is str and 0 < len(n) <= _MAX_NAME), "")
        return PurePosixPath(found).stem if found.startswith("/") else found

    def _short(self, interface: str) -> str:
        own = interface.removeprefix(self._service + ".")
        return own if own != interface else interface.rpartition(".")[2]
