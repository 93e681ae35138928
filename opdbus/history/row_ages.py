"""Ages of history rows by time that has passed while the host ran, since its clock may be set."""

import json
from contextlib import suppress
from typing import Final, NamedTuple, Self

from opdbus.history.ledger import Ledger

_NAME: Final = "history ages"
_DAY: Final = 86_400.0
# Marks in the longest age: rows are kept longer than that by at most one mark's distance.
_MARKS: Final = 90


class Moment(NamedTuple):
    """A moment by both clocks: seconds since the boot, and seconds since 1970."""

    boot: str
    uptime: float
    wall: float


class RowAges(NamedTuple):
    """Seconds `passed` since ages are counted, until a moment, and marks (last row, `passed`).

    The time for which the host is off does not count: no clock proves it.
    """

    passed: float
    at: Moment
    marks: tuple[tuple[int, float], ...] = ()

    @classmethod
    def read(cls, ledger: Ledger, now: Moment) -> Self:
        """Return the stored ages; those of a new database, or of a damaged fact, begin now."""
        query = "SELECT value FROM facts WHERE name = ?"
        row = ledger.database.execute(query, (_NAME,)).fetchone()
        with suppress(ValueError, TypeError):
            passed, (boot, up, wall), marks = json.loads(row[0])
            at = Moment(str(boot), float(up), float(wall))
            return cls(float(passed), at, tuple((int(seq), float(age)) for seq, age in marks))
        return cls(0.0, now)

    def advance(self, now: Moment, last: int, days: int) -> Self:
        """Return the ages at a moment at which the last row is `last`; see `last_older_than`."""
        is_same = now.boot == self.at.boot and now.uptime > self.at.uptime
        passed = self.passed + (now.uptime - self.at.uptime if is_same else 0.0)
        marks = self.marks
        if not marks or passed - marks[-1][1] >= days * _DAY / _MARKS:
            marks = (*marks, (last, passed))
        # the newest mark that is too old is kept: its rows may not be deleted yet
        old = sum(1 for _, age in marks if passed - age >= days * _DAY)
        return self._replace(passed=passed, at=now, marks=marks[max(0, old - 1) :])

    def last_older_than(self, days: int) -> int:
        """Return the last row that is known to be older than some days, 0 if there is none."""
        return max((seq for seq, at in self.marks if self.passed - at >= days * _DAY), default=0)

    def days_ahead(self, now: Moment, newest: float) -> float:
        """Return by how many days the newest row, in seconds since 1970, is ahead of its time.

        That is the present, and also the last look and the time that has passed since.
        """
        wall = now.wall
        if now.boot == self.at.boot:
            wall = min(wall, self.at.wall + max(0.0, now.uptime - self.at.uptime))
        return max(0.0, newest - wall) // _DAY

    def keep(self, ledger: Ledger) -> None:
        """Store the ages; call inside a transaction."""
        ledger.database.execute(
            "INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (_NAME, json.dumps(self))
        )
