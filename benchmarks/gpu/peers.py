"""sentence-transformers on the same device: its speed, and its vectors as the measure of ours."""

from __future__ import annotations

import importlib.util
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from kit import KINDS, Kit, least_cosine, once

if TYPE_CHECKING:
    from kit import Findings

NEEDED = ("torch", "sentence_transformers")


def peer(kit: Kit) -> Findings:
    """Measure sentence-transformers on the same device, at each of its batch sizes."""
    if missing := _missing():
        yield "skipped", missing
        return
    on_gpu = kit.device == "cuda"
    for dtype in ("float16", "bfloat16", "float32") if on_gpu else ("float32",):
        # op-dbus is compared with fp16: that for all levels
        for level in kit.measured[:1] if kit.quick or dtype != "float16" else kit.measured:
            loaded = _loaded(kit, level, dtype)
            for kind in KINDS:
                found = _by_size(loaded, kit.texts(kind), (256, 1024, 4096) if on_gpu else (32,))
                name = f"{level} {kind} {dtype}"
                yield name, {"by_batch_size": found, "best": max(found.values())}


def parity(kit: Kit) -> Findings:
    """Compare our vectors of 200 texts with those of sentence-transformers in fp32."""
    if missing := _missing():
        yield "skipped", missing
        return
    some = KINDS["short"](100) + KINDS["object"](100)
    for level in kit.measured[:1] if kit.quick else kit.measured:
        expected = _loaded(kit, level, "float32").encode(some, normalize_embeddings=True)
        for precision in kit.precisions:
            with kit.embedder(level, precision) as embedder:
                found = embedder.embed(some)
            deviation = float(np.abs(found - expected).max())
            seen = {"max_deviation": deviation, "min_cosine": least_cosine(found, expected)}
            yield f"{level} {precision}", seen


def _by_size(loaded: Any, some: list[str], sizes: tuple[int, ...]) -> dict[int, float]:  # noqa: ANN401 -- untyped
    """Give texts a second by batch size, each after a first call of its own."""
    found = {}
    for size in sizes:
        loaded.encode(some[:size], batch_size=size)
        seconds = once(partial(loaded.encode, batch_size=size), some)
        found[size] = round(len(some) / seconds, 1)
    return found


def _loaded(kit: Kit, level: str, dtype: str) -> Any:  # noqa: ANN401 -- untyped
    """Open a level's model as its users do for speed."""
    import torch
    from sentence_transformers import SentenceTransformer

    settings = {"dtype": getattr(torch, dtype)}
    home = str(kit.folder(level))
    return SentenceTransformer(
        home, device=kit.device, model_kwargs=settings, local_files_only=True
    )


def _missing() -> str:
    missing = itertools.filterfalse(importlib.util.find_spec, NEEDED)
    names = " and ".join(missing)
    return f"{names} cannot be imported here" if names else ""
