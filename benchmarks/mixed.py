"""Vectors that no model computed: each is mixed of those of the descriptions of two packages."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

sys.path.extend(str(Path(__file__).parent / part) for part in (".", "../tests"))
import sizes
from insight import packages

from opdbus.config import load
from opdbus.index.catalogue.text_table import TextTable
from opdbus.index.database.store import Store
from opdbus.index.vectors.vector_index import VectorIndex
from opdbus.serving.serving import Serving

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Real texts whose vectors are mixed.
REAL: Final = 4000
_AT_A_TIME: Final = 4096


async def mix(state_dir: Path, level: str) -> None:
    """Give each text of a memory a vector that is mixed of those of two real texts."""
    # what is built of the model is the daemon's, too
    real, numerics = await real_vectors(level, REAL, OP_DBUS_STATE_DIR=str(state_dir))
    _store_mixed(Store(state_dir / "memory.db"), numerics, real)


async def real_vectors(level: str, count: int, **environ: str) -> tuple[NDArray[np.float32], str]:
    """Give the vectors of so many packages' descriptions, and the numerics of the engine."""
    texts = [one["Description"] for one in packages()[:count]]
    settings = {"OP_DBUS_VECTOR_LEVEL": level, **environ}
    async with Serving(load(os.environ | settings)) as serving:
        await serving.start()
        embedder = await serving.embedder()
        parts = [texts[n : n + 64] for n in range(0, len(texts), 64)]
        found = [(await embedder.embed(part)).vectors for part in parts]
        return np.concatenate(found), embedder.numerics


def _store_mixed(store: Store, numerics: str, real: NDArray[np.float32]) -> None:
    index = VectorIndex(numerics, real.shape[1], TextTable())
    chance = np.random.default_rng(sizes.SEED)
    digests = sorted({entry.text_digest for entry in store.entries()})
    for part in (digests[n : n + _AT_A_TIME] for n in range(0, len(digests), _AT_A_TIME)):
        vectors = mixed(chance, real, len(part))
        store.put_vectors([index.key(one) for one in part], part, vectors)
    store.close()


def mixed(
    chance: np.random.Generator, real: NDArray[np.float32], count: int
) -> NDArray[np.float32]:
    """Give vectors of length 1, each between two of the real ones and a little beside."""
    first, second = chance.integers(len(real), size=(2, count))
    share = chance.random((count, 1), np.float32)
    made = share * real[first] + (1 - share) * real[second]
    made += chance.normal(0, 0.1 / np.sqrt(real.shape[1]), made.shape).astype(np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made
