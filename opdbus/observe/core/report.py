"""Observer interface, and the report in which an observer collects its changes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.history import jobs
from opdbus.history.change import Cause
from opdbus.observe.core.recent_causes import Causes
from opdbus.observe.core.skipped import Skipped
from opdbus.state.flatten import bound
from opdbus.state.object import LIVE, Identity, Json
from opdbus.state.redact import redact_identity

# More than any observer finds on a sane host.
MAX_OBJECTS: Final = 20_000
# In characters, twice as long as a path can be.
_MAX_NAME: Final = 8 << 10
# Reports of so many different objects that wait to be written: as if all were replaced by others.
_MAX_WAITING: Final = 2 * MAX_OBJECTS
_UNEXPLAINED: Final = Cause()

# The properties of an object; None for a removed one.
State: TypeAlias = Mapping[str, Json] | None


class Absent(Exception):
    """The observed source is missing on this host; the message names it."""


class LostSource(Exception):
    """The source or some of its events were lost: it must be listed again."""


class Key(NamedTuple):
    """The kind and the name of an object, as its observer names it."""

    kind: str
    name: str


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
    The kinds in `polled` are read at intervals: their changes may be older than the reading.
    """

    name: str
    plugin: str
    observe: Callable[[Report], Coroutine[Any, Any, None]]
    volatile: Mapping[str, frozenset[str]] = field(default_factory=dict)
    appears: Callable[[], Coroutine[Any, Any, None]] = _never
    derived: Mapping[str, frozenset[str]] = field(default_factory=dict)
    polled: frozenset[str] = frozenset()

    @property
    def source(self) -> str:
        """The source of its objects."""
        return LIVE + self.name

    def identity(self, key: Key) -> Identity:
        """Return the identity of one of its objects, without secrets and of bounded length."""
        # what D-Bus cannot carry is escaped, so that two names remain two
        kind, name = (
            part.encode(errors="backslashreplace").decode().replace("\0", "\\x00") for part in key
        )
        return bound(redact_identity(Identity(self.source, self.plugin, kind, name or "?")))


@dataclass(slots=True)
class Batch:
    """Reports that wait to be written, merged to the last state of each object and its cause.

    `kinds` has states by kind and name. `listed` are the kinds of which all objects were reported;
    with `is_all` there are no other kinds. `whys` has the causes that were given, and counts the
    states that were replaced by later ones; of these, `firsts` has the first. `events` happened to
    objects beside changes. Fields that are `volatile` or only seen make no other state.
    """

    volatile: Mapping[str, AbstractSet[str]]
    kinds: dict[str, dict[str, State]] = field(default_factory=dict)
    listed: set[str] = field(default_factory=set)
    is_all: bool = False
    whys: dict[Key, Cause] = field(default_factory=dict)
    firsts: dict[Key, State] = field(default_factory=dict)
    events: dict[Key, Cause] = field(default_factory=dict)

    def add(self, kind: str, objects: Mapping[str, State], why: Cause) -> None:
        """Add the states of objects by name."""
        self._explain(kind, objects, why)
        self.kinds.setdefault(kind, {}).update(objects)

    def add_event(self, key: Key, why: Cause) -> None:
        """Add an event of an object beside its changes; count earlier ones in it."""
        before = self.events.get(key)
        self.events[key] = why._replace(
            coalesced_count=why.coalesced_count + (before.coalesced_count + 1 if before else 0)
        )

    def include(self, later: Batch) -> None:
        """Add a later batch, whose states win."""
        for kind, objects in later.kinds.items():
            for name, state in objects.items():
                key = Key(kind, name)
                first = later.firsts.get(key, state)
                self._explain(kind, {name: first}, later.whys.get(key, _UNEXPLAINED))
                if key in later.firsts:
                    self.firsts.setdefault(key, first)
            self.kinds.setdefault(kind, {}).update(objects)
        self.listed |= later.listed
        self.is_all |= later.is_all
        for key, why in later.events.items():
            self.add_event(key, why)

    def _explain(self, kind: str, objects: Mapping[str, State], why: Cause) -> None:
        """Combine the cause of new states with those of the waiting states that they replace."""
        waiting = self.kinds.get(kind, {})
        for name in objects if why != _UNEXPLAINED else objects.keys() & waiting.keys():
            key = Key(kind, name)
            if name not in waiting:
                self.whys[key] = why
                continue
            before = self.whys.get(key, _UNEXPLAINED)
            moving = why.ignored_fields.union(self.volatile.get(kind, ()))
            is_replaced = _without(waiting[name], moving) != _without(objects[name], moving)
            cause = why.cause or before.cause
            # another event, or a change that is no step of the job before
            is_more = (before.is_event and why.is_event) or (
                is_replaced and not jobs.is_step(before.cause, why.cause)
            )
            if is_more:
                cause = jobs.combine(before.cause, before.coalesced_count + 1, why.cause)
                # an event is a change even if it left the object as it was
                if not before.is_event:
                    self.firsts.setdefault(key, waiting[name])
            elif not is_replaced:
                cause = before.cause or why.cause
            self.whys[key] = Cause(
                cause,
                before.coalesced_count + why.coalesced_count + is_more,
                is_event=before.is_event or why.is_event,
                ignored_fields=before.ignored_fields | why.ignored_fields,
            )


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
        # until when an earlier run recorded events; later ones were missed
        self.recorded_until = recorded_until
        # shared by all observers
        self.causes = causes or Causes()
        self._stored = stored
        # gives the names that the state file has of a kind; `renamed` is set when others may be
        self.named = named
        self.renamed = asyncio.Event()
        # set while something waits to be written
        self.news = asyncio.Event()
        # the observer's own note for the status
        self.note = ""
        # names of objects in states that the metrics count, by state
        self.tallies: dict[str, set[str]] = {}
        # what readers did not understand, by what they read
        self._skipped: dict[str, Skipped] = {}
        # what was not taken of a kind since its last listing
        self._left_out: dict[str, str] = {}
        self._names: dict[str, set[str]] = {}
        self._batch = Batch(volatile)

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
        self._remove(kind, names - objects.keys(), cause)
        self._left_out.pop(kind, None)
        self._add(kind, objects, Cause(cause))
        self._batch.listed.add(kind)

    def replace_all(
        self, kinds: Mapping[str, Mapping[str, Mapping[str, Json]]], cause: str = ""
    ) -> None:
        """Report all objects of all kinds by kind and name; raises LostSource in a flood."""
        for kind in {*self._names, *kinds}:
            self.replace(kind, kinds.get(kind, {}), cause)
        self._batch.is_all = True
        self.news.set()

    def put(
        self,
        kind: str,
        name: str,
        properties: Mapping[str, Json],
        cause: str | Cause = "",
    ) -> None:
        """Report an object that is new, or that may have changed.

        An event, such as a restart, is recorded although nothing changed: see Why.
        """
        self._add(kind, {name: properties}, cause if isinstance(cause, Cause) else Cause(cause))

    def happened(self, kind: str, name: str, why: Cause) -> None:
        """Report an event of an object beside its changes: it is a row of its own.

        Without a cause it has that of what differs from what is stored.
        """
        self._batch.add_event(Key(kind, name), why)
        self.news.set()

    def is_waiting(self, kind: str, name: str) -> bool:
        """Return whether a state of an object waits to be written: a later one would replace it."""
        return name in self._batch.kinds.get(kind, {})

    def gone(self, kind: str, name: str, cause: str = "") -> None:
        """Report that an object is not there any more; raises LostSource in a flood."""
        self._remove(kind, {name} & self._names.get(kind, set()), cause)

    def busy(self, note: str) -> None:
        """Set the sentence of the status on what takes time or is limited; empty removes it."""
        self.note = note

    def skip(self, part: str, skipped: Skipped) -> None:
        """Set what was not understood in the newest reading of a part."""
        self._skipped[part] = skipped

    def tally(self, name: str, states: Mapping[str, bool]) -> None:
        """Set which of the states that the metrics count an object is in."""
        for state, is_in in states.items():
            names = self.tallies.setdefault(state, set())
            (names.add if is_in else names.discard)(name)

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
        batch, self._batch = self._batch, Batch(self._batch.volatile)
        return batch

    def put_back(self, batch: Batch) -> None:
        """Take back a batch that could not be written; what was reported meanwhile wins."""
        batch.include(self._batch)
        self._batch = batch
        self.news.set()

    def _add(self, kind: str, objects: Mapping[str, Mapping[str, Json]], why: Cause) -> None:
        names = self._names.setdefault(kind, set())
        new = objects.keys() - names
        room = MAX_OBJECTS - sum(map(len, self._names.values()))
        if len(new) > room or max(map(len, new), default=0) > _MAX_NAME:
            short = {name for name in new if len(name) <= _MAX_NAME}
            self._left_out[kind] = (
                f"there are more than {MAX_OBJECTS:,} objects: the rest is left out"
                if len(short) > room
                else f"a name of more than {_MAX_NAME:,} characters is left out"
            )
            fitting = [
                *(names & objects.keys()),
                *islice(filter(short.__contains__, objects), room),
            ]
            objects = {name: objects[name] for name in fitting}
        names.update(objects)
        self._batch.add(kind, objects, why)
        self.news.set()

    def _remove(self, kind: str, gone: AbstractSet[str], cause: str) -> None:
        if not gone:
            return
        if sum(map(len, self._batch.kinds.values())) + len(gone) > _MAX_WAITING:
            raise LostSource("changes came faster than they could be written")
        self._names[kind] -= gone
        self._batch.add(kind, dict.fromkeys(gone), Cause(cause))
        self.news.set()


def _without(state: State, fields: AbstractSet[str]) -> State:
    if not fields or state is None:
        return state
    return {name: value for name, value in state.items() if name not in fields}


def join_by_name(rows: Iterable[tuple[str, Mapping[str, Json]]]) -> dict[str, dict[str, Json]]:
    """Return properties by name; of rows that share one, the values that differ are joined."""
    found: dict[str, dict[str, list[Json]]] = {}
    for name, properties in rows:
        values = found.setdefault(name, {})
        for key, value in properties.items():
            if value not in values.setdefault(key, []):
                values[key].append(value)
    return {
        name: {key: v[0] if len(v) == 1 else "; ".join(sorted(map(str, v))) for key, v in values}
        for name, values in ((name, fields.items()) for name, fields in found.items())
    }
