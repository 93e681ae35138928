"""Training parameters of a student, and the request for one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Default seed of all random choices.
SEED: Final = 14


@dataclass(frozen=True, slots=True)
class Recipe:
    """Training parameters of a student."""

    # `static`: a table; `layers`: some of the teacher's own layers
    to: str
    epochs: float
    batch: int
    rate: float
    # share of the steps in which the learning rate rises
    warm_up: float = 0.0
    # for a table: the length of a row, and the share of a text's pieces that is dropped at random
    dimension: int = 256
    dropped: float = 0.2
    # number of the teacher's layers that stay
    layers: int = 3
    seed: int = SEED


RECIPES: Final = {
    "static": Recipe("static", epochs=12, batch=1024, rate=0.01),
    "layers": Recipe("layers", epochs=2, batch=64, rate=5e-4, warm_up=0.05),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A teacher's folder, the folder to write, and the training data."""

    teacher: Path
    into: Path
    recipe: Recipe
    texts: tuple[str, ...]
    # questions, and the texts that answer them
    pairs: tuple[tuple[str, str], ...] = ()
    # folder of vectors and checkpoints, to be reused by another run
    work: Path | None = None
    # interval of checkpoints, the most work that is lost when training is stopped
    keep_seconds: float = 60.0
