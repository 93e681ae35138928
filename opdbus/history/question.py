"""Which rows of history are asked for, and how the database finds them quickly.

Rows are in the order of their numbers, in which they happened whatever the clock said, and are read
in parts of bounded work, so that others read meanwhile.
"""

import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, get_args

from opdbus.errors import InvalidArgs
from opdbus.history.change import FieldChange, What, from_json
from opdbus.state.conditions import AllOf, Condition
from opdbus.state.object import Identity, Json, Thing

# Larger than any number or time in the database.
NEVER: Final = (1 << 63) - 1
KINDS: Final[Sequence[str]] = get_args(What)
# Numbers that one read covers: some milliseconds' work. Where only the rows of some things are
# looked at, and where each row is read as JSON.
_SCANNED: Final = 8192
_LOOKED_UP: Final = 1 << 18
_PARSED: Final = 1024


@dataclass(frozen=True, slots=True)
class Filter:
    """Which rows: each that meets all of it.

    `since` and `before` are microseconds since 1970, `before` itself is not meant; `after` and
    `below` are numbers of rows, which are not meant themselves. A cause is given by its beginning.
    """

    since: int = 0
    before: int = NEVER
    after: int = 0
    below: int = NEVER
    cause: str = ""
    what: str = ""
    plugin: str = ""
    kind: str = ""
    # of these alone; None: of all
    things: Collection[Thing] | None = None
    where: Sequence[Condition] = ()
    is_oldest_first: bool = False

    def __post_init__(self) -> None:
        """Check what is named; raises InvalidArgs."""
        if self.what and self.what not in KINDS:
            raise InvalidArgs(f"nothing is recorded as {self.what!r}; there are {', '.join(KINDS)}")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of history; `at` is in microseconds since 1970.

    `moved` is the cosine distance between the object's texts before and after, None if not known.
    """

    seq: int
    at: int
    boot: str
    identity: Identity
    what: str
    cause: str
    fields: Sequence[FieldChange]
    folded: int
    moved: float | None
    sentence: str


class Clause(NamedTuple):
    """SQL that is true of rows of the table `history`, and the values of its parameters."""

    sql: str
    values: Sequence[str | int]


class Reader:
    """History through a connection that reads; for one thread at a time."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def span(self) -> range:
        """Return the numbers of all rows that are kept."""
        first = self._one("SELECT min(seq) FROM history")
        last = self._one("SELECT max(seq) FROM history")
        return range(first, last + 1) if first and last else range(0)

    def numbers(self, wanted: Filter) -> range:
        """Return numbers outside of which no row is meant; reads only the index of times."""
        kept = self.span()
        first, last = max(kept.start, wanted.after + 1), min(kept.stop, wanted.below) - 1
        if wanted.since:
            first = max(first, self._one(_FIRST_SINCE, wanted.since) or NEVER)
        if wanted.before < NEVER:
            last = min(last, self._one(_LAST_BEFORE, wanted.before) or 0)
        return range(first, max(first, last + 1))

    def rows(self, wanted: Filter, numbers: range, limit: int) -> list[Row]:
        """Return the first rows that are meant and have some of the numbers, in their order."""
        sql, values = clause(wanted)
        index = "NOT INDEXED" if wanted.things is None else "INDEXED BY history_by_thing"
        order = "ASC" if wanted.is_oldest_first else "DESC"
        most = -1 if wanted.where else limit
        # as one row: see Store.match
        (found,) = self._database.execute(
            f"SELECT json_group_array(json_array({_COLUMNS})) FROM (SELECT * FROM history {index}"  # noqa: S608 -- our own constants
            f" WHERE seq BETWEEN ? AND ? AND {sql} ORDER BY seq {order} LIMIT ?) AS meant",
            (numbers.start, numbers.stop - 1, *values, most),
        ).fetchone()
        holds = test(wanted)
        return [row for row in map(_row, json.loads(found)) if holds(row)][:limit]

    def _one(self, sql: str, *values: int) -> int | None:
        found: int | None = self._database.execute(sql, values).fetchone()[0]
        return found


# The clock may have been set: a later row may have an earlier time.
_FIRST_SINCE: Final = "SELECT min(seq) FROM history INDEXED BY history_by_time WHERE at >= ?"
_LAST_BEFORE: Final = "SELECT max(seq) FROM history INDEXED BY history_by_time WHERE at < ?"
_COLUMNS: Final = (
    "seq, at, boot, source, plugin, kind, name, what, cause, fields, folded, moved,"
    " (SELECT text FROM sentences WHERE id = meant.sentence)"
)


def parts(wanted: Filter, numbers: range) -> Sequence[range]:
    """Divide numbers into what is read at a time, in the order in which it is read."""
    size = _PARSED if wanted.where else _SCANNED if wanted.things is None else _LOOKED_UP
    found = [numbers[at : at + size] for at in range(0, len(numbers), size)]
    return found if wanted.is_oldest_first else found[::-1]


def clause(wanted: Filter) -> Clause:
    """Return SQL that is true of the rows that a filter means, but for its conditions."""
    tests: list[tuple[str, Sequence[str | int]]] = [
        ("at >= ? AND at < ?", (wanted.since, wanted.before)),
        ("seq > ? AND seq < ?", (wanted.after, wanted.below)),
    ]
    # the + keeps SQLite from looking these up in an index that has another order
    tests += [
        (f"+{column} = ?", (value,))
        for column in ("what", "plugin", "kind")
        if (value := getattr(wanted, column))
    ]
    if wanted.cause:
        tests.append(_of_cause(wanted.cause))
    if wanted.things is not None:
        tests.append((_OF_THINGS, (json.dumps([list(thing) for thing in wanted.things]),)))
    return Clause(
        " AND ".join(sql for sql, _ in tests), [value for _, values in tests for value in values]
    )


_OF_THINGS: Final = (
    "(plugin, kind, name) IN (SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'),"
    " json_extract(value, '$[2]') FROM json_each(?))"
)


def _of_cause(cause: str) -> tuple[str, Sequence[str]]:
    """Return a test for causes that begin so: `job:47` is not the beginning of `job:4711 start`."""
    begins = "substr(cause, 1, length(?)) = ?"
    if not cause[-1].isdigit():
        return begins, (cause, cause)
    ends = "substr(cause, length(?) + 1, 1) NOT BETWEEN '0' AND '9'"
    return f"{begins} AND {ends}", (cause, cause, cause)


def test(wanted: Filter) -> Callable[[Row], bool]:
    """Return whether a row meets a filter's conditions.

    A field is met before the change or after it; `before.state` and `after.state` are one of both.
    """
    if not wanted.where:
        return lambda _: True
    conditions = AllOf(wanted.where)
    return lambda row: conditions.hold(row.identity, _sides(row.fields))


def _sides(fields: Sequence[FieldChange]) -> Mapping[str, Json]:
    return {
        "before": {".".join(path): before[0] for path, before, _ in fields if before},
        "after": {".".join(path): after[0] for path, _, after in fields if after},
    }


def _row(values: Sequence[Json]) -> Row:
    seq, at, boot, source, plugin, kind, name, what, cause, fields, folded, moved, said = values
    identity, changed = Identity(source, plugin, kind, name), from_json(json.loads(fields))
    return Row(seq, at, boot, identity, what, cause, changed, folded, moved, said or "")
