"""A change of an object: its kind, cause, and fields before and after. Pure."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Final, Literal, NamedTuple, TypeAlias

from opdbus.state.object import Identity, Json, canonical

# An `event`, such as a restart, changes no field; `drift`, `intended`, `healed` and `undeclared`
# are about a declaration; `forgot` records the erasure of values in other rows.
ChangeType: TypeAlias = Literal[
    "appeared", "changed", "gone", "event", "drift", "intended", "healed", "undeclared", "forgot"
]
# Causes that op-dbus sets itself: the first listing of a source, changes while op-dbus or the host
# was not running, and objects that come or go with their whole source.
FIRST, START, BOOT, SOURCE = "first", "start", "boot", "source"
# After START or BOOT: the change may be from before, since its kind is read at intervals.
UNREAD: Final = "unread"
STATE_FILE: Final = "state file"
# the host did not follow a recent declaration in time
NOT_FOLLOWED: Final = f"{STATE_FILE}:not followed"
# The cause and the object of the event that the host was rebooted.
REBOOT: Final = f"{BOOT}:reboot"
HOST: Final = Identity("live:host", "system", "fact", "kernel")
# The field in which rows about drift keep the severity of the worst field; no object has it.
_SEVERITY: Final = ["drift", "severity"]
# The first words of causes.
CAUSE_TYPES: Final = (
    *("apt", BOOT, "bus", "dpkg", "exit", FIRST, "job", "kernel", "redaction", "reload", "rpm"),
    *(SOURCE, START, STATE_FILE),
)
# Kinds of causes that none of these words begins, and of changes without a cause.
OTHER_CAUSE, NO_CAUSE = "other", "unknown"
# In characters of JSON; larger changes keep only the names of fields.
MAX_VALUES: Final = 256 << 10
MAX_CAUSE: Final = 200


class Cause(NamedTuple):
    """The cause of a change, and the number of other changes that were coalesced into it.

    With `is_event`, the change is recorded even if no field changed. `ignored_fields` were only
    observed again: they are no change. `ended_pid` is the main process of a unit that ended, if
    its end is the cause; the row has it as a field.
    """

    cause: str = ""
    coalesced_count: int = 0
    is_event: bool = False
    ignored_fields: frozenset[str] = frozenset()
    ended_pid: int = 0

    @property
    def fields(self) -> "list[FieldChange]":
        """The fields that a row has besides those that differ."""
        return [FieldChange(("main_pid",), [self.ended_pid], [])] if self.ended_pid else []


def kind_of_cause(cause: str) -> str:
    """Return a cause's first word if CAUSE_TYPES has it, else OTHER_CAUSE or NO_CAUSE."""
    if not cause:
        return NO_CAUSE
    is_of_file = cause.startswith(STATE_FILE)
    word = STATE_FILE if is_of_file else cause.partition(":")[0].partition(" ")[0]
    return word if word in CAUSE_TYPES else OTHER_CAUSE


class FieldChange(NamedTuple):
    """A field by the keys that lead to it; `before` and `after` hold one value or none.

    Both are None if values are not kept.
    """

    path: Sequence[str]
    before: Sequence[Json] | None
    after: Sequence[Json] | None


# The fields of an erased row: one without a name and without values.
NOTHING_KEPT: Final = (FieldChange((), None, None),)
ERASED: Final = "[[[]]]"


class Change(NamedTuple):
    """One change of one entry; `sentence` is its text for search, and may be empty."""

    identity: Identity
    change_type: ChangeType
    why: Cause
    fields: Sequence[FieldChange]
    sentence: str = ""


def differences(
    before: Mapping[str, Json], after: Mapping[str, Json], path: tuple[str, ...] = ()
) -> list[FieldChange]:
    """Return the fields, below `path`, in which two states of an object differ.

    A list is one field.
    """
    if not before:
        # a fast path: thousands of objects come at a time
        return [FieldChange((*path, key), [], [value]) for key, value in sorted(after.items())]
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        # an empty dict is a value itself: fields that enter or leave it change it as a whole
        if isinstance(old, dict) and isinstance(new, dict) and old and new:
            found += differences(old, new, (*path, key))
        elif key not in before or key not in after or not _is_same(old, new):
            sides = ([state[key]] if key in state else [] for state in (before, after))
            found.append(FieldChange((*path, key), *sides))
    return found


def without_values(fields: Sequence[FieldChange]) -> list[FieldChange]:
    """Return the same fields without their values."""
    return [FieldChange(field.path, None, None) for field in fields]


def to_json(fields: Sequence[FieldChange]) -> str:
    """Return fields as canonical JSON: [path, before, after], or [path] without values.

    Values are left out if the text exceeds MAX_VALUES.
    """
    if not fields:
        return "[]"  # a fast path: thousands are listed at a time
    text = canonical([field if field.before is not None else field[:1] for field in fields])
    if len(text) > MAX_VALUES:
        return canonical([field[:1] for field in fields])
    return text


def from_json(rows: Sequence[Sequence[Json]]) -> list[FieldChange]:
    """Return fields from the parsed JSON of `to_json`."""
    return [FieldChange(*row) if len(row) == 3 else FieldChange(row[0], None, None) for row in rows]


def severity_field(word: str) -> FieldChange:
    """Return the field in which a row about drift keeps its severity."""
    return FieldChange(_SEVERITY, [], [word])


def take_severity(rows: Sequence[Sequence[Json]]) -> tuple[Sequence[Sequence[Json]], str]:
    """Split the parsed JSON of `to_json` into all other fields and the severity, if it is kept."""
    if not rows or rows[-1][0] != _SEVERITY:
        return rows, ""
    return rows[:-1], "".join(rows[-1][2]) if len(rows[-1]) == 3 else ""


def undone(state: Mapping[str, Json], fields: Sequence[FieldChange]) -> dict[str, Json]:
    """Return an object as it was before a change; raise KeyError if values were not kept."""
    result = deepcopy(dict(state))
    for path, before, _ in fields:
        if before is None:
            raise KeyError(".".join(path) or "erased")
        inner, (*parents, last) = result, path
        for key in parents:
            below = inner.get(key)
            if not isinstance(below, dict):
                below = inner[key] = {}
            inner = below
        if before:
            inner[last] = before[0]
        else:
            inner.pop(last, None)
    return result


def _is_same(old: Json, new: Json) -> bool:
    """Return whether values are equal in JSON: true is not 1, and 1 is not 1.0."""
    if old != new or type(old) is not type(new):
        return False
    # nested values may still differ in type
    return not isinstance(old, list | dict) or canonical(old) == canonical(new)
