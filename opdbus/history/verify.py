"""Verification of history: recomputes each row's hash and compares it with checkpoints."""

import json
import sqlite3
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from opdbus.history import hash_chain
from opdbus.history.change import ERASED
from opdbus.history.checkpoint import Checkpoint
from opdbus.history.hash_chain import Head
from opdbus.history.ledger import State, read_state
from opdbus.platform.timestamps import format_utc

# Columns in the order in which they are hashed; the digest is hashed last, as hex.
_ROWS: Final = """
SELECT seq, at, boot, source, plugin, kind, name, what, cause, folded, digest, hash, fields, salt
FROM history
"""
_WITHDRAWAL: Final = (
    "SELECT 1 FROM history WHERE plugin = ? AND kind = ? AND name = ? AND source = ?"
    " AND what = 'gone' AND fields = ? AND salt IS NOT NULL AND seq > ?"
)
# The most problems that are reported one by one.
_MAX_REPORTED: Final = 10
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

    def hash_after(self, before: bytes, seq: int) -> bytes:
        """Return the hash of this row at a position; b"" if its values cannot be hashed."""
        try:
            return hash_chain.row_hash(before, [seq, *self[1:10], self.digest.hex()])
        except _UNFIT:
            return b""


def verify(database: sqlite3.Connection, checkpoints: Iterable[Checkpoint]) -> Report:
    """Verify a database on a read connection, in bounded memory.

    Read the checkpoints before: later ones may be of rows that this snapshot does not have. Raises
    sqlite3.Error if there is no history.
    """
    # invalid UTF-8 is reported as a damaged row
    database.text_factory = lambda data: data.decode(errors="surrogateescape")
    database.execute("BEGIN")
    try:
        return _Verification(database, checkpoints).run()
    finally:
        database.execute("ROLLBACK")


class _Verification:
    """One pass over the rows, with the expected chain."""

    def __init__(self, database: sqlite3.Connection, checkpoints: Iterable[Checkpoint]) -> None:
        self._database = database
        # ascending first and last numbers of the ranges in rows `forgot`, read on first use
        self._forgotten: tuple[array[int], array[int]] | None = None
        # remaining checkpoints; the last one is compared next
        self._ahead = sorted(checkpoints, key=lambda found: found.size, reverse=True)
        cut = self._state("history cut")
        self._cut = cut.head if cut else Head()
        self._seq, self._hash = self._cut.seq, self._cut.hash
        # False once a row is missing or does not follow: no checkpoint vouches from then on
        self._is_whole = True
        self._report = Report(self._seq + 1, checkpoints=len(self._ahead))

    def run(self) -> Report:
        """Verify all rows in their order, then the end of the chain."""
        if self._ahead and self._cut.seq >= (kept := max(point.first for point in self._ahead)):
            self._add_missing(kept, self._cut.seq, "missing, and op-dbus did not prune so far")
        self._compare()
        rows = self._database.execute(f"{_ROWS} ORDER BY seq")
        try:
            for values in rows:
                self._check(_Row(*values))
        except sqlite3.DatabaseError as error:
            self._is_whole = False
            self._add(self._seq + 1, f"the rows from here on cannot be read: {error}")
        self._check_end()
        return self._report

    def _check(self, row: _Row) -> None:
        self._report.rows += 1
        if row.seq <= self._seq:
            self._add(row.seq, "it was pruned, and has come back", row)
            return
        wrong = self._wrong_values(row)
        if row.seq > self._seq + 1:
            self._add_missing(self._seq + 1, row.seq - 1, "missing")
            self._is_whole = False
        elif row.hash_after(self._hash, row.seq) != row.hash:
            self._is_whole = False
            wrong = "the row was changed, or stands in the place of another"
            near = self._database.execute(
                f"{_ROWS} WHERE seq > ? ORDER BY seq LIMIT ?", (row.seq, _NEAR)
            )
            for other in map(_Row._make, () if self._report.problems else near):
                if other.hash_after(self._hash, row.seq) in {other.hash, row.hash}:
                    wrong = f"the order was changed: what is row {other.seq} now belongs here"
                    break
        if wrong:
            self._add(row.seq, wrong, row)
        self._seq, self._hash = row.seq, row.hash if isinstance(row.hash, bytes) else b""
        self._compare()

    def _wrong_values(self, row: _Row) -> str:
        """Return the problem of a row's values, "" if there is none."""
        if row.salt is not None:
            with suppress(*_UNFIT):
                if hash_chain.values_digest(row.salt, row.fields) == row.digest:
                    return ""
            return "its values were changed"
        self._report.erased += 1
        if row.fields != ERASED:
            return "its values were changed: their salt is missing"
        values = (row.plugin, row.kind, row.name, row.source, ERASED, row.seq)
        with suppress(*_UNFIT):
            if self._is_forgotten(row.seq):
                return ""
            if self._database.execute(_WITHDRAWAL, values).fetchone():
                return ""
        return "its values are missing, and no row says that they were erased"

    def _is_forgotten(self, seq: int) -> bool:
        """Return whether a later row `forgot` records that the values of a row were erased."""
        if self._forgotten is None:
            ranges = sorted(self._forgotten_ranges())
            first, last = (array("q", [each[side] for each in ranges]) for side in (0, 1))
            self._forgotten = first, last
        firsts, lasts = self._forgotten
        place = bisect_right(firsts, seq) - 1
        return place >= 0 and seq <= lasts[place]

    def _forgotten_ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of rows `forgot`; ranges do not overlap."""
        rows = "SELECT seq, fields FROM history WHERE what = 'forgot' AND salt IS NOT NULL"
        for seq, fields in self._database.execute(rows):
            try:
                yield from (
                    (first, min(last, seq - 1))
                    for path, _, after in json.loads(fields)
                    for first, last in (after[0] if path == ["rows"] else ())
                )
            except (TypeError, ValueError, LookupError):
                continue  # reported as a damaged row

    def _compare(self) -> None:
        """Compare the last hash with the checkpoints of the present number of rows."""
        while self._ahead and self._ahead[-1].size <= self._seq:
            point = self._ahead.pop()
            if point.size < self._seq or not self._is_whole:
                continue  # of pruned rows, or after a missing one
            if self._hash == point.hash:
                self._report.vouched, self._report.vouched_at = point.size, point.at
            elif not self._report.problems:
                first = min(max(self._report.vouched, self._cut.seq) + 1, point.size)
                self._add(
                    first,
                    f"rows {first} to {point.size} were rewritten, one of them or all, since the"
                    f" checkpoint of {point.size} rows at {format_utc(point.at)}",
                )

    def _check_end(self) -> None:
        """Compare the end of the chain with the stored state and the remaining checkpoints."""
        report, state = self._report, self._state("history")
        report.last = self._seq
        head = state.head if state else Head(-1)
        if head.seq > self._seq:
            self._add_missing(self._seq + 1, head.seq, "missing: the tail was cut off")
        elif self._is_whole and head != Head(self._seq, self._hash):
            self._add(self._seq, "the end of the chain is not the one that was noted")
        if self._ahead and not report.problems:
            point = self._ahead[0]
            since = f"the tail was cut off since the checkpoint at {format_utc(point.at)}"
            self._add_missing(self._seq + 1, point.size, f"missing: {since}")
        if not report.problems:
            # damage outside of rows, such as in indexes, which queries use
            for (text,) in self._database.execute("PRAGMA integrity_check('history')"):
                if text != "ok":
                    self._add(0, f"the database file is damaged: {text}")
        if report.vouched < self._seq:
            after = (max(report.vouched, self._cut.seq) + 1,)
            row = self._database.execute("SELECT at FROM history WHERE seq = ?", after).fetchone()
            report.unvouched_since = row[0] if row and isinstance(row[0], int) else None

    def _add_missing(self, first: int, last: int, text: str) -> None:
        which = f"the row is {text}" if first == last else f"the rows up to {last} are {text}"
        self._add(first, which)

    def _add(self, seq: int, text: str, row: _Row | None = None) -> None:
        """Count a problem; only the first ones are reported one by one."""
        report = self._report
        report.problem_count += 1
        if len(report.problems) < _MAX_REPORTED:
            at = row.at if row and isinstance(row.at, int) else None
            name = "/".join(map(str, (row.plugin, row.kind, row.name))) if row else ""
            report.problems.append(Problem(seq, at, name, text))

    def _state(self, name: str) -> State | None:
        """Return a stored state of the chain; None if it is damaged."""
        try:
            return read_state(self._database, name)
        except _UNFIT:
            return None
