"""State objects on the bus: all of them (State1)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from opdbus.bus import names, paths
from opdbus.bus.admission.limits import require_objects, require_reply, require_small, require_text
from opdbus.bus.service import contract, sorts
from opdbus.bus.service.object import FILTERS, describe, similar, thing_at, vector, whole, wire
from opdbus.bus.service.options import MAX_LIMIT, Options, page
from opdbus.config import SEVERITIES
from opdbus.drift import pairs
from opdbus.drift.crossings import CLASSES
from opdbus.errors import InvalidArgs
from opdbus.index import matching, past, short_names
from opdbus.index.catalogue import FILTER_KEYS
from opdbus.index.search import MODES
from opdbus.state import conditions, publish
from opdbus.state.object import Json, StateObject, Thing

if TYPE_CHECKING:
    from opdbus.bus.service.node import Caller
    from opdbus.bus.service.object import WireHit, WireVector
    from opdbus.bus.service.options import Given
    from opdbus.bus.transport.values import Plain
    from opdbus.drift.crossings import Drifted
    from opdbus.drift.tracker import Tracker
    from opdbus.index.declared import Declared
    from opdbus.index.finder import Finder
    from opdbus.index.health import Health
    from opdbus.index.object_vectors import ObjectVectors

    # (path, plugin, kind, name) each
    WireRows: TypeAlias = list[tuple[str, str, str, str]]
    # (path, class, severity, since, distance, (path, declared, observed, severity) of each field)
    WireDrift: TypeAlias = tuple[str, str, str, int, float, list[tuple[str, str, str, str]]]
    # an object: plugin, kind, name, properties
    WireObject: TypeAlias = tuple[str, str, str, Given]


_MAX_FIELDS: Final = 1000
_SIDES: Final = ("Declared", "Observed")


class Observed(Protocol):
    """Tells how each observer is: its name, its state, how many objects it has, and why."""

    @property
    def statuses(self) -> Sequence[tuple[str, str, int, str]]:
        """One row for each."""


class StateInterface:
    """org.opdbus.State1: all state objects."""

    info = contract.interface(names.STATE)

    def __init__(
        self,
        vectors: ObjectVectors,
        finder: Finder,
        declared: Declared,
        health: Health,
        observers: Observed,
        drifts: Tracker,
    ) -> None:
        self._vectors = vectors
        self._memory = vectors.memory
        self._finder = finder
        self._declared = declared
        self._health = health
        self._observers = observers
        self._drifts = drifts

    async def search(self, caller: Caller, query: str, limit: int, options: Given) -> list[WireHit]:
        """Find the objects that answer a question."""
        kinds = {**FILTERS, "mode": str, "rerank": str}
        checked = Options(options, kinds)
        require_text([query])
        mode = checked.get("mode", "hybrid")
        if mode not in MODES:
            raise InvalidArgs(f"there is no mode {mode!r}; there are {', '.join(MODES)}")
        level = checked.get("rerank", "")
        if level and mode == "lexical":
            raise InvalidArgs("rerank goes with the modes hybrid and vector, not with lexical")
        found = await self._finder.search(
            query, page(limit, checked), mode, level, priority=caller.priority
        )
        return [wire(hit) for hit in found]

    async def similar(
        self, _caller: Caller, path: str, limit: int, options: Given
    ) -> list[WireHit]:
        """Find the objects most like one."""
        return await similar(self._finder, thing_at(path), limit, options)

    async def list_(
        self, _caller: Caller, wanted: Given, offset: int, limit: int
    ) -> tuple[int, WireRows]:
        """Give a page of all objects."""
        checked = Options(wanted, {**dict.fromkeys(FILTER_KEYS, str), "where": str})
        if not 0 <= limit <= MAX_LIMIT:
            raise InvalidArgs(f"limit must be at most {MAX_LIMIT}")
        where = conditions.parse(checked.get("where", ""))
        within = await matching.things(self._memory, where) if where else None
        values = checked.wanted(*FILTER_KEYS)
        things = await asyncio.to_thread(self._memory.catalogue.things, values)
        if within is not None:
            things = [thing for thing in things if thing in within]
        return len(things), [_row(thing) for thing in things[offset : offset + limit]]

    async def resolve(
        self, _caller: Caller, name: str, options: Given
    ) -> tuple[WireRows, WireRows]:
        """Find the objects that a short name means, or those with close names."""
        is_past = Options(options, {"past": bool}).get("past", default=False)
        # on a thread: of 100,000 objects it takes 0.1 s
        known = self._memory.catalogue.known()
        found, close = await asyncio.to_thread(short_names.find, known, name)
        if is_past and not found:
            known = await past.things(self._memory)
            found, close = await asyncio.to_thread(short_names.find, known, name)
        return [_row(thing) for thing in self._distinct(found)], [_row(thing) for thing in close]

    def _distinct(self, found: Sequence[Thing]) -> list[Thing]:
        """Leave out what only declares another one of the things that were found."""
        return [
            thing
            for thing in found
            if self._drifts.is_observed(thing)
            or not any(pairs.means(thing, other) for other in found)
        ]

    async def fields(self, _caller: Caller, wanted: Given) -> list[tuple[str, int]]:
        """Give the fields that objects have."""
        checked = Options(wanted, {"plugin": str, "kind": str})
        found = await matching.field_names(self._memory, checked.wanted("plugin", "kind"))
        return found.most_common(_MAX_FIELDS)

    async def get(self, _caller: Caller, path: str, options: Given) -> str:
        """Give an object as JSON."""
        is_large = Options(options, {"large": bool}).get("large", default=False)
        thing = thing_at(path)
        values = await describe(self._vectors, thing)
        declared, observed = (json.loads(values[side] or "null") for side in _SIDES)
        return whole(thing, values["Source"], declared, observed, is_large=is_large)

    async def vector(self, _caller: Caller, path: str, options: Given) -> WireVector:
        """Give an object's vector."""
        return await vector(self._vectors, thing_at(path), options)

    async def publish(
        self, caller: Caller, source: str, objects: Sequence[WireObject], options: Given
    ) -> list[str]:
        """Store observed objects."""
        lifetime = Options(options, {"lifetime": str}).get("lifetime", "kept")
        if lifetime not in {"kept", "connection"}:
            raise InvalidArgs(f"lifetime must be kept or connection, not {lifetime!r}")
        publisher = publish.source(source)
        require_objects(len(objects))
        items, reply = await asyncio.to_thread(_state_objects, publisher, objects)
        # first: what is committed must not be answered with an error
        require_reply([reply])
        holder = caller.sender if lifetime == "connection" else ""
        await self._memory.publish(items, caller.uid, holder=holder, cause=caller.cause)
        return reply

    async def withdraw(self, caller: Caller, objects: Sequence[str], options: Given) -> int:
        """Remove what the caller published."""
        Options(options, {})
        return await self._memory.withdraw(map(thing_at, objects), caller.uid, caller.cause)

    async def drift_report(self, _caller: Caller, wanted: Given) -> list[WireDrift]:
        """List what is other than declared, the worst first."""
        keys = ("plugin", "kind", "name")
        words = dict.fromkeys((*keys, "severity", "class"), str)
        checked = Options(wanted, {**words, "offset": int, "limit": int})
        limit, offset = checked.get("limit", MAX_LIMIT), checked.get("offset", 0)
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidArgs(f"limit must be from 1 to {MAX_LIMIT}")
        if offset < 0:
            raise InvalidArgs(f"offset must be 0 or more, not {offset}")
        await sorts.require(self._memory, checked.get("plugin", ""), checked.get("kind", ""))
        rows = await self._drifts.report(
            checked.wanted(*keys),
            _one_of("severity", checked.get("severity", SEVERITIES[0]), SEVERITIES),
            _one_of("class", checked.get("class", ""), ("", *CLASSES)),
        )
        found = [self._drift(*row) for row in rows[offset : offset + limit]]
        if "limit" not in wanted:
            require_small(found, "ask for a part of them with offset and limit")
        return found

    def _drift(self, thing: Thing, drifted: Drifted) -> WireDrift:
        fields = [
            (one.name, _json(one.declared), _json(one.observed), one.severity.word)
            for one in drifted.fields
        ]
        distance = self._vectors.distance(*self._drifts.entries(thing))
        since, severity = int(drifted.since), drifted.severity.word
        return paths.of(*thing), drifted.what, severity, since, distance, fields

    async def properties(self) -> Mapping[str, Plain]:
        """Give every property's value."""
        # on a thread: 100,000 take a tenth of a second
        waiting = await asyncio.to_thread(self._vectors.waiting)
        count = len(self._memory.catalogue)
        return {
            "Generation": self._memory.generation,
            "Count": count,
            "Vectorized": count - waiting if self._vectors.current else 0,
            "Pending": waiting,
            "StateFile": str(self._declared.path),
            "LastError": self._health.last_error or self._memory.archive.notice,
            "Drifted": len(self._drifts.counted),
            "Observers": list(self._observers.statuses),
            "Sources": self._memory.catalogue.largest_sources(),
        }


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _one_of(name: str, given: str, accepted: Sequence[str]) -> str:
    if given not in accepted:
        raise InvalidArgs(f"{name} must be one of {', '.join(filter(None, accepted))}")
    return given


def _row(thing: Thing) -> tuple[str, str, str, str]:
    return (paths.of(*thing), *thing)


def _state_objects(
    publisher: str, objects: Sequence[WireObject]
) -> tuple[list[StateObject], list[str]]:
    """Give published objects as state objects, and their paths; blocks for 0.1 ms an object."""
    items = [publish.observed(publisher, *given) for given in objects]
    return items, [paths.of(*item.identity[1:]) for item in items]
