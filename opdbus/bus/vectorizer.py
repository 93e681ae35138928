"""The vectorizer on the bus: texts to vectors, and what runs the model and the proof of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from opdbus import __version__
from opdbus.bus import contract, names
from opdbus.bus.bulk import Order
from opdbus.bus.connection import Typed
from opdbus.bus.formats import chosen
from opdbus.bus.limits import MAX_REPLY_BYTES, require_text
from opdbus.bus.options import Options
from opdbus.errors import InvalidArgs, LimitsExceeded, ModelError, NoModel
from opdbus.models import folder
from opdbus.models.catalogue import LEVELS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from opdbus.bus.bulk import Bulk
    from opdbus.bus.connection import Plain
    from opdbus.bus.descriptors import Descriptor
    from opdbus.bus.formats import Format
    from opdbus.config import Config
    from opdbus.engine.embedder import Embedder
    from opdbus.index.declared import Declared
    from opdbus.index.memory import Memory

# What every method takes that gives vectors.
_OPTIONS: Final = {"level": str, "truncate": bool, "dimensions": int}


class VectorizerFace:
    """org.opdbus.Vectorizer1: the model, and what runs it."""

    interface = contract.interface(names.VECTORIZER)

    def __init__(self, config: Config, memory: Memory, declared: Declared, bulk: Bulk) -> None:
        self._config = config
        self._memory = memory
        self._declared = declared
        self._bulk = bulk
        self._truncated = 0

    async def vectorize(self, text: str, options: dict[str, Plain]) -> list[float]:
        """Embed one text."""
        wanted, vectors = await self._embed([text], Options(options, _OPTIONS))
        return [float(x) for x in wanted.shorten(vectors)[0]]

    async def vectorize_many(
        self, texts: Sequence[str], options: dict[str, Plain]
    ) -> tuple[int, int, str, bytes]:
        """Embed texts into row-major vectors."""
        checked = Options(options, {**_OPTIONS, "dtype": str})
        wanted, vectors = await self._embed(texts, checked)
        return len(vectors), wanted.dimensions, wanted.dtype, wanted.encode(vectors)

    async def vectorize_bulk(
        self, texts: Descriptor, options: dict[str, Plain]
    ) -> tuple[Descriptor, int, int, str]:
        """Embed the texts of a file into a file."""
        checked = Options(options, {**_OPTIONS, "dtype": str, "job": bool})
        embedder = await self._embedder(checked)
        wanted = chosen(checked, embedder.dimension)
        order = Order(
            wanted,
            truncate=checked.get("truncate", default=True),
            is_job=checked.get("job", default=False),
        )
        found = await self._bulk.run(embedder, texts, order)
        self._truncated += found.truncated
        return found.file, found.rows, wanted.dimensions, wanted.dtype

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
            "Jobs": self._bulk.jobs.paths(),
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

    async def _embed(self, texts: Sequence[str], options: Options) -> tuple[Format, NDArray[Plain]]:
        """Give the format that is asked for, and vectors that are not in it yet."""
        require_text(texts)
        embedder = await self._embedder(options)
        wanted = chosen(options, embedder.dimension)
        if len(texts) * wanted.row_bytes > MAX_REPLY_BYTES:
            most = MAX_REPLY_BYTES // wanted.row_bytes
            raise LimitsExceeded(
                f"{len(texts)} vectors do not fit into a reply: {most} texts do; VectorizeBulk"
                " takes any number"
            )
        found = await embedder.embed(texts, truncate=options.get("truncate", default=True))
        self._truncated += found.truncated
        return wanted, found.vectors


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
