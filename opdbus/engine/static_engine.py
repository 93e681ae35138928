"""The engine of a static table: vectors are there when texts are tokenized, and no model runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.engine import cpus, gpus, static_proof
from opdbus.engine.batching import Rank
from opdbus.engine.chain import Proven
from opdbus.engine.host import HERE
from opdbus.engine.provider import Provider
from opdbus.engine.session import Placement
from opdbus.engine.static_encoder import StaticEncoder
from opdbus.models.static_table import StaticTable

if TYPE_CHECKING:
    from opdbus.models.folder import Model

# It is no row of the table of providers: nothing else runs a static table, or is run by numpy.
_NUMPY: Final = Provider(
    "cpu:numpy",
    "numpy",
    "`pip install op-dbus`",
    gpus.processors,
    dialects={},
    options=lambda _placement: {},
    runtime="numpy",
    is_cpu=True,
)
# Past this many, threads wait for each other.
_MOST_THREADS: Final = 8
# Tokens that are stored together: some thousand texts.
_TOGETHER: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Vectorized:
    """One text that was encoded: its vector, and how many tokens it has."""

    vector: NDArray[np.float32]
    tokens: int
    truncated: bool

    def __len__(self) -> int:
        """Count the tokens, special ones included."""
        return self.tokens


class StaticTexts:
    """Encodes where other engines tokenize; safe to call from any thread."""

    def __init__(self, encoder: StaticEncoder) -> None:
        self._encoder = encoder

    def encode(self, texts: Sequence[str]) -> list[Vectorized]:
        """Return texts with their vectors."""
        found = self._encoder.encode(texts)
        # rows as a list: an array would make each of them anew
        rows = zip(found.vectors, found.tokens.tolist(), found.truncated.tolist(), strict=True)
        return [Vectorized(*row) for row in rows]

    def count(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of whole texts, special ones included."""
        return self._encoder.tokenizer.count(texts)


class Instant:
    """What a scheduler is to other engines: nothing waits here, and nothing can be lost."""

    depth: Final = 0
    budget: Final = _TOGETHER
    lanes: Final = 1

    def __init__(self, dimension: int) -> None:
        self.fault = ""
        self._dimension = dimension

    async def embed(self, rows: Sequence[Any], _rank: Rank = Rank.FEW) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) of encoded texts."""
        if not rows:
            return np.empty((0, self._dimension), np.float32)
        return np.concatenate([row.vector for row in rows]).reshape(len(rows), -1)

    async def lost(self) -> None:
        """Wait for what does not happen."""
        await asyncio.Event().wait()

    def join(self) -> None:
        """Return: there are no threads."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A table that was proven, in the parts of an engine."""

    proven: Proven
    texts: StaticTexts
    instant: Instant
    # texts encode side by side on so many
    threads: int


def open_table(model: Model, threads: int | None) -> Opened:
    """Read and prove a table, in less than 0.1 s; raises ModelError and ProofFailed."""
    encoder = StaticEncoder(StaticTable.read(model.folder, model.shape.max_tokens))
    proof = static_proof.prove(encoder)
    hardware = HERE.processor()
    size = model.weights.stat().st_size
    proven = Proven((), _NUMPY, hardware, proof, (), Placement(), size)
    return Opened(
        proven,
        StaticTexts(encoder),
        Instant(model.shape.hidden),
        min(threads or cpus.usable(), _MOST_THREADS),
    )
