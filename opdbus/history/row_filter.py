"""Filters of history rows, their queries, and former states of objects.

Rows are ordered by number, which is the order of events whatever the clock was, and are read in
parts of bounded work, so that other readers do not wait.
"""

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, get_args

from opdbus.errors import InvalidArgs
from opdbus.history.change import FIRST, ChangeType, FieldChange, from_json, take_severity, undone
from opdbus.history.ledger import BLOCK, UNCHECKED
from opdbus.platform.slices import slices
from opdbus.state.conditions import AllOf, Condition
from opdbus.state.fields import IDENTITY
from opdbus.state.object import Identity, Json, ObjectId, canonical

# Larger than any number or time in the database.
MAX_INT64: Final = (1 << 63) - 1
KINDS: Final[Sequence[str]] = get_args(ChangeType)
# Prefixes that limit a condition to one side of a change.
SIDES: Final = ("before", "after")
# Row numbers that one read covers, some milliseconds of work: without objects, and with.
_SCANNED: Final = 8192
_LOOKED_UP: Final = 1 << 18
# The most rows of one read; each may have 256 KiB.
_AT_A_TIME: Final = 256
_LAST_UNREDACTED: Final = (
    f"SELECT ifnull(max(CAST(value AS INTEGER)), 0) FROM facts WHERE name = '{UNCHECKED}'"  # noqa: S608 -- our own name
)
# The clock may have been set back: a later block may have an earlier time.
_OF_TIMES: Final = (
    f"SELECT min(block) * {BLOCK}, (max(block) + 1) * {BLOCK} FROM history_times"  # noqa: S608 -- our own constant
    " WHERE latest >= ? AND earliest < ?"
)
_THINGS: Final = """
SELECT json_group_array(json_array(plugin, kind, name)) FROM (
    SELECT DISTINCT plugin, kind, name FROM history INDEXED BY history_by_thing
    WHERE (plugin, kind, name) > (?, ?, ?) ORDER BY plugin, kind, name LIMIT ?)
"""
_THINGS_AT_A_TIME: Final = 2000
_STATES: Final = (
    "SELECT source, properties FROM objects WHERE source IN (SELECT value FROM json_each(?))"
    " AND plugin = ? AND kind = ? AND name = ?"
)
_COLUMNS: Final = (
    "seq, at, boot, source, plugin, kind, name, what, cause, fields, folded, moved,"
    " (SELECT text FROM sentences WHERE id = meant.sentence)"
)
_HASHES: Final = "lower(hex(digest)), lower(hex(hash))"
_NO_HASHES: Final = "'', ''"
_OF_THINGS: Final = (
    "(plugin, kind, name) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
    " json_extract(value, '$[2]') FROM json_each(?))"
)
# Changes of the object itself; other rows are about its declaration or about history.
_CHANGES: Final = ("appeared", "changed", "gone")


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions for rows; all must hold.

    `since` (inclusive) and `before` (exclusive) are microseconds since 1970; `after_seq`
    and `before_seq` are exclusive row numbers. `cause` matches the beginning of a cause.
    """

    since: int = 0
    before: int = MAX_INT64
    after_seq: int = 0
    before_seq: int = MAX_INT64
    cause: str = ""
    what: str = ""
    plugin: str = ""
    kind: str = ""
    # only rows of these objects; None for all
    object_ids: Collection[ObjectId] | None = None
    where: Sequence[Condition] = ()
    is_oldest_first: bool = False
    # False leaves out objects of a first listing, which are no changes
    has_first: bool = True
    # True reads the hashes of rows as well
    has_hashes: bool = False

    def __post_init__(self) -> None:
        """Check `what`; raise InvalidArgs if it is unknown."""
        if self.what and self.what not in KINDS:
            raise InvalidArgs(f"nothing is recorded as {self.what!r}; there are {', '.join(KINDS)}")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of history; `at` is in microseconds since 1970.

    `text_distance` is the cosine distance of the object's texts before and after, None if unknown.
    """

    seq: int
    at: int
    boot: str
    identity: Identity
    change_type: str
    cause: str
    fields: Sequence[FieldChange]
    coalesced_count: int
    text_distance: float | None
    sentence: str
    # characters of its fields as JSON
    size: int = 0
    # of the worst field of drift; empty for other rows, and where it is not kept
    severity: str = ""
    # in hexadecimal: the digest of its values, and the hash of the row; empty unless requested
    digest: str = ""
    hash: str = ""

    def hashed(self) -> str:
        """Return what the row's hash covers besides the hash before; its digest must be known."""
        why = (self.change_type, self.cause, self.coalesced_count)
        return canonical([self.seq, self.at, self.boot, *self.identity, *why, self.digest])


class Clause(NamedTuple):
    """SQL that is true of rows of the table `history`, and the values of its parameters."""

    sql: str
    values: Sequence[str | int]


class Part(NamedTuple):
    """Rows of one read, and the row numbers that remain to be read."""

    rows: Sequence[Row]
    rest: range


class Present(NamedTuple):
    """The present states of an object by source, and the numbers of all kept rows.

    `first_at` is the time of the first of these rows; MAX_INT64 without rows.
    """

    states: Mapping[str, dict[str, Json]]
    numbers: range
    first_at: int


class Reader:
    """History through a read connection; for one thread at a time."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def last_unredacted_seq(self) -> int:
        """Return the last row that may have values that are secret by the present rules.

        Rows up to it are hidden: another version wrote them, and they are still to be redacted.
        """
        return self._one(_LAST_UNREDACTED)

    def span(self) -> range:
        """Return the numbers of all kept rows without the hidden ones."""
        first = self._one("SELECT min(seq) FROM history WHERE seq > ?", self.last_unredacted_seq())
        last = self._one("SELECT max(seq) FROM history")
        return range(first, last + 1) if first else range(0)

    def hidden(self) -> range:
        """Return the numbers of kept rows that are hidden until they are redacted.

        They can be erased nevertheless.
        """
        last = self.last_unredacted_seq()
        first = self._one("SELECT min(seq) FROM history WHERE seq <= ?", last)
        return range(first, last + 1) if first else range(0)

    def candidate_range(self, wanted: Filter) -> range:
        """Return a range that includes every matching row, from the times of whole blocks."""
        kept, times = self.span(), (wanted.since, wanted.before)
        begin, end = self._database.execute(_OF_TIMES, times).fetchone()
        if begin is None:
            return range(0)
        first = max(kept.start, wanted.after_seq + 1, begin)
        return range(first, max(first, min(kept.stop, wanted.before_seq, end)))

    def rows(self, wanted: Filter, numbers: range) -> Part:
        """Return the next matching rows in a range of numbers, in the order of the filter."""
        sql, values = clause(wanted)
        index = "NOT INDEXED" if wanted.object_ids is None else "INDEXED BY history_by_thing"
        order = "ASC" if wanted.is_oldest_first else "DESC"
        found = self._rows(
            f"{index} WHERE seq BETWEEN ? AND ? AND {sql} ORDER BY seq {order} LIMIT ?",
            (numbers.start, numbers.stop - 1, *values, _AT_A_TIME),
            _HASHES if wanted.has_hashes else _NO_HASHES,
        )
        holds = predicate(wanted)
        rest = range(0)
        if len(found) == _AT_A_TIME:
            last = found[-1].seq
            ahead = (last + 1, numbers.stop) if wanted.is_oldest_first else (numbers.start, last)
            rest = range(*ahead)
        return Part([row for row in found if holds(row)], rest)

    def rows_by_seq(self, numbers: Sequence[int]) -> list[Row]:
        """Return the kept rows of some numbers, in ascending order."""
        return self._rows(
            "WHERE seq IN (SELECT value FROM json_each(?)) AND seq > ? ORDER BY seq",
            (json.dumps(list(numbers)), self.last_unredacted_seq()),
        )

    def newest(self, object_id: ObjectId, limit: int, since: int = 0) -> list[Row]:
        """Return the newest rows about an object since a time, the newest first."""
        return self._rows(
            "WHERE plugin = ? AND kind = ? AND name = ? AND at >= ? AND seq > ?"
            " ORDER BY seq DESC LIMIT ?",
            (*object_id, since, self.last_unredacted_seq(), limit),
        )

    def sources(self, object_id: ObjectId) -> list[str]:
        """Return the sources that reported an object."""
        rows = self._database.execute(
            "SELECT DISTINCT source FROM history WHERE plugin = ? AND kind = ? AND name = ?",
            object_id,
        )
        return [source for (source,) in rows]

    def has_kind(self, plugin: str, kind: str) -> bool:
        """Return whether there is a row of a plugin and kind; an empty name matches any."""
        wanted = {column: name for column, name in (("plugin", plugin), ("kind", kind)) if name}
        where = " AND ".join(["TRUE", *(f"{column} = ?" for column in wanted)])
        # without a plugin, the index is read to its end: a tenth of a second for a million rows
        rows = f"SELECT 1 FROM history INDEXED BY history_by_thing WHERE {where} LIMIT 1"  # noqa: S608 -- our own columns
        return bool(self._one(rows, *wanted.values()))

    def object_ids(self, after: Sequence[str]) -> list[ObjectId]:
        """Return the next objects that have rows, ordered by plugin, kind and name.

        `after` is the last object of the page before.
        """
        (found,) = self._database.execute(_THINGS, (*after, _THINGS_AT_A_TIME)).fetchone()
        return [ObjectId(*row) for row in json.loads(found)]

    def present(self, object_id: ObjectId, sources: Collection[str]) -> Present:
        """Return the present states of an object by source, and the row numbers of that moment."""
        self._database.execute("BEGIN")
        try:
            states = self._database.execute(
                _STATES, (json.dumps([*sources]), *object_id)
            ).fetchall()
            numbers = self.span()
            of_first = "SELECT at FROM history WHERE seq = ?"
            first_at = self._one(of_first, numbers.start, default=MAX_INT64)
        finally:
            self._database.execute("COMMIT")
        return Present({source: json.loads(text) for source, text in states}, numbers, first_at)

    def _rows(self, which: str, values: Sequence[str | int], hashes: str = _NO_HASHES) -> list[Row]:
        # one SQL row: see FullText
        (found,) = self._database.execute(
            f"SELECT json_group_array(json_array({_COLUMNS}, {hashes}))"  # noqa: S608 -- our own constants
            f" FROM (SELECT * FROM history {which}) AS meant",
            values,
        ).fetchone()
        rows = []
        for *row, digest, own_hash in json.loads(found):
            seq, at, boot, *names, what, cause, text, folded, moved, said = row
            (fields, severity), sentence = take_severity(json.loads(text)), said or ""
            change = (what, cause, from_json(fields), folded, moved, sentence)
            after = (len(text), severity, digest, own_hash)
            rows.append(Row(seq, at, boot, Identity(*names), *change, *after))
        return rows

    def _one(self, sql: str, *values: int | str, default: int = 0) -> int:
        row = self._database.execute(sql, values).fetchone()
        return default if row is None or row[0] is None else int(row[0])


def read_ranges(wanted: Filter, numbers: range) -> Sequence[range]:
    """Divide row numbers into ranges of one read each, in reading order."""
    size = _SCANNED if wanted.object_ids is None else _LOOKED_UP
    found = list(slices(numbers, size))
    return found if wanted.is_oldest_first else found[::-1]


def clause(wanted: Filter) -> Clause:
    """Return SQL that is true of the rows that match a filter; `predicate` checks the rest."""
    tests: list[tuple[str, Sequence[str | int]]] = [
        ("at >= ? AND at < ?", (wanted.since, wanted.before)),
        ("seq > ? AND seq < ?", (wanted.after_seq, wanted.before_seq)),
    ]
    # unary + prevents the use of an index in another order
    tests += [
        (f"+{column} = ?", (value,))
        for column in ("what", "plugin", "kind")
        if (value := getattr(wanted, column))
    ]
    for condition in wanted.where:
        if condition.field.lower() not in IDENTITY:
            side, _, name = condition.field.partition(".")
            of_side = replace(condition, field=name) if name and side in SIDES else condition
            tests += [("fields LIKE ? ESCAPE '\\'", [text]) for text in of_side.patterns]
    if cause := wanted.cause:
        tests.append(("substr(cause, 1, length(?)) = ?", (cause, cause)))
        if cause[-1].isdigit():
            # `job:47` does not match `job:4711 start`
            ends = "substr(cause, length(?) + 1, 1) NOT BETWEEN '0' AND '9'"
            tests.append((ends, (cause,)))
    if not wanted.has_first:
        tests.append(("cause <> ?", (FIRST,)))
    if wanted.object_ids is not None:
        tests.append(of_objects(wanted.object_ids))
    return Clause(
        " AND ".join(sql for sql, _ in tests), [value for _, values in tests for value in values]
    )


def of_objects(object_ids: Iterable[ObjectId]) -> Clause:
    """Return SQL that is true of the rows of some objects."""
    return Clause(_OF_THINGS, [json.dumps([[*object_id] for object_id in object_ids])])


def predicate(wanted: Filter) -> Callable[[Row], bool]:
    """Return a function that returns whether a row meets a filter's conditions.

    A condition may hold before or after the change; `before.state` and `after.state` select one
    side.
    """
    if not wanted.where:
        return lambda _: True
    conditions = AllOf(wanted.where)

    def holds(row: Row) -> bool:
        before = {".".join(path): before[0] for path, before, _ in row.fields if before}
        after = {".".join(path): after[0] for path, _, after in row.fields if after}
        return conditions.hold(row.identity, dict(zip(SIDES, (before, after), strict=True)))

    return holds


class StateRewinder:
    """The former states of an object by source, by undoing its changes one after the other."""

    def __init__(self, states: Mapping[str, dict[str, Json]]) -> None:
        self.states = dict(states)
        # the last undone change
        self.last: Row | None = None
        # paths of fields with unknown values, by source
        self._unknown: dict[str, set[tuple[str, ...]]] = {}

    def undo(self, row: Row) -> None:
        """Undo a change; rows must come in the order from the newest to the oldest."""
        if row.change_type not in _CHANGES:
            return
        source, self.last = row.identity.source, row
        if row.change_type == "appeared":
            self.states.pop(source, None)
            self._unknown.pop(source, None)
            return
        known = [field for field in row.fields if field.before is not None]
        self.states[source] = undone(self.states.get(source, {}), known)
        unknown = self._unknown.setdefault(source, set())
        unknown -= {
            path
            for path in unknown
            if any(path[: len(field.path)] == tuple(field.path) for field in known)
        }
        unknown |= {tuple(path) for path, before, _ in row.fields if before is None}

    @property
    def unknown(self) -> list[str]:
        """The dotted paths of fields with unknown values."""
        return sorted({".".join(path) for paths in self._unknown.values() for path in paths})
