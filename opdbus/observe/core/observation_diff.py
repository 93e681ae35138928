"""Differences of a report to the report before: what is stored now, coalesced, or dropped."""

import marshal
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal, NamedTuple, TypeAlias

from opdbus.errors import InvalidArgs
from opdbus.history import jobs
from opdbus.history.change import Cause
from opdbus.observe.core.changes_per_hour import COALESCE_RUNS_SECONDS, RUNS, ChangesPerHour
from opdbus.observe.core.report import Batch, Key, Observer
from opdbus.state import publish
from opdbus.state.object import Identity, Json, StateObject, digest

# `written` and `event` become rows; `coalesced` is counted in a later row.
Disposition: TypeAlias = Literal["written", "event", "coalesced", "nothing"]
# Checked before redaction, which is slow; never below the storage limit.
_MAX_BYTES_OF_OBJECT: Final = 4 * publish.MAX_BYTES
# Size limit of all objects of an observer, as JSON: far more than a sane host has.
_MAX_BYTES: Final = 64 << 20


class SeenObject(NamedTuple):
    """The last report of an object, with hashes of its fields instead of their values.

    `stored` are the hashes of the stored state, written at `stored_at`; `latest` those of the last
    report. While changes wait, `pending_cause` has their cause and number, and `pending_properties`
    the properties to be stored later.
    """

    identity: Identity
    stored: Mapping[str, bytes]
    latest: Mapping[str, bytes]
    stored_at: float
    size: int
    pending_cause: Cause = Cause()
    pending_properties: Mapping[str, Json] | None = None


@dataclass(slots=True)
class PreparedWrite:
    """A batch as the state store takes it, and the state to remember once it is stored."""

    # the fields of a kind that change all the time
    noisy_fields: Callable[[str], frozenset[str]]
    # names in use, and total bytes, once this is stored
    name_owners: dict[Identity, Key]
    size: int
    # objects that do not stay
    removed_keys: set[Key] = field(default_factory=set)
    objects: list[StateObject] = field(default_factory=list)
    volatile: dict[Identity, Mapping[str, Json]] = field(default_factory=dict)
    seen: dict[Key, SeenObject] = field(default_factory=dict)
    rejected: dict[Key, str] = field(default_factory=dict)
    runs: list[Key] = field(default_factory=list)
    removed_identities: set[Identity] = field(default_factory=set)
    # causes of changes, and of events that changed no field
    whys: dict[Identity, Cause] = field(default_factory=dict)
    events: dict[Identity, Cause] = field(default_factory=dict)
    # counted runs that came before what else happened: rows of their own
    earlier_runs: dict[Identity, Cause] = field(default_factory=dict)


class ReportTracker:
    """Last reported state of an observer's objects; call from one thread at a time."""

    def __init__(
        self, observer: Observer, changes: ChangesPerHour, count_objects: Callable[[str], int]
    ) -> None:
        """Take the counts of field changes, and a function that counts the objects of a kind."""
        self._observer = observer
        self._changes = changes
        self._count_objects = count_objects
        # never leaves this process
        self._hash_key = secrets.token_bytes(16)
        self._seen: dict[Key, SeenObject] = {}
        # objects with changes that are stored later
        self._pending_keys: set[Key] = set()
        # After redaction two names may be equal; the first object keeps the name.
        self._name_owners: dict[Identity, Key] = {}
        self._rejected: dict[Key, str] = {}
        self._size = 0

    @property
    def rejected(self) -> str:
        """The objects that are not stored, and the reasons; empty if there are none."""
        if not self._rejected:
            return ""
        which = (
            "an object was" if len(self._rejected) == 1 else f"{len(self._rejected)} objects were"
        )
        return f"{which} left out: {next(iter(self._rejected.values()))}"

    @property
    def seconds_until_due(self) -> float | None:
        """The seconds until the first pending change is due; None if there is none."""
        due = min(map(self._due, self._pending_keys), default=None)
        return None if due is None else due - self._changes.clock()

    def prepare(
        self, batch: Batch, earlier: Collection[Identity], default_cause: Callable[[str], str]
    ) -> PreparedWrite:
        """Make the objects and events to store from the differences to the last report.

        Objects stored from `earlier` that are missing are gone; `default_cause` gives, by kind, the
        cause of new objects that have none of their own.
        """
        noisy_fields = cache(
            lambda kind: self._changes.noisy_fields(kind, self._count_objects(kind))
        )
        new = PreparedWrite(noisy_fields, dict(self._name_owners), self._size)
        now = self._changes.clock()
        objects = {
            key: self._seen[key].pending_properties
            for key in self._pending_keys
            if self._due(key) <= now
        }
        for kind, states in batch.kinds.items():
            objects.update((Key(kind, name), state) for name, state in states.items())
        new.rejected.update((k, why) for k, why in self._rejected.items() if k not in objects)
        for key in (key for key, properties in objects.items() if properties is None):
            self._remove(new, key)
            new.removed_identities.add(self._identity(key))
        for key, properties in objects.items():
            why = self._why(batch, key, default_cause)
            if properties is not None:
                self._add(new, key, properties, why)
            elif (
                why.coalesced_count and key not in self._seen
            ):  # it came and left between two writes
                new.events[self._identity(key)] = why
        for key in new.removed_keys:
            seen = _take_runs(new, self._seen[key], batch.whys.get(key, Cause()))
            new.removed_identities.add(seen.identity)
            new.whys[seen.identity] = add_pending(
                seen.pending_cause, self._why(batch, key, default_cause)
            )
        for key, why in batch.events.items():
            identity = self._identity(key)
            more = new.events[identity].coalesced_count + 1 if identity in new.events else 0
            new.events[identity] = why._replace(
                cause=why.cause or default_cause(key.kind),
                coalesced_count=why.coalesced_count + more,
            )
        new.removed_identities = new.removed_identities.union(earlier) - new.name_owners.keys()
        self._rejected = new.rejected
        return new

    def remember_runs(self, new: PreparedWrite) -> None:
        """Take in that the earlier runs were stored."""
        for key, seen in self._seen.items() if new.earlier_runs else ():
            if seen.identity in new.earlier_runs:
                self._seen[key] = seen._replace(pending_cause=_without_runs(seen.pending_cause))

    def remember(self, new: PreparedWrite) -> None:
        """Take in what was stored."""
        for key in new.removed_keys:
            del self._seen[key]
        self._changes.forget(new.removed_keys)
        self._changes.reports += len(new.seen) + len(new.removed_keys)
        self._changes.delayed += sum(
            seen.pending_properties is not None for seen in new.seen.values()
        )
        for key in new.runs:
            self._changes.note(key, [RUNS])
        for key, seen in new.seen.items():
            if key in self._seen:
                fields = self._changed(key, seen.latest)
                self._changes.note(key, fields, is_deferred=seen.pending_properties is not None)
        self._pending_keys -= new.removed_keys | new.seen.keys()
        self._pending_keys |= {
            key for key, seen in new.seen.items() if seen.pending_properties is not None
        }
        self._seen |= new.seen
        self._name_owners, self._size = new.name_owners, new.size

    def _identity(self, key: Key) -> Identity:
        seen = self._seen.get(key)
        return seen.identity if seen else self._observer.identity(key)

    def _remove(self, new: PreparedWrite, key: Key) -> None:
        if before := self._seen.get(key):
            new.removed_keys.add(key)
            new.name_owners.pop(before.identity, None)
            new.size -= before.size

    def _due(self, key: Key, *, runs: bool = False) -> float:
        """Return when the next row of an object with only runs or noisy changes is due."""
        seen = self._seen[key]
        is_of_runs = runs or is_run(seen.pending_cause)
        return seen.stored_at + (
            COALESCE_RUNS_SECONDS if is_of_runs else self._changes.coalesce_seconds
        )

    def _changed(self, key: Key, hashes: Mapping[str, bytes]) -> frozenset[str]:
        """Return the fields of an object, without volatile ones, that differ from the last."""
        volatile = self._observer.volatile.get(key.kind, frozenset())
        return differing(self._seen[key].latest, hashes) - volatile

    def _why(self, batch: Batch, key: Key, default_cause: Callable[[str], str]) -> Cause:
        """Return why an object changed.

        If the first coalesced state equals the last report, do not count it.
        """
        why, before = batch.whys.get(key, Cause()), self._seen.get(key)
        if before is None:
            return why._replace(cause=why.cause or default_cause(key.kind))
        first = batch.firsts.get(key)
        with suppress(InvalidArgs):
            if first is not None:
                hashes = hash_fields(first, self._hash_key)
                if not self._changed(key, hashes) - why.ignored_fields:
                    return why._replace(coalesced_count=why.coalesced_count - 1)
        return why

    def _add(
        self, new: PreparedWrite, key: Key, properties: Mapping[str, Json], why: Cause
    ) -> None:
        """Add an object to a batch if it differs; if it cannot be stored, it is left out."""
        try:
            self._stage(new, key, properties, why)
        except InvalidArgs as error:
            new.rejected[key] = str(error)
        except Exception as error:  # noqa: BLE001 -- one that is not sane costs only itself
            new.rejected[key] = f"it cannot be read ({type(error).__name__})"
        if key in new.rejected:  # its stored state is out of date
            self._remove(new, key)

    def _stage(
        self, new: PreparedWrite, key: Key, properties: Mapping[str, Json], why: Cause
    ) -> None:
        before, hashes = self._seen.get(key), hash_fields(properties, self._hash_key)
        volatile = self._observer.volatile.get(key.kind, frozenset())
        why = why._replace(
            ignored_fields=why.ignored_fields | self._observer.derived.get(key.kind, frozenset())
        )
        disposition: Disposition = "written"
        now = self._changes.clock()
        if before:
            if why.is_event or self._changed(key, hashes):
                before = _take_runs(new, before, why)
            deferrable = frozenset[str]() if self._due(key) <= now else new.noisy_fields(key.kind)
            if is_run(why):
                new.runs += [key] * (1 + why.coalesced_count)
            often = self._changes.runs_often(key) and self._due(key, runs=True) > now
            disposition, why = classify(before, hashes, why, volatile, deferrable, runs_often=often)
            if disposition == "nothing" and hashes == before.latest:
                return
        item = publish.make_object(*self._identity(key), properties)
        size = len(item.name) + len(item.json())
        _reserve(new, key, item.identity, size - (before.size if before else 0))
        seen = SeenObject(item.identity, hashes, hashes, now, size)
        if before and disposition in {"coalesced", "nothing"}:
            seen = seen._replace(
                stored=before.stored, stored_at=before.stored_at, pending_cause=why
            )
        new.seen[key] = seen._replace(
            pending_properties=properties if seen.pending_cause.coalesced_count else None
        )
        fields = item.properties.items()
        if volatile:
            new.volatile[item.identity] = {k: value for k, value in fields if k in volatile}
        if disposition == "written":
            lasting = {k: value for k, value in fields if k not in volatile}
            new.objects.append(StateObject(item.identity, lasting))
            new.whys[item.identity] = why
        elif disposition == "event":
            new.events[item.identity] = why


def _reserve(new: PreparedWrite, key: Key, identity: Identity, more: int) -> None:
    """Reserve a name and `more` bytes; raise InvalidArgs if one of them is not available."""
    if new.name_owners.get(identity, key) != key:
        raise InvalidArgs(f"after redaction its name equals that of another {identity.kind}")
    if more > 0 and new.size + more > _MAX_BYTES:
        raise InvalidArgs(f"all objects together have more than {_MAX_BYTES >> 20} MiB")
    new.name_owners[identity] = key
    new.size += more


def hash_fields(properties: Mapping[str, Json], key: bytes) -> dict[str, bytes]:
    """Hash each field under a secret key; raise InvalidArgs for an object that is too large."""
    # newer formats of marshal depend on what else refers to a value
    plain = {name: marshal.dumps(value, 2) for name, value in properties.items()}
    if sum(map(len, plain.values())) > _MAX_BYTES_OF_OBJECT:
        raise InvalidArgs(f"it has more than {_MAX_BYTES_OF_OBJECT} bytes of properties")
    return {name: digest(data, key) for name, data in plain.items()}


def differing(some: Mapping[str, bytes], others: Mapping[str, bytes]) -> frozenset[str]:
    """Return the names of the fields that are not the same in both."""
    if some == others:  # most are, and this is much faster
        return frozenset()
    return frozenset(name for name, _ in some.items() ^ others.items())


def is_run(why: Cause) -> bool:
    """Return whether the cause is a job triggered by a timer, socket or path."""
    return why.is_event and why.cause.startswith("job:") and " by " in why.cause


def _is_same_outcome(one: Cause, other: Cause) -> bool:
    """Return whether two runs both succeeded or both failed."""
    return one.cause.endswith(jobs.FAILED) == other.cause.endswith(jobs.FAILED)


def _take_runs(new: PreparedWrite, seen: SeenObject, why: Cause) -> SeenObject:
    """Return an object without its counted runs if something else happens now than such a run."""
    pending = seen.pending_cause
    is_same = is_run(why) and _is_same_outcome(pending, why)
    if not is_run(pending) or is_same:
        return seen
    new.earlier_runs[seen.identity] = Cause(pending.cause, pending.coalesced_count - 1)
    return seen._replace(pending_cause=_without_runs(pending))


def _without_runs(pending: Cause) -> Cause:
    return Cause(ignored_fields=pending.ignored_fields)


def classify(
    before: SeenObject,
    hashes: Mapping[str, bytes],
    why: Cause,
    volatile: frozenset[str],
    deferrable: frozenset[str],
    *,
    runs_often: bool = False,
) -> tuple[Disposition, Cause]:
    """Return the disposition of a report, and the Why of its row, or of pending changes.

    Ignore `volatile` fields; defer changes confined to `deferrable` fields, and runs if
    `runs_often`.
    """
    pending = before.pending_cause
    changed = differing(before.latest, hashes) - volatile
    unstored = differing(before.stored, hashes) - volatile
    is_new = bool(changed or why.coalesced_count or why.is_event)
    if runs_often and is_run(why) and not unstored:
        return "coalesced", why._replace(
            coalesced_count=pending.coalesced_count + why.coalesced_count + 1
        )
    # e.g. the value returned to the stored one
    is_noise = bool(changed or unstored) and changed | unstored <= deferrable
    if is_noise or (deferrable and is_new and not unstored and not why.is_event):
        count = pending.coalesced_count + why.coalesced_count + is_new
        return "coalesced", Cause(
            why.cause or pending.cause,
            count,
            ignored_fields=pending.ignored_fields | why.ignored_fields,
        )
    if unstored:
        return "written", add_pending(pending, why, is_late=not is_new)
    if is_new:
        return "event", add_pending(pending, why)
    if pending.coalesced_count and not deferrable:
        return "event", add_pending(pending, why, is_late=True)
    return "nothing", pending


def add_pending(pending: Cause, why: Cause, *, is_late: bool = False) -> Cause:
    """Return the cause of a row, with the pending changes counted.

    With `is_late`, the row records an earlier deferred change, so its cause is used and it is not
    counted.
    """
    cause = pending.cause if is_late else why.cause
    count = why.coalesced_count + pending.coalesced_count - is_late
    ignored, pid = pending.ignored_fields | why.ignored_fields, 0 if is_late else why.ended_pid
    return Cause(cause, count, why.is_event, ignored, pid)
