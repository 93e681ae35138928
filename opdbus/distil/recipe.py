"""What is to be made, and how it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

# Shared by all that is drawn at random, where nobody says another.
SEED: Final = 14


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a student is trained."""

    # `static`: a table; `layers`: some of the teacher's own layers
    to: str
    epochs: float
    batch: int
    rate: float
    # the share of the steps in which the rate rises
    warm_up: float = 0.0
    # of a table: the length of a row, and which share of a text's pieces is left out at random
    dimension: int = 256
    dropped: float = 0.2
    # of the teacher's, how many stay
    layers: int = 3
    seed: int = SEED


RECIPES: Final = {
    "static": Recipe("static", epochs=12, batch=1024, rate=0.01),
    "layers": Recipe("layers", epochs=2, batch=64, rate=5e-4, warm_up=0.05),
}


@dataclass(frozen=True, slots=True)
class Request:
    """A teacher's folder, the folder that is to be, and what the student learns from."""

    teacher: Path
    into: Path
    recipe: Recipe
    texts: tuple[str, ...]
    # questions, and the texts that answer them
    pairs: tuple[tuple[str, str], ...] = ()
    # vectors and checkpoints, for another run
    work: Path | None = None
    # after so long what was learned is kept, so that no more is lost when training is stopped
    keep_seconds: float = 60.0
