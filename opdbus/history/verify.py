"""Verification: every row of history is computed again, and compared with the checkpoints."""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from opdbus.history import chain
from opdbus.history.chain import Head
from opdbus.history.change import ERASED
from opdbus.history.checkpoint import Checkpoint
from opdbus.history.erasures import Erasures
from opdbus.history.ledger import read_cut, read_state
from opdbus.history.row_times import said
from opdbus.state.object import Identity

T = TypeVar("T")

# In the order of the row that is hashed, with its digest as hex at the end.
_ROWS: Final = """
SELECT seq, at, boot, source, plugin, kind, name, what, cause, folded, digest, hash, fields, salt
FROM history
"""
# Problems that are told one by one.
_TOLD: Final = 10
# So many rows after one that does not fit are searched for the one that does.
_NEAR: Final = 10_000
# What a damaged value may raise.
_UNFIT: Final = (TypeError, ValueError, AttributeError, LookupError, OverflowError, OSError)


class Problem(NamedTuple):
    """What is wrong, from this row on; time and object are what the database says of the row.

    The row is 0 where the file is damaged, and every row is as it was written.
    """

    seq: int
    at: int | None
    object_id: str
    text: str


@dataclass(slots=True)
class Report:
    """What a verification found; rows are numbered from 1.

    `vouched` is the last row that a checkpoint vouches for, 0 if none does; `unvouched_since` is
    the time of the row after it, in microseconds since 1970.
    """

    first: int
    last: int = 0
    rows: int = 0
    erased: int = 0
    checkpoints: int = 0
    vouched: int = 0
    vouched_at: int | None = None
    unvouched_since: int | None = None
    problems: list[Problem] = field(default_factory=list)
    problem_count: int = 0


class _Row(NamedTuple):
    seq: int
    at: Any
    boot: Any
    source: Any
    plugin: Any
    kind: Any
    name: Any
    what: Any
    cause: Any
    folded: Any
    digest: Any
    hash: Any
    fields: Any
    salt: Any

    @property
    def object_id(self) -> str:
        return "/".join(map(str, (self.plugin, self.kind, self.name)))

    def hash_after(self, before: bytes, seq: int) -> bytes:
        """Return the hash of this row in a place; b"" if it cannot have been written so."""
        try:
            return chain.row_hash(before, [seq, *self[1:10], self.digest.hex()])
        except _UNFIT:
            return b""

    def has_its_values(self) -> bool:
        try:
            return bool(chain.values_digest(self.salt, self.fields) == self.digest)
        except _UNFIT:
            return False


def verify(database: sqlite3.Connection, checkpoints: Iterable[Checkpoint]) -> Report:
    """Verify a database that was opened to read; the memory that it takes is bounded.

    The checkpoints must have been read before: those of what is written meanwhile would be of rows
    that are not seen. Raises sqlite3.Error if there is no history.
    """
    # what is not UTF-8 is a damaged row, and no reason to end
    database.text_factory = lambda data: data.decode(errors="surrogateescape")
    database.execute("BEGIN")
    try:
        return _Run(database, checkpoints).run()
    finally:
        database.execute("ROLLBACK")


class _Run:
    """One pass over the rows, with the chain and the tree as they should be."""

    def __init__(self, database: sqlite3.Connection, checkpoints: Iterable[Checkpoint]) -> None:
        self._database = database
        self._erasures = Erasures(database)
        # the last is the next to be compared with
        self._ahead = sorted(checkpoints, key=lambda found: found.size, reverse=True)
        self._cut = _noted(read_cut, database) or Head()
        self._seq, self._hash = self._cut.seq, self._cut.hash
        self._frontier = list(self._cut.frontier)
        # once a row is missing, no root can be computed any more
        self._is_whole = True
        self._report = Report(self._seq + 1, checkpoints=len(self._ahead))

    def run(self) -> Report:
        """Verify all rows, in their order, then the end."""
        if self._ahead and self._cut.seq >= (kept := max(point.first for point in self._ahead)):
            self._gone(kept, self._cut.seq, "missing, and op-dbus did not prune so far")
        self._compare()
        rows = self._database.execute(f"{_ROWS} ORDER BY seq")
        try:
            for values in rows:
                self._take(_Row(*values))
        except sqlite3.DatabaseError as error:
            self._is_whole = False
            self._tell(self._seq + 1, f"the rows from here on cannot be read: {error}")
        self._end()
        return self._report

    def _take(self, row: _Row) -> None:
        self._report.rows += 1
        if row.seq <= self._seq:
            self._tell(row.seq, "it was pruned, and has come back", row)
            return
        wrong = self._wrong_values(row)
        if row.seq > self._seq + 1:
            self._gone(self._seq + 1, row.seq - 1, "missing")
            self._is_whole = False
        elif row.hash_after(self._hash, row.seq) != row.hash:
            wrong = self._misplaced(row)
        if wrong:
            self._tell(row.seq, wrong, row)
        self._seq, self._hash = row.seq, row.hash if isinstance(row.hash, bytes) else b""
        if self._is_whole:
            chain.grow(self._frontier, row.seq - 1, self._hash)
        self._compare()

    def _misplaced(self, row: _Row) -> str:
        """Say what became of a row that does not follow the one before it."""
        near = self._database.execute(
            f"{_ROWS} WHERE seq > ? ORDER BY seq LIMIT ?", (row.seq, _NEAR)
        )
        for other in map(_Row._make, () if self._report.problems else near):
            if other.hash_after(self._hash, row.seq) in {other.hash, row.hash}:
                return f"the order was changed: what is row {other.seq} now belongs here"
        return "the row was changed, or stands in the place of another"

    def _wrong_values(self, row: _Row) -> str:
        """Say what is wrong with the values of a row, "" if they are right."""
        if row.salt is not None:
            return "" if row.has_its_values() else "its values were changed"
        self._report.erased += 1
        if row.fields != ERASED:
            return "its values were changed: their salt is missing"
        identity = Identity(row.source, row.plugin, row.kind, row.name)
        with suppress(*_UNFIT):
            if self._erasures.explain(row.seq, identity):
                return ""
        return "its values are missing, and no row says that they were erased"

    def _compare(self) -> None:
        """Compare the root with the checkpoints of so many rows."""
        while self._ahead and self._ahead[-1].size <= self._seq:
            point = self._ahead.pop()
            if point.size < self._seq or not self._is_whole:
                continue  # before the rows that are kept, or after one that is missing
            if chain.root_of(self._frontier) == point.root:
                self._report.vouched, self._report.vouched_at = point.size, point.at
            elif not self._report.problems:
                self._tell_rewritten(point)

    def _tell_rewritten(self, point: Checkpoint) -> None:
        first = min(max(self._report.vouched, self._cut.seq) + 1, point.size)
        self._tell(
            first,
            f"rows {first} to {point.size} were rewritten, one of them or all, since the checkpoint"
            f" of {point.size} rows at {said(point.at)}",
        )

    def _end(self) -> None:
        """Compare the end with what was noted of it, in the database and by checkpoints."""
        report, state = self._report, _noted(read_state, self._database)
        report.last = self._seq
        head = state.head if state else Head(-1)
        if head.seq > self._seq:
            self._gone(self._seq + 1, head.seq, "missing: the tail was cut off")
        elif self._is_whole and head != Head(self._seq, self._hash, tuple(self._frontier)):
            self._tell(self._seq, "the end of the chain is not the one that was noted")
        if self._ahead and not report.problems:
            point = self._ahead[0]
            since = f"missing: the tail was cut off since the checkpoint at {said(point.at)}"
            self._gone(self._seq + 1, point.size, since)
        if not report.problems:
            self._check_file()
        if report.vouched < self._seq:
            report.unvouched_since = self._at(max(report.vouched, self._cut.seq) + 1)

    def _check_file(self) -> None:
        """Have SQLite look for damage that rows do not show: in indexes, which questions read."""
        for (text,) in self._database.execute("PRAGMA integrity_check('history')"):
            if text != "ok":
                self._tell(0, f"the database file is damaged: {text}")

    def _gone(self, first: int, last: int, text: str) -> None:
        which = f"the row is {text}" if first == last else f"the rows up to {last} are {text}"
        self._tell(first, which)

    def _tell(self, seq: int, text: str, row: _Row | None = None) -> None:
        """Note a problem; of many, only the first are told."""
        report = self._report
        report.problem_count += 1
        if len(report.problems) < _TOLD:
            at = row.at if row and isinstance(row.at, int) else None
            report.problems.append(Problem(seq, at, row.object_id if row else "", text))

    def _at(self, seq: int) -> int | None:
        found = self._database.execute("SELECT at FROM history WHERE seq = ?", (seq,)).fetchone()
        return found[0] if found and isinstance(found[0], int) else None


def _noted(read: Callable[[sqlite3.Connection], T], database: sqlite3.Connection) -> T | None:
    """Read a fact; None if it is damaged."""
    try:
        return read(database)
    except _UNFIT:
        return None
