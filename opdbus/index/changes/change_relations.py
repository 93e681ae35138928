"""Relations of two changes, by the names of their objects and by their causes. Pure."""

import math
import re
from collections.abc import Container, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from opdbus.history import event_questions, jobs
from opdbus.history.acts import FAILURE
from opdbus.history.change import BOOT, FIRST, SOURCE, START
from opdbus.history.row_filter import Row
from opdbus.index.changes.connections import LISTENER, MOUNT, Connections
from opdbus.index.query.config_mentions import bare_name
from opdbus.language.object_text import DESCRIBING
from opdbus.state.fields import split
from opdbus.state.object import UNIT, Json, ObjectId, canonical

# Relation of two changes: of the same object; one names the other's object; of the same cause.
# Changes of the object itself are likely known already, so they weigh less than a name.
SAME: Final = 0.6
NAMED: Final = 0.8
CAUSED: Final = 0.5
# Settings that concern the whole host may have led to any event.
HOST: Final = 0.35
# A failing unit's own run, and changes of related units that are no harm.
_SYMPTOM: Final = 0.2
_USUAL: Final = 0.4
_FOR_ALL: Final = frozenset(
    (
        *(("kernel", kind) for kind in ("sysctl", "module")),
        *(("net", kind) for kind in ("interface", "address", "route")),
        ("system", "fact"),
    )
)
_FILES_FOR_ALL: Final = frozenset(
    f"/etc/{name}"
    for name in "hosts resolv.conf nsswitch.conf passwd group fstab ld.so.conf localtime".split()
)
_SYSCTL: Final = ("kernel", "sysctl")
# Fields about a unit's run, not its configuration.
_OF_A_RUN: Final = frozenset(
    "active_state sub_state result exit_status exit_signal restart_loop triggered_by".split()
)
# How a process ended, but for systemd's word that it gave up.
_OF_AN_END: Final = frozenset(("result", "exit_status", "exit_signal"))
_GAVE_UP: Final = "start-limit-hit"
_STARTED: Final = frozenset(("started", "restarted"))
# A failure within this many microseconds of a start belongs to that start.
_AT_ONCE: Final = 10 * 1_000_000
# Microseconds by which a full file system, and a port, may be observed late.
MOST_LATE: Final = 60 * 1_000_000
_PORTS_LATE: Final = 5 * 1_000_000
# Microseconds by which the last lines of a unit that failed may be read late.
_LINES_LATE: Final = 10 * 1_000_000
_HARM: Final = frozenset("failed stopped removed masked disabled".split())
_HARM_OF_MOUNT: Final = frozenset("filled removed unmounted read-only failed".split())
_NAME = re.compile(r"[^\W_][\w@.+:-]*")
# Keys of free text, whose words are not names.
_TEXTS: Final = frozenset(DESCRIBING)
# Shorter names, and names that many objects have, are ordinary words in other objects.
_SHORTEST: Final = 3
_ORDINARY: Final = frozenset(
    "fact hostname hardware kernel locale os time root user users"
    " bin etc games lib local mail man news opt sbin share srv sys system tmp usr var".split()
)
# Causes that unrelated changes share.
_COMMON: Final = frozenset(("", "exit", "kernel", "reload", BOOT, FIRST, SOURCE, START))


def called(object_id: ObjectId) -> AbstractSet[str]:
    """Return an object's names in lower case: full, without folder, suffix and instance."""
    name = object_id.name.lower()
    last = name.rpartition("/")[2] if name.startswith("/") else name.partition(" ")[0]
    bare = bare_name(last)
    return {form for form in (name, last, bare, bare.partition("@")[0]) if form}


def relation(row: Row, other: Row, connected: Container[ObjectId]) -> float:
    """Return the strength of the relation of two changes, 0 if none is found.

    `connected` are the objects now connected with that of `other`. Objects that are gone, and those
    without a field for the connection, are related by names.
    """
    one, two = row.identity.object_id, other.identity.object_id
    if one == two:
        return SAME
    if one in connected or _own_names(one) & _names_in(other) or _own_names(two) & _names_in(row):
        return NAMED
    cause = jobs.alone(row.cause)
    is_same = cause == jobs.alone(other.cause) and cause.partition(":")[0] not in _COMMON
    return CAUSED if is_same else 0.0


def likelihood(row: Row, event: Row, connected: Connections) -> float:
    """Return the likelihood, 0 to 1, that a change led to an event.

    Depends on the relation of the two and on the kind of change. A unit's own run while it fails,
    and harmless changes of connected units, count little.
    """
    object_id, of = row.identity.object_id, event.identity.object_id
    if object_id == ObjectId(*FAILURE, of.name):
        return 1.0
    related, happened = relation(row, event, connected), set(event_questions.happened(row.sentence))
    if not related:
        is_for_all = object_id[:2] in _FOR_ALL or object_id.name in _FILES_FOR_ALL
        return HOST if is_for_all else 0.0
    if object_id[:2] == _SYSCTL and not _own_names(object_id) & _names_in(event):
        return HOST
    if connected.mentions.is_of_need(object_id):
        return SAME
    if object_id[:2] == UNIT:
        is_of_run = all(field.path[0] in _OF_A_RUN for field in row.fields if field.path)
        is_other = not is_of_run and row.change_type == "changed"
        if object_id == of:
            return NAMED if is_other else _SYMPTOM if is_of_run else _USUAL
        return related if is_other or happened & _HARM else min(related, _USUAL)
    # a closed port is a result of a failure, not its cause
    if object_id[:2] == LISTENER and (row.change_type == "gone" or _is_own(row, of.name)):
        return _SYMPTOM
    if object_id[:2] == MOUNT and not happened & _HARM_OF_MOUNT:
        return 0.0
    return related


def is_harm(row: Row) -> bool:
    """Return whether a unit failed, stopped, or can no longer be started."""
    return row.identity[1:3] == UNIT and bool(
        _HARM.intersection(event_questions.happened(row.sentence))
    )


def is_seen_late(row: Row, event: Row) -> bool:
    """Return whether a row after an event may have happened before it but was observed late.

    File systems are read once a minute, and ports and last lines soon after a unit has changed.
    """
    kind_id, happened = row.identity[1:3], event_questions.happened(row.sentence)
    if kind_id == FAILURE:
        return row.identity.name == event.identity.name and row.at <= event.at + _LINES_LATE
    if kind_id == MOUNT:
        return "filled" in happened
    is_soon = row.at <= event.at + _PORTS_LATE and row.change_type == "appeared"
    return kind_id == LISTENER and is_soon and not _is_own(row, event.identity.name)


def closeness(row: Row, event: Row, within: int) -> float:
    """Return the closeness in time of a row before an event, 0 to 1, on a logarithmic scale.

    `within` is in microseconds.
    """
    seconds, most = ((each / 1e6) for each in (max(0, event.at - row.at), within))
    return max(0.0, 1 - math.log1p(seconds) / math.log1p(most))


def last_start(event: Row, rows: Sequence[Row]) -> int:
    """Return the number of the row of a unit's last good start before an event, 0 if none.

    `rows` are newest first. A start with a failure within `_AT_ONCE` is not a good one.
    """
    failed_at = event.at
    for row in rows:
        if row.identity[1:] == event.identity[1:]:
            said = event_questions.happened(row.sentence)
            if "failed" in said:
                failed_at = row.at
            elif is_start(row) and failed_at - row.at > _AT_ONCE:
                return row.seq
    return 0


def end_of(row: Row) -> Mapping[str, Json]:
    """Return the fields of a row about how a unit's process ended; giving up is no end."""
    ends = {
        field.path[0]: field.after[0]
        for field in row.fields
        if len(field.path) == 1 and field.path[0] in _OF_AN_END and field.after
    }
    return {} if ends.get("result") == _GAVE_UP else ends


def is_start(row: Row) -> bool:
    """Return whether a known unit was started, other than automatically after a failure."""
    said = event_questions.happened(row.sentence)
    is_by_itself = "failed" in said or jobs.act(row.cause) == "exit"
    return row.change_type != "appeared" and not is_by_itself and bool(_STARTED.intersection(said))


def _is_own(row: Row, unit: str) -> bool:
    """Return whether a port belonged to a unit on each side of a change on which it existed."""
    fields = (field for field in row.fields if list(field.path) == ["unit"])
    sides = [side[0] for field in fields for side in (field.before, field.after) if side]
    return bool(sides) and all(unit in str(side).split(", ") for side in sides)


def _own_names(object_id: ObjectId) -> AbstractSet[str]:
    return {name for name in called(object_id) if len(name) >= _SHORTEST} - _ORDINARY


def _names_in(row: Row) -> AbstractSet[str]:
    """Return the names in a row: of its object, and in the values of fields without free text."""
    fields = (each for each in row.fields if "".join(split("".join(each.path[-1:]))) not in _TEXTS)
    values = canonical([[*(each.before or ()), *(each.after or ())] for each in fields])
    found = _NAME.findall(f"{row.identity.name} {values}".lower())
    words = {word.strip(".:-") for word in found}
    bare = {bare_name(word.removesuffix(".d")) for word in words}
    return words | bare | called(row.identity.object_id)
