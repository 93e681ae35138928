"""One state object on the bus (Object1), and what is known of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from opdbus.bus import names, paths
from opdbus.bus.admission.limits import require_small
from opdbus.bus.service import contract
from opdbus.bus.service.formats import chosen
from opdbus.bus.service.options import Options, page
from opdbus.errors import UnknownObject
from opdbus.state.object import FILE, Json, Thing, canonical

if TYPE_CHECKING:
    from opdbus.bus.service.node import Caller
    from opdbus.bus.service.options import Given
    from opdbus.bus.transport.values import Plain
    from opdbus.index.finder import Finder, Hit
    from opdbus.index.object_vectors import ObjectVectors

    # A hit, and a vector, as they are on the bus.
    WireHit: TypeAlias = tuple[str, float, dict[str, Plain]]
    WireVector: TypeAlias = tuple[int, str, bytes]

# The options of every method that finds objects.
FILTERS: Final = {"plugin": str, "kind": str, "where": str, "offset": int}


class ObjectInterface:
    """org.opdbus.Object1: one state object, made for each call."""

    info = contract.interface(names.OBJECT)

    def __init__(self, thing: Thing, vectors: ObjectVectors, finder: Finder) -> None:
        self._thing = thing
        self._vectors = vectors
        self._finder = finder

    async def get_vector(self, _caller: Caller, options: Given) -> WireVector:
        """Give the object's vector."""
        return await vector(self._vectors, self._thing, options)

    async def similar(self, _caller: Caller, limit: int, options: Given) -> list[WireHit]:
        """Find the objects most like this one."""
        return await similar(self._finder, self._thing, limit, options)

    async def properties(self) -> Mapping[str, Plain]:
        """Give every property's value."""
        return await describe(self._vectors, self._thing)


def thing_at(path: str) -> Thing:
    """Give the thing that an object path names; raises UnknownObject."""
    return Thing(*paths.parse(path))


async def similar(finder: Finder, thing: Thing, limit: int, options: Given) -> list[WireHit]:
    """Find the objects most like a thing."""
    checked = Options(options, FILTERS)
    return [wire(hit) for hit in await finder.similar(thing, page(limit, checked))]


async def vector(vectors: ObjectVectors, thing: Thing, options: Given) -> WireVector:
    """Give a thing's vector as it goes over the bus."""
    checked = Options(options, {"dtype": str, "dimensions": int})
    _, found = await vectors.vector(thing)
    wanted = chosen(checked, len(found))
    return wanted.dimensions, wanted.dtype, wanted.encode(found[None])


async def describe(vectors: ObjectVectors, thing: Thing) -> dict[str, Plain]:
    """Give the properties of Object1 for a thing; raises UnknownObject."""
    entries = vectors.memory.catalogue.about(thing)
    contents = await vectors.memory.content(entries)
    entry = entries[0]
    if any(e.id not in contents for e in entries):
        raise UnknownObject(f"{'/'.join(thing)} was removed just now")
    declared = [e for e in entries if e.identity.source == FILE]
    observed = [e for e in entries if e.identity.source != FILE]
    index = vectors.current
    has_vector = index is not None and entry.text_digest in index
    pair = bool(declared and observed)
    return {
        "Plugin": thing.plugin,
        "Kind": thing.kind,
        "Name": thing.name,
        "Source": entry.identity.source,
        "Declared": contents[declared[0].id].properties if declared else "",
        "Observed": canonical(vectors.memory.joined(observed, contents)) if observed else "",
        "Text": contents[entry.id].text,
        "Fingerprint": entry.fingerprint,
        "VectorKey": index.key(entry.text_digest).hex() if index and has_vector else "",
        "Distance": vectors.distance(declared[0], observed[0]) if pair else float("nan"),
        "UpdatedAt": entry.updated_at,
    }


def whole(thing: Thing, source: str, declared: Json, observed: Json, *, is_large: bool) -> str:
    """Give all that is known of a thing as JSON; raises LimitsExceeded."""
    sides = {"source": source, "declared": declared, "observed": observed}
    found = json.dumps({**thing._asdict(), **sides}, ensure_ascii=False)
    if not is_large:
        require_small(found, "with the option large it is given")
    return found


def wire(hit: Hit) -> WireHit:
    """Give a hit as it goes over the bus."""
    details = {
        **hit.thing._asdict(),
        "source": hit.source,
        "vector": hit.score.vector,
        "lexical": hit.score.lexical,
        "values": hit.score.values,
        "snippet": hit.snippet,
    }
    return paths.of(*hit.thing), hit.score.total, details
