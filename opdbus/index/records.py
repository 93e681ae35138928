"""Objects rendered for the store; the store loaded at start, and changed in transactions."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from opdbus import tables, text, vocabulary
from opdbus.errors import StoreError
from opdbus.index.database import Damaged
from opdbus.index.store import Entry, Record, Store
from opdbus.state import redact
from opdbus.state.object import Json, StateObject, digest

# At most 5 MB, and more than the indexer tokenizes at a time.
_MAX_RECENT: Final = 20_000
WRITTEN_BY: Final = (
    f"redaction {redact.VERSION}, text {text.VERSION}, glossary {tables.version('glossary')},"
    f" vocabulary {tables.version('vocabulary')}"
)


class Recorder:
    """Renders and hashes objects, which are redacted already; made for some at a time."""

    def __init__(self) -> None:
        self._vocabulary = vocabulary.Reader()

    def record(self, item: StateObject, owner: int, now: int, *, transient: bool) -> Record:
        """Make the record of an object."""
        rendering = text.render(item)
        traits = self._vocabulary.traits(item.identity, item.properties)
        content = item.json()
        return Record(
            identity=item.identity,
            owner=owner,
            properties=content,
            text=rendering.text,
            words=rendering.words,
            fingerprint=item.fingerprint_of(content),
            text_digest=digest(f"{text.VERSION}\n{rendering.text}".encode()),
            updated_at=now,
            transient=transient,
            traits=vocabulary.as_bytes(traits),
        )


class RecentTexts:
    """The texts rendered last, by digest, so that the indexer need not read them again."""

    def __init__(self) -> None:
        self._texts: dict[bytes, str] = {}

    def add(self, records: Iterable[Record]) -> None:
        """Keep the texts of new records, and drop the oldest ones beyond the limit."""
        self._texts |= {record.text_digest: record.text for record in records}
        for text_digest in list(self._texts)[:-_MAX_RECENT]:
            del self._texts[text_digest]

    def take(self, digests: Iterable[bytes]) -> dict[bytes, str]:
        """Remove and return the kept ones of some texts."""
        return {d: self._texts.pop(d) for d in digests if d in self._texts}

    def clear(self) -> None:
        """Drop all: also texts of objects that are gone, and of those that had their vectors."""
        self._texts.clear()


def load_entries(store: Store) -> list[Entry]:
    """Return all entries; objects that another version redacted or rendered are rewritten first.

    Raises StoreError, also if objects must be rewritten and cannot be.
    """
    if store.fact("written by") != WRITTEN_BY:
        if store.is_read_only:
            raise StoreError(
                f"the database {store.path} is read-only and of an older op-dbus, which may have"
                " hidden less of what is secret: let the user that op-dbus runs as write it"
            )
        _rewrite(store)
    if store.is_read_only:
        return [entry for entry in store.entries() if not entry.transient]
    store.remove_transient()
    return list(store.entries())


def _rewrite(store: Store) -> None:
    records = list(_read_again(store))
    with store.transaction():
        # names are redacted too, so that an identity may change
        store.remove_all()
        store.put(records)
        store.set_fact("written by", WRITTEN_BY)
    store.scrub()


def _read_again(store: Store) -> Iterator[Record]:
    recorder = Recorder()
    for identity, owner, properties, updated_at, transient in store.stored():
        store.require_running()
        try:
            content: dict[str, Json] = json.loads(properties)
        except ValueError as error:
            raise Damaged(store.path, "an object in it is not JSON") from error
        item = redact.redact_object(identity, content)
        yield recorder.record(item, owner, updated_at, transient=transient)


def commit(
    store: Store, records: Sequence[Record], gone: Sequence[Entry], generation: int
) -> list[Entry]:
    """Store records and remove entries in one transaction; return the entries of the records."""
    with store.transaction():
        store.remove(entry.id for entry in gone)
        store.set_fact("generation", str(generation))
        return store.put(records)
