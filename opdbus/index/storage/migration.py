"""What is left to migrate of a database that an older op-dbus wrote, and the steps of that.

Secrets come first: objects are redacted by today's rules before anything is loaded, and rows of
history are hidden until they were. All else is rendered anew in batches while questions are
answered. Each step is a transaction that also notes how far it came.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

from opdbus.errors import StoreError
from opdbus.history.ledger import UNCHECKED
from opdbus.history.redaction import erase_objects, look_through
from opdbus.index.database.database import Damaged
from opdbus.index.database.records import REDACTED_BY, WRITTEN_BY, Recorder
from opdbus.index.database.store import UNCLEAN, Entry, Record, Store, Stored
from opdbus.index.snapshot import entry_snapshot
from opdbus.state import redact
from opdbus.state.object import Identity, Json, StateObject, canonical

# Objects of one step: another write waits for it, some tenths of a second.
AT_A_TIME: Final = 500
WRITTEN: Final = "written by"
_NAME: Final = "migration"

# What the name of the version ends with while a database is migrated.
_HALFWAY: Final = "in migration"


class Migration(NamedTuple):
    """How far a migration `to` a version has come.

    Objects with ids up to `redacted` follow today's rules, and up to `rendered` today's texts;
    those after `last` were written by this version. Rows of history up to `unchecked` may have
    values that are secret now.
    """

    to: str
    redacted: int
    rendered: int
    last: int
    unchecked: int

    @classmethod
    def find(cls, store: Store) -> Self | None:
        """Return the one that was begun to today's version, None if there is none."""
        kept = store.fact(_NAME)
        found = cls(*json.loads(kept)) if kept else None
        return found if found and found.to == WRITTEN_BY else None

    def keep(self, store: Store) -> Self:
        """Note it; call inside a transaction."""
        store.set_fact(_NAME, json.dumps(self))
        store.set_fact(UNCHECKED, str(self.unchecked))
        return self

    @property
    def unrendered(self) -> range:
        """The ids of objects that are still as the older version wrote them."""
        return range(self.rendered + 1, self.last + 1)

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return not (self.unrendered or self.unchecked)


def begin(store: Store) -> Migration | None:
    """Return what is left, None if nothing is; raises StoreError where it cannot be written."""
    written = store.fact(WRITTEN) or ""
    if written == WRITTEN_BY:
        return None
    if store.is_read_only:
        raise StoreError(
            f"the database {store.path} is read-only and of an older op-dbus, which may have"
            " hidden less of what is secret: let the user that op-dbus runs as write it"
        )
    # they may have names that are redacted now
    entry_snapshot.remove(store)
    # another version that ran meanwhile has written its own name, and objects by its own rules
    if written.endswith(_HALFWAY) and (left := Migration.find(store)):
        return left
    last, is_redacted = store.last_id(), written.startswith(REDACTED_BY)
    history = 0 if is_redacted else store.ledger.state().head.seq
    left = Migration(WRITTEN_BY, last if is_redacted else 0, 0, last, history)
    if left.is_done:
        finish(store)
        return None
    with store.transaction():
        return _keep(store, left, REDACTED_BY if is_redacted else "")


def begin_history(store: Store) -> None:
    """Have all rows of history be looked through, and nothing else; call inside a transaction."""
    last = store.last_id()
    _keep(store, Migration(WRITTEN_BY, last, last, last, store.ledger.state().head.seq), "")


def _keep(store: Store, left: Migration, redacted_by: str) -> Migration:
    # any other version takes up a database that was left halfway as one that it did not write
    store.set_fact(WRITTEN, redacted_by + _HALFWAY)
    if not redacted_by:
        store.set_fact(UNCLEAN, "yes")
    return left.keep(store)


def redact_objects(store: Store, left: Migration, at: int, boot: str) -> Migration:
    """Rewrite the objects that have secrets by today's rules, before anybody reads them.

    What history has of these is erased: fields that did not change may tell what is secret.
    """
    is_altered = False
    while left.redacted < left.last:
        store.require_running()
        rows = store.stored(left.redacted, left.last, AT_A_TIME)
        altered = _altered(store, rows)
        with store.transaction():
            erase_objects(store.ledger, [old.record.identity for old, _ in altered], at, boot)
            # a name may be redacted, too: then it is another object, perhaps one that there is
            store.remove(old.id for old, _ in altered)
            store.put([record for _, record in altered])
            end = rows[-1].id if len(rows) == AT_A_TIME else left.last
            left = left._replace(redacted=end).keep(store)
        is_altered = is_altered or bool(altered)
    if is_altered:
        # words of a secret are not to be found
        store.clean_words()
    return left


def _altered(store: Store, rows: Sequence[Stored]) -> list[tuple[Stored, Record]]:
    made = ((row, _redacted(store, row)) for row in rows)
    return [(row, _record(Recorder(), row, item)) for row, item in made if _is_other(row, item)]


def _is_other(row: Stored, item: StateObject) -> bool:
    """Return whether a redacted object says something else, however it was written as JSON."""
    before, after = row.record.properties, item.json()
    is_same = before == after or canonical(json.loads(before)) == after
    return item.identity != row.record.identity or not is_same


def _redacted(store: Store, row: Stored) -> StateObject:
    """Return a stored object by today's rules; raises Damaged."""
    try:
        content: dict[str, Json] = json.loads(row.record.properties)
    except ValueError as error:
        raise Damaged(store.path, "an object in it is not JSON") from error
    return redact.redact_object(row.record.identity, content)


def _record(recorder: Recorder, row: Stored, item: StateObject) -> Record:
    old = row.record
    return recorder.record(item, old.owner, old.updated_at, transient=old.transient)


def read(store: Store, left: Migration) -> list[tuple[Stored, StateObject]]:
    """Return the next objects that are to be rendered anew; raises StoreError."""
    rows = store.stored(left.rendered, left.last, AT_A_TIME)
    # redacted already: to do so again changes nothing
    return [(row, _redacted(store, row)) for row in rows]


def render(rows: Sequence[tuple[Stored, StateObject]]) -> list[Record]:
    """Render objects by today's rules; return the records of those that change."""
    recorder = Recorder()
    made = [(row.record, _record(recorder, row, item)) for row, item in rows]
    return [record for before, record in made if record != before]


def put_rendered(
    store: Store, records: Sequence[Record], known: Mapping[Identity, Entry], left: Migration
) -> list[Entry]:
    """Store rendered objects in place of the `known` ones, and how far that came."""
    with store.transaction():
        entries = store.put(records, known)
        left.keep(store)
    return entries


def look_through_more(store: Store, left: Migration, at: int, boot: str) -> Migration:
    """Erase what is secret in the next rows of history, the newest ones first."""
    with store.transaction():
        unchecked = look_through(store.ledger, left.unchecked, at, boot)
        return left._replace(unchecked=unchecked).keep(store)


def finish(store: Store) -> None:
    """Note that the database is as if this version had written all of it."""
    with store.transaction():
        store.set_fact(WRITTEN, WRITTEN_BY)
        store.drop_fact(_NAME)
        store.drop_fact(UNCHECKED)
