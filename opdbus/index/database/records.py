"""Construction of database records from objects, and the transactions that store them."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from opdbus.history import change, jobs
from opdbus.history.change import Cause, Change
from opdbus.history.change_sentence import of_change
from opdbus.index.database.quota import ROOT
from opdbus.index.database.store import Content, Entry, Record, Store
from opdbus.language import object_text, synonyms, tables, vocabulary
from opdbus.state import redact
from opdbus.state.object import FILE, Identity, Json, StateObject

# Fact: versions and signature of the state file whose objects are stored, "" if those changed.
DECLARED: Final = "declared"
REDACTED_BY: Final = f"redaction {redact.VERSION}, "


def written_by() -> str:
    """Return the versions of all that records are made by; other records are made anew."""
    return (
        f"{REDACTED_BY}text {object_text.VERSION}, glossary {synonyms.version()},"
        f" vocabulary {tables.version('vocabulary')}, words {object_text.WORDS}"
    )


class Draft(NamedTuple):
    """An object, its properties as canonical JSON, and its fingerprint."""

    item: StateObject
    properties: str
    fingerprint: str


def draft(item: StateObject) -> Draft:
    """Compute the fingerprint of an object, by which it is compared with its entry."""
    properties = item.json()
    return Draft(item, properties, item.fingerprint_of(properties))


class Recorder:
    """Renderer of records from redacted objects.

    Remembers the keys of the objects, so use one for a batch and drop it.
    """

    def __init__(self) -> None:
        self._vocabulary = vocabulary.Reader()

    def record(self, item: StateObject, owner: int, now: int, *, transient: bool) -> Record:
        """Return the record of an object; `now` is in seconds since 1970."""
        (made,) = self.records([draft(item)])
        return made._replace(owner=owner, updated_at=now, transient=transient)

    def records(self, drafts: Sequence[Draft]) -> list[Record]:
        """Return records with owner root and `updated_at` 0.

        Each step runs for all drafts before the next, which is faster than one draft at a time.
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


class Update(NamedTuple):
    """Changes of one transaction, and their causes.

    `known` are the entries that `records` replace and that `events` concern. If `withdrawn`, the
    values of the objects in `gone` are erased from history.
    """

    records: Sequence[Record]
    gone: Sequence[Entry]
    known: Mapping[Identity, Entry]
    why: Callable[[Identity], Cause]
    # events that changed no field
    events: Mapping[Identity, Cause] = {}
    withdrawn: bool = False


class Committed(NamedTuple):
    """Result of `commit`: the entries of the records, and the new rows of history.

    `counts` has the number of new rows by what happened and the kind of its cause.
    """

    entries: list[Entry]
    rows: range
    # (row number, text digest before, text digest after) of each changed object
    moved: list[tuple[int, bytes, bytes]]
    counts: Counter[tuple[change.ChangeType, str]]


def commit(store: Store, update: Update, generation: int, at: int, boot: str) -> Committed:
    """Store records, remove entries and append their changes to history in one transaction.

    `at` is in seconds since 1970; `boot` is the id of this run of the host.
    """
    records, gone = update.records, update.gone
    with store.transaction():
        before = store.content([entry.id for entry in (*update.known.values(), *gone)])
        changes = list(_changes(update, before))
        for entry in gone if update.withdrawn else ():
            store.ledger.erase(entry.identity)
        rows = store.ledger.append(changes, at, boot)
        store.remove(entry.id for entry in gone)
        store.set_fact("generation", str(generation))
        if any(one.identity.source == FILE for each in (records, gone) for one in each):
            store.set_fact(DECLARED, "")
        entries = store.put(records, update.known)
    changed = [
        (row, item.identity)
        for row, item in zip(rows, changes, strict=True)
        if item.change_type == "changed"
    ]
    after = {record.identity: record.text_digest for record in records if changed}
    moved = [(row, update.known[one].text_digest, after[one]) for row, one in changed]
    counts = Counter((one.change_type, change.kind_of_cause(one.why.cause)) for one in changes)
    return Committed(entries, rows, moved, counts)


def _changes(update: Update, before: Mapping[int, Content]) -> Iterator[Change]:
    """Yield the changes of an update, at most one for each object."""
    for record in update.records:
        entry, why = update.known.get(record.identity), update.why(record.identity)
        if not entry and jobs.act(why.cause) in jobs.ENDS:
            # it came and ended between two writes: an end brings nothing
            why = Cause(ignored_fields=why.ignored_fields)
        if why.cause == change.FIRST and not entry:
            yield Change(record.identity, "appeared", why, [])
            continue
        old = before.get(entry.id) if entry else None
        was: dict[str, Json] = json.loads(old.properties) if old else {}
        fields = change.differences(was, json.loads(record.properties))
        if entry:
            fields = [field for field in fields if field.path[0] not in why.ignored_fields]
        is_event = bool(entry and why.is_event and not fields)
        what: change.ChangeType = "event" if is_event else "changed" if entry else "appeared"
        is_kept = not (record.transient or (entry and entry.transient))
        if fields or is_event or not entry or not is_kept:
            item = Change(record.identity, what, why, [*fields, *why.fields])
            yield _with_sentence(item, record.text, has_values=is_kept)
    for entry in update.gone:
        old = before.get(entry.id)
        # NOTHING_KEPT records that the values of earlier rows were erased
        fields = change.differences(json.loads(old.properties) if old else {}, {})
        fields = [*change.NOTHING_KEPT] if update.withdrawn else fields
        item = Change(entry.identity, "gone", update.why(entry.identity), fields)
        has_values = bool(old and not entry.transient and not update.withdrawn)
        yield _with_sentence(item, old.text if old else "", has_values=has_values)
    for identity, why in update.events.items():
        entry = update.known.get(identity)
        old = before.get(entry.id) if entry and not entry.transient else None
        yield of_change(Change(identity, "event", why, why.fields), old.text if old else "")


def _with_sentence(item: Change, text: str, *, has_values: bool) -> Change:
    """Return a change of an object with a text, with its sentence, or without its values."""
    if has_values:
        return of_change(item, text)
    return of_change(item._replace(fields=change.without_values(item.fields)), "")


def begin(store: Store, boot: str, at: int, booted_at: int) -> str:
    """Store the boot id, record a reboot, and remove transient objects.

    Return the cause of later changes.

    The cause is change.START if the host has not rebooted since the last run, else change.BOOT. A
    read-only store is not changed.
    """
    before = store.fact("boot")
    cause = change.START if before == boot else change.BOOT
    left = store.entries(transient=True)
    if (before != boot or left) and not store.is_read_only:
        gone = (of_change(Change(e.identity, "gone", Cause(cause), []), "") for e in left)
        with store.transaction():
            store.set_fact("boot", boot or before or "")
            if before and boot and before != boot:
                reboot = of_change(Change(change.HOST, "event", Cause(change.REBOOT), []), "")
                store.ledger.append([reboot], booted_at, boot)
            store.ledger.append(gone, at, boot)
            store.remove(entry.id for entry in left)
    return cause
