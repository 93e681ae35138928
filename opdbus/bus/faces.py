"""The objects on the bus: each converts, delegates to the house, and converts back."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final, TypeAlias

from opdbus import __version__
from opdbus.bus import contract, names, paths
from opdbus.bus.connection import Typed
from opdbus.bus.dispatch import caller
from opdbus.bus.limits import MAX_REPLY_BYTES, require_objects, require_reply, require_text
from opdbus.bus.options import MAX_LIMIT, Options, page
from opdbus.errors import InvalidArgs, LimitsExceeded, ModelError, NoModel, UnknownObject
from opdbus.index.catalogue import FILTER_KEYS, Thing, thing_of
from opdbus.index.search import MODES
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS
from opdbus.state import publish
from opdbus.state.object import FILE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opdbus.bus.connection import Plain
    from opdbus.config import Config
    from opdbus.engine.embedder import Embedder
    from opdbus.index.declared import Declared
    from opdbus.index.finder import Finder, Hit
    from opdbus.index.memory import Memory
    from opdbus.state.object import StateObject

    WireHit: TypeAlias = tuple[str, float, dict[str, Plain]]

_FLOAT_BYTES: Final = 4


class VectorizerFace:
    """org.opdbus.Vectorizer1: the model, and what runs it."""

    interface = contract.interface(names.VECTORIZER)

    def __init__(self, config: Config, memory: Memory, declared: Declared) -> None:
        self._config = config
        self._memory = memory
        self._declared = declared
        self._truncated = 0

    async def vectorize(self, text: str, options: dict[str, Plain]) -> list[float]:
        """Embed one text."""
        vectors = await self._embed([text], options)
        return [float(x) for x in vectors[0]]

    async def vectorize_many(
        self, texts: Sequence[str], options: dict[str, Plain]
    ) -> tuple[int, int, str, bytes]:
        """Embed texts into row-major float32."""
        vectors = await self._embed(texts, options)
        rows, dimension = vectors.shape
        return rows, dimension, "float32", vectors.astype("<f4").tobytes()

    async def count_tokens(
        self, texts: Sequence[str], options: dict[str, Plain]
    ) -> tuple[int, list[int]]:
        """Count the tokens of texts as if nothing were cut."""
        require_text(texts)
        embedder = await self._embedder(Options(options, {"level": str}))
        return embedder.model.shape.max_tokens, await embedder.count_tokens(texts)

    async def levels(self, options: dict[str, Plain]) -> list[tuple[str, str, int, str, str]]:
        """List the levels."""
        Options(options, {})
        rows = [("none", "", 0, "available", "lexical search only")]
        for level in LEVELS.values():
            status, detail = await asyncio.to_thread(self._level_status, level.name)
            rows.append((level.name, level.repository, level.dimension, status, detail))
        return rows

    async def reload(self, options: dict[str, Plain]) -> None:
        """Read the state file again."""
        Options(options, {})
        await self._declared.load()

    async def properties(self) -> Mapping[str, Plain]:
        """Give every property's value."""
        engine = self._memory.ready
        return {
            "Level": self._config.vector_level,
            "State": self._state(),
            "RequestedProvider": str(self._config.execution_provider),
            "Truncated": self._truncated,
            "Version": __version__,
            **(_engine_properties(engine.embedder) if engine else _NO_ENGINE),
        }

    def _state(self) -> str:
        engine = self._memory.ready
        if not self._declared.tried or (engine is None and self._config.vector_level != "none"):
            return "loading"
        fell = engine is not None and bool(engine.embedder.proven.fallbacks)
        faulty = fell or self._declared.last_error or self._memory.last_fault
        return "degraded" if faulty else "ready"

    def _level_status(self, name: str) -> tuple[str, str]:
        if name == self._config.vector_level:
            engine = self._memory.ready
            return ("loaded", engine.embedder.proven.provider.name) if engine else ("loading", "")
        try:
            where = folder.find(LEVELS[name], self._config)
        except ModelError as error:
            return "missing", str(error)
        return "available", f"{where}; set OP_DBUS_VECTOR_LEVEL={name} to load it"

    async def _embedder(self, options: Options) -> Embedder:
        level = options.get("level", self._config.vector_level)
        if level != self._config.vector_level:
            if level not in LEVELS:
                raise InvalidArgs(f"there is no level {level!r}; there are {', '.join(LEVELS)}")
            raise NoModel(
                f"the level {level} is not loaded, {self._config.vector_level} is: set"
                f" OP_DBUS_VECTOR_LEVEL={level} and restart op-dbus"
            )
        return (await self._memory.engine()).embedder

    async def _embed(self, texts: Sequence[str], options: dict[str, Plain]) -> NDArray[Plain]:
        checked = Options(options, {"level": str, "truncate": bool})
        require_text(texts)
        embedder = await self._embedder(checked)
        size = len(texts) * embedder.dimension * _FLOAT_BYTES
        if size > MAX_REPLY_BYTES:
            most = MAX_REPLY_BYTES // (embedder.dimension * _FLOAT_BYTES)
            raise LimitsExceeded(f"{len(texts)} vectors do not fit into a reply: {most} texts do")
        found = await embedder.embed(texts, truncate=checked.get("truncate", default=True))
        self._truncated += found.truncated
        return found.vectors


class StateFace:
    """org.opdbus.State1: all state objects."""

    interface = contract.interface(names.STATE)

    def __init__(self, memory: Memory, finder: Finder, declared: Declared) -> None:
        self._memory = memory
        self._finder = finder
        self._declared = declared

    async def search(self, query: str, limit: int, options: dict[str, Plain]) -> list[WireHit]:
        """Find the objects that answer a question."""
        kinds = {"plugin": str, "kind": str, "mode": str, "offset": int}
        checked = Options(options, kinds)
        require_text([query])
        mode = checked.get("mode", "hybrid")
        if mode not in MODES:
            raise InvalidArgs(f"there is no mode {mode!r}; there are {', '.join(MODES)}")
        return [_hit(h) for h in await self._finder.search(query, page(limit, checked), mode)]

    async def similar(self, path: str, limit: int, options: dict[str, Plain]) -> list[WireHit]:
        """Find the objects like one."""
        return await similar(self._finder, thing_at(path), limit, options)

    async def list_(
        self, wanted: dict[str, Plain], offset: int, limit: int
    ) -> tuple[int, list[tuple[str, str, str, str]]]:
        """Give a page of all objects."""
        checked = Options(wanted, dict.fromkeys(FILTER_KEYS, str))
        if not 0 <= limit <= MAX_LIMIT:
            raise InvalidArgs(f"limit must be at most {MAX_LIMIT}")
        entries = self._memory.catalogue.matching(checked.wanted(*FILTER_KEYS))
        things = list(dict.fromkeys(thing_of(entry) for entry in entries))
        return len(things), [(paths.of(*t), *t) for t in things[offset : offset + limit]]

    async def get(self, path: str, options: dict[str, Plain]) -> str:
        """Give an object as JSON."""
        Options(options, {})
        thing = thing_at(path)
        values = await describe(self._memory, thing)
        return json.dumps(
            {
                **thing._asdict(),
                "source": values["Source"],
                "declared": json.loads(values["Declared"] or "null"),
                "observed": json.loads(values["Observed"] or "null"),
            },
            ensure_ascii=False,
        )

    async def vector(self, path: str, options: dict[str, Plain]) -> tuple[int, str, bytes]:
        """Give an object's vector."""
        return await vector(self._memory, thing_at(path), options)

    async def publish(
        self,
        source: str,
        objects: Sequence[tuple[str, str, str, dict[str, Plain]]],
        options: dict[str, Plain],
    ) -> list[str]:
        """Take in observed objects."""
        lifetime = Options(options, {"lifetime": str}).get("lifetime", "kept")
        if lifetime not in {"kept", "connection"}:
            raise InvalidArgs(f"lifetime must be kept or connection, not {lifetime!r}")
        publisher = publish.source(source)
        require_objects(len(objects))
        items, reply = await asyncio.to_thread(_taken_in, publisher, objects)
        # what is committed must not be told as a failure
        require_reply([reply])
        who = caller.get()
        holder = who.sender if lifetime == "connection" else ""
        await self._memory.publish(items, who.uid, holder=holder)
        return reply

    async def withdraw(self, objects: Sequence[str], options: dict[str, Plain]) -> int:
        """Take back what the caller published."""
        Options(options, {})
        return await self._memory.withdraw(map(thing_at, objects), caller.get().uid)

    async def drift(self, wanted: dict[str, Plain]) -> list[tuple[str, float, Sequence[str]]]:
        """List what is observed to be other than declared, the farthest first."""
        keys = ("plugin", "kind", "name")
        checked = Options(wanted, dict.fromkeys(keys, str))
        observed = [
            entry
            for entry in self._memory.catalogue.matching(checked.wanted(*keys))
            if entry.identity.source != FILE
        ]
        drifts = [await self._memory.drift(t) for t in dict.fromkeys(map(thing_of, observed))]
        rows = [(paths.of(*d.thing), d.distance, d.fields) for d in drifts if d]
        return sorted(rows, key=lambda row: -row[1])

    async def properties(self) -> Mapping[str, Plain]:
        """Give every property's value."""
        count = len(self._memory.catalogue)
        waiting = self._memory.waiting()
        return {
            "Generation": self._memory.generation,
            "Count": count,
            "Vectorized": count - waiting if self._memory.ready else 0,
            "Pending": waiting,
            "StateFile": str(self._declared.path),
            "LastError": self._declared.last_error or self._memory.last_fault,
        }


class ObjectFace:
    """org.opdbus.Object1: one state object, made for each call."""

    interface = contract.interface(names.OBJECT)

    def __init__(self, thing: Thing, memory: Memory, finder: Finder) -> None:
        self._thing = thing
        self._memory = memory
        self._finder = finder

    async def get_vector(self, options: dict[str, Plain]) -> tuple[int, str, bytes]:
        """Give the object's vector."""
        return await vector(self._memory, self._thing, options)

    async def similar(self, limit: int, options: dict[str, Plain]) -> list[WireHit]:
        """Find the objects like this one."""
        return await similar(self._finder, self._thing, limit, options)

    async def properties(self) -> Mapping[str, Plain]:
        """Give every property's value."""
        return await describe(self._memory, self._thing)


def thing_at(path: str) -> Thing:
    """Give the thing that an object path names; raises UnknownObject."""
    return Thing(*paths.parse(path))


async def similar(
    finder: Finder, thing: Thing, limit: int, options: dict[str, Plain]
) -> list[WireHit]:
    """Find what is like a thing."""
    checked = Options(options, {"plugin": str, "kind": str, "offset": int})
    return [_hit(hit) for hit in await finder.similar(thing, page(limit, checked))]


async def vector(memory: Memory, thing: Thing, options: dict[str, Plain]) -> tuple[int, str, bytes]:
    """Give a thing's vector as it goes over the bus."""
    Options(options, {})
    found = await memory.vector(thing)
    return len(found), "float32", found.astype("<f4").tobytes()


async def describe(memory: Memory, thing: Thing) -> dict[str, Plain]:
    """Give the properties of Object1 for a thing; raises UnknownObject."""
    entries = memory.catalogue.about(thing)
    contents = await memory.content(entries)
    entry = entries[0]
    if any(e.id not in contents for e in entries):
        raise UnknownObject(f"{'/'.join(thing)} was removed just now")
    declared = [e for e in entries if e.identity.source == FILE]
    observed = [e for e in entries if e.identity.source != FILE]
    engine = memory.ready
    has_vector = engine is not None and engine.vector(entry) is not None
    pair = bool(declared and observed)
    return {
        "Plugin": thing.plugin,
        "Kind": thing.kind,
        "Name": thing.name,
        "Source": entry.identity.source,
        "Declared": contents[declared[0].id].properties if declared else "",
        "Observed": contents[observed[0].id].properties if observed else "",
        "Text": contents[entry.id].text,
        "Fingerprint": entry.fingerprint,
        "VectorKey": engine.key(entry.text_digest).hex() if engine and has_vector else "",
        "Distance": memory.distance(declared[0], observed[0]) if pair else float("nan"),
        "UpdatedAt": entry.updated_at,
    }


def _taken_in(
    publisher: str, objects: Sequence[tuple[str, str, str, dict[str, Plain]]]
) -> tuple[list[StateObject], list[str]]:
    """Give what is published as state objects, and their paths; blocks for 0.1 ms an object."""
    items = [publish.observed(publisher, *given) for given in objects]
    return items, [paths.of(*item.identity[1:]) for item in items]


def _hit(hit: Hit) -> WireHit:
    details = {
        **hit.thing._asdict(),
        "source": hit.source,
        "vector": hit.score.vector,
        "lexical": hit.score.lexical,
        "snippet": hit.snippet,
    }
    return paths.of(*hit.thing), hit.score.total, details


def _engine_properties(embedder: Embedder) -> dict[str, Plain]:
    proven, model = embedder.proven, embedder.model
    return {
        "Model": model.name,
        "ModelRevision": model.weights_sha256,
        "Dimension": embedder.dimension,
        "MaxTokens": model.shape.max_tokens,
        "Provider": proven.provider.name,
        "Device": proven.hardware,
        "Precision": proven.proof.precision,
        "Fallbacks": [(fallback.provider, fallback.reason) for fallback in proven.fallbacks],
        "Proof": {
            "nodes": Typed("a{su}", dict(proven.proof.nodes)),
            "checked_at": Typed("t", int(proven.proof.checked_at)),
            "max_deviation": proven.proof.max_deviation,
            "tolerance": proven.proof.tolerance,
        },
        "QueueDepth": embedder.scheduler.depth,
    }


_NO_ENGINE: Final[Mapping[str, Plain]] = {
    "Model": "",
    "ModelRevision": "",
    "Dimension": 0,
    "MaxTokens": 0,
    "Provider": "",
    "Device": "",
    "Precision": "",
    "Fallbacks": [],
    "Proof": {},
    "QueueDepth": 0,
}
