"""A change of an object: what it was, why, and the fields before and after. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from opdbus.state.object import Identity, Json, canonical

# An `event` left no field changed, such as a restart; `drift`, `intended`, `healed` and
# `undeclared` are about a declaration; `forgot` says that values of other rows were erased.
What: TypeAlias = Literal[
    "appeared", "changed", "gone", "event", "drift", "intended", "healed", "undeclared", "forgot"
]
# The causes that no source of changes gives: the first listing of a source, what changed while
# op-dbus or the host was not running, and objects that come or leave with all of their source.
FIRST, START, BOOT, SOURCE = "first", "start", "boot", "source"
STATE_FILE: Final = "state file"
# what the file declared lately is not so, and the time for that is over
NOT_FOLLOWED: Final = f"{STATE_FILE}:not followed"
# What causes begin with.
SORTS_OF_CAUSES: Final = (
    *("apt", BOOT, "bus", "dpkg", "exit", FIRST, "job", "kernel", "redaction", "reload", "rpm"),
    *(SOURCE, START, STATE_FILE),
)
# In bytes as JSON; of larger changes only the names of the fields are kept.
MAX_VALUES: Final = 256 << 10
MAX_CAUSE: Final = 200


class Why(NamedTuple):
    """Why an object changed: the cause, and how many other changes of it this one stands for.

    An event is recorded although it may have left all fields as they were. Fields that were only
    `seen` to be so are no change.
    """

    cause: str = ""
    folded: int = 0
    is_event: bool = False
    seen: frozenset[str] = frozenset()


class FieldChange(NamedTuple):
    """A field by the keys that lead to it; `before` and `after` hold its value, if it had one.

    Both are None where values are not kept.
    """

    path: Sequence[str]
    before: Sequence[Json] | None
    after: Sequence[Json] | None


# The fields of a row whose values were erased: one without a name, and without values.
NOTHING_KEPT: Final = (FieldChange((), None, None),)
ERASED: Final = "[[[]]]"


class Change(NamedTuple):
    """One change of one entry. `sentence` says it in words, for search; it may be empty."""

    identity: Identity
    what: What
    why: Why
    fields: Sequence[FieldChange]
    sentence: str = ""


def differences(
    before: Mapping[str, Json] | None, after: Mapping[str, Json] | None
) -> list[FieldChange]:
    """Return the fields in which two states of an object differ; a list is one field."""
    if not before:
        # thousands come at a time
        return [FieldChange((key,), [], [value]) for key, value in sorted((after or {}).items())]
    return list(_differences(before or {}, after or {}, ()))


def without_values(fields: Sequence[FieldChange]) -> list[FieldChange]:
    """Return the same fields by their names alone."""
    return [FieldChange(field.path, None, None) for field in fields]


def to_json(fields: Sequence[FieldChange]) -> str:
    """Write fields as canonical JSON: [path, before, after], or [path] where values are not kept.

    What is too large is written without its values.
    """
    if not fields:
        return "[]"  # thousands are listed at a time
    text = canonical([field if field.before is not None else field[:1] for field in fields])
    if len(text) > MAX_VALUES:
        return canonical([field[:1] for field in fields])
    return text


def from_json(rows: Sequence[Sequence[Json]]) -> list[FieldChange]:
    """Read what `to_json` wrote, as parsed JSON."""
    return [FieldChange(*row) if len(row) == 3 else FieldChange(row[0], None, None) for row in rows]


def undone(state: Mapping[str, Json], fields: Sequence[FieldChange]) -> dict[str, Json]:
    """Return an object as it was before a change; raises KeyError if values were not kept."""
    result = _copied(state)
    for field in fields:
        if field.before is None:
            raise KeyError(".".join(field.path) or "erased")
        _set(result, field.path, field.before)
    return result


def _copied(value: Mapping[str, Json]) -> dict[str, Json]:
    return {k: _copied(v) if isinstance(v, dict) else v for k, v in value.items()}


def _set(state: dict[str, Json], path: Sequence[str], value: Sequence[Json]) -> None:
    """Set a field to the one value, or remove it."""
    *parents, last = path
    for key in parents:
        inner = state.get(key)
        if not isinstance(inner, dict):
            inner = state[key] = {}
        state = inner
    if value:
        state[last] = value[0]
    else:
        state.pop(last, None)


def _differences(
    before: Mapping[str, Json], after: Mapping[str, Json], path: tuple[str, ...]
) -> Iterator[FieldChange]:
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        # an empty dict is a value, one that fields come into or leave is not
        if isinstance(old, dict) and isinstance(new, dict) and old and new:
            yield from _differences(old, new, (*path, key))
        elif key not in before or key not in after or not _is_same(old, new):
            yield FieldChange(
                (*path, key), [old] if key in before else [], [new] if key in after else []
            )


def _is_same(old: Json, new: Json) -> bool:
    """Compare as JSON does: true is not 1, and 1 is not 1.0."""
    if old != new or type(old) is not type(new):
        return False
    # what is in a list may still differ so
    return not isinstance(old, list | dict) or canonical(old) == canonical(new)
