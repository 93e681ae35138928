"""Changes as D-Bus signals, which have names and counts but never contents."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from opdbus.bus import names, paths
from opdbus.bus.service import contract
from opdbus.bus.service.contract import BusInterface
from opdbus.bus.service.standard import PROPERTIES
from opdbus.bus.transport.connection import Connection
from opdbus.bus.transport.values import Plain, Typed
from opdbus.index.catalogue.catalogue import ChangeKind
from opdbus.index.state_store.events import Changed, Drift, Event, Recorded, Vectorized
from opdbus.state.object import ObjectId

# Limits of one signal, so that none is large or takes more than some milliseconds.
MAX_CHANGES: Final = 250
MAX_BYTES: Final = 64 << 10
# Signals of vectors and drift that are sent in one step: some milliseconds of work.
_FOLLOWING_AT_A_TIME: Final = 50
# Changes within this time are merged: a client that publishes one object a call would otherwise
# fill the queues of all listeners.
MERGE_SECONDS: Final = 0.05
# Results of two changes of an object, if not the second change; None means no change.
_TOGETHER: Final[Mapping[tuple[ChangeKind, ChangeKind], ChangeKind | None]] = {
    ("added", "changed"): "added",
    ("added", "removed"): None,
    ("removed", "added"): "changed",
}


class Announcer:
    """Sends the signals of all interfaces."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent: dict[str, Mapping[str, Plain]] = {}
        self._changes: dict[ObjectId, ChangeKind] = {}
        # events that are sent after these changes
        self._following: deque[Vectorized | Drift] = deque()
        self._generation = 0
        self._pause: asyncio.TimerHandle | None = None
        # the newest unannounced row of history; 0 for none
        self._recorded = 0
        self._pause_of_rows: asyncio.TimerHandle | None = None

    def announce(self, event: Event) -> None:
        """Send the signal of an event in the state store, at once or merged with later ones."""
        if isinstance(event, Changed):
            self._changes = merge_changes(self._changes, event.changes)
            self._generation = event.generation
            if self._pause is None:
                self._send_and_pause()
            return
        if isinstance(event, Recorded):
            self._recorded = event.seq
            if self._pause_of_rows is None:
                self._send_recorded_and_pause()
            return
        if isinstance(event, Vectorized | Drift):
            # vectors and drift follow the changes that they result from, in small steps
            self._following.append(event)
            if len(self._following) == 1 and len(self._changes) <= MAX_CHANGES:
                self.flush()

    def flush(self) -> None:
        """Send all pending signals."""
        while self._changes or self._following:
            self._send_some()
        self._send_recorded()

    def _send_some(self) -> None:
        if self._changes:
            self._send_part()
            return
        for _ in range(min(_FOLLOWING_AT_A_TIME, len(self._following))):
            event = self._following.popleft()
            if isinstance(event, Vectorized):
                counts = (event.computed, event.reused)
                self._state("Vectorized", event.generation, event.level, *counts)
            else:
                what = (event.what, event.severity, event.fields)
                self._state("DriftDetected", paths.of(*event.object_id), *what)

    def _send_and_pause(self) -> None:
        """Send some pending signals, and let other tasks run before the next ones."""
        self._pause = None
        if self._changes or self._following:
            self._send_some()
            loop = asyncio.get_running_loop()
            pause = 0.0 if self._changes or self._following else MERGE_SECONDS
            self._pause = loop.call_later(pause, self._send_and_pause)

    def _send_recorded_and_pause(self) -> None:
        self._pause_of_rows = None
        if self._recorded:
            self._send_recorded()
            loop = asyncio.get_running_loop()
            self._pause_of_rows = loop.call_later(MERGE_SECONDS, self._send_recorded_and_pause)

    def _send_recorded(self) -> None:
        if self._recorded:
            self._emit(paths.HISTORY, names.HISTORY, "Recorded", self._recorded)
            self._recorded = 0

    def _send_part(self) -> None:
        """Send as many changes as both limits allow; a path may be very long."""
        part: list[tuple[str, ChangeKind]] = []
        size = 0
        for object_id in list(islice(self._changes, MAX_CHANGES)):
            path = paths.of(*object_id)
            size += len(path)
            if part and size > MAX_BYTES:
                break
            part.append((path, self._changes.pop(object_id)))
        self._state("Changed", self._generation, part)

    def provider_changed(self, provider: str, reason: str) -> None:
        """Signal the newly proven provider."""
        self._emit(paths.ROOT, names.VECTORIZER, "ProviderChanged", provider, reason)

    async def refresh(self, path: str, interface: BusInterface) -> None:
        """Send PropertiesChanged for values that changed since the last call."""
        self.notify(path, interface.info.name, await interface.properties())

    def notify(self, path: str, interface: str, values: Mapping[str, Plain]) -> None:
        """Send PropertiesChanged for values that differ from those sent before.

        No values mean that the object was removed. A property that may have contents, which not
        every user may read, is sent by name only (`invalidates`).
        """
        properties = contract.interface(interface).properties
        current = {
            n: v for n, v in values.items() if properties[n].emits in {"true", "invalidates"}
        }
        before = self._sent.pop(path, {})
        if current:
            self._sent[path] = current
        changed = [properties[name] for name, value in current.items() if before.get(name) != value]
        if before and changed:
            fresh = {
                p.name: Typed(p.signature, current[p.name]) for p in changed if p.emits == "true"
            }
            stale = [p.name for p in changed if p.name not in fresh]
            member = f"{PROPERTIES}.PropertiesChanged"
            self._connection.emit(path, member, "sa{sv}as", interface, fresh, stale)

    def _state(self, member: str, *body: Plain) -> None:
        self._emit(paths.STATE, names.STATE, member, *body)

    def _emit(self, path: str, interface: str, member: str, *body: Plain | Sequence[Plain]) -> None:
        signature = contract.interface(interface).signals[member]
        self._connection.emit(path, f"{interface}.{member}", signature, *body)


def merge_changes(
    before: Mapping[ObjectId, ChangeKind], after: Mapping[ObjectId, ChangeKind]
) -> dict[ObjectId, ChangeKind]:
    """Merge changes of objects; an object that was added and removed has none."""
    changes = {**before, **after}
    for object_id in before.keys() & after.keys():
        what = _TOGETHER.get((before[object_id], after[object_id]), after[object_id])
        if what is None:
            del changes[object_id]
        else:
            changes[object_id] = what
    return changes
