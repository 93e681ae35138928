"""Values of history are erased on request; the rows stay, and the chain holds without them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from opdbus.history.change import Change, FieldChange, Why
from opdbus.history.ledger import Ledger
from opdbus.history.row_filter import of_objects
from opdbus.platform.slices import batches
from opdbus.state.object import Identity, ObjectId, canonical

# What rows `forgot` are about.
HISTORY: Final = Identity("history", "op-dbus", "history", "values")
# Ranges of numbers in one row: more of them would be too large for it.
_MOST_RANGES: Final = 4000
_OF_DRIFT: Final = "what IN ('drift', 'intended', 'healed', 'undeclared')"


class Target(NamedTuple):
    """What is to be forgotten: an object, one row, or what has a text in its values.

    Of `declarations`, the rows that say how the object is other than declared.
    """

    object_id: ObjectId | None = None
    row: int = 0
    text: str = ""
    declarations: Sequence[ObjectId] = ()

    def clause(self) -> tuple[str, Sequence[str | int]]:
        """Return SQL that is true of the rows that are meant, and the values in it."""
        if self.object_id:
            sql, values = of_objects([self.object_id, *self.declarations])
            return f"{sql} AND ((plugin, kind, name) = (?, ?, ?) OR {_OF_DRIFT})", [
                *values,
                *self.object_id,
            ]
        if self.row:
            return "seq = ?", [self.row]
        # as it is written inside JSON
        written = canonical(self.text)[1:-1]
        said = "instr((SELECT text FROM sentences WHERE id = sentence), ?)"
        return f"(instr(fields, ?) OR {said})", [written, self.text]


class Forgotten(NamedTuple):
    """The rows that were erased, and how many have the text in what cannot be: name or cause.

    `last` is the last row of history now.
    """

    rows: Sequence[int]
    last: int
    kept: int = 0


def forget(
    ledger: Ledger, target: Target, numbers: range, cause: str, at: int, boot: str
) -> list[int]:
    """Erase values of rows of some numbers, and say in rows `forgot` of which rows.

    Call inside a transaction. Returns the numbers of the rows.
    """
    clause, values = target.clause()
    among = (numbers.start, numbers.stop - 1)
    rows = ledger.erase_where(
        f"what <> 'forgot' AND seq BETWEEN ? AND ? AND {clause}", *among, *values
    )
    note(ledger, rows, cause, at, boot)
    return rows


def note(ledger: Ledger, rows: Sequence[int], cause: str, at: int, boot: str) -> None:
    """Say that the values of these rows were erased, so that verification expects it."""
    for part in batches(_ranges(sorted(rows)), _MOST_RANGES):
        count = sum(last - first + 1 for first, last in part)
        fields = [FieldChange(["count"], [], [count]), FieldChange(["rows"], [], [part])]
        ledger.append([Change(HISTORY, "forgot", Why(cause), fields)], at, boot)


def _ranges(rows: Iterable[int]) -> Iterator[list[int]]:
    """Yield [first, last] of each run of numbers that follow one another."""
    run: list[int] = []
    for row in rows:
        if run and row == run[1] + 1:
            run[1] = row
        else:
            if run:
                yield run
            run = [row, row]
    if run:
        yield run


def count_named(ledger: Ledger, text: str) -> int:
    """Count the rows that have a text in what cannot be erased: their names, and causes."""
    (count,) = ledger.database.execute(
        "SELECT count(*) FROM history WHERE instr(plugin, ?1) OR instr(kind, ?1)"
        " OR instr(name, ?1) OR instr(cause, ?1)",
        [text],
    ).fetchone()
    return int(count)
