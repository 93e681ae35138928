"""Erasure of values in history on request; the rows stay, and the chain stays valid."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from opdbus.history.change import Change, FieldChange, Why
from opdbus.history.ledger import Ledger
from opdbus.history.row_filter import of_objects
from opdbus.platform.slices import batches
from opdbus.state.object import Identity, ObjectId, canonical

# The object of rows `forgot`.
HISTORY: Final = Identity("history", "op-dbus", "history", "values")
# The most ranges in one row, which limits its size.
_MOST_RANGES: Final = 4000
_OF_DRIFT: Final = "what IN ('drift', 'intended', 'healed', 'undeclared')"


class Target(NamedTuple):
    """The rows to erase: those of an object, one row, or those that contain a text.

    `declarations` are the object's declared names: their rows about drift are included.
    """

    object_id: ObjectId | None = None
    row: int = 0
    text: str = ""
    declarations: Sequence[ObjectId] = ()

    def clause(self) -> tuple[str, Sequence[str | int]]:
        """Return SQL that is true of the rows, and the values of its parameters."""
        if self.object_id:
            sql, values = of_objects([self.object_id, *self.declarations])
            return f"{sql} AND ((plugin, kind, name) = (?, ?, ?) OR {_OF_DRIFT})", [
                *values,
                *self.object_id,
            ]
        if self.row:
            return "seq = ?", [self.row]
        # the text as JSON escapes it
        written = canonical(self.text)[1:-1]
        said = "instr((SELECT text FROM sentences WHERE id = sentence), ?)"
        return f"(instr(fields, ?) OR {said})", [written, self.text]


class Forgotten(NamedTuple):
    """The erased rows, and the number of rows that have the text in a name or cause.

    Those cannot be erased. `last` is the last row of history.
    """

    rows: Sequence[int]
    last: int
    kept: int = 0


def forget(
    ledger: Ledger, target: Target, numbers: range, cause: str, at: int, boot: str
) -> list[int]:
    """Erase values of rows in a range of numbers; record the erasure in rows `forgot`.

    Call it inside a transaction. Return the numbers of the erased rows.
    """
    clause, values = target.clause()
    among = (numbers.start, numbers.stop - 1)
    rows = ledger.erase_where(
        f"what <> 'forgot' AND seq BETWEEN ? AND ? AND {clause}", *among, *values
    )
    note(ledger, rows, cause, at, boot)
    return rows


def note(ledger: Ledger, rows: Sequence[int], cause: str, at: int, boot: str) -> None:
    """Record that the values of rows were erased, so that verification expects it."""
    for part in batches(_ranges(sorted(rows)), _MOST_RANGES):
        count = sum(last - first + 1 for first, last in part)
        fields = [FieldChange(["count"], [], [count]), FieldChange(["rows"], [], [part])]
        ledger.append([Change(HISTORY, "forgot", Why(cause), fields)], at, boot)


def _ranges(rows: Iterable[int]) -> Iterator[list[int]]:
    """Yield [first, last] of each run of consecutive numbers."""
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
    """Count the rows that have a text in names or causes, which cannot be erased."""
    (count,) = ledger.database.execute(
        "SELECT count(*) FROM history WHERE instr(plugin, ?1) OR instr(kind, ?1)"
        " OR instr(name, ?1) OR instr(cause, ?1)",
        [text],
    ).fetchone()
    return int(count)
