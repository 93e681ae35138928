"""Proof that a session runs where it should and gives the model's own vectors."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from zipfile import BadZipFile

import numpy as np

from opdbus.errors import ModelError, ProofFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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
    precision: str = "fp32"


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows of token ids, and the vectors that the numpy reference gives for them."""

    rows: list[NDArray[np.int64]]
    vectors: NDArray[np.float32]

    @classmethod
    def read(cls, path: Path) -> Probe:
        """Read what `models.build` wrote beside the graph; raises ModelError."""
        try:
            with path.open("rb") as file, np.load(file) as saved:
                rows = [saved[f"row{number}"] for number in range(len(saved["vectors"]))]
                return cls(rows, saved["vectors"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ModelError(
                f"cannot read {path}: {error}; delete {path.parent}, it is then built again"
            ) from None

    def batches(self) -> list[list[int]]:
        """Give the rows to run together: each alone, then all those of one length."""
        by_length: dict[int, list[int]] = {}
        for number, row in enumerate(self.rows):
            by_length.setdefault(len(row), []).append(number)
        together = [batch for batch in by_length.values() if len(batch) > 1]
        return [[number] for number in range(len(self.rows))] + together


def prove(session: Session, provider: str, probe: Probe) -> Proof:
    """Run the probe and hold nodes and vectors against what they must be.

    `provider` is ONNX Runtime's name. Raises ProofFailed with what was seen instead.
    """
    try:
        deviation = _worst([_deviation(session, probe, batch) for batch in probe.batches()])
    except Exception as error:  # noqa: BLE001 -- runtimes raise bare exceptions
        raise ProofFailed(f"{provider} opened the model but cannot run it: {error}") from None
    finally:
        nodes = session.finish_profile()
    _require_nodes(nodes, provider)
    if not deviation <= FP32_TOLERANCE:
        raise ProofFailed(
            f"{provider} gives vectors that differ from the model's by {deviation:.1e}"
            f" (at most {FP32_TOLERANCE:.0e} is rounding): its results cannot be trusted"
        )
    return Proof(nodes, deviation, FP32_TOLERANCE, time.time(), precision="fp32")


def _require_nodes(nodes: Mapping[str, int], provider: str) -> None:
    if not nodes.get(provider):
        raise ProofFailed(f"no node of the model ran on {provider}, but {_listed(nodes)}")
    if len(nodes) > 1:
        raise ProofFailed(f"part of the model ran elsewhere than on {provider}: {_listed(nodes)}")


def _deviation(session: Session, probe: Probe, batch: Sequence[int]) -> float:
    vectors = session.run(np.stack([probe.rows[number] for number in batch]))
    expected = probe.vectors[batch]
    if vectors.shape != expected.shape:
        return float("inf")
    return _worst(np.abs(vectors.astype(np.float64) - expected))


def _worst(deviations: Sequence[float] | NDArray[np.float64]) -> float:
    """Give the largest, or NaN if there is one; Python's `max` would pass over it."""
    return float(np.max(deviations))


def _listed(nodes: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{count} on {name}" for name, count in nodes.items()) or "nothing was recorded"
    )
