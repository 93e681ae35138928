"""Observer interface, and the report in which an observer collects its changes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from opdbus.history.change import Why
from opdbus.observe.core.batch import Batch, Key, Merged
from opdbus.observe.core.causes import Causes
from opdbus.observe.core.skipped import Skipped
from opdbus.state.flatten import bounded
from opdbus.state.object import LIVE, Identity, Json
from opdbus.state.redact import redact_identity

# More than any observer finds on a sane host.
MAX_OBJECTS: Final = 20_000
# In characters, twice as long as a path can be.
_MAX_NAME: Final = 8 << 10
# Reports of so many different objects that wait to be written: as if all were replaced by others.
_MAX_WAITING: Final = 2 * MAX_OBJECTS


class Absent(Exception):
    """The observed source is missing on this host; the message names it."""


class LostSource(Exception):
    """The source or some of its events were lost: it must be listed again."""


async def _never() -> None:
    await asyncio.Event().wait()


async def _nothing(_kind: str) -> Mapping[str, dict[str, Json]]:
    return {}


async def _no_names(_kind: str) -> AbstractSet[str]:
    return frozenset()


@dataclass(frozen=True, slots=True)
class Observer:
    """One observer: its objects are `plugin/KIND/NAME` with the source `live:<name>`.

    `observe` lists and then follows until it is cancelled; it raises Absent and LostSource.
    `volatile` has the fields of each kind that move by themselves: they are shown, and are part of
    no text and no comparison. Those that are `derived` are looked up elsewhere, perhaps later: that
    they differ is no change of an object. `appears` waits until what is absent may be there.
    """

    name: str
    plugin: str
    observe: Callable[[Report], Coroutine[Any, Any, None]]
    volatile: Mapping[str, frozenset[str]] = field(default_factory=dict)
    appears: Callable[[], Coroutine[Any, Any, None]] = _never
    derived: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The source of its objects."""
        return LIVE + self.name

    def identity(self, key: Key) -> Identity:
        """Return what one of its objects is called: without secrets, and no longer than a path."""
        kind, name = (_sendable(part) for part in key)
        return bounded(redact_identity(Identity(self.source, self.plugin, kind, name or "?")))


class Report:
    """Buffer of one observer's changes, within limits, until the writer takes them.

    However often an object is reported between two writes, it is written once.
    """

    def __init__(
        self,
        volatile: Mapping[str, AbstractSet[str]] = {},
        causes: Causes | None = None,
        stored: Callable[[str], Awaitable[Mapping[str, dict[str, Json]]]] = _nothing,
        *,
        named: Callable[[str], Awaitable[AbstractSet[str]]] = _no_names,
        is_first: bool = True,
        recorded_until: float = math.inf,
    ) -> None:
        # whether nothing was observed since the program began
        self.is_first = is_first
        # until when an earlier run of it wrote down what happened; since then, nothing has
        self.recorded_until = recorded_until
        # what all observers know of causes
        self.causes = causes or Causes()
        self._stored = stored
        # gives the names that the state file has of a kind; `renamed` is set when others may be
        self.named = named
        self.renamed = asyncio.Event()
        # set while something waits to be written
        self.news = asyncio.Event()
        # what the observer says about itself
        self.said = ""
        # what readers did not understand, by what they read
        self._skipped: dict[str, Skipped] = {}
        # what was not taken of a kind since its last listing
        self._left_out: dict[str, str] = {}
        self._names: dict[str, set[str]] = {}
        self._merged = Merged(volatile)

    async def stored(self, kind: str) -> Mapping[str, dict[str, Json]]:
        """Return what is stored of a kind from before, by name, without `volatile` fields.

        From now on each of these counts as reported so: it may be gone.
        """
        found = await self._stored(kind)
        self._names.setdefault(kind, set()).update(found)
        return found

    def replace(
        self, kind: str, objects: Mapping[str, Mapping[str, Json]], cause: str = ""
    ) -> None:
        """Report all objects of a kind by name: those that are missing are gone.

        The `cause` is that of whatever differs, here and below. Raises LostSource in a flood.
        20,000 objects take a few milliseconds.
        """
        names = self._names.setdefault(kind, set())
        self._remove(kind, names - objects.keys(), Why(cause))
        self._left_out.pop(kind, None)
        self._add(kind, objects, Why(cause))
        self._merged.listed.add(kind)

    def replace_all(
        self, kinds: Mapping[str, Mapping[str, Mapping[str, Json]]], cause: str = ""
    ) -> None:
        """Report all objects of all kinds by kind and name; raises LostSource in a flood."""
        for kind in {*self._names, *kinds}:
            self.replace(kind, kinds.get(kind, {}), cause)
        self._merged.is_all = True
        self.news.set()

    def put(
        self,
        kind: str,
        name: str,
        properties: Mapping[str, Json],
        cause: str | Why = "",
    ) -> None:
        """Report an object that is new, or that may have changed.

        An event, such as a restart, is recorded although nothing changed: see Why.
        """
        self._add(kind, {name: properties}, cause if isinstance(cause, Why) else Why(cause))

    def happened(self, kind: str, name: str, why: Why) -> None:
        """Report an event of an object beside its changes: it is a row of its own.

        Without a cause it has that of what differs from what is stored.
        """
        self._merged.add_event(Key(kind, name), why)
        self.news.set()

    def is_waiting(self, kind: str, name: str) -> bool:
        """Return whether a state of an object waits to be written: a later one would replace it."""
        return Key(kind, name) in self._merged

    def gone(self, kind: str, name: str, cause: str = "") -> None:
        """Report that an object is not there any more; raises LostSource in a flood."""
        self._remove(kind, {name} & self._names.get(kind, set()), Why(cause))

    def busy(self, sentence: str) -> None:
        """Say in the status what takes time or is limited; an empty sentence takes it back."""
        self.said = sentence

    def skip(self, part: str, skipped: Skipped) -> None:
        """Say in the status what was not understood in the newest reading of a part."""
        self._skipped[part] = skipped

    @property
    def skipped(self) -> str:
        """Lines that no part understood, by file and line; empty if there are none."""
        found = Skipped()
        for skipped in self._skipped.values():
            found.include(skipped)
        return found.sentence

    @property
    def left_out(self) -> str:
        """The objects that were not taken, and the reasons; empty if there are none."""
        return "; ".join(dict.fromkeys(self._left_out.values()))

    def __len__(self) -> int:
        """Count the objects that there are."""
        return sum(map(len, self._names.values()))

    def count(self, kind: str) -> int:
        """Count the objects of a kind that there are."""
        return len(self._names.get(kind, ()))

    def has_listed(self, kind: str) -> bool:
        """Return whether objects of a kind were reported before: what comes now is a change."""
        return kind in self._names

    def names(self, kind: str) -> frozenset[str]:
        """Return the names of the objects of a kind that there are."""
        return frozenset(self._names.get(kind, ()))

    def take(self) -> Batch:
        """Return what was reported since the last time."""
        self.news.clear()
        return self._merged.take()

    def put_back(self, batch: Batch) -> None:
        """Take back a batch that could not be written; what was reported meanwhile wins."""
        self._merged.put_back(batch)
        self.news.set()

    def _add(self, kind: str, objects: Mapping[str, Mapping[str, Json]], why: Why) -> None:
        names = self._names.setdefault(kind, set())
        new = objects.keys() - names
        room = MAX_OBJECTS - len(self)
        if len(new) > room or max(map(len, new), default=0) > _MAX_NAME:
            objects = self._fitting(kind, objects, new, room)
        names.update(objects)
        self._merged.add(kind, objects, why)
        self.news.set()

    def _fitting(
        self, kind: str, objects: Mapping[str, Mapping[str, Json]], new: AbstractSet[str], room: int
    ) -> Mapping[str, Mapping[str, Json]]:
        """Return the known ones of objects, and as many others as there is room for."""
        short = {name for name in new if len(name) <= _MAX_NAME}
        self._left_out[kind] = (
            f"there are more than {MAX_OBJECTS:,} objects: the rest is left out"
            if len(short) > room
            else f"a name of more than {_MAX_NAME:,} characters is left out"
        )
        known = self._names[kind] & objects.keys()
        taken = [*known, *islice(filter(short.__contains__, objects), room)]
        return {name: objects[name] for name in taken}

    def _remove(self, kind: str, gone: AbstractSet[str], why: Why) -> None:
        if not gone:
            return
        if len(self._merged) + len(gone) > _MAX_WAITING:
            raise LostSource("changes came faster than they could be written")
        self._names[kind] -= gone
        self._merged.add(kind, dict.fromkeys(gone), why)
        self.news.set()


def _sendable(name: str) -> str:
    """Write as escapes what D-Bus cannot carry, so that two names remain two."""
    return name.encode(errors="backslashreplace").decode().replace("\0", "\\x00")
