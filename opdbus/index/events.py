"""Events of the memory: objects changed, vectors complete, drift, history grown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from opdbus.index.catalogue import Change
from opdbus.state.object import Thing


@dataclass(frozen=True, slots=True)
class Changed:
    """Things were added, changed or removed."""

    generation: int
    changes: Mapping[Thing, Change]


@dataclass(frozen=True, slots=True)
class Vectorized:
    """Every object has its vector: `computed` are new, `reused` were known before."""

    generation: int
    level: str
    computed: int
    reused: int


@dataclass(frozen=True, slots=True)
class Drift:
    """A thing was observed other than declared, at a cosine distance, in these fields."""

    thing: Thing
    distance: float
    fields: Sequence[str]


@dataclass(frozen=True, slots=True)
class Recorded:
    """History has new rows, up to this one."""

    seq: int


Event: TypeAlias = Changed | Vectorized | Drift | Recorded
