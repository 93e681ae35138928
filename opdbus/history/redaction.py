"""Erasure of values in history that a newer version of op-dbus recognizes as secret."""

import json
from collections.abc import Iterable, Sequence
from typing import Final

from opdbus.history import change
from opdbus.history.change import FieldChange
from opdbus.history.forget import note
from opdbus.history.ledger import Ledger
from opdbus.state import redact
from opdbus.state.object import Identity, canonical

# Rows of one transaction, for which other writes wait.
AT_A_TIME: Final = 500
_NEXT: Final = """
SELECT seq, source, plugin, kind, name, fields, coalesce(text, '') FROM history
LEFT JOIN sentences ON sentences.id = sentence
WHERE seq <= ? AND salt IS NOT NULL AND what <> 'forgot' AND fields <> ?
ORDER BY seq DESC LIMIT ?
"""


def look_through(ledger: Ledger, last: int, at: int, boot: str) -> int:
    """Erase secrets in the newest rows up to row `last`; call it inside a transaction.

    Return the newest row that is still to be checked, 0 if there is none.
    """
    rows = ledger.database.execute(_NEXT, (last, change.ERASED, AT_A_TIME)).fetchall()
    unsafe = [
        seq for seq, *names, fields, text in rows if _is_unsafe(Identity(*names), fields, text)
    ]
    if unsafe:
        listed = json.dumps(unsafe)
        ledger.erase_where("seq IN (SELECT value FROM json_each(?))", listed)
        _note(ledger, unsafe, at, boot)
    return rows[-1][0] - 1 if len(rows) == AT_A_TIME else 0


def erase_objects(ledger: Ledger, identities: Iterable[Identity], at: int, boot: str) -> None:
    """Erase all values of objects that have a secret now; call it inside a transaction.

    Whether a value is secret may depend on fields that did not change.
    """
    if erased := [row for identity in identities for row in ledger.erase(identity)]:
        _note(ledger, erased, at, boot)


def _note(ledger: Ledger, rows: Sequence[int], at: int, boot: str) -> None:
    note(ledger, rows, f"redaction {redact.VERSION}", at, boot)


def _is_unsafe(identity: Identity, fields: str, text: str) -> bool:
    """Return whether a row has a value that is redacted now, or cannot be parsed."""
    try:
        kept = [f for f in change.from_json(json.loads(fields)) if f.before is not None]
    except (ValueError, TypeError):
        return True
    is_clean = all(_is_clean(identity, side) for side in (kept, [_swapped(f) for f in kept]))
    return not is_clean or redact.redact_text(text) != text


def _is_clean(identity: Identity, fields: Iterable[FieldChange]) -> bool:
    before = change.undone({}, list(fields))
    return canonical(redact.redact_object(identity, before).properties) == canonical(before)


def _swapped(field: FieldChange) -> FieldChange:
    return FieldChange(field.path, field.after, field.before)
