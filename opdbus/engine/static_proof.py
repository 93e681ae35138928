"""Proof that numpy sums a static table correctly here, against stored reference vectors."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import numpy as np

from opdbus.engine.proof import Proof
from opdbus.errors import ModelError, ProofFailed
from opdbus.models import arrays
from opdbus.models.formats import PROOF

if TYPE_CHECKING:
    from pathlib import Path

    from opdbus.engine.static_encoder import StaticEncoder

# Largest difference of any component from double precision; single precision stays near 1e-7.
TOLERANCE: Final = 1e-6
TEXTS: Final = (
    "",
    "sshd",
    "which service answers questions about host names?",
    "systemd service sshd: OpenBSD Secure Shell server",
    "network interface eth0; type ethernet, address 192.0.2.17/24, mtu 1500, up yes",
    "Backup of /srv/media to disk2 (weekly, 03:30), keeps 14 snapshots; last exit status 0",
    "UPPER lower MiXeD 0x7f 3.141592653589793 a_b-c.d,e;f:g!h?i @j #k $l %m ^n &o *p (q) {r}",
    "word " * 200,
)


def record(encoder: StaticEncoder) -> None:
    """Store the reference vectors of the texts beside the table."""
    np.save(encoder.table.folder / PROOF, encoder.reference(TEXTS).astype(np.float32))


def prove(encoder: StaticEncoder) -> Proof:
    """Encode the texts, together and each alone, and compare; raises ProofFailed, ModelError."""
    expected = _read(encoder.table.folder / PROOF, (len(TEXTS), encoder.table.dimension))
    alone = [encoder.encode([text]).vectors[0] for text in TEXTS]
    found = np.array([encoder.encode(TEXTS).vectors, alone], np.float64)
    deviation = float(np.abs(found - expected).max())
    if not deviation <= TOLERANCE:
        raise ProofFailed(
            f"the static table {encoder.table.folder} gives vectors that differ from the"
            f" reference's by {deviation:.1e} (at most {TOLERANCE:.0e} is rounding): its results"
            " cannot be trusted"
        )
    cosine = float((found * expected).sum(axis=2).min())
    return Proof({"numpy": len(TEXTS)}, {}, "fp32", deviation, cosine, time.time())


def _read(path: Path, shape: tuple[int, int]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    try:
        kept = arrays.load(path)
    except (OSError, ValueError, EOFError) as error:
        raise ModelError(f"cannot read {path}: {error}") from None
    if kept.shape != shape:
        raise ModelError(f"{path} belongs to another table: it holds {kept.shape}, not {shape}")
    return np.asarray(kept, np.float32)
