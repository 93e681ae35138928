"""Verification of history: recomputes each row's hash and compares roots with checkpoints."""

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

# Columns in the order in which they are hashed; the digest is hashed last, as hex.
_ROWS: Final = """
SELECT seq, at, boot, source, plugin, kind, name, what, cause, folded, digest, hash, fields, salt
FROM history
"""
# The most problems that are reported one by one.
_TOLD: Final = 10
# Rows after a misplaced one that are searched for the row that belongs there.
_NEAR: Final = 10_000
# Exceptions that a damaged value may raise.
_UNFIT: Final = (TypeError, ValueError, AttributeError, LookupError, OverflowError, OSError)


class Problem(NamedTuple):
    """A problem from a row on; time and object are those of the stored row.

    The row is 0 if the database file is damaged but every row is intact.
    """

    seq: int
    at: int | None
    object_id: str
    text: str


@dataclass(slots=True)
class Report:
    """The result of a verification; rows are numbered from 1.

    `vouched` is the last row that a checkpoint confirms, 0 if none does; `unvouched_since` is the
    time of the row after it, in microseconds since 1970.
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
        """Return the hash of this row at a position; b"" if its values cannot be hashed."""
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
    """Verify a database on a read connection, in bounded memory.

    Read the checkpoints before: later ones may be of rows that this snapshot does not have. Raises
    sqlite3.Error if there is no history.
    """
    # invalid UTF-8 is reported as a damaged row
    database.text_factory = lambda data: data.decode(errors="surrogateescape")
    database.execute("BEGIN")
    try:
        return _Run(database, checkpoints).run()
    finally:
        database.execute("ROLLBACK")


class _Run:
    """One pass over the rows, with the expected chain and tree."""

    def __init__(self, database: sqlite3.Connection, checkpoints: Iterable[Checkpoint]) -> None:
        self._database = database
        self._erasures = Erasures(database)
        # remaining checkpoints; the last one is compared next
        self._ahead = sorted(checkpoints, key=lambda found: found.size, reverse=True)
        self._cut = _noted(read_cut, database) or Head()
        self._seq, self._hash = self._cut.seq, self._cut.hash
        self._frontier = list(self._cut.frontier)
        # False once a row is missing: no root can be computed from then on
        self._is_whole = True
        self._report = Report(self._seq + 1, checkpoints=len(self._ahead))

    def run(self) -> Report:
        """Verify all rows in their order, then the end of the chain."""
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
        """Return the problem of a row that does not follow the one before it."""
        near = self._database.execute(
            f"{_ROWS} WHERE seq > ? ORDER BY seq LIMIT ?", (row.seq, _NEAR)
        )
        for other in map(_Row._make, () if self._report.problems else near):
            if other.hash_after(self._hash, row.seq) in {other.hash, row.hash}:
                return f"the order was changed: what is row {other.seq} now belongs here"
        return "the row was changed, or stands in the place of another"

    def _wrong_values(self, row: _Row) -> str:
        """Return the problem of a row's values, "" if there is none."""
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
        """Compare the root with the checkpoints of the present number of rows."""
        while self._ahead and self._ahead[-1].size <= self._seq:
            point = self._ahead.pop()
            if point.size < self._seq or not self._is_whole:
                continue  # of pruned rows, or after a missing one
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
        """Compare the end of the chain with the stored state and the remaining checkpoints."""
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
        """Let SQLite check for damage outside of rows, such as in indexes, which queries use."""
        for (text,) in self._database.execute("PRAGMA integrity_check('history')"):
            if text != "ok":
                self._tell(0, f"the database file is damaged: {text}")

    def _gone(self, first: int, last: int, text: str) -> None:
        which = f"the row is {text}" if first == last else f"the rows up to {last} are {text}"
        self._tell(first, which)

    def _tell(self, seq: int, text: str, row: _Row | None = None) -> None:
        """Count a problem; only the first ones are reported one by one."""
        report = self._report
        report.problem_count += 1
        if len(report.problems) < _TOLD:
            at = row.at if row and isinstance(row.at, int) else None
            report.problems.append(Problem(seq, at, row.object_id if row else "", text))

    def _at(self, seq: int) -> int | None:
        found = self._database.execute("SELECT at FROM history WHERE seq = ?", (seq,)).fetchone()
        return found[0] if found and isinstance(found[0], int) else None


def _noted(read: Callable[[sqlite3.Connection], T], database: sqlite3.Connection) -> T | None:
    """Read a fact; return None if it is damaged."""
    try:
        return read(database)
    except _UNFIT:
        return None
