"""Redaction and rendering of what another version of op-dbus stored.

Objects are brought up to the current rules before they are loaded. Rows of history are hidden until
they are checked for values that are secret now, which is done while queries are answered.
"""

import json
from typing import Final

import structlog

from opdbus.errors import StoreError
from opdbus.history.forget import erase_objects, erase_secrets
from opdbus.history.ledger import UNCHECKED
from opdbus.index.database.database import Damaged
from opdbus.index.database.records import REDACTED_BY, Recorder, draft, written_by
from opdbus.index.database.store import UNCLEAN, Record, Store, StoredObject
from opdbus.state import redact
from opdbus.state.object import Json, StateObject, canonical

log = structlog.get_logger()

# Objects of one transaction.
AT_A_TIME: Final = 500
# Fact: the versions of all that the records are made by.
WRITTEN: Final = "written by"
# Suffix of WRITTEN meanwhile, so that no version takes the database for its own.
_HALFWAY: Final = "in migration"


def migrate(store: Store, at: int, boot: str) -> None:
    """Redact and render all objects by this version's rules, unless it has stored them.

    What is secret by the current rules alone is erased from history too, where also unchanged
    fields may reveal it. After a kill the next start begins again. Raises StoreError, also if the
    daemon is stopping, and Damaged.
    """
    written, last = store.fact(WRITTEN) or "", store.last_id()
    if written == written_by():
        return
    if store.is_read_only:
        raise StoreError(
            f"the database {store.path} is read-only and of another op-dbus, which may have"
            " hidden less of what is secret: let the user that op-dbus runs as write it"
        )
    is_redacted = written.startswith(REDACTED_BY)
    with store.transaction():
        store.set_fact(WRITTEN, f"{REDACTED_BY if is_redacted else ''}{_HALFWAY}")
        if not is_redacted and (last or store.ledger.newest()[0]):
            hide_history(store)
    after, is_altered = 0, False
    while rows := store.stored(after, last, AT_A_TIME):
        is_altered |= _migrate_batch(store, rows, at, boot)
        after = rows[-1].id
    if is_altered:
        # erase the words of secrets from the full-text index
        for _ in store.clean_words():
            store.require_running()
    with store.transaction():
        store.set_fact(WRITTEN, written_by())
    if last:
        log.info("migrated", objects=last, history=unchecked(store))


def _migrate_batch(store: Store, rows: list[StoredObject], at: int, boot: str) -> bool:
    """Store objects by the current rules; return whether one of them had a secret."""
    items = [_redact(store, row) for row in rows]
    altered = [
        row
        for row, item in zip(rows, items, strict=True)
        if item.identity != row.record.identity or not _has_content(row.record, item)
    ]
    records = [
        made._replace(
            owner=row.record.owner,
            updated_at=row.record.updated_at,
            transient=row.record.transient,
        )
        for row, made in zip(rows, Recorder().records([*map(draft, items)]), strict=True)
    ]
    changed = [made for row, made in zip(rows, records, strict=True) if made != row.record]
    with store.transaction():
        erase_objects(store.ledger, [row.record.identity for row in altered], at, boot)
        # remove first: a redacted name makes another object, which may exist already
        store.remove(row.id for row in altered)
        store.put(changed)
    return bool(altered)


def _redact(store: Store, row: StoredObject) -> StateObject:
    """Return a stored object redacted by the current rules; raises Damaged."""
    try:
        content: dict[str, Json] = json.loads(row.record.properties)
    except ValueError as error:
        raise Damaged(store.path, "an object in it is not JSON") from error
    return redact.redact_object(row.record.identity, content)


def _has_content(record: Record, item: StateObject) -> bool:
    """Return whether a record has the properties of an object, in any form of JSON."""
    before, after = record.properties, item.json()
    return before == after or canonical(json.loads(before)) == after


def hide_history(store: Store) -> None:
    """Hide all rows of history until they are checked; call inside a transaction."""
    store.set_fact(UNCHECKED, str(store.ledger.state().head.seq))
    store.set_fact(UNCLEAN, "yes")


def unchecked(store: Store) -> int:
    """Return the newest row of history that is still to be checked, 0 if there is none."""
    return int(store.fact(UNCHECKED) or 0)


def check_history(store: Store, at: int, boot: str) -> int:
    """Erase secrets from the next batch of unchecked rows, newest first; return as `unchecked`."""
    with store.transaction():
        left = erase_secrets(store.ledger, unchecked(store), at, boot)
        store.set_fact(UNCHECKED, str(left))
        return left
