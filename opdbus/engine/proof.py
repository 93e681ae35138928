"""Proof that a session runs where it should and gives the model's own vectors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from opdbus.errors import ProofFailed

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from opdbus.engine.session import Session

# Largest difference of any component from double precision; fp32 engines stay near 1e-6.
FP32_TOLERANCE: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Proof:
    """What was seen when a session was put to the test."""

    nodes: Mapping[str, int]
    max_deviation: float
    tolerance: float
    checked_at: float


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows of token ids, and the vectors that the numpy reference gives for them."""

    rows: list[NDArray[np.int64]]
    vectors: NDArray[np.float32]

    @classmethod
    def read(cls, path: Path) -> Probe:
        """Read what `models.build` wrote beside the graph."""
        with np.load(path) as saved:
            rows = [saved[f"row{number}"] for number in range(len(saved["vectors"]))]
            return cls(rows, saved["vectors"])


def prove(session: Session, provider: str, probe: Probe) -> Proof:
    """Run the probe and hold nodes and vectors against what they must be.

    `provider` is ONNX Runtime's name. Raises ProofFailed with what was seen instead.
    """
    vectors = np.concatenate([session.run(row[np.newaxis]) for row in probe.rows])
    nodes = session.finish_profile()
    strangers = {name: count for name, count in nodes.items() if name != provider}
    if not nodes.get(provider):
        raise ProofFailed(f"no node of the model ran on {provider}, but {_listed(nodes)}")
    if strangers:
        raise ProofFailed(f"part of the model ran elsewhere than on {provider}: {_listed(nodes)}")
    deviation = _deviation(vectors, probe.vectors)
    if not deviation <= FP32_TOLERANCE:
        raise ProofFailed(
            f"{provider} gives vectors that differ from the model's by {deviation:.1e}"
            f" (at most {FP32_TOLERANCE:.0e} is rounding): its results cannot be trusted"
        )
    return Proof(nodes, deviation, FP32_TOLERANCE, time.time())


def _deviation(vectors: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    if vectors.shape != expected.shape:
        return float("inf")
    return float(np.abs(vectors.astype(np.float64) - expected).max())


def _listed(nodes: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{count} on {name}" for name, count in nodes.items()) or "nothing was recorded"
    )
