"""The steps that measure speed."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from kit import (
    KINDS,
    LANES,
    Kit,
    batches,
    built,
    model_rate,
    once,
    opened,
    read,
    stream_rate,
    streaming,
)
from run import TARGETS

from opdbus.bench.measures import percentiles
from opdbus.engine import cpus
from opdbus.engine.proof import Probe, prove
from opdbus.engine.provider import Placement
from opdbus.engine.sessions import OnnxSession
from opdbus.engine.tokenizer import Tokenizer, Tokens

if TYPE_CHECKING:
    from kit import Findings, Session

    from opdbus.api import Embedder
    from opdbus.models.folder import Model

# The graph of plain operators beside that of large ones, attention by each of ONNX Runtime's
# kernels, normalization that sums in full precision, and another way to ask for memory.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "fused fp16": ("fused-half", {}),
    "plain fp16": ("half", {}),
    "fused fp32": ("fused", {}),
    "plain fp32": ("float", {}),
    "flash attention": ("fused-half", {"sdpa_kernel": 1}),
    "efficient attention": ("fused-half", {"sdpa_kernel": 2}),
    "unfused attention": ("fused-half", {"sdpa_kernel": 16}),
    "cuDNN's attention": ("fused-half", {"sdpa_kernel": 8}),
    "strict normalization": ("fused-half", {"enable_skip_layer_norm_strict_mode": 1}),
    "memory by powers of two": ("fused-half", {"arena_extend_strategy": "kNextPowerOfTwo"}),
}


def engine(kit: Kit) -> Findings:
    """Measure the engine as programs use it: texts in, vectors in the host's memory out."""
    for level in kit.measured:
        with kit.embedder(level, kit.precisions[0]) as embedder:
            for kind in KINDS:
                found = stream_rate(streaming(kit, embedder), kit.texts(kind), kit.seconds)
                yield f"{level} {kind}", {"texts": found, **_target(level, kind)}
            yield f"{level} budget", embedder.engine.scheduler.budget


def model(kit: Kit) -> Findings:
    """Measure the model alone over budgets and lanes: ids in, vectors in the host's memory out."""
    for level in kit.measured:
        loaded = read(kit, level)
        session = opened(kit, loaded)
        for kind, tokens in itertools.product(
            KINDS, kit.budgets[-2:] if kit.quick else kit.budgets
        ):
            work = batches(_rows(kit, loaded, kind), tokens, kit.batches)
            for lanes in (1, 2) if kit.quick else (1, 2, 3):
                found = model_rate([session.run] * lanes, work, kit.seconds / 2)
                yield f"{level} {kind} {tokens} tokens {lanes} lanes", found


def tokenizing(kit: Kit) -> Findings:
    """Measure the tokenizer alone, called by one thread and by several."""
    loaded = read(kit, "medium")
    for kind, threads in itertools.product(KINDS, (1, 2, 4)):
        some = kit.texts(kind)
        made = [Tokenizer(loaded.tokenizer, loaded.shape.max_tokens) for _ in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            seconds = min(
                once(lambda texts: list(pool.map(lambda one: one.encode(texts), made)), some)  # noqa: B023 -- called at once
                for _ in range(3)
            )
        yield f"{kind} {threads} threads", round(threads * len(some) / seconds)


@contextmanager
def bulk(embedder: Embedder, texts: Sequence[str], count: int) -> Iterator[None]:
    """Stream `count` texts on two threads, again and again, during the context."""
    stop, flows = threading.Event(), threading.Event()

    def some() -> Iterator[str]:
        yield from itertools.islice(itertools.cycle(texts), count)
        flows.set()

    def stream() -> None:
        while not stop.is_set():
            for _ in embedder.stream(some()):
                pass

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(stream)
        try:
            flows.wait()
            yield
        finally:
            stop.set()


def latency(kit: Kit) -> Findings:
    """Time single texts, idle and beside a stream, and single runs of the model by length."""
    rounds = 60 if kit.quick else 400
    for level in kit.measured[:1] if kit.quick else kit.measured:
        with kit.embedder(level, kit.precisions[0]) as embedder:
            yield f"{level} idle", _singles(kit, embedder, rounds)
            (session,) = embedder.engine.proven.sessions
            for length in (8, 16, 32, 48):
                ids = np.full((1, length), 5)
                times = [once(session.run, ids) for _ in range(rounds)]
                yield f"{level} run of {length} tokens", percentiles(times)
            with bulk(embedder, kit.texts("object"), kit.window):
                yield f"{level} beside a stream", _singles(kit, embedder, rounds // 4)


def variants(kit: Kit) -> Findings:
    """Measure the model alone in other forms, to see which the engine should take."""
    loaded = read(kit, "medium")
    work = {
        kind: batches(_rows(kit, loaded, kind), kit.budgets[-2], kit.batches // 2) for kind in KINDS
    }
    for name, (dialect, settings) in VARIANTS.items():
        if kit.device != "cuda" and (settings or "half" in dialect):
            continue
        try:
            session = _changed(kit, loaded, dialect, settings)
            for kind, some in work.items():
                yield f"{name} {kind}", model_rate([session.run] * LANES, some, kit.seconds / 2)
        except Exception as error:  # noqa: BLE001 -- the report says what happened
            yield name, {"failure": str(error)}


def _changed(kit: Kit, loaded: Model, dialect: str, settings: dict[str, Any]) -> Session:
    """Open and prove a model in another dialect, with other options."""
    row = kit.provider
    changed = dataclasses.replace(row, options=lambda at: {**row.options(at), **settings})
    made = built(kit, loaded, dialect)
    precision = "fp16" if dialect.endswith("half") else "fp32"
    at = Placement(precision=precision, threads=cpus.usable(), lanes=LANES)
    session = OnnxSession(made.graph, changed, at)
    prove(session, changed, precision, Probe.read(made.proof))
    return session


def _rows(kit: Kit, loaded: Model, kind: str) -> Tokens:
    return Tokenizer(loaded.tokenizer, loaded.shape.max_tokens).encode(kit.texts(kind))


def _singles(kit: Kit, embedder: Embedder, rounds: int) -> dict[str, float]:
    some = kit.texts("short")
    embedder.embed(some[:1])
    asked = itertools.islice(itertools.cycle(some), rounds)
    return percentiles([once(embedder.embed, [text]) for text in asked])


def _target(level: str, kind: str) -> dict[str, float]:
    return {"target": TARGETS[level]} if kind == "short" else {}
