"""Erasure of values in history; the rows stay, and the chain stays valid.

Values are erased on request, or if a newer version of op-dbus recognizes them as secret.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from opdbus.history import change
from opdbus.history.change import Cause, Change, FieldChange
from opdbus.history.ledger import Ledger
from opdbus.history.row_filter import of_objects
from opdbus.platform.slices import batches
from opdbus.state import redact
from opdbus.state.object import Identity, ObjectId, canonical

# The object of rows `forgot`.
HISTORY: Final = Identity("history", "op-dbus", "history", "values")
# The most ranges in one row, which limits its size.
_MOST_RANGES: Final = 4000
# Rows that `erase_secrets` checks in one transaction, for which other writes wait.
AT_A_TIME: Final = 500
_UNCHECKED_ROWS: Final = """
SELECT seq, source, plugin, kind, name, fields, coalesce(text, '') FROM history
LEFT JOIN sentences ON sentences.id = sentence
WHERE seq <= ? AND salt IS NOT NULL AND what <> 'forgot' AND fields <> ?
ORDER BY seq DESC LIMIT ?
"""
_REDACTION: Final = f"redaction {redact.VERSION}"
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
    record_erasure(ledger, rows, cause, at, boot)
    return rows


def record_erasure(ledger: Ledger, rows: Sequence[int], cause: str, at: int, boot: str) -> None:
    """Record that the values of rows were erased, so that verification expects it."""
    # [first, last] of each run of consecutive numbers
    runs: list[list[int]] = []
    for row in sorted(rows):
        if runs and row == runs[-1][1] + 1:
            runs[-1][1] = row
        else:
            runs.append([row, row])
    for part in batches(runs, _MOST_RANGES):
        count = sum(last - first + 1 for first, last in part)
        fields = [FieldChange(["count"], [], [count]), FieldChange(["rows"], [], [part])]
        ledger.append([Change(HISTORY, "forgot", Cause(cause), fields)], at, boot)


def count_named(ledger: Ledger, text: str) -> int:
    """Count the rows that have a text in names or causes, which cannot be erased."""
    (count,) = ledger.database.execute(
        "SELECT count(*) FROM history WHERE instr(plugin, ?1) OR instr(kind, ?1)"
        " OR instr(name, ?1) OR instr(cause, ?1)",
        [text],
    ).fetchone()
    return int(count)


def erase_secrets(ledger: Ledger, last: int, at: int, boot: str) -> int:
    """Erase secrets in the newest rows up to row `last`; call it inside a transaction.

    Return the newest row that is still to be checked, 0 if there is none.
    """
    rows = ledger.database.execute(_UNCHECKED_ROWS, (last, change.ERASED, AT_A_TIME)).fetchall()
    unsafe = [
        seq for seq, *names, fields, text in rows if _is_unsafe(Identity(*names), fields, text)
    ]
    if unsafe:
        ledger.erase_where("seq IN (SELECT value FROM json_each(?))", json.dumps(unsafe))
        record_erasure(ledger, unsafe, _REDACTION, at, boot)
    return rows[-1][0] - 1 if len(rows) == AT_A_TIME else 0


def erase_objects(ledger: Ledger, identities: Iterable[Identity], at: int, boot: str) -> None:
    """Erase all values of objects that have a secret now; call it inside a transaction.

    Whether a value is secret may depend on fields that did not change.
    """
    if erased := [row for identity in identities for row in ledger.erase(identity)]:
        record_erasure(ledger, erased, _REDACTION, at, boot)


def _is_unsafe(identity: Identity, fields: str, text: str) -> bool:
    """Return whether a row has a value that is redacted now, or cannot be parsed."""
    try:
        kept = [f for f in change.from_json(json.loads(fields)) if f.before is not None]
    except (ValueError, TypeError):
        return True
    for side in (kept, [FieldChange(f.path, f.after, f.before) for f in kept]):
        state = change.undone({}, side)
        if canonical(redact.redact_object(identity, state).properties) != canonical(state):
            return True
    return redact.redact_text(text) != text
