"""What happens in the house, told as D-Bus signals: names and counts, never contents."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from opdbus.bus import names, paths
from opdbus.bus.service import contract
from opdbus.bus.service.standard import PROPERTIES
from opdbus.bus.transport.values import Typed
from opdbus.index.events import Changed, Vectorized

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opdbus.bus.service.node import BusInterface
    from opdbus.bus.transport.connection import Connection
    from opdbus.bus.transport.values import Plain
    from opdbus.index.catalogue import Change
    from opdbus.index.events import Event
    from opdbus.state.object import Thing

# A signal that tells of more objects than this is sent in parts, so that none is ever large.
MAX_CHANGES: Final = 500
MAX_BYTES: Final = 64 << 10
# Changes that come faster than this are told together: whoever publishes one object a call would
# otherwise fill the queue of everyone who listens.
MERGE_SECONDS: Final = 0.05
# What two changes of a thing are together, where that is not the second one; None: nothing.
_TOGETHER: Final[Mapping[tuple[Change, Change], Change | None]] = {
    ("added", "changed"): "added",
    ("added", "removed"): None,
    ("removed", "added"): "changed",
}


class Announcer:
    """Sends the signals of all faces."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._told: dict[str, Mapping[str, Plain]] = {}
        self._changes: dict[Thing, Change] = {}
        self._generation = 0
        self._pause: asyncio.TimerHandle | None = None

    def announce(self, event: Event) -> None:
        """Send the signal of what happened in the memory: of a change at once, or with the next."""
        if isinstance(event, Changed):
            self._changes = merged(self._changes, event.changes)
            self._generation = event.generation
            if self._pause is None:
                self._send_and_pause()
            return
        # what follows from a change is told after it
        self.flush()
        if isinstance(event, Vectorized):
            counts = (event.computed, event.reused)
            self._state("Vectorized", event.generation, event.level, *counts)
        else:
            self._state("DriftDetected", paths.of(*event.thing), event.distance, event.fields)

    def flush(self) -> None:
        """Send what changed and was not told yet."""
        while self._changes:
            self._send_part()

    def _send_and_pause(self) -> None:
        """Send a part of what waits; whatever else is to be done comes before the next."""
        self._pause = None
        if self._changes:
            self._send_part()
            loop = asyncio.get_running_loop()
            pause = 0.0 if self._changes else MERGE_SECONDS
            self._pause = loop.call_later(pause, self._send_and_pause)

    def _send_part(self) -> None:
        """Send so many changes that both limits are kept; a path may be very long."""
        part: list[tuple[str, Change]] = []
        size = 0
        for thing in list(islice(self._changes, MAX_CHANGES)):
            path = paths.of(*thing)
            size += len(path)
            if part and size > MAX_BYTES:
                break
            part.append((path, self._changes.pop(thing)))
        self._state("Changed", self._generation, part)

    def provider_changed(self, provider: str, reason: str) -> None:
        """Tell which provider was proven."""
        self._emit(paths.ROOT, names.VECTORIZER, "ProviderChanged", provider, reason)

    async def refresh(self, path: str, face: BusInterface) -> None:
        """Send PropertiesChanged for what is not as it was at the last call."""
        self.tell(path, face.interface.name, await face.properties())

    def tell(self, path: str, interface: str, values: Mapping[str, Plain]) -> None:
        """Send PropertiesChanged for values that were told otherwise; none: the object is gone.

        Of what may hold contents, which not everybody may read, only the name is sent.
        """
        properties = contract.interface(interface).properties
        news = {n: v for n, v in values.items() if properties[n].emits in {"true", "invalidates"}}
        before = self._told.pop(path, {})
        if news:
            self._told[path] = news
        changed = [properties[name] for name, value in news.items() if before.get(name) != value]
        if before and changed:
            told = {p.name: Typed(p.signature, news[p.name]) for p in changed if p.emits == "true"}
            stale = [p.name for p in changed if p.name not in told]
            member = f"{PROPERTIES}.PropertiesChanged"
            self._connection.emit(path, member, "sa{sv}as", interface, told, stale)

    def _state(self, member: str, *body: Plain) -> None:
        self._emit(paths.STATE, names.STATE, member, *body)

    def _emit(self, path: str, interface: str, member: str, *body: Plain | Sequence[Plain]) -> None:
        signature = contract.interface(interface).signals[member]
        self._connection.emit(path, f"{interface}.{member}", signature, *body)


def merged(before: Mapping[Thing, Change], after: Mapping[Thing, Change]) -> dict[Thing, Change]:
    """Give what two changes are together: what came and went is none."""
    changes = dict(before)
    for thing, what in after.items():
        first = changes.pop(thing, None)
        if first is None:
            changes[thing] = what
        elif (whole := _TOGETHER.get((first, what), what)) is not None:
            changes[thing] = whole
    return changes
