"""Values that a newer op-dbus recognizes as secret are erased from history, too."""

import json
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

from opdbus.history import change
from opdbus.history.change import FieldChange
from opdbus.history.forget import note
from opdbus.history.ledger import Ledger
from opdbus.state import redact
from opdbus.state.object import Identity, canonical

# Rows that are looked through in one transaction.
AT_A_TIME: Final = 2000
_NEXT: Final = """
SELECT seq, source, plugin, kind, name, fields, coalesce(text, '') FROM history
LEFT JOIN sentences ON sentences.id = sentence
WHERE seq > ? AND salt IS NOT NULL AND what <> 'forgot' AND fields <> ? ORDER BY seq LIMIT ?
"""


def look_through(
    ledger: Ledger, after: int, altered: AbstractSet[Identity], at: int, boot: str
) -> int:
    """Erase what is secret in the next rows, call inside a transaction; 0 where there are none.

    Returns the last row that was looked at. Of `altered` objects everything is erased: what in them
    is secret may be told by fields that did not change.
    """
    rows = ledger.database.execute(_NEXT, (after, change.ERASED, AT_A_TIME)).fetchall()
    unsafe = [
        seq
        for seq, *names, fields, text in rows
        if (identity := Identity(*names)) in altered or _is_unsafe(identity, fields, text)
    ]
    if unsafe:
        listed = json.dumps(unsafe)
        ledger.erase_where("seq IN (SELECT value FROM json_each(?))", listed)
        note(ledger, unsafe, f"redaction {redact.VERSION}", at, boot)
    return rows[-1][0] if rows else 0


def _is_unsafe(identity: Identity, fields: str, text: str) -> bool:
    """Return whether a row has something that is redacted now, or cannot be read."""
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
