"""Events of the state store: objects changed, vectors complete, drift, new rows of history."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from opdbus.index.catalogue.catalogue import ChangeKind
from opdbus.state.object import ObjectId


@dataclass(frozen=True, slots=True)
class Changed:
    """Objects were added, changed or removed."""

    generation: int
    changes: Mapping[ObjectId, ChangeKind]


@dataclass(frozen=True, slots=True)
class Vectorized:
    """All objects have their vectors: `computed` were new, `reused` existed before."""

    generation: int
    level: str
    computed: int
    reused: int


@dataclass(frozen=True, slots=True)
class Drift:
    """A drift transition: drift of an object in `fields`, or its end without fields.

    `what` is `drift` or `intended` at the start, `healed` or `undeclared` at the end. `severity` is
    that of the worst field, at the end the last one before it.
    """

    object_id: ObjectId
    what: str
    severity: str
    fields: Sequence[str]


@dataclass(frozen=True, slots=True)
class Listed:
    """A source has listed all of its objects of these kinds, (plugin, kind) each.

    Without kinds, the source is gone.
    """

    source: str
    kinds: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The state file declares all objects of these kinds, (plugin, kind) each."""

    kinds: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """History has new rows, the last of them `seq`."""

    seq: int


Event: TypeAlias = Changed | Vectorized | Drift | Recorded | Listed | Claimed
