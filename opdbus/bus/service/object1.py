"""One state object on the bus (Object1), with its properties and similar objects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from opdbus.bus import names, paths
from opdbus.bus.admission.limits import require_small
from opdbus.bus.service import call_options, contract
from opdbus.bus.service.bulk_files import choose_format
from opdbus.bus.service.call_options import Given, Options, page
from opdbus.bus.service.contract import Caller
from opdbus.bus.transport.values import Plain, Typed
from opdbus.drift.tracker import Tracker
from opdbus.errors import UnknownObject
from opdbus.index.catalogue.declarations import ABSENT_AS_DECLARED, mark_declared
from opdbus.index.changes import attribution
from opdbus.index.search.finder import Finder
from opdbus.index.search.hits import Explanation, Hit
from opdbus.index.state_store.state_store import StateStore
from opdbus.index.vectors.object_vectors import ObjectVectors
from opdbus.insight import similarities
from opdbus.platform.slices import each
from opdbus.state.object import Json, ObjectId, canonical

# A hit, and a vector, in the format of the bus.
WireHit: TypeAlias = tuple[str, float, dict[str, Plain]]
WireVector: TypeAlias = tuple[int, str, bytes]

# The options of every method that finds objects.
FILTERS: Final = {"plugin": str, "kind": str, "where": str, "offset": int}

# The highest confidence during the first listing: the right answer may be missing yet.
MOST_SO_FAR: Final = 0.5


class ObjectInterface:
    """org.opdbus.Object1: one state object, made for each call."""

    info = contract.interface(names.OBJECT)

    def __init__(
        self, object_id: ObjectId, vectors: ObjectVectors, finder: Finder, drifts: Tracker
    ) -> None:
        self._object_id = object_id
        self._drifts = drifts
        self._vectors = vectors
        self._finder = finder

    async def get_vector(self, _caller: Caller, options: Given) -> WireVector:
        """Return the object's vector."""
        return await object_vector(self._vectors, self._object_id, options)

    async def similar(self, _caller: Caller, limit: int, options: Given) -> list[WireHit]:
        """Return the objects most similar to this one."""
        return await find_similar(
            self._vectors.memory, self._finder, self._object_id, limit, options
        )

    async def properties(self) -> Mapping[str, Plain]:
        """Return every property's value."""
        return await object_properties(self._vectors, self._object_id, self._drifts)


def object_id_at(path: str) -> ObjectId:
    """Return the object id of an object path; raise UnknownObject."""
    return ObjectId(*paths.parse(path))


async def find_similar(
    memory: StateStore, finder: Finder, object_id: ObjectId, limit: int, options: Given
) -> list[WireHit]:
    """Return the objects most similar to one."""
    checked = Options(options, {**FILTERS, "explain": bool})
    await call_options.require_kind(memory, **checked.wanted("plugin", "kind"))
    asked = page(limit, checked)
    found = await finder.similar(object_id, replace(asked, is_explained=False))
    hits = await each(hit_row, found)
    if asked.is_explained:
        whys = await similarities.explain(memory, object_id, [hit.object_id for hit in found])
        for (_, _, details), why in zip(hits, whys, strict=True):
            alike = {
                "words": Typed("as", list(why.words)),
                "fields": Typed("a(ss)", list(why.fields)),
                "differs": Typed("a(sss)", list(why.differs)),
            }
            details["alike"] = Typed("a{sv}", alike)
    return hits


async def object_vector(vectors: ObjectVectors, object_id: ObjectId, options: Given) -> WireVector:
    """Return an object's vector in the format of the bus."""
    checked = Options(options, {"dtype": str, "dimensions": int})
    _, found = await vectors.vector(object_id)
    wanted = choose_format(checked, len(found))
    return wanted.dimensions, wanted.dtype, wanted.encode(found[None])


async def object_properties(
    vectors: ObjectVectors, object_id: ObjectId, drifts: Tracker
) -> dict[str, Plain]:
    """Return the properties of Object1 for an object; raise UnknownObject."""
    declared, observed = drifts.pairs.joined(object_id)
    entry = next(iter(observed), None) or vectors.memory.catalogue.representative_of(object_id)
    entries = [*([declared] if declared else ()), *observed]
    contents = await vectors.memory.content(entries)
    if any(e.id not in contents for e in entries):
        raise UnknownObject(f"{'/'.join(object_id)} was removed just now")
    index = vectors.current
    content = contents[entry.id]
    has_vector = index is not None and entry.text_digest in index
    text = mark_declared(vectors.memory.declarations, entry, content, content.text)
    merged = vectors.memory.merge_properties(observed, contents)
    failure = await attribution.last_failure(vectors.memory, object_id)
    drift = ""
    if declared and (counted := drifts.transitions.counted.get(declared.identity.object_id)):
        drift = counted.severity.word
    elif declared and (observed or text.startswith(ABSENT_AS_DECLARED)):
        drift = "none"
    return {
        "Plugin": object_id.plugin,
        "Kind": object_id.kind,
        "Name": object_id.name,
        "Source": entry.identity.source,
        "Observed": canonical(merged) if observed else "",
        "Declared": contents[declared.id].properties if declared else "",
        "Text": text,
        "Fingerprint": entry.fingerprint,
        "VectorKey": index.key(entry.text_digest).hex() if index and has_vector else "",
        "Distance": vectors.distance(declared, next(iter(observed), None)),
        "Drift": drift,
        "UpdatedAt": entry.updated_at,
        "FailedAt": failure.at if failure else 0,
        "FailedWhy": failure.why if failure else "",
        "FailedLines": list(failure.lines) if failure else [],
    }


def object_json(
    object_id: ObjectId, source: str, declared: Json, observed: Json, *, is_large: bool
) -> str:
    """Return both sides of an object as JSON; raise LimitsExceeded."""
    sides = {"source": source, "declared": declared, "observed": observed}
    found = json.dumps({**object_id._asdict(), **sides}, ensure_ascii=False)
    if not is_large:
        require_small(found, "with the option large it is given")
    return found


def hit_row(hit: Hit, *, is_so_far: bool = False) -> WireHit:
    """Return a hit in the format of the bus; `is_so_far` during the first listing."""
    details: dict[str, Plain] = {
        **hit.object_id._asdict(),
        "source": hit.source,
        "vector": hit.score.cosine,
        "lexical": hit.score.lexical,
        "values": hit.score.values,
        "stage": hit.score.level,
        "snippet": hit.snippet,
        "weak": hit.rating.is_weak,
    }
    for side, values in (("declared", hit.declared), ("observed", hit.observed)):
        details[side] = Typed("a{ss}", {name: canonical(value) for name, value in values.items()})
    if hit.why:
        details["why"] = Typed("a{sv}", _why(hit.why))
    if hit.verdict:
        details["verdict"] = hit.verdict
    if is_so_far:
        details["so_far"] = True
    confidence = min(hit.rating.confidence, MOST_SO_FAR) if is_so_far else hit.rating.confidence
    return paths.of(*hit.object_id), confidence, details


def _why(why: Explanation) -> dict[str, Plain]:
    return {
        "total": why.total,
        "raised": why.boost,
        "fields": Typed("a(ssas)", [[*field[:2], list(field.words)] for field in why.fields]),
        "missing": Typed("as", list(why.missing)),
        "glosses": Typed("as", list(why.glosses)),
        "values": Typed("as", list(why.values)),
        "conditions": Typed("as", list(why.conditions)),
        "corrected": Typed("a(ss)", [[each.asked, each.meant] for each in why.corrected]),
    }
