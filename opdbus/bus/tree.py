"""Paths to nodes: nothing is exported, every object is found when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opdbus.bus import paths
from opdbus.bus.dispatch import Node
from opdbus.bus.faces import ObjectFace, thing_at
from opdbus.errors import UnknownObject

if TYPE_CHECKING:
    from opdbus.bus.dispatch import Face
    from opdbus.index.finder import Finder
    from opdbus.index.memory import Memory


class Tree:
    """Two fixed objects, and one below them for each thing in memory."""

    def __init__(self, vectorizer: Face, state: Face, memory: Memory, finder: Finder) -> None:
        self._fixed = {
            "/": Node((), lambda: ["org"]),
            "/org": Node((), lambda: ["opdbus"]),
            paths.ROOT: Node((vectorizer,), lambda: ["state"]),
            paths.STATE: Node((state,), lambda: self._below(paths.STATE)),
        }
        self._memory = memory
        self._finder = finder

    def find(self, path: str) -> Node | None:
        """Give the node at a path, or None."""
        if path in self._fixed:
            return self._fixed[path]
        try:
            thing = thing_at(path)
        except UnknownObject:
            # the folder of a plugin or a kind
            return Node((), lambda: self._below(path)) if self._below(path) else None
        if not self._memory.catalogue.has(thing):
            return None
        return Node((ObjectFace(thing, self._memory, self._finder),), list)

    def _below(self, path: str) -> list[str]:
        """Give the names of the nodes right below a path."""
        wanted = path.removeprefix(paths.STATE).strip("/").split("/") if path != paths.STATE else []
        depth = len(wanted)
        found: dict[str, None] = {}
        for entry in self._memory.catalogue.entries():
            parts = entry.identity[1:]
            if [paths.escape(part) for part in parts[:depth]] == wanted:
                found[paths.escape(parts[depth])] = None
        return list(found)
