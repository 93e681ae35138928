"""Proof that a session runs on its provider and computes the reference vectors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from opdbus.engine.provider import Provider, RunRecord, Session
from opdbus.errors import ModelError, ProofFailed
from opdbus.models import numpy_files

# Largest difference of any component from double precision; fp32 engines stay near 1e-6.
FP32_TOLERANCE: Final = 1e-5
# Smallest cosine to the reference vectors, by precision. 16-bit floats stay far above it; int8
# below it is broken. The accuracy gate decides how much int8 may lose in use.
LEAST_COSINE: Final = {
    "fp32": 0.999999,
    "fp16": 0.999,
    "bf16": 0.999,
    "int8": 0.95,
    "int8-blocks": 0.95,
}
# Pooling and normalization are in fp32 whatever the precision of the layers.
UNIT_TOLERANCE: Final = 1e-4


@dataclass(frozen=True, slots=True)
class Proof:
    """Measurements of a session that passed its proof."""

    nodes: Mapping[str, int]
    # number of matrix products by precision
    products: Mapping[str, int]
    precision: str
    max_deviation: float
    min_cosine: float
    checked_at: float

    @property
    def tolerance(self) -> float:
        """Largest deviation allowed in fp32, largest loss of cosine in other precisions."""
        least = 1.0 - LEAST_COSINE[self.precision]
        return FP32_TOLERANCE if self.precision == "fp32" else round(least, 6)


@dataclass(frozen=True, slots=True)
class Probe:
    """Rows of token ids and their vectors by the numpy reference."""

    rows: list[NDArray[np.int64]]
    vectors: NDArray[np.float32]

    @classmethod
    def read(cls, path: Path) -> Probe:
        """Read the file that `models.build` wrote beside the graph; raises ModelError."""
        try:
            saved = numpy_files.load_archive(path)
            rows = [saved[f"row{number}"] for number in range(len(saved["vectors"]))]
            return cls(rows, saved["vectors"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise ModelError(
                f"cannot read {path}: {error}; delete {path.parent}, it is then built again"
            ) from None

    def batches(self) -> list[list[int]]:
        """Return the row indexes to run together: each row alone, then all rows of one length."""
        by_length: dict[int, list[int]] = {}
        for number, row in enumerate(self.rows):
            by_length.setdefault(len(row), []).append(number)
        together = [batch for batch in by_length.values() if len(batch) > 1]
        return [[number] for number in range(len(self.rows))] + together


def prove(session: Session, provider: Provider, precision: str, probe: Probe) -> Proof:
    """Run the probe and require the right nodes, precision and vectors.

    Raises ProofFailed that names the difference.
    """
    try:
        seen = _run_all(session, provider, probe)
    finally:
        ran = session.finish_profile()
    if session.renew():
        # the session that serves is not the recorded one, so it is checked too
        seen += _run_all(session, provider, probe)
    _require_place(ran, provider, precision)
    # np.max keeps NaN, which Python's `max` may pass over
    deviations, cosines, errors = np.transpose(seen)
    proof = Proof(
        ran.nodes,
        ran.products,
        precision,
        max_deviation=float(np.max(deviations)),
        min_cosine=float(np.min(cosines)),
        checked_at=time.time(),
    )
    _require_vectors(proof, float(np.max(errors)), provider)
    return proof


def _require_place(ran: RunRecord, provider: Provider, precision: str) -> None:
    """Refuse a session that ran elsewhere, or in another precision, even a faster one."""
    name, nodes, products = provider.runtime_name, ran.nodes, ran.products
    if not nodes.get(name):
        raise ProofFailed(f"no node of the model ran on {name}, but {_list_counts(nodes)}")
    if nodes.keys() - {name} - provider.also:
        raise ProofFailed(f"part of the model ran elsewhere than on {name}: {_list_counts(nodes)}")
    # in int8 some layers stay exact, most layers in a small model, so one product is enough
    least = 1 if precision == "int8" else max(products.values(), default=0)
    if products and products.get(precision, 0) < least:
        raise ProofFailed(
            f"{provider.name} was to compute in {precision}, but its matrix products ran:"
            f" {_list_counts(products)}"
        )


def _require_vectors(proof: Proof, error: float, provider: Provider) -> None:
    """Refuse vectors far from the reference's, or whose length is off 1 by `error`."""
    least = LEAST_COSINE[proof.precision]
    if proof.precision == "fp32" and not proof.max_deviation <= FP32_TOLERANCE:
        raise ProofFailed(
            f"{provider.name} gives vectors that differ from the model's by"
            f" {proof.max_deviation:.1e} (at most {FP32_TOLERANCE:.0e} is rounding): its results"
            " cannot be trusted"
        )
    if not proof.min_cosine >= least:
        raise ProofFailed(
            f"{provider.name} in {proof.precision} gives vectors whose cosine to the model's is"
            f" only {proof.min_cosine:.4f} (at least {least} is rounding): its results cannot be"
            " trusted"
        )
    # the cosine does not show this
    if not error <= UNIT_TOLERANCE:
        raise ProofFailed(
            f"{provider.name} gives vectors whose length is off 1 by {error:.1e}: its results"
            " cannot be trusted"
        )


def _run_all(
    session: Session, provider: Provider, probe: Probe
) -> list[tuple[float, float, float]]:
    """Run the probe's batches; raises ProofFailed if one fails."""
    try:
        return [_run(session, probe, batch) for batch in probe.batches()]
    except Exception as error:  # noqa: BLE001 -- runtimes raise bare exceptions
        raise ProofFailed(f"{provider.name} opened the model but cannot run it: {error}") from None


def _run(session: Session, probe: Probe, batch: Sequence[int]) -> tuple[float, float, float]:
    """Return the largest deviation, the smallest cosine and the largest error of the length."""
    return compare(session.run(np.stack([probe.rows[n] for n in batch])), probe.vectors[batch])


def compare(
    vectors: NDArray[np.float32], expected: NDArray[np.float32]
) -> tuple[float, float, float]:
    """Return the largest deviation, the smallest cosine and the largest error of the length."""
    if vectors.shape != expected.shape:
        return float("inf"), -1.0, float("inf")
    found, expected = vectors.astype(np.float64), expected.astype(np.float64)
    lengths = np.linalg.norm(found, axis=1)
    # a vector that is not finite shows in the result
    with np.errstate(invalid="ignore", divide="ignore"):
        cosines = (found * expected).sum(axis=1) / lengths
    deviation = np.max(np.abs(found - expected))
    return float(deviation), float(np.min(cosines)), float(np.max(np.abs(lengths - 1.0)))


def _list_counts(counts: Mapping[str, int]) -> str:
    return (
        ", ".join(f"{count} on {name}" for name, count in counts.items()) or "nothing was recorded"
    )
