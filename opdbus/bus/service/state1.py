"""All state objects on the bus (State1)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeAlias

from opdbus.bus import names, paths
from opdbus.bus.admission.limits import require_objects, require_reply, require_small, require_text
from opdbus.bus.service import bulk, call_options, contract, faults
from opdbus.bus.service.answers import Answers
from opdbus.bus.service.bulk import Bulk
from opdbus.bus.service.call_options import MAX_LIMIT, Given, Options, one_of, page, require_range
from opdbus.bus.service.contract import Caller
from opdbus.bus.service.history1 import wire_authors
from opdbus.bus.service.insight_rows import WireCluster, WireOutlier, clusters, outliers
from opdbus.bus.service.object1 import (
    FILTERS,
    WireHit,
    WireVector,
    find_similar,
    hit_row,
    object_id_at,
    object_json,
    object_properties,
    object_vector,
)
from opdbus.bus.service.object_export import write_objects
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.bus.transport.values import Plain, Typed
from opdbus.config import SEVERITIES
from opdbus.drift import drift_report, pairs
from opdbus.drift.baseline import BaselineEntry, Scope
from opdbus.drift.rule_table import ROWS
from opdbus.drift.tracker import Tracker
from opdbus.drift.transition_filter import CLASSES, DriftState
from opdbus.drift.unobserved import MOST_NAMES
from opdbus.errors import InvalidArgs
from opdbus.history import acts
from opdbus.history.row_filter import Row
from opdbus.index.catalogue import short_names
from opdbus.index.changes import attribution, history_reader
from opdbus.index.changes.attribution import Attribution
from opdbus.index.changes.connections import LISTENER
from opdbus.index.health import Health
from opdbus.index.query import condition_matching
from opdbus.index.query.question_conditions import MAX_CHARACTERS
from opdbus.index.ranking.confidence import RatedHit
from opdbus.index.ranking.scores import MODES
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import Hit, SearchRequest
from opdbus.index.search.verdicts import Verdict
from opdbus.index.state_store.state_file_loader import StateFileLoader
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.insight.insight import Insight
from opdbus.language import routes
from opdbus.platform import name_lists
from opdbus.platform.slices import each
from opdbus.state import publish
from opdbus.state.fields import Members, split
from opdbus.state.object import FILE, Json, KindId, ObjectId, StateObject

# (path, plugin, kind, name) each
WireRows: TypeAlias = list[tuple[str, str, str, str]]
# (path, class, severity, since, distance, (path, declared, observed, severity) of each field)
WireDrift: TypeAlias = tuple[str, str, str, int, float, list[tuple[str, str, str, str]]]
# (plugin, kind, number, first names, reason)
WireUnobserved: TypeAlias = tuple[str, str, int, list[str], str]
# an object: plugin, kind, name, properties
WireObject: TypeAlias = tuple[str, str, str, Given]

_MAX_FIELDS: Final = 1000
_MAX_COLUMNS: Final = 64
# State of an observer whose objects are those of before its failure.
_FAILED: Final = "failed"
# Declared objects that an answer names as left out.
_MOST_LEFT_OUT: Final = 3
# Objects of a call for a baseline: each takes about 0.2 ms.
_MAX_BASELINE: Final = 1000
# Objects of a call for who made them drift: history is read for each.
_MAX_ORIGINS: Final = 100
_SIDES: Final = ("Declared", "Observed")
_KIND_ID: Final = ("plugin", "kind")
_NOTES: Final = frozenset((acts.USER, acts.FAILURE))
# The most characters of PLUGIN/KIND/NAME: more than any observer reports.
_MAX_WRITTEN: Final = 10_000


class ObserverStatus(Protocol):
    """The status of all observers."""

    @property
    def statuses(self) -> Sequence[tuple[str, str, int, str]]:
        """One row for each observer: name, state, number of objects, reason."""

    @property
    def starting(self) -> Sequence[str]:
        """The names of observers that have not completed their first listing."""

    def awaited(self, plugins: Collection[str], unlisted: Collection[str]) -> Sequence[str]:
        """Return the unready observers.

        These are observers of `plugins` that have not listed anything, and of `unlisted` that have
        not listed everything.
        """

    def why_not(self, kind_id: KindId) -> str:
        """Return the reason why no observer lists a kind; empty while one may yet do so."""


class StateInterface:
    """org.opdbus.State1: all state objects."""

    info = contract.interface(names.STATE)

    def __init__(
        self,
        vectors: ObjectVectors,
        finder: Finder,
        insight: Insight,
        declared: StateFileLoader,
        health: Health,
        observers: ObserverStatus,
        drifts: Tracker,
        bulk: Bulk,
        answers: Answers,
    ) -> None:
        self._answers = answers
        self._vectors = vectors
        self._memory = vectors.memory
        self._finder = finder
        self._insight = insight
        self._declared = declared
        self._health = health
        self._observers = observers
        self._drifts = drifts
        self._bulk = bulk

    async def search(self, caller: Caller, query: str, limit: int, options: Given) -> list[WireHit]:
        """Return the objects that answer a query."""
        kinds = {**FILTERS, "mode": str, "rerank": str, "all": bool, "explain": bool}
        checked = Options(options, kinds)
        require_text([query])
        if not query.strip() and not checked.get("where", ""):
            raise InvalidArgs("the question is empty: ask in words, or with a condition")
        mode = one_of("mode", checked.get("mode", "hybrid"), MODES)
        level = checked.get("rerank", "")
        if level and mode == "lexical":
            raise InvalidArgs("rerank goes with the modes hybrid and vector, not with lexical")
        await call_options.require_kind(self._memory, **checked.wanted(*_KIND_ID))
        has_weak = checked.get("all", default=False)
        request = page(limit, checked)
        found = await self._finder.search(query, request, mode, level, priority=caller.priority)
        is_so_far = bool(self._observers.starting)
        shown = [hit for hit in found if has_weak or not hit.rating.is_weak]
        shown, left_out = await self._without_unobserved(query, shown)
        verdict = await self._verdict(query, request)
        sentence = self._sentence(verdict) if verdict and not is_so_far else ""
        if verdict and sentence:
            if verdict.is_absence and not has_weak:
                return []
            # the first row has the verdict, even if it is weak
            shown = await self._decided(query, verdict, shown, request)
            if not shown and verdict.is_none:
                shown = [replace(hit, rating=RatedHit(0.0, is_weak=True)) for hit in found[:1]]
            shown = shown or found[:1]
            shown[:1] = [replace(hit, verdict=sentence) for hit in shown[:1]]
        elif left_out:
            shown[:1] = [replace(hit, verdict=left_out) for hit in shown[:1]]
        return await each(lambda hit: hit_row(hit, is_so_far=is_so_far), shown)

    async def _without_unobserved(self, query: str, hits: Sequence[Hit]) -> tuple[list[Hit], str]:
        """Return hits without declared values where a question compares observed ones.

        The second is a sentence that says which objects were left out; empty if none was.
        """
        observed = [hit for hit in hits if hit.source != FILE]
        if len(observed) in {0, len(hits)} or not await self._finder.compares_values(query):
            return [*hits], ""
        names = ["/".join(hit.object_id) for hit in hits if hit.source == FILE]
        said = name_lists.join_first(names, _MOST_LEFT_OUT)
        return observed, f"declared and not observed, and so left out: {said}"

    async def _verdict(self, query: str, request: SearchRequest) -> Verdict | None:
        """Return the answer to a question about the host or its objects, where it is certain."""
        is_part = request.where or request.wanted or request.offset
        if is_part or len(query) > MAX_CHARACTERS:
            return None
        statuses, why_not = self._observers.statuses, self._observers.why_not
        return (
            await faults.find_faults(self._memory, self._drifts, statuses, query)
            or await faults.find_unreported(self._memory, why_not, query)
            or await self._finder.verdict(query)
        )

    async def _decided(
        self, query: str, verdict: Verdict, hits: Sequence[Hit], request: SearchRequest
    ) -> list[Hit]:
        """Return hits with the objects that decide a verdict first, or these alone."""
        objects, is_weak = verdict.objects, verdict.is_none
        first = await self._finder.hits_of(query, objects, request, is_weak=is_weak)
        if verdict.is_whole:
            return first
        rest = [hit for hit in hits if hit.object_id not in objects]
        return [*first, *rest][: request.limit]

    def _sentence(self, verdict: Verdict) -> str:
        """Return a verdict with what its observers do not list; "" if one of them has failed."""
        own = [row for row in self._observers.statuses if f"live:{row[0]}" in verdict.sources]
        if any(state == _FAILED for _, state, *_ in own):
            return ""
        notes = [reason for *_, reason in own if reason and verdict.is_of_list]
        return "; ".join([verdict.text, *notes])

    async def ask(
        self, caller: Caller, question: str, limit: int, options: Given
    ) -> tuple[str, Mapping[str, Plain], Plain]:
        """Answer a question by the method that its form selects."""
        Options(options, {})
        of_state = {
            routes.OBJECTS: lambda _given: self.search(caller, question, limit, {}),
            "drift": lambda given: self.drift_report(caller, {**given, "limit": limit}),
        }
        return await self._answers.answer(caller, question, limit, of_state)

    async def similar(
        self, _caller: Caller, path: str, limit: int, options: Given
    ) -> list[WireHit]:
        """Return the objects most similar to one."""
        return await find_similar(self._memory, self._finder, object_id_at(path), limit, options)

    async def clusters(self, _caller: Caller, limit: int, options: Given) -> list[WireCluster]:
        """Return the topics of the objects."""
        return await clusters(self._insight, self._memory, limit, options)

    async def outliers(self, _caller: Caller, limit: int, options: Given) -> list[WireOutlier]:
        """Return the objects that are unlike their kind."""
        return await outliers(self._insight, self._memory, limit, options)

    async def list_(
        self, _caller: Caller, wanted: Given, offset: int, limit: int
    ) -> tuple[int, WireRows]:
        """Return the number of matching objects, and one page of them."""
        checked = Options(wanted, call_options.LIST_FILTER)
        require_range("limit", limit, 0)
        object_ids = await call_options.find_objects(self._memory, checked)
        return len(object_ids), await each(_object_row, object_ids[offset : offset + limit])

    async def resolve(
        self, _caller: Caller, name: str, options: Given
    ) -> tuple[WireRows, WireRows]:
        """Return the objects that a short name means, and those with similar names."""
        is_past = Options(options, {"past": bool}).get("past", default=False)
        if len(name) > _MAX_WRITTEN:
            raise InvalidArgs(f"a name has at most {_MAX_WRITTEN} characters, not {len(name)}")
        found, close = await condition_matching.resolve(self._memory, name)
        if is_past and not found:
            known = await history_reader.object_ids(self._memory)
            found, close = await asyncio.to_thread(short_names.find, known, name)
        # what is said of an object has its name
        own = [object_id for object_id in found if object_id[:2] not in _NOTES]
        # without objects that only declare another one of the objects
        distinct = [
            object_id
            for object_id in own or found
            if self._drifts.pairs.sides(object_id).observed
            or not any(pairs.means(object_id, other) for other in found)
        ]
        return list(map(_object_row, distinct)), list(map(_object_row, close))

    async def fields(self, _caller: Caller, wanted: Given) -> list[tuple[str, int]]:
        """Return the fields that objects have, with the number of their entries."""
        checked = Options(wanted, {"plugin": str, "kind": str})
        kind_id = checked.wanted(*_KIND_ID)
        await call_options.require_kind(self._memory, **kind_id)
        found = await condition_matching.field_names(self._memory, kind_id)
        return found.most_common(_MAX_FIELDS)

    async def values(
        self, _caller: Caller, objects: Sequence[str], fields: Sequence[str], options: Given
    ) -> list[list[str]]:
        """Return the values of fields of objects, as JSON."""
        is_marked = Options(options, {"marked": bool}).get("marked", default=False)
        require_objects(len(objects))
        if len(fields) > _MAX_COLUMNS or not all(map(split, fields)):
            raise InvalidArgs(f"fields must be names of fields, at most {_MAX_COLUMNS}")
        object_ids = await each(object_id_at, objects)
        rows = await condition_matching.values(self._memory, object_ids, fields)
        marks = await self._marks(object_ids) if is_marked else {}

        def cells(row: tuple[Mapping[str, Sequence[Json]], ObjectId]) -> list[str]:
            return [_cell(row[0].get(name, ()), marks.get(row[1], "")) for name in fields]

        return await each(cells, [*zip(rows, object_ids, strict=True)])

    async def _marks(self, object_ids: Sequence[ObjectId]) -> Mapping[ObjectId, str]:
        """Return the marks of those objects that are declared and not observed."""
        is_observed = await each(self._memory.catalogue.is_observed, object_ids)
        declared = [t for t, is_one in zip(object_ids, is_observed, strict=True) if not is_one]
        missing = await each(self._memory.declarations.is_missing, declared)
        marks = {
            object_id: "declared missing" if is_one else "declared"
            for object_id, is_one in zip(declared, missing, strict=True)
        }
        absent = await call_options.find_declared_absent(self._memory, declared)
        return marks | dict.fromkeys(absent, "declared absent")

    async def get(self, _caller: Caller, path: str, options: Given) -> str:
        """Return an object as JSON."""
        is_large = Options(options, {"large": bool}).get("large", default=False)
        object_id = object_id_at(path)
        values = await object_properties(self._vectors, object_id, self._drifts)
        declared, observed = (json.loads(values[side] or "null") for side in _SIDES)
        return object_json(object_id, values["Source"], declared, observed, is_large=is_large)

    async def vector(self, _caller: Caller, path: str, options: Given) -> WireVector:
        """Return an object's vector."""
        return await object_vector(self._vectors, object_id_at(path), options)

    async def vectors(self, caller: Caller, wanted: Given) -> Descriptor:
        """Return the vectors of many objects in a file."""
        return await bulk.write_vectors(caller, self._bulk, self._vectors, wanted)

    async def export(self, caller: Caller, objects: Sequence[str], options: Given) -> Descriptor:
        """Return objects, or all of them, in a file of lines."""
        bulk, pairs = self._bulk, self._drifts.pairs
        return await write_objects(caller, bulk, self._vectors, pairs, objects, options)

    async def publish(
        self, caller: Caller, source: str, objects: Sequence[WireObject], options: Given
    ) -> list[str]:
        """Store observed objects; return their paths."""
        checked = Options(options, {"lifetime": str, "describe": list})
        lifetime = checked.get("lifetime", "kept")
        one_of("lifetime", lifetime, ("kept", "connection"))
        publisher = publish.source(source)
        require_objects(len(objects))
        describe: list[Plain] = checked.get("describe", [])

        def convert() -> tuple[list[StateObject], list[str]]:
            described = publish.describe(objects, describe) if describe else objects
            items = [publish.make_object(publisher, *given) for given in described]
            return items, [paths.of(*item.identity[1:]) for item in items]

        # 0.1 ms an object
        items, reply = await asyncio.to_thread(convert)
        # checked before the commit: a committed call must not be answered with an error
        require_reply([reply])
        holder = caller.sender if lifetime == "connection" else ""
        await self._memory.publish(items, caller.uid, holder=holder, cause=caller.cause)
        return reply

    async def withdraw(self, caller: Caller, objects: Sequence[str], options: Given) -> int:
        """Remove objects that the caller published; return the number of entries."""
        Options(options, {})
        object_ids = await each(object_id_at, objects)
        return await self._memory.withdraw(object_ids, caller.uid, caller.cause)

    async def drift_report(self, _caller: Caller, wanted: Given) -> list[WireDrift]:
        """Return the drifted objects, the worst first."""
        keys = ("plugin", "kind", "name")
        words = dict.fromkeys((*keys, "severity", "class", "about"), str)
        checked = Options(wanted, {**words, "offset": int, "limit": int})
        limit, offset = checked.get("limit", MAX_LIMIT), checked.get("offset", 0)
        require_range("limit", limit, 1)
        if offset < 0:
            raise InvalidArgs(f"offset must be 0 or more, not {offset}")
        await call_options.require_kind(self._memory, **checked.wanted(*_KIND_ID))
        rows = await self._drifts.report(
            checked.wanted(*keys),
            one_of("severity", checked.get("severity", SEVERITIES[0]), SEVERITIES),
            one_of("class", checked.get("class", ""), ("", *CLASSES)),
        )
        if question := checked.get("about", ""):
            rows = await asyncio.to_thread(drift_report.order_by_question, rows, question)
        found = await each(lambda row: self._drift(*row), rows[offset : offset + limit])
        if "limit" not in wanted:
            require_small(found, "ask for a part of them with offset and limit")
        return found

    async def drift_origins(
        self, _caller: Caller, objects: Sequence[str], options: Given
    ) -> list[dict[str, dict[str, Plain]]]:
        """Return of each drifted object the change that made each field differ."""
        Options(options, {})
        if len(objects) > _MAX_ORIGINS:
            raise InvalidArgs(f"ask for at most {_MAX_ORIGINS} objects, not {len(objects)}")
        object_ids = await each(object_id_at, objects)
        origins = await self._drifts.origins(object_ids)
        rows = {row.seq: row for found in origins.values() for row in found.values()}
        known = await attribution.attribute(self._memory, [*rows.values()])
        wire = {
            seq: {
                "seq": Typed("t", seq),
                "at": Typed("t", row.at),
                "cause": row.cause,
                **wire_authors(known.get(seq, Attribution())),
                **_closed_with(row),
            }
            for seq, row in rows.items()
        }
        return [
            {name: wire[row.seq] for name, row in origins.get(object_id, {}).items()}
            for object_id in object_ids
        ]

    async def unobserved(self, _caller: Caller, options: Given) -> list[WireUnobserved]:
        """Return declared objects and fields that cannot be compared."""
        most = Options(options, {"names": int}).get("names", MOST_NAMES)
        require_range("names", most, 1)
        found = await self._drifts.unobserved(self._observers.why_not, most)
        return [(*row.kind, row.total, row.names, row.why) for row in found]

    async def baseline(
        self, _caller: Caller, objects: Sequence[str], options: Given
    ) -> tuple[list[str], list[KindId], list[str]]:
        """Return what to declare of objects, as JSON, the kinds to claim, and what is awaited."""
        checked = Options(options, {"scope": str, "changes": bool})
        scopes = [scope.name.lower() for scope in Scope]
        scope = Scope[one_of("scope", checked.get("scope", scopes[0]), scopes).upper()]
        if len(objects) > _MAX_BASELINE:
            raise InvalidArgs(f"ask for at most {_MAX_BASELINE} objects, not {len(objects)}")
        object_ids = await each(object_id_at, objects)
        found = [*map(_entry_json, await self._drifts.baseline(object_ids, scope))]
        for at, object_id in enumerate(object_ids if checked.get("changes", default=False) else ()):
            known = self._drifts.pairs
            own = [object_id] if known.sides(object_id).declared else known.declared(object_id)
            for declared in sorted(own)[:1]:
                changes = await self._drifts.take_over(declared)
                rows = [[one.path, one.declared, *one.observed] for one in changes]
                found[at] = _json({**declared._asdict(), "changes": rows})
        plugins = {row.observed[0] for row in ROWS}
        return found, self._drifts.claimable, list(self._observers.awaited(plugins, plugins))

    def _drift(self, object_id: ObjectId, drifted: DriftState) -> WireDrift:
        fields = [
            (one.name, _json(one.declared), _json(one.observed), one.severity.word)
            for one in drifted.fields
        ]
        distance = self._vectors.distance(*self._drifts.entries(object_id))
        since, severity = int(drifted.since), drifted.severity.word
        return paths.of(*object_id), drifted.what, severity, since, distance, fields

    async def properties(self) -> Mapping[str, Plain]:
        """Return every property's value."""
        waiting = self._vectors.missing_object_count()
        # as List counts: what is observed under another name than declared is one object
        count = len(self._memory.catalogue) - len(self._memory.declarations.renamed())
        file = [] if self._declared.attempted else ["the state file"]
        return {
            "Generation": self._memory.generation,
            "Count": count,
            "Vectorized": max(0, count - waiting) if self._vectors.current is not None else 0,
            "Pending": min(count, waiting),
            "FirstStage": self._finder.count_first_stage(),
            "StateFile": str(self._declared.path),
            "StateFileError": self._declared.last_error,
            "LastError": self._health.last_error or self._memory.archive.notice,
            "StorageError": self._memory.archive.fault,
            "Drifted": self._drifts.transitions.known,
            "DriftAwaits": file + self._drifts.awaits(self._observers.awaited),
            "Observers": list(self._observers.statuses),
            "Sources": self._memory.catalogue.largest_sources(),
        }


def _closed_with(row: Row) -> dict[str, Plain]:
    """Return the unit whose port was closed."""
    is_closed = row.identity[1:3] == LISTENER and row.change_type == "gone"
    units = [one.before for one in row.fields if is_closed and list(one.path) == ["unit"]]
    return {"unit": str(units[0][0])} if units and units[0] else {}


def _entry_json(entry: BaselineEntry | None) -> str:
    if entry is None:
        return ""
    shown = {"properties": entry.properties, "hidden": entry.hidden}
    return _json({**entry.object_id._asdict(), **shown})


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cell(values: Sequence[Json], mark: str) -> str:
    """Return the values of a field as JSON, several as a list, below the key `mark` if set."""
    if not values:
        return ""
    value = values if len(values) > 1 else values[0]
    if isinstance(values, Members):
        value = [one for one in values if one is not None]
    return _json({mark: value} if mark else value)


def _object_row(object_id: ObjectId) -> tuple[str, str, str, str]:
    return (paths.of(*object_id), *object_id)
