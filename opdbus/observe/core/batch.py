"""Reports that wait to be written, merged to the last state of each object and its cause."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import NamedTuple, TypeAlias

from opdbus.history import jobs
from opdbus.history.change import Why
from opdbus.state.object import Json

# The properties of an object; None for one that is gone.
State: TypeAlias = Mapping[str, Json] | None


class Key(NamedTuple):
    """The kind and the name of an object, as its observer knows it."""

    kind: str
    name: str


# Of objects by name.
Reported: TypeAlias = Mapping[str, State]


class Batch(NamedTuple):
    """Reports since the last batch, by kind, and the kinds that were listed.

    `is_all` says that there are no other kinds. `whys` has the causes that were given, and how many
    states were replaced by later ones; of these, `firsts` has the first. `events` are what happened
    to objects besides.
    """

    kinds: Mapping[str, Reported]
    listed: frozenset[str]
    is_all: bool
    whys: Mapping[Key, Why]
    firsts: Mapping[Key, State]
    events: Mapping[Key, Why]

    def objects(self) -> dict[Key, State]:
        """Return what was reported of each object."""
        return {
            Key(kind, name): properties
            for kind, reported in self.kinds.items()
            for name, properties in reported.items()
        }


class Merged:
    """Merges what is reported of each object until it is taken.

    The `volatile` fields of each kind make no other state of an object.
    """

    def __init__(self, volatile: Mapping[str, AbstractSet[str]]) -> None:
        self._volatile = volatile
        # the kinds of which all objects were reported, and whether these are all kinds
        self.listed: set[str] = set()
        self.is_all = False
        self._kinds: dict[str, dict[str, State]] = {}
        self._whys: dict[Key, Why] = {}
        self._firsts: dict[Key, State] = {}
        self._events: dict[Key, Why] = {}

    def __len__(self) -> int:
        """Count the objects."""
        return sum(map(len, self._kinds.values()))

    def __contains__(self, key: Key) -> bool:
        """Return whether a state of an object was taken."""
        return key.name in self._kinds.get(key.kind, {})

    def add(self, kind: str, objects: Reported, why: Why) -> None:
        """Take the states of objects."""
        self._explain(kind, objects, why)
        self._kinds.setdefault(kind, {}).update(objects)

    def add_event(self, key: Key, why: Why) -> None:
        """Take what happened to an object beside its changes."""
        before = self._events.get(key)
        more = before.folded + 1 if before else 0
        self._events[key] = why._replace(folded=why.folded + more)

    def take(self) -> Batch:
        """Return what was taken since the last time."""
        listed = frozenset(self.listed)
        batch = Batch(self._kinds, listed, self.is_all, self._whys, self._firsts, self._events)
        self._kinds, self.listed, self.is_all = {}, set(), False
        self._whys, self._firsts, self._events = {}, {}, {}
        return batch

    def put_back(self, batch: Batch) -> None:
        """Take back what was taken; what came meanwhile is later, and wins."""
        later = self.take()
        self._kinds = {kind: dict(reported) for kind, reported in batch.kinds.items()}
        self._whys, self._firsts = dict(batch.whys), dict(batch.firsts)
        self._events = dict(batch.events)
        self.listed = {*batch.listed, *later.listed}
        self.is_all = batch.is_all or later.is_all
        for kind, reported in later.kinds.items():
            for name, state in reported.items():
                key = Key(kind, name)
                self._explain(
                    kind, {name: later.firsts.get(key, state)}, later.whys.get(key, Why())
                )
                if key in later.firsts:
                    self._firsts.setdefault(key, later.firsts[key])
            self._kinds.setdefault(kind, {}).update(reported)
        for key, why in later.events.items():
            self.add_event(key, why)

    def _explain(self, kind: str, objects: Reported, why: Why) -> None:
        """Note why objects change, and which states that wait to be written are replaced."""
        waiting = self._kinds.get(kind, {})
        for name in objects if why != Why() else objects.keys() & waiting.keys():
            key, state = Key(kind, name), self._lasting(kind, objects[name], why.seen)
            before = self._whys.get(key, Why())
            is_replaced = name in waiting and self._lasting(kind, waiting[name], why.seen) != state
            is_more = _is_more(before, why, is_other=is_replaced) if name in waiting else False
            # what happened already, too, is a change although it left the object as it was
            if is_more and not before.is_event:
                self._firsts.setdefault(key, waiting[name])
            # the same state again says nothing new of why
            cause = before.cause if name in waiting and not is_replaced and not is_more else ""
            if is_more:
                cause = jobs.combine(before.cause, before.folded + 1, why.cause)
            self._whys[key] = Why(
                cause or why.cause or before.cause,
                before.folded + why.folded + is_more,
                is_event=before.is_event or why.is_event,
                seen=before.seen | why.seen,
            )

    def _lasting(self, kind: str, state: State, seen: frozenset[str]) -> State:
        """Leave out the fields that move by themselves, and those that were only seen to be so."""
        moving = seen.union(self._volatile.get(kind, ()))
        if not moving or state is None:
            return state
        return {name: value for name, value in state.items() if name not in moving}


def _is_more(before: Why, why: Why, *, is_other: bool) -> bool:
    """Return whether what is reported again is another change, and no step of the one before."""
    if before.is_event and why.is_event:
        return True
    return is_other and not jobs.is_step(before.cause, why.cause)
