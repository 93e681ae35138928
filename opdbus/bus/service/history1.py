"""The history of changes on the bus (History1)."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from opdbus.bus import names, paths
from opdbus.bus.service import call_options, contract
from opdbus.bus.service.call_options import Given, Options, one_of, require_range
from opdbus.bus.service.contract import Caller
from opdbus.bus.service.object1 import object_id_at, object_json
from opdbus.bus.transport.values import Plain, Typed
from opdbus.drift import pairs
from opdbus.drift.tracker import Tracker
from opdbus.errors import CallerError, InvalidArgs, NotKept, UnknownObject
from opdbus.history.acts import JOURNAL
from opdbus.history.change import CAUSE_TYPES
from opdbus.history.forget import Target
from opdbus.history.row_filter import MAX_INT64, Filter, Row
from opdbus.index.changes import attribution, connections, history_reader
from opdbus.index.changes.attribution import Attribution
from opdbus.index.changes.change_finder import WITHIN, ChangeFinder, RankedChange
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.slices import each
from opdbus.state import conditions
from opdbus.state.object import FILE, LIVE, Json, ObjectId, canonical

# Fields of Filter by the names of their options.
_NUMBERS: Final = {
    "since": "since",
    "before": "before",
    "after": "after_seq",
    "below": "before_seq",
}
_TEXTS: Final = ("cause", "what", "plugin", "kind")
_FILTER: Final = {
    **dict.fromkeys(_NUMBERS, int),
    **dict.fromkeys((*_TEXTS, "object", "around", "where", "order"), str),
}
# Options of searches by meaning, which replace the order of rows.
_BY_MEANING: Final = {"about": str, "before_event": str, "within": int}
# The options of Nearest, one of them required: a row, an object's newest change, or words.
_LIKE: Final = ("seq", "object", "about")
_ORDERS: Final = ("newest", "oldest")
# Rows of an object that are searched for one with a sentence.
_NEWEST: Final = 100


class HistoryInterface:
    """org.opdbus.History1: all changes."""

    info = contract.interface(names.HISTORY)

    def __init__(
        self,
        memory: StateStore,
        finder: ChangeFinder,
        drifts: Tracker,
        look: connections.ReadMentions,
    ) -> None:
        self._memory = memory
        self._finder = finder
        self._drifts = drifts
        self._look = look

    async def changes(self, caller: Caller, wanted: Given, limit: int) -> list[dict[str, Plain]]:
        """Return changes, in their order or by their meaning."""
        require_range("limit", limit, 1)
        asked = Options(wanted, {**_FILTER, **_BY_MEANING, "chain": bool})
        which = await self._filter({key: wanted[key] for key in wanted.keys() & _FILTER.keys()})
        about, event = asked.get("about", ""), asked.get("before_event", "")
        is_chained = asked.get("chain", default=False)
        if not wanted.keys() & _BY_MEANING.keys():
            which = replace(which, has_hashes=is_chained)
            rows = await history_reader.first_rows(self._memory, which, limit, is_sent=True)
            return await self._send(rows)
        if is_chained:
            raise InvalidArgs("chain is of rows in their order: give it without about and others")
        if bool(about.strip()) == bool(event.strip()):
            raise InvalidArgs("changes are found by about or by before_event: give one of them")
        if event:
            within = asked.get("within", WITHIN)
            if within < 1:
                raise InvalidArgs("within must be at least 1 microsecond")
            found = await self._finder.before(event, which, limit, within=within)
        else:
            found = await self._finder.about(about, which, limit, priority=caller.priority)
        return await self._send_ranked(found)

    async def nearest(
        self, _caller: Caller, like: Given, limit: int
    ) -> list[tuple[dict[str, Plain], list[dict[str, Plain]]]]:
        """Return the most similar past changes, each with the changes that followed it."""
        require_range("limit", limit, 1)
        asked = Options(like, {**_FILTER, "seq": int, "about": str})
        if sum(key in like for key in _LIKE) != 1:
            raise InvalidArgs(f"one of {', '.join(_LIKE)} says what the changes are like")
        rest = {key: value for key, value in like.items() if key not in _LIKE}
        to: Row | str = asked.get("about", "")
        if "object" in like:
            to = await self._newest(object_id_at(like["object"]))
        elif "seq" in like:
            to = await self._row(like["seq"])
            if not to.sentence:
                raise NotKept(f"what row {to.seq} says is not kept: give words instead")
        found = await self._finder.nearest(to, await self._filter(rest), limit)
        sent = iter(await self._send([row for one in found for row in (one.found.row, *one.rows)]))
        return [
            (next(sent) | _ranking(one.found), list(islice(sent, len(one.rows)))) for one in found
        ]

    async def _send(self, rows: Sequence[Row]) -> list[dict[str, Plain]]:
        """Return rows in the format of the bus, with what is known of who did it and why."""
        known = await attribution.attribute(self._memory, rows)
        history_reader.require_small(rows, sum(one.size for one in known.values()))
        believed = attribution.believed_users()
        return await each(lambda row: _wire(row, known.get(row.seq, Attribution()), believed), rows)

    async def _send_ranked(self, found: Sequence[RankedChange]) -> list[dict[str, Plain]]:
        """Return changes that were found by their meaning in the format of the bus."""
        rows = await self._send([one.row for one in found])
        return [row | _ranking(one) for row, one in zip(rows, found, strict=True)]

    async def _filter(self, given: Given) -> Filter:
        found = _filter(given)
        await call_options.require_kind(self._memory, found.plugin, found.kind)
        if "object" in given:
            found = replace(found, object_ids=await self._names_of(object_id_at(given["object"])))
        if "around" not in given:
            return found
        object_ids = await self._around(await self._names_of(object_id_at(given["around"])))
        wanted = (
            object_ids if found.object_ids is None else object_ids.intersection(found.object_ids)
        )
        return replace(found, object_ids=wanted, has_first=bool(found.cause))

    async def _around(self, named: Collection[ObjectId]) -> frozenset[ObjectId]:
        """Return an object under all its names, with its present and former connections."""
        found = set(named)
        for object_id in named:
            near = await connections.around(self._memory, object_id, self._look)
            gone = await history_reader.object_ids(self._memory)
            # 0.5 s for 100,000 objects
            found |= await asyncio.to_thread(self._among, near, gone)
            found |= await connections.earlier(self._memory, object_id)
        return self._all_of(found)

    def _among(
        self, near: connections.Connections, gone: Sequence[ObjectId]
    ) -> frozenset[ObjectId]:
        """Return the connected ones of all objects; may be called on a thread."""
        return near.among({*self._memory.catalogue.all_object_ids(), *gone})

    def _all_of(self, object_ids: Collection[ObjectId]) -> frozenset[ObjectId]:
        """Return objects with the declared or observed objects that are the same."""
        return frozenset(object_ids).union(*map(self._drifts.same, object_ids))

    async def _row(self, number: int) -> Row:
        for row in await history_reader.rows_by_seq(self._memory, [number]):
            return row
        kept, hidden = await self._memory.archive.read(
            lambda store: (store.history.span(), store.history.hidden())
        )
        if number in hidden:
            raise NotKept(
                f"row {number} of history is hidden: rows {hidden.start} to {hidden.stop - 1} are"
                " looked through for secrets after an update; ask again once that is done"
            )
        kept = range(hidden.start, max(hidden.stop, kept.stop)) if hidden else kept
        rows = f"rows {kept.start} to {kept.stop - 1} are kept" if kept else "there are none yet"
        raise NotKept(f"there is no row {number} of history: {rows}")

    async def _names_of(self, object_id: ObjectId) -> frozenset[ObjectId]:
        """Return an object with its declared and observed names, also removed ones."""
        known = await history_reader.object_ids(self._memory)

        def named() -> list[ObjectId]:
            return [t for t in known if pairs.means(t, object_id) or pairs.means(object_id, t)]

        # on a thread: 0.5 s for 100,000 objects
        return self._all_of([object_id, *await asyncio.to_thread(named)])

    async def _newest(self, object_id: ObjectId) -> Row:
        which = Filter(object_ids=await self._names_of(object_id))
        rows = await history_reader.first_rows(self._memory, which, _NEWEST)
        name = "/".join(object_id)
        with_sentence = [row for row in rows if row.sentence]
        # changes of the host first, then those of only a declaration
        for row in sorted(with_sentence, key=lambda row: not _is_of_host(row)):
            return row
        if any(not field.path for row in rows for field in row.fields):
            raise NotKept(f"what changed of {name} was erased from history: give words instead")
        raise UnknownObject(f"history has no change of {name}")

    async def object_at(self, _caller: Caller, path: str, at: int, options: Given) -> str:
        """Return an object as it was at a time."""
        is_large = Options(options, {"large": bool}).get("large", default=False)
        object_id = object_id_at(path)
        states = await self._states_at(object_id, at)
        declared = states.pop(FILE, None)
        # observers come first, as in StateStore.merge_properties
        ranked = sorted(states, key=lambda source: (not source.startswith(LIVE), source))
        observed = ChainMap(*(states[source] for source in ranked)) if states else None
        source = ranked[0] if ranked else FILE
        known = None if observed is None else dict(observed)
        return object_json(object_id, source, declared, known, is_large=is_large)

    async def _states_at(self, object_id: ObjectId, at: int) -> dict[str, dict[str, Json]]:
        """Return the state of an object by source, also of sources that have other names for it.

        Raises the error of its own name if it did not exist under any.
        """
        states: dict[str, dict[str, Json]] = {}
        errors: dict[ObjectId, CallerError] = {}
        every = await self._names_of(object_id) if pairs.is_one(object_id) else ()
        # what has several parts, such as settings, is not one of them
        names = [object_id, *sorted(filter(pairs.is_one, {*every} - {object_id}))]
        for name in names:
            try:
                found = await history_reader.object_at(self._memory, name, at)
            except (UnknownObject, NotKept) as error:
                errors[name] = error
            else:
                states = {**found, **states}
        if not states:
            raise errors[object_id]
        return states

    async def forget(self, caller: Caller, what: Given) -> tuple[int, int, bool]:
        """Erase values."""
        checked = Options(what, {"object": str, "row": int, "containing": str})
        row, text = checked.get("row", 1), checked.get("containing", " ")
        if len(what) != 1 or not 1 <= row <= MAX_INT64 or not text:
            raise InvalidArgs(
                "what is to be forgotten is one of: object, row (1 or more), containing"
            )
        if "object" in what:
            target = Target(object_id_at(what["object"]))
        else:
            target = Target(row=row) if "row" in what else Target(text=text)
        hidden = await self._memory.archive.read(lambda store: store.history.hidden())
        if target.row and target.row not in hidden:
            await self._row(target.row)
        if target.object_id:
            target = target._replace(declarations=list(await self._names_of(target.object_id)))
        done, is_clean = await self._memory.forget(target, caller.cause)
        return len(done.rows), done.kept, is_clean

    async def properties(self) -> Mapping[str, Plain]:
        """Return every property's value."""
        span, hidden = await self._memory.archive.read(
            lambda store: (store.history.span(), store.history.hidden())
        )
        return {"Rows": len(span), "First": span.start, "Hidden": len(hidden)}


def _is_of_host(row: Row) -> bool:
    """Return whether a row is a change of the host, not only of a declaration."""
    return row.identity.source != FILE and row.change_type in {
        "appeared",
        "changed",
        "gone",
        "event",
    }


def _filter(given: Given) -> Filter:
    """Parse a filter; raise InvalidArgs, or UnknownObject for an invalid object path."""
    checked = Options(given, _FILTER)
    for key in _NUMBERS:
        require_range(key, checked.get(key, 0), 0, MAX_INT64)
    order = one_of("order", checked.get("order", _ORDERS[0]), _ORDERS)
    begin = checked.get("cause", "")
    word = begin.partition(":")[0].partition(" ")[0]
    if not any(name.startswith(word) for name in CAUSE_TYPES):
        raise InvalidArgs(
            f"no cause begins with {begin!r}; causes begin with {', '.join(CAUSE_TYPES)}"
        )
    return Filter(
        **{field: given[key] for key, field in _NUMBERS.items() if key in given},
        **{key: given[key] for key in _TEXTS if key in given},
        where=conditions.parse(checked.get("where", "")),
        is_oldest_first=order != _ORDERS[0],
    )


def _wire(row: Row, known: Attribution, believed: Collection[int]) -> dict[str, Plain]:
    """Return a row, and who did it and why, in the format of the bus."""
    _, *object_id = row.identity
    found = {
        "seq": Typed("t", row.seq),
        "at": Typed("t", row.at),
        "boot": row.boot,
        "object": Typed("o", paths.of(*object_id)),
        **row.identity._asdict(),
        "what": row.change_type,
        "cause": row.cause,
        "fields": Typed(
            "a(sss)",
            [(".".join(f.path), _json(f.before), _json(f.after)) for f in row.fields],
        ),
        "folded": Typed("u", row.coalesced_count),
        "sentence": row.sentence,
        **({"severity": row.severity} if row.severity else {}),
    }
    if row.identity.plugin == JOURNAL:
        found["believed"] = attribution.is_believed(believed, row)
    if row.hash:
        found |= {"chained": row.hashed(), "hash": row.hash}
    if row.text_distance is not None:
        found["moved"] = row.text_distance
    found |= wire_authors(known)
    if failure := known.failure:
        found |= {"why": failure.why, "lines": Typed("as", list(failure.lines))}
        found["why_row"] = Typed("t", failure.seq)
    return found


def wire_authors(known: Attribution) -> dict[str, Plain]:
    """Return who made a change, or who was root meanwhile, in the format of the bus."""
    found: dict[str, Plain] = {}
    if known.by:
        found |= {"by": str(known.by), "by_row": Typed("t", known.by.seq)}
    if known.meanwhile:
        found["as_root"] = Typed("a(st)", [(str(act), act.at) for act in known.meanwhile])
    if known.others:
        found["as_root_others"] = Typed("u", known.others)
    return found


def _ranking(found: RankedChange) -> dict[str, Plain]:
    """Return how a change was found by its meaning, in the format of the bus."""
    numbers = {"count": found.count, "others": found.others, "total": found.total}
    more = {name: Typed("u", number) for name, number in numbers.items() if number}
    event = {"event": Typed("t", found.event)} if found.event else {}
    note = {"note": found.note} if found.note else {}
    return {"score": found.score, **more, **event, **note}


def _json(values: Sequence[Json] | None) -> str:
    return canonical(values[0]) if values else ""
