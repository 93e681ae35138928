"""Migration of objects and history in a database that another version of op-dbus wrote.

Secrets come first: objects are redacted by the current rules before they are loaded, and history
rows are hidden until they are checked. Objects are then rendered anew in batches while queries are
answered. Each step is a transaction that also stores the progress.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

from opdbus.errors import StoreError
from opdbus.history.forget import erase_objects, erase_secrets
from opdbus.history.ledger import UNCHECKED
from opdbus.index.database.database import Damaged
from opdbus.index.database.records import REDACTED_BY, Recorder, written_by
from opdbus.index.database.store import UNCLEAN, Entry, Record, Store, StoredObject
from opdbus.index.snapshot import entry_snapshot
from opdbus.state import redact
from opdbus.state.object import Identity, Json, StateObject, canonical

# Objects of one step, for which other writes wait some tenths of a second.
AT_A_TIME: Final = 500
WRITTEN: Final = "written by"
_NAME: Final = "migration"

# Suffix of the WRITTEN fact during a migration.
_HALFWAY: Final = "in migration"


class Migration(NamedTuple):
    """Progress of a migration `to` a version.

    Objects with ids up to `redacted` are redacted and those up to `rendered` are rendered by this
    version. Ids after `last` were written by it. History rows up to `unchecked` may hold values
    that are secret by the current rules.
    """

    to: str
    redacted: int
    rendered: int
    last: int
    unchecked: int

    @classmethod
    def find(cls, store: Store) -> Self | None:
        """Return the stored migration to this version, None if there is none."""
        kept = store.fact(_NAME)
        found = cls(*json.loads(kept)) if kept else None
        return found if found and found.to == written_by() else None

    def keep(self, store: Store) -> Self:
        """Store the progress and return it; call inside a transaction."""
        store.set_fact(_NAME, json.dumps(self))
        store.set_fact(UNCHECKED, str(self.unchecked))
        return self

    @property
    def unrendered(self) -> range:
        """The ids of objects that are not yet rendered by this version."""
        return range(self.rendered + 1, self.last + 1)


def begin(store: Store) -> Migration | None:
    """Begin or resume the migration; return None if there is nothing to migrate.

    Raises StoreError if the database needs a migration and is read-only.
    """
    written = store.fact(WRITTEN) or ""
    if written == written_by():
        return None
    if store.is_read_only:
        raise StoreError(
            f"the database {store.path} is read-only and of an older op-dbus, which may have"
            " hidden less of what is secret: let the user that op-dbus runs as write it"
        )
    # snapshots may contain names that are redacted now
    entry_snapshot.remove(store)
    # resume only if no other version has written objects since, which would change the fact
    if written.endswith(_HALFWAY) and (left := Migration.find(store)):
        return left
    last, is_redacted = store.last_id(), written.startswith(REDACTED_BY)
    history = 0 if is_redacted else store.ledger.state().head.seq
    left = Migration(written_by(), last if is_redacted else 0, 0, last, history)
    if not (left.unrendered or left.unchecked):
        finish(store)
        return None
    with store.transaction():
        return _begin(store, left, REDACTED_BY if is_redacted else "")


def begin_history(store: Store) -> None:
    """Begin a migration that only checks history; call inside a transaction."""
    last = store.last_id()
    _begin(store, Migration(written_by(), last, last, last, store.ledger.state().head.seq), "")


def _begin(store: Store, left: Migration, redacted_by: str) -> Migration:
    # with the suffix, no other version takes the database for its own
    store.set_fact(WRITTEN, redacted_by + _HALFWAY)
    if not redacted_by:
        store.set_fact(UNCLEAN, "yes")
    return left.keep(store)


def redact_objects(store: Store, left: Migration, at: int, boot: str) -> Migration:
    """Rewrite the objects that hold secrets by the current rules, before any object is loaded.

    Erase their values from history, where also unchanged fields may reveal the secret. Raises
    StoreError if the daemon is stopping, and Damaged.
    """
    is_altered = False
    while left.redacted < left.last:
        store.require_running()
        rows = store.stored(left.redacted, left.last, AT_A_TIME)
        altered: list[tuple[StoredObject, Record]] = []
        for row in rows:
            item, before = _redact(store, row), row.record.properties
            is_same = before == item.json() or canonical(json.loads(before)) == item.json()
            if item.identity != row.record.identity or not is_same:
                altered.append((row, _render(Recorder(), row, item)))
        with store.transaction():
            erase_objects(store.ledger, [old.record.identity for old, _ in altered], at, boot)
            # remove first: a redacted name makes another object, which may exist already
            store.remove(old.id for old, _ in altered)
            store.put([record for _, record in altered])
            end = rows[-1].id if len(rows) == AT_A_TIME else left.last
            left = left._replace(redacted=end).keep(store)
        is_altered = is_altered or bool(altered)
    if is_altered:
        # erase the words of secrets from the full-text index
        for _ in store.clean_words():
            store.require_running()
    return left


def _redact(store: Store, row: StoredObject) -> StateObject:
    """Return a stored object redacted by the current rules; raises Damaged."""
    try:
        content: dict[str, Json] = json.loads(row.record.properties)
    except ValueError as error:
        raise Damaged(store.path, "an object in it is not JSON") from error
    return redact.redact_object(row.record.identity, content)


def _render(recorder: Recorder, row: StoredObject, item: StateObject) -> Record:
    old = row.record
    return recorder.record(item, old.owner, old.updated_at, transient=old.transient)


def read_batch(store: Store, left: Migration) -> list[tuple[StoredObject, StateObject]]:
    """Return the next AT_A_TIME objects to render, as stored and redacted; raises Damaged."""
    rows = store.stored(left.rendered, left.last, AT_A_TIME)
    # redaction is idempotent; here it builds the StateObject
    return [(row, _redact(store, row)) for row in rows]


def render(rows: Sequence[tuple[StoredObject, StateObject]]) -> list[Record]:
    """Render objects, and return the records that differ from the loaded ones.

    Unrendered objects are loaded without traits.
    """
    recorder = Recorder()
    made = [(row.record, _render(recorder, row, item)) for row, item in rows]
    return [record for before, record in made if record != before or any(record.traits)]


def put_rendered(
    store: Store, records: Sequence[Record], known: Mapping[Identity, Entry], left: Migration
) -> list[Entry]:
    """Store rendered objects in place of the `known` ones, with the progress `left`."""
    with store.transaction():
        entries = store.put(records, known)
        left.keep(store)
    return entries


def check_history(store: Store, left: Migration, at: int, boot: str) -> Migration:
    """Erase secrets from the next batch of history rows, newest first; return the progress."""
    with store.transaction():
        unchecked = erase_secrets(store.ledger, left.unchecked, at, boot)
        return left._replace(unchecked=unchecked).keep(store)


def finish(store: Store) -> None:
    """Store that the migration to this version is complete."""
    with store.transaction():
        store.set_fact(WRITTEN, written_by())
        store.drop_fact(_NAME)
        store.drop_fact(UNCHECKED)
