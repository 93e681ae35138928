"""Lookup of nodes by path: no object is registered; each is looked up when it is called."""

from opdbus.bus import paths
from opdbus.bus.service.contract import BusInterface, Node
from opdbus.bus.service.job1 import Jobs
from opdbus.bus.service.object1 import ObjectInterface, object_id_at
from opdbus.bus.service.standard import MAX_CHILDREN
from opdbus.drift.tracker import Tracker
from opdbus.errors import UnknownObject
from opdbus.index.search.finder import Finder
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.state.object import ObjectId


class Tree:
    """Fixed nodes, one node for each state object, and one for each job."""

    def __init__(
        self,
        vectorizer: BusInterface,
        state: BusInterface,
        history: BusInterface,
        log_control: BusInterface,
        vectors: ObjectVectors,
        finder: Finder,
        drifts: Tracker,
        jobs: Jobs,
    ) -> None:
        self._fixed = {
            "/": Node((), lambda: ["org"]),
            "/org": Node((), lambda: ["freedesktop", "opdbus"]),
            "/org/freedesktop": Node((), lambda: ["LogControl1"]),
            paths.LOG_CONTROL: Node((log_control,), list),
            paths.ROOT: Node((vectorizer,), lambda: ["history", "job", "state"]),
            paths.HISTORY: Node((history,), list),
            paths.STATE: Node((state,), lambda: self._below(paths.STATE)),
        }
        self._vectors = vectors
        self._memory = vectors.memory
        self._jobs = jobs
        self._finder = finder
        self._drifts = drifts

    def find(self, path: str) -> Node | None:
        """Return the node at a path, or None."""
        if path in self._fixed:
            return self._fixed[path]
        if (path + "/").startswith(f"{paths.JOBS}/"):
            return self._jobs.find(path)
        try:
            object_id = object_id_at(path)
        except UnknownObject:
            # the parent node of a plugin or a kind
            below = self._below(path)
            return Node((), lambda: below) if below else None
        if not self._memory.catalogue.has(object_id):
            return None
        found = ObjectInterface(object_id, self._vectors, self._finder, self._drifts)
        return Node((found,), list)

    def _below(self, path: str) -> list[str]:
        """Return the names of child nodes of a path, as many as Introspect lists."""
        if not f"{path}/".startswith(f"{paths.STATE}/"):
            return []
        elements = path.removeprefix(paths.STATE).split("/")[1:]
        try:
            wanted = tuple(map(paths.unescape, elements))
        except ValueError:
            return []
        depth = len(wanted)
        if depth >= len(ObjectId._fields):
            return []
        found = self._memory.catalogue.children(wanted)
        return [paths.escape(name) for name in found[:MAX_CHILDREN]]
