"""org.opdbus.Vectorizer1 on the bus: embedding of texts, the serving engine, and its proof."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final
from weakref import WeakKeyDictionary

from opdbus import __version__
from opdbus.bus import names
from opdbus.bus.admission.accounting import RunningCalls
from opdbus.bus.admission.limits import MAX_REPLY_BYTES, require_text
from opdbus.bus.service import contract, standard
from opdbus.bus.service.bulk import Bulk, BulkOptions
from opdbus.bus.service.bulk_files import Format, choose_format
from opdbus.bus.service.call_options import Given, Options
from opdbus.bus.service.contract import BusInterface, Caller
from opdbus.bus.transport.descriptors import Descriptor
from opdbus.bus.transport.values import Plain, Typed
from opdbus.engine.embedder import Embedder, Embedding
from opdbus.engine.tokenizer import Token
from opdbus.errors import LimitsExceeded, ModelError, NoModel, TimedOut
from opdbus.index.health import Health
from opdbus.models import folder
from opdbus.models.level_table import LEVELS, ON_PROVIDERS
from opdbus.platform import gc_tuning, metrics
from opdbus.platform.metrics import Family
from opdbus.serving.serving import Serving
from opdbus.serving.states import State

_STATES: Final = [state.value for state in State if state is not State.CLOSED]
# Texts of Tokenize and their characters, each of which may be a token: the reply is under 1 MiB.
TEXTS_TOKENIZED: Final = 128
MOST_TOKENIZED: Final = 16 << 10
# Options of every method that returns vectors.
_OPTIONS: Final = {"level": str, "truncate": bool, "dimensions": int, "wait": bool}
# Detail of a level that loads.
_OPENING: Final = "the first time, its graph is built and its precisions are graded"
# Options of those that also have a timeout.
_TIMED: Final = {**_OPTIONS, "timeout": float}


class VectorizerInterface:
    """org.opdbus.Vectorizer1; converts values and calls the serving engine."""

    info = contract.interface(names.VECTORIZER)

    def __init__(
        self,
        serving: Serving,
        health: Health,
        bulk: Bulk,
        load: RunningCalls,
        reload: Callable[[], Awaitable[None]],
        state: BusInterface,
        others: Callable[[], Iterable[Family]] = tuple,
    ) -> None:
        self._serving = serving
        self._health = health
        self._bulk = bulk
        self._load = load
        self._reload = reload
        self._truncated = 0
        # the constant properties of each engine, for its lifetime
        self._engines: WeakKeyDictionary[Embedder, Mapping[str, Plain]] = WeakKeyDictionary()
        self._state = state
        # the metrics of all other parts
        self._others = others

    async def vectorize(self, caller: Caller, text: str, options: Given) -> list[float]:
        """Embed one text."""
        wanted, found = await self._embed(caller, [text], Options(options, _TIMED))
        return [float(x) for x in wanted.shorten(found.vectors)[0]]

    async def vectorize_many(
        self, caller: Caller, texts: Sequence[str], options: Given
    ) -> tuple[int, int, str, bytes]:
        """Embed texts; return the rows, dimensions, type and row-major vectors."""
        checked = Options(options, {**_TIMED, "dtype": str})
        wanted, found = await self._embed(caller, texts, checked)
        data = wanted.encode(found.vectors)
        return len(found.vectors), wanted.dimensions, wanted.dtype, data

    async def embed(
        self, caller: Caller, texts: Sequence[str], options: Given
    ) -> tuple[int, str, bytes, Sequence[int], Mapping[str, Plain]]:
        """Embed texts; return the vectors, each text's tokens, and what served."""
        checked = Options(options, {**_TIMED, "dtype": str})
        level = checked.get("level", "")
        wanted, found = await self._embed(caller, texts, checked)
        engine = found.engine or await self._serving.embedder(level)
        tokens = list(found.lengths)
        if found.cut:
            # by the level's engine of now: the one that served may be closed
            counting = await self._serving.embedder(level)
            whole = await counting.count_tokens([texts[index] for index in found.cut])
            for index, count in zip(found.cut, whole, strict=True):
                tokens[index] = count
        details = {
            "level": engine.level,
            "model": LEVELS[engine.level].repository,
            "provider": engine.provider,
            "precision": engine.precision,
            "numerics": engine.numerics,
            "max_tokens": Typed("u", engine.max_tokens),
            "native_dimension": Typed("u", engine.dimension),
        }
        return wanted.dimensions, wanted.dtype, wanted.encode(found.vectors), tokens, details

    async def vectorize_bulk(
        self, caller: Caller, texts: Descriptor, options: Given
    ) -> tuple[Descriptor, int, int, str]:
        """Embed the texts of a file; return the vectors in a file."""
        checked = Options(options, {**_OPTIONS, "dtype": str, "job": bool})
        embedder = await self._engine(checked)
        wanted = choose_format(checked, embedder.dimension)
        bulk = BulkOptions(
            wanted,
            truncate=checked.get("truncate", default=True),
            is_job=checked.get("job", default=False),
        )
        with self._serving.lease(embedder) as engine:
            found = await self._bulk.run(caller, engine, texts, bulk)
        self._truncated += found.truncated
        return found.file, found.rows, wanted.dimensions, wanted.dtype

    async def count_tokens(
        self, _caller: Caller, texts: Sequence[str], options: Given
    ) -> tuple[int, list[int]]:
        """Count the tokens of texts without truncation; return the model's limit and the counts."""
        require_text(texts)
        embedder = await self._engine(Options(options, {"level": str, "wait": bool}))
        return embedder.max_tokens, await embedder.count_tokens(texts)

    async def tokenize(
        self, _caller: Caller, texts: Sequence[str], options: Given
    ) -> list[list[Token]]:
        """Return the tokens of texts without truncation."""
        checked = Options(options, {"level": str, "wait": bool})
        if (size := sum(map(len, texts))) > MOST_TOKENIZED or len(texts) > TEXTS_TOKENIZED:
            raise LimitsExceeded(
                f"{len(texts)} texts of {size} characters, past the limit of"
                f" {TEXTS_TOKENIZED} texts and {MOST_TOKENIZED} characters: send fewer at a time"
            )
        return await (await self._engine(checked)).list_tokens(texts)

    async def levels(self, _caller: Caller, options: Given) -> list[tuple[str, str, int, str, str]]:
        """Return the levels with their status."""
        Options(options, {})
        rows = [("none", "", 0, "available", "lexical search only")]
        for level in LEVELS.values():
            status, detail = await asyncio.to_thread(self._level_status, level.name)
            rows.append((level.name, level.repository, level.dimension, status, detail))
        return rows

    async def status(self, _caller: Caller, options: Given) -> Mapping[str, Typed]:
        """Return all properties of this interface and of State1."""
        Options(options, {})
        return await standard.read_properties((self, self._state))

    async def metrics(self, _caller: Caller, options: Given) -> str:
        """Return all metrics in Prometheus' text format."""
        Options(options, {})
        return metrics.render((*self._families(), *self._others()))

    def _families(self) -> Iterator[Family]:
        now = self._health.state
        yield Family("build_info", {(__version__,): 1})
        yield Family("state", {(state,): int(state == now) for state in _STATES})
        yield Family("texts_truncated_total", {(): self._truncated})
        yield Family("resident_memory_bytes", {(): gc_tuning.resident_bytes()})

    async def reload(self, _caller: Caller, options: Given) -> None:
        """Read settings and state file again."""
        Options(options, {})
        await self._reload()

    async def set_provider(
        self, _caller: Caller, provider: str, device: str, options: Given
    ) -> None:
        """Serve with another engine, once that is proven."""
        Options(options, {})
        settings = self._serving.config.on(provider, device)
        if settings.vector_level not in ON_PROVIDERS:
            raise NoModel(
                f"the level is {settings.vector_level}, which has no model for a provider to run:"
                " set OP_DBUS_VECTOR_LEVEL and reload first"
            )
        await self._serving.switch(settings)

    async def properties(self) -> Mapping[str, Plain]:
        """Return every property's value."""
        embedder, config = self._serving.phase.embedder, self._serving.config
        return {
            "Level": config.vector_level,
            "State": self._health.state,
            "RequestedProvider": str(config.execution_provider),
            "Accuracy": _accuracy(self._serving.loaded),
            "Truncated": self._truncated,
            "Memory": gc_tuning.resident_bytes(),
            "Jobs": self._bulk.jobs.paths(),
            "Version": __version__,
            **(self._engine_properties(embedder) if embedder else _NO_ENGINE),
        }

    def _engine_properties(self, embedder: Embedder) -> Mapping[str, Plain]:
        if embedder not in self._engines:
            self._engines[embedder] = _engine_properties(embedder)
        return {
            **self._engines[embedder],
            "QueueDepth": embedder.scheduler.depth,
            "Texts": embedder.scheduler.texts,
            "Latency": embedder.latency,
        }

    def _level_status(self, name: str) -> tuple[str, str]:
        config, loaded = self._serving.config, self._serving.loaded.get(name)
        if loaded:
            proven = loaded.proven
            detail = f"{loaded.provider} on {proven.hardware}, {proven.proof.precision}"
            return "loaded", detail
        is_configured = name == config.vector_level
        if phase := self._serving.phase if is_configured else self._serving.phase_of(name):
            return phase.state.value, str(phase.error or phase.reason or _OPENING)
        try:
            where = folder.find_model(LEVELS[name], config)
        except ModelError as error:
            return "missing", str(error)
        return "available", f"{where}; loaded at the first call that asks for it"

    async def _engine(self, options: Options) -> Embedder:
        """Return the engine of the options' level; without `wait`, refuse while it loads."""
        level = options.get("level", "")
        if not options.get("wait", default=True):
            self._serving.refuse_while_loading(level)
        return await self._serving.embedder(level)

    async def _embed(
        self, caller: Caller, texts: Sequence[str], options: Options
    ) -> tuple[Format, Embedding]:
        """Return the requested format, and vectors not yet converted to it."""
        require_text(texts)
        seconds = options.get("timeout", default=float("inf"))
        try:
            async with asyncio.timeout(seconds if seconds < float("inf") else None):
                return await self._embed_untimed(caller, texts, options)
        except TimeoutError:
            raise TimedOut(
                f"the vectors were not there after {seconds:g} s: ask again, or give it more time"
            ) from None

    async def _embed_untimed(
        self, caller: Caller, texts: Sequence[str], options: Options
    ) -> tuple[Format, Embedding]:
        level, truncate = options.get("level", ""), options.get("truncate", default=True)
        wanted = choose_format(options, (await self._engine(options)).dimension)
        if len(texts) * wanted.row_bytes > MAX_REPLY_BYTES:
            most = MAX_REPLY_BYTES // wanted.row_bytes
            raise LimitsExceeded(
                f"{len(texts)} vectors do not fit into a reply: {most} texts do; VectorizeBulk"
                " takes any number"
            )
        with self._load.texts.reserve({"user": caller.uid}, len(texts)):
            found = await self._serving.embed(
                texts, level, truncate=truncate, priority=caller.priority
            )
        self._truncated += found.truncated
        # the level's model may have changed meanwhile
        return choose_format(options, found.vectors.shape[1]), found


def _accuracy(loaded: Mapping[str, Embedder]) -> list[Mapping[str, Plain]]:
    """Return the accuracy gate's grade of each precision, for each level that has a report."""
    return [
        {
            "level": level,
            "chosen": report.is_chosen(grade),
            "checked_at": Typed("t", int(report.checked_at)),
            **asdict(grade),
            "questions": Typed("u", grade.questions),
            "used_rate": engine.used_rate if grade == engine.grade else 0.0,
        }
        for level, engine in loaded.items()
        if (report := engine.report)
        for grade in report.grades
    ]


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
            "products": Typed("a{su}", dict(proven.proof.products)),
            "precision": proven.proof.precision,
            "min_cosine": proven.proof.min_cosine,
            "checked_at": Typed("t", int(proven.proof.checked_at)),
            "max_deviation": proven.proof.max_deviation,
            "tolerance": proven.proof.tolerance,
        },
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
    "Texts": 0,
    "Latency": 0.0,
}
