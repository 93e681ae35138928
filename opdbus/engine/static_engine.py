"""Engine of a static table: encoding a text yields its vector, and no model runs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from opdbus.engine import cpus, gpus, static_proof
from opdbus.engine.batching import Rank
from opdbus.engine.chain import Proven
from opdbus.engine.embedder import Embedder
from opdbus.engine.host import HERE
from opdbus.engine.provider import Provider
from opdbus.engine.session import Placement
from opdbus.engine.static_encoder import StaticEncoder
from opdbus.models.static_table import StaticTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from opdbus.models.folder import Model

# Not a row of the provider table: nothing else runs a static table or uses numpy.
_NUMPY: Final = Provider(
    "cpu:numpy",
    "numpy",
    "op-dbus",
    gpus.processors,
    dialects={},
    options=lambda _placement: {},
    runtime="numpy",
    is_cpu=True,
)
# More threads than this wait for each other.
_MOST_THREADS: Final = 8
# Token budget of a batch for storing: some thousand texts.
_TOGETHER: Final = 1 << 16


class Instant:
    """`Runner` of a static table: nothing waits, and nothing can be lost."""

    depth: Final = 0
    budget: Final = _TOGETHER
    lanes: Final = 1

    def __init__(self) -> None:
        self.fault = ""
        self.texts = 0

    async def embed(self, rows: Any, _rank: Rank = Rank.FEW) -> NDArray[np.float32]:  # noqa: ANN401 -- the encoder's
        """Return the vectors (rows, dimension) of encoded texts."""
        vectors: NDArray[np.float32] = rows.vectors
        self.texts += len(vectors)
        return vectors

    async def lost(self) -> None:
        """Wait forever: a table cannot be lost."""
        await asyncio.Event().wait()

    def join(self) -> None:
        """Return at once: there are no threads."""


def open_table(model: Model, threads: int | None) -> Embedder:
    """Read and prove a table, in less than 0.1 s; raises ModelError and ProofFailed."""
    encoder = StaticEncoder(StaticTable.read(model.folder, model.shape.max_tokens))
    proof = static_proof.prove(encoder)
    size = model.weights.stat().st_size
    proven = Proven((), _NUMPY, HERE.processor(), proof, (), Placement(), size)
    # number of threads that encode texts in parallel
    side_by_side = min(threads or cpus.usable(), _MOST_THREADS)
    return Embedder(model, proven, encoder, Instant(), side_by_side)
