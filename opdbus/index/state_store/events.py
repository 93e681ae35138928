"""Events of the memory: objects changed, vectors complete, drift, history grown."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from opdbus.index.catalogue.catalogue import Change
from opdbus.state.object import ObjectId


@dataclass(frozen=True, slots=True)
class Changed:
    """Things were added, changed or removed."""

    generation: int
    changes: Mapping[ObjectId, Change]


@dataclass(frozen=True, slots=True)
class Vectorized:
    """Every object has its vector: `computed` are new, `reused` were known before."""

    generation: int
    level: str
    computed: int
    reused: int


@dataclass(frozen=True, slots=True)
class Drift:
    """A thing begins to be other than declared in these fields; no fields: it is so no longer.

    `what` is `drift` or `intended`, or `healed` or `undeclared`; `severity` is that of its worst
    field.
    """

    object_id: ObjectId
    what: str
    severity: str
    fields: Sequence[str]


@dataclass(frozen=True, slots=True)
class Listed:
    """A source has listed all of its objects of these sorts; none: it is gone."""

    source: str
    sorts: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The state file declares all objects of these sorts, (plugin, kind) each."""

    sorts: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """History has new rows, up to this one."""

    seq: int


Event: TypeAlias = Changed | Vectorized | Drift | Recorded | Listed | Claimed
