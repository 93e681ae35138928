"""What is to be stored is made ready: on a thread, since it takes most of the time of a change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from opdbus.history.change import Why
from opdbus.index.catalogue.catalogue import Catalogue
from opdbus.index.database.records import Draft, Recorder, Update, draft
from opdbus.index.database.store import Entry, Record
from opdbus.state.object import Identity, StateObject


class BuiltRecords(NamedTuple):
    """Records of some objects, and when they were made, in seconds since 1970."""

    now: float
    records: Sequence[Record]


def records(
    catalogue: Catalogue,
    objects: Iterable[StateObject | Record],
    owner: int,
    now: float,
    *,
    transient: bool,
) -> list[Record]:
    """Make records of those objects that are not stored just so; the last of a name counts.

    Root may change what is another's, and does not take it away. Of what has a record already,
    only whose it is and when it was made is set.
    """
    latest = {item.identity: item for item in objects}
    known = catalogue.known_of(latest)
    entries = map(known.get, latest)
    hashed = (one if isinstance(one, Record) else draft(one) for one in latest.values())
    wanted = [
        (one, entry.owner if entry else owner)
        for one, entry in zip(hashed, entries, strict=True)
        if not _is_stored(one, entry, transient=transient)
    ]
    seconds = max(0, int(now))
    rendered = iter(Recorder().records([one for one, _ in wanted if isinstance(one, Draft)]))
    made = ((one if isinstance(one, Record) else next(rendered), owner) for one, owner in wanted)
    # by place, which takes half the time of `_replace`
    return [
        Record(one.identity, owner, *one[2:7], seconds, transient, one.traits)
        for one, owner in made
    ]


def update(
    catalogue: Catalogue,
    made: Sequence[Record],
    gone: Sequence[Entry],
    why: Callable[[Identity], Why],
    events: Mapping[Identity, Why],
    *,
    withdrawn: bool,
) -> Update:
    """Put together what is changed in one transaction; raises LimitsExceeded."""
    known = catalogue.known_of([*(record.identity for record in made), *events])
    catalogue.usage.require_room(made, known.get)
    return Update(made, gone, known, why, events, withdrawn=withdrawn)


def _is_stored(item: Draft | Record, entry: Entry | None, *, transient: bool) -> bool:
    """Return whether an object is stored just so."""
    if entry is None or entry.transient is not transient:
        return False
    return entry.fingerprint == item.fingerprint
