"""sentence-transformers on the same device: its speed, and its vectors as the measure of ours."""

from __future__ import annotations

import importlib.util
import itertools
import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from kit import KINDS, Kit, least_cosine, once

from opdbus.engine import cpus

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kit import Findings

    # returns the function that embeds with a batch size
    At = Callable[[int], Callable[[list[str]], Any]]

_CHECKED_BATCH = 32
# not imported: its name is that of the library
_SCRIPT = Path(__file__).parents[1] / "engine/peers/sentence_transformers.py"
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
        expected = _loaded(kit, level, "float32")(_CHECKED_BATCH)(some)
        for precision in kit.precisions:
            with kit.embedder(level, precision) as embedder:
                found = embedder.embed(some)
            deviation = float(np.abs(found - expected).max())
            seen = {"max_deviation": deviation, "min_cosine": least_cosine(found, expected)}
            yield f"{level} {precision}", seen


def _by_size(at: At, some: list[str], sizes: tuple[int, ...]) -> dict[int, float]:
    """Give texts a second by batch size, each after a first call of its own."""
    found = {}
    for size in sizes:
        at(size)(some[:size])
        found[size] = round(len(some) / once(at(size), some), 1)
    return found


def _loaded(kit: Kit, level: str, dtype: str) -> At:
    """Open a level's model as its users do for speed."""
    options = {"backend": "torch", "dtype": dtype, "device": kit.device}
    load = runpy.run_path(str(_SCRIPT))["load"]
    return load(kit.folder(level), Path(kit.scratch), cpus.usable(), options)[0]


def _missing() -> str:
    missing = itertools.filterfalse(importlib.util.find_spec, NEEDED)
    names = " and ".join(missing)
    return f"{names} cannot be imported here" if names else ""
