"""Objects made ready for the store, and the store read and written as a whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from opdbus import glossary, text
from opdbus.index.store import Record
from opdbus.state import redact
from opdbus.state.object import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.index.store import Entry, Store
    from opdbus.state.object import Json, StateObject

_WRITTEN_BY: Final = (
    f"redaction {redact.VERSION}, text {text.VERSION}, glossary {glossary.version()}"
)


def record_of(item: StateObject, owner: int, now: int, *, passing: bool) -> Record:
    """Make an object ready for the store: redacted already, now rendered and hashed."""
    rendering = text.render(item)
    return Record(
        identity=item.identity,
        owner=owner,
        properties=item.json(),
        text=rendering.text,
        words=rendering.words,
        fingerprint=item.fingerprint(),
        text_digest=digest(f"{text.VERSION}\n{rendering.text}".encode()),
        updated_at=now,
        passing=passing,
    )


def recall(store: Store) -> list[Entry]:
    """Give what is stored, written anew if an older op-dbus redacted or rendered it otherwise."""
    store.remove_passing()
    if store.fact("written by") != _WRITTEN_BY:
        records = []
        for identity, owner, properties, updated_at, passing in store.stored():
            content: dict[str, Json] = json.loads(properties)
            item = redact.redact_object(identity, content)
            records.append(record_of(item, owner, updated_at, passing=passing))
        with store.transaction():
            # names are redacted too, so a row may come back under another identity
            store.remove_all()
            store.put(records)
            store.remember("written by", _WRITTEN_BY)
        store.scrub()
    return list(store.entries())


def commit(
    store: Store, records: Sequence[Record], gone: Sequence[Entry], generation: int
) -> list[Entry]:
    """Store records and remove entries, all or nothing; give the entries of the records."""
    with store.transaction():
        store.remove(entry.id for entry in gone)
        store.remember("generation", str(generation))
        return store.put(records)
