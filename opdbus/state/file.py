"""The state file: read, checked, and turned into state objects."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from opdbus.state import document
from opdbus.state.flatten import Reader

if TYPE_CHECKING:
    from pathlib import Path

    from opdbus.state.object import Identity, Json, StateObject

VERSION: Final = 1
MAX_SHOWN: Final = 40


class StateFile:
    """A state file that is read again and again; remembers what it gave, to give changes only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = Reader()

    def read(self) -> tuple[set[Identity], list[StateObject]]:
        """Read the file: all identities in it, and the objects changed since the last read.

        Raises StateFileError and then forgets nothing.
        """
        return self._reader.read(self._plugins())

    def forget(self) -> None:
        """Give every object again at the next read."""
        self._reader.forget()

    def _plugins(self) -> dict[str, dict[str, Json]]:
        text = document.text_of(self.path)
        content = document.parse(text, self.path)
        problem = _problem(content)
        if problem:
            keys, sentence = problem
            raise document.locate(text, self.path, keys, sentence)
        plugins: dict[str, dict[str, Json]] = content["plugins"]
        return plugins


def _problem(content: dict[str, Json]) -> tuple[tuple[str, ...], str] | None:
    """Find what in the content is not a state file: its JSON path and a sentence."""
    if "version" not in content:
        return (), f'there is no "version": add "version": {VERSION}'
    version = content["version"]
    if isinstance(version, str | list | dict):
        # not shown: it may be anything, and this sentence is read by more people than the file
        return ("version",), f'"version" must be the number {VERSION}'
    if version != VERSION or isinstance(version, bool):
        shown = json.dumps(version)[:MAX_SHOWN]
        return ("version",), f"version {shown} is unknown: this op-dbus reads {VERSION}"
    if "plugins" not in content:
        return (), 'there is no "plugins": add "plugins": {}'
    plugins = content["plugins"]
    if not isinstance(plugins, dict):
        return ("plugins",), '"plugins" must be an object of plugins'
    for name, plugin in plugins.items():
        if not name:
            return ("plugins", name), "a plugin needs a name"
        if not isinstance(plugin, dict):
            return ("plugins", name), "a plugin must be an object"
    return None
