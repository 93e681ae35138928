"""Differences of a report to the report before: what is stored now, coalesced, or dropped."""

import marshal
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

from opdbus.errors import InvalidArgs
from opdbus.history.change import Why
from opdbus.observe.core.changes_per_hour import FOLD_RUNS_SECONDS, RUNS, ChangesPerHour
from opdbus.observe.core.report import Batch, Key, Observer
from opdbus.state import publish
from opdbus.state.object import Identity, Json, StateObject, digest

# What is `written` and an `event` are rows, what is `folded` is counted in a later one.
Fate: TypeAlias = Literal["written", "event", "folded", "nothing"]
# Size limit before secrets are replaced, which takes long: no less than what may be stored.
_MAX_BYTES_OF_OBJECT: Final = 4 * publish.MAX_BYTES
# Size limit of all objects of an observer, as JSON: far more than a sane host has.
_MAX_BYTES: Final = 64 << 20


class SeenObject(NamedTuple):
    """The last report of an object, with hashes of its fields instead of their values.

    `stored` are the hashes of the stored state, written at `since`; `latest` those of the last
    report. While changes are folded, `held` counts them, and `folded` has the properties to be
    stored later.
    """

    identity: Identity
    stored: Mapping[str, bytes]
    latest: Mapping[str, bytes]
    since: float
    size: int
    held: Why = Why()
    folded: Mapping[str, Json] | None = None


@dataclass(slots=True)
class Prepared:
    """A batch as the state store takes it, and the state to remember once it is stored."""

    # the fields of a kind that change all the time
    restless: Callable[[str], frozenset[str]]
    # names and bytes of all objects after it
    holders: dict[Identity, Key]
    size: int
    # objects that do not stay
    leaving: set[Key] = field(default_factory=set)
    objects: list[StateObject] = field(default_factory=list)
    volatile: dict[Identity, Mapping[str, Json]] = field(default_factory=dict)
    seen: dict[Key, SeenObject] = field(default_factory=dict)
    refused: dict[Key, str] = field(default_factory=dict)
    runs: list[Key] = field(default_factory=list)
    gone: set[Identity] = field(default_factory=set)
    # causes of changes, and of events that changed no field
    whys: dict[Identity, Why] = field(default_factory=dict)
    events: dict[Identity, Why] = field(default_factory=dict)


class ObservationDiff:
    """Last reported state of an observer's objects; call from one thread at a time."""

    def __init__(
        self, observer: Observer, changes: ChangesPerHour, count: Callable[[str], int]
    ) -> None:
        """Take the counts of field changes, and a function that counts the objects of a kind."""
        self._observer = observer
        self._changes = changes
        self._count = count
        # never leaves this process
        self._hash_key = secrets.token_bytes(16)
        self._seen: dict[Key, SeenObject] = {}
        # objects with changes that are stored later
        self._folded: set[Key] = set()
        # without their secrets two names may be one: the first to have it keeps it
        self._holders: dict[Identity, Key] = {}
        self._refused: dict[Key, str] = {}
        self._size = 0

    @property
    def left_out(self) -> str:
        """The objects that are not stored, and the reasons; empty if there are none."""
        if not self._refused:
            return ""
        which = "an object was" if len(self._refused) == 1 else f"{len(self._refused)} objects were"
        return f"{which} left out: {next(iter(self._refused.values()))}"

    @property
    def seconds(self) -> float | None:
        """The seconds until the first folded change is to be stored; None if there is none."""
        due = min(map(self._due, self._folded), default=None)
        return None if due is None else due - self._changes.clock()

    def prepare(
        self, batch: Batch, earlier: Collection[Identity], since: Callable[[str], str]
    ) -> Prepared:
        """Make the objects and events to store from the differences to the last report.

        Objects stored from `earlier` that are missing are gone; `since` gives, by kind, the cause
        of new objects that have none of their own.
        """
        restless = cache(lambda kind: self._changes.restless(kind, self._count(kind)))
        new = Prepared(restless, dict(self._holders), self._size)
        now = self._changes.clock()
        objects = {key: self._seen[key].folded for key in self._folded if self._due(key) <= now}
        for kind, states in batch.kinds.items():
            objects.update((Key(kind, name), state) for name, state in states.items())
        new.refused.update((k, why) for k, why in self._refused.items() if k not in objects)
        for key in (key for key, properties in objects.items() if properties is None):
            self._leave(new, key)
            new.gone.add(self._identity(key))
        for key, properties in objects.items():
            why = self._why(batch, key, since)
            if properties is not None:
                self._add(new, key, properties, why)
            elif why.folded and key not in self._seen:  # it came and left between two writes
                new.events[self._identity(key)] = why
        for key in new.leaving:
            seen = self._seen[key]
            new.gone.add(seen.identity)
            new.whys[seen.identity] = add_held(seen.held, self._why(batch, key, since))
        for key, why in batch.events.items():
            identity = self._identity(key)
            more = new.events[identity].folded + 1 if identity in new.events else 0
            new.events[identity] = Why(why.cause or since(key.kind), why.folded + more)
        new.gone = new.gone.union(earlier) - new.holders.keys()
        self._refused = new.refused
        return new

    def remember(self, new: Prepared) -> None:
        """Take in what was stored."""
        for key in new.leaving:
            del self._seen[key]
        self._changes.forget(new.leaving)
        self._changes.reports += len(new.seen) + len(new.leaving)
        self._changes.delayed += sum(seen.folded is not None for seen in new.seen.values())
        for key in new.runs:
            self._changes.note(key, [RUNS])
        for key, seen in new.seen.items():
            if key in self._seen:
                fields = self._changed(key, seen.latest)
                self._changes.note(key, fields, is_folded=seen.folded is not None)
        self._folded -= new.leaving | new.seen.keys()
        self._folded |= {key for key, seen in new.seen.items() if seen.folded is not None}
        self._seen |= new.seen
        self._holders, self._size = new.holders, new.size

    def _identity(self, key: Key) -> Identity:
        seen = self._seen.get(key)
        return seen.identity if seen else self._observer.identity(key)

    def _leave(self, new: Prepared, key: Key) -> None:
        if before := self._seen.get(key):
            new.leaving.add(key)
            new.holders.pop(before.identity, None)
            new.size -= before.size

    def _due(self, key: Key, *, runs: bool = False) -> float:
        """Return when an object that only ran, or whose restless fields alone change, has a row."""
        seen = self._seen[key]
        is_of_runs = runs or is_run(seen.held)
        return seen.since + (FOLD_RUNS_SECONDS if is_of_runs else self._changes.fold_seconds)

    def _changed(self, key: Key, hashes: Mapping[str, bytes]) -> frozenset[str]:
        """Return the fields of an object, without volatile ones, that differ from the last."""
        moving = self._observer.volatile.get(key.kind, frozenset())
        return differing(self._seen[key].latest, hashes) - moving

    def _why(self, batch: Batch, key: Key, since: Callable[[str], str]) -> Why:
        """Return why an object changed; a first state that is the last one again is no change."""
        why, before = batch.whys.get(key, Why()), self._seen.get(key)
        if before is None:
            return why._replace(cause=why.cause or since(key.kind))
        first = batch.firsts.get(key)
        with suppress(InvalidArgs):
            if first is not None:
                hashes = hash_fields(first, self._hash_key)
                if not self._changed(key, hashes) - why.seen:
                    return why._replace(folded=why.folded - 1)
        return why

    def _add(self, new: Prepared, key: Key, properties: Mapping[str, Json], why: Why) -> None:
        """Add an object to a batch if it differs; if it cannot be stored, it is left out."""
        try:
            self._put(new, key, properties, why)
        except InvalidArgs as error:
            new.refused[key] = str(error)
        except Exception as error:  # noqa: BLE001 -- one that is not sane costs only itself
            new.refused[key] = f"it cannot be read ({type(error).__name__})"
        if key in new.refused:  # its stored state is not true any more
            self._leave(new, key)

    def _put(self, new: Prepared, key: Key, properties: Mapping[str, Json], why: Why) -> None:
        before, hashes = self._seen.get(key), hash_fields(properties, self._hash_key)
        moving = self._observer.volatile.get(key.kind, frozenset())
        why = why._replace(seen=why.seen | self._observer.derived.get(key.kind, frozenset()))
        fate: Fate = "written"
        now = self._changes.clock()
        if before:
            can_wait = frozenset[str]() if self._due(key) <= now else new.restless(key.kind)
            if is_run(why):
                new.runs += [key] * (1 + why.folded)
            often = self._changes.runs_often(key) and self._due(key, runs=True) > now
            fate, why = decide(before, hashes, why, moving, can_wait, runs_often=often)
            if fate == "nothing" and hashes == before.latest:
                return
        item = publish.observed(*self._identity(key), properties)
        size = len(item.name) + len(item.json())
        _take(new, key, item.identity, size - (before.size if before else 0))
        seen = SeenObject(item.identity, hashes, hashes, now, size)
        if before and fate in {"folded", "nothing"}:
            seen = seen._replace(stored=before.stored, since=before.since, held=why)
        new.seen[key] = seen._replace(folded=properties if seen.held.folded else None)
        fields = item.properties.items()
        if moving:
            new.volatile[item.identity] = {k: value for k, value in fields if k in moving}
        if fate == "written":
            lasting = {k: value for k, value in fields if k not in moving}
            new.objects.append(StateObject(item.identity, lasting))
            new.whys[item.identity] = why
        elif fate == "event":
            new.events[item.identity] = why


def _take(new: Prepared, key: Key, identity: Identity, more: int) -> None:
    """Reserve a name and `more` bytes; raise InvalidArgs if one of them is not available."""
    if new.holders.get(identity, key) != key:
        raise InvalidArgs(f"without secrets its name is that of another {identity.kind}")
    if more > 0 and new.size + more > _MAX_BYTES:
        raise InvalidArgs(f"all objects together have more than {_MAX_BYTES >> 20} MiB")
    new.holders[identity] = key
    new.size += more


def hash_fields(properties: Mapping[str, Json], key: bytes) -> dict[str, bytes]:
    """Hash each field under a secret key; raise InvalidArgs for an object that is too large."""
    # newer formats of marshal depend on what else refers to a value
    plain = {name: marshal.dumps(value, 2) for name, value in properties.items()}
    if sum(map(len, plain.values())) > _MAX_BYTES_OF_OBJECT:
        raise InvalidArgs(f"it has more than {publish.MAX_BYTES} bytes of properties")
    return {name: digest(data, key) for name, data in plain.items()}


def differing(some: Mapping[str, bytes], others: Mapping[str, bytes]) -> frozenset[str]:
    """Return the names of the fields that are not the same in both."""
    if some == others:  # most are, and this is much faster
        return frozenset()
    return frozenset(name for name, _ in some.items() ^ others.items())


def is_run(why: Why) -> bool:
    """Return whether a unit ran, as it does again and again by its timer, socket or path."""
    return why.is_event and why.cause.startswith("job:") and " by " in why.cause


def decide(
    before: SeenObject,
    hashes: Mapping[str, bytes],
    why: Why,
    moving: frozenset[str],
    can_wait: frozenset[str],
    *,
    runs_often: bool = False,
) -> tuple[Fate, Why]:
    """Return the fate of a report, and the Why of its row, or what is held for a later one.

    `moving` fields are in no comparison; changes of no others than `can_wait` are stored later, and
    so are runs of an object that `runs_often`.
    """
    held = before.held
    changed = differing(before.latest, hashes) - moving
    unstored = differing(before.stored, hashes) - moving
    is_new = bool(changed or why.folded or why.is_event)
    if runs_often and is_run(why) and not unstored:
        return "folded", why._replace(folded=held.folded + why.folded + 1)
    # a report equal to the stored state followed another one
    is_noise = bool(changed or unstored) and changed | unstored <= can_wait
    if is_noise or (can_wait and is_new and not unstored and not why.is_event):
        folded = held.folded + why.folded + is_new
        return "folded", Why(why.cause or held.cause, folded, seen=held.seen | why.seen)
    if unstored:
        return "written", add_held(held, why, is_late=not is_new)
    if is_new:
        return "event", add_held(held, why)
    if held.folded and not can_wait:
        return "event", add_held(held, why, is_late=True)
    return "nothing", held


def add_held(held: Why, why: Why, *, is_late: bool = False) -> Why:
    """Return why an object changed, with the changes that were held.

    With `is_late`, the row is that of a held change.
    """
    cause = held.cause if is_late else why.cause
    folded = why.folded + held.folded - is_late
    return Why(cause, folded, why.is_event, held.seen | why.seen)
