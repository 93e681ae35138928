"""Figures of one engine on this host, and percentiles of measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """Figures of a level's model on a provider; `failure` is the reason for missing ones."""

    level: str
    provider: str
    failure: str = ""
    model: str = ""
    device: str = ""
    precision: str = ""
    proof: Mapping[str, Any] | None = None
    load_seconds: float = 0.0
    # by kind of texts, and by the number of texts in a call
    texts_per_second: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # percentiles in milliseconds of calls with one text, by its kind
    latency: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def percentiles(seconds: Sequence[float], *cuts: int) -> dict[str, float]:
    """Return percentiles in milliseconds: p50, p95 and p99, or the given cuts."""
    wanted = cuts or (50, 95, 99)
    found = np.percentile(np.array(seconds) * 1000, wanted).tolist()
    return {f"p{cut}": round(at, 3) for cut, at in zip(wanted, found, strict=True)}
