"""Objects rendered for the store; the store loaded at start, and changed in transactions."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from opdbus.history import change
from opdbus.history.change import Change, Why
from opdbus.history.change_sentence import of_change
from opdbus.index.database.ownership import ROOT
from opdbus.index.database.store import Content, Entry, Record, Store
from opdbus.language import object_text, tables, vocabulary
from opdbus.state import redact
from opdbus.state.object import FILE, Identity, Json, StateObject

# At most 5 MB, and more than the indexer tokenizes at a time.
_MAX_RECENT: Final = 20_000
# Which state file it is that all declared objects are of, once they are.
DECLARED: Final = "declared"
REDACTED_BY: Final = f"redaction {redact.VERSION}, "
WRITTEN_BY: Final = (
    f"{REDACTED_BY}text {object_text.VERSION}, glossary {tables.version('glossary')},"
    f" vocabulary {tables.version('vocabulary')}, words {object_text.WORDS}"
)


class Draft(NamedTuple):
    """An object, its properties as JSON, and its fingerprint."""

    item: StateObject
    properties: str
    fingerprint: str


def draft(item: StateObject) -> Draft:
    """Make what tells whether an object is stored just so."""
    properties = item.json()
    return Draft(item, properties, item.fingerprint_of(properties))


class Recorder:
    """Renders and hashes objects, which are redacted already; made for some at a time."""

    def __init__(self) -> None:
        self._vocabulary = vocabulary.Reader()

    def record(self, item: StateObject, owner: int, now: int, *, transient: bool) -> Record:
        """Make the record of an object."""
        (made,) = self.records([draft(item)])
        return made._replace(owner=owner, updated_at=now, transient=transient)

    def records(self, drafts: Sequence[Draft]) -> list[Record]:
        """Make the records of root's objects, which have no time yet.

        Each step is taken for all: all steps for one after the other take a third longer.
        """
        items = [item for item, _, _ in drafts]
        renderings = [*map(object_text.render, items)]
        digests = [object_text.digest_of(each.text) for each in renderings]
        of_vocabulary = self._vocabulary.traits
        traits = [of_vocabulary(item.identity, item.properties) for item in items]
        made = zip(drafts, renderings, digests, map(vocabulary.as_bytes, traits), strict=True)
        return [
            Record(item.identity, ROOT, properties, *rendering, hashed, digest, 0, False, had)  # noqa: FBT003 -- by place, which takes half of the time
            for (item, properties, hashed), rendering, digest, had in made
        ]


class RecentTexts:
    """The texts rendered last, by digest, so that the indexer need not read them again."""

    def __init__(self) -> None:
        self._texts: dict[bytes, str] = {}

    def add(self, records: Sequence[Record]) -> None:
        """Keep the texts of new records, and drop the oldest ones beyond the limit."""
        self._texts |= {record.text_digest: record.text for record in records[-_MAX_RECENT:]}
        more = max(0, len(self._texts) - _MAX_RECENT)
        for text_digest in [*islice(self._texts, more)]:
            del self._texts[text_digest]

    def take(self, digests: Iterable[bytes], *, again: bool = False) -> dict[bytes, str]:
        """Return the kept ones of some texts, and remove them unless they are wanted `again`."""
        take = self._texts.__getitem__ if again else self._texts.pop
        return {d: take(d) for d in digests if d in self._texts}

    def clear(self) -> None:
        """Drop all: also texts of objects that are gone, and of those that had their vectors."""
        self._texts.clear()


class Update(NamedTuple):
    """What is to be changed in one transaction, and why.

    `known` are the entries that records replace and that events are about. Of what was `withdrawn`,
    no values are kept.
    """

    records: Sequence[Record]
    gone: Sequence[Entry]
    known: Mapping[Identity, Entry]
    why: Callable[[Identity], Why]
    # what happened to objects without changing them
    events: Mapping[Identity, Why] = {}
    withdrawn: bool = False


class Committed(NamedTuple):
    """The entries of the records, the numbers of the rows of history, and which texts changed."""

    entries: list[Entry]
    rows: range
    # for each row whose object has another text: its number, and the digests before and after
    moved: list[tuple[int, bytes, bytes]]


def commit(store: Store, update: Update, generation: int, at: int, boot: str) -> Committed:
    """Store records, remove entries and write what changed down, in one transaction."""
    records, gone = update.records, update.gone
    with store.transaction():
        before = store.content([entry.id for entry in (*update.known.values(), *gone)])
        changes = list(_changes(update, before))
        for entry in gone if update.withdrawn else ():
            store.ledger.erase(entry.identity)
        rows = store.ledger.append(changes, at, boot)
        store.remove(entry.id for entry in gone)
        store.set_fact("generation", str(generation))
        if FILE in {
            *(one.identity.source for one in records),
            *(one.identity.source for one in gone),
        }:
            store.set_fact(DECLARED, "")
        entries = store.put(records, update.known)
    return Committed(entries, rows, _moved(update, changes, rows))


def _changes(update: Update, before: Mapping[int, Content]) -> Iterator[Change]:
    """Yield what changes, that of each object once."""
    for record in update.records:
        yield from _put(update, record, before)
    for left in update.gone:
        yield _gone(update, left, before.get(left.id))
    for identity, why in update.events.items():
        entry = update.known.get(identity)
        old = before.get(entry.id) if entry and not entry.transient else None
        yield of_change(Change(identity, "event", why, []), old.text if old else "")


def _put(update: Update, record: Record, before: Mapping[int, Content]) -> Iterator[Change]:
    """Yield what a record changes: nothing where the object is stored just so."""
    entry, why = update.known.get(record.identity), update.why(record.identity)
    old = before.get(entry.id) if entry else None
    what: change.What = "changed" if entry else "appeared"
    if why.cause == change.FIRST and not entry:
        yield Change(record.identity, what, why, [])
        return
    fields = change.differences(_read(old), json.loads(record.properties))
    fields = [field for field in fields if not entry or field.path[0] not in why.seen]
    if entry and why.is_event and not fields:
        what = "event"
    item = Change(record.identity, what, why, fields)
    if record.transient or (entry and entry.transient):
        yield _without_values(item)
    elif fields or not entry or why.is_event:
        yield of_change(item, record.text)


def _gone(update: Update, entry: Entry, old: Content | None) -> Change:
    fields = change.differences(_read(old), None)
    item = Change(entry.identity, "gone", update.why(entry.identity), fields)
    if update.withdrawn:
        # it says that the values of all rows before were erased
        return of_change(item._replace(fields=change.NOTHING_KEPT), "")
    return of_change(item, old.text) if old and not entry.transient else _without_values(item)


def _read(content: Content | None) -> dict[str, Json]:
    return json.loads(content.properties) if content else {}


def _without_values(item: Change) -> Change:
    fields = change.without_values(item.fields)
    return of_change(Change(item.identity, item.what, item.why, fields), "")


def _moved(
    update: Update, changes: Sequence[Change], rows: range
) -> list[tuple[int, bytes, bytes]]:
    changed = [
        (row, item.identity)
        for row, item in zip(rows, changes, strict=True)
        if item.what == "changed"
    ]
    after = {record.identity: record.text_digest for record in update.records if changed}
    return [(row, update.known[one].text_digest, after[one]) for row, one in changed]


def begin(store: Store, boot: str, at: int) -> str:
    """Note which run of the host this is, and return why things have changed since the last.

    What lived as long as a connection is gone.
    """
    before = store.fact("boot")
    cause = change.START if before == boot else change.BOOT
    left = store.entries(transient=True)
    if (before != boot or left) and not store.is_read_only:
        gone = (_without_values(Change(e.identity, "gone", Why(cause), [])) for e in left)
        with store.transaction():
            store.set_fact("boot", boot)
            store.ledger.append(gone, at, boot)
            store.remove(entry.id for entry in left)
    return cause
