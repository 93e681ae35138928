"""What is to be stored is made ready: on a thread, since it takes most of the time of a change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from opdbus.history.change import Why
from opdbus.index.catalogue import Catalogue
from opdbus.index.records import Recorder, Update
from opdbus.index.store import Entry, Record
from opdbus.state.object import Identity, StateObject


class Made(NamedTuple):
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
    make = partial(_record, Recorder(), now=max(0, int(now)), transient=transient)
    return [
        make(item, entry.owner if entry else owner)
        for item, entry in ((item, known.get(identity)) for identity, item in latest.items())
        if not _is_stored(item, entry, transient=transient)
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


def _record(
    recorder: Recorder, item: StateObject | Record, owner: int, *, now: int, transient: bool
) -> Record:
    if isinstance(item, Record):
        return item._replace(owner=owner, updated_at=now, transient=transient)
    return recorder.record(item, owner, now, transient=transient)


def _is_stored(item: StateObject | Record, entry: Entry | None, *, transient: bool) -> bool:
    """Return whether an object is stored just so."""
    if entry is None or entry.transient is not transient:
        return False
    hashed = item.fingerprint if isinstance(item, Record) else item.fingerprint()
    return entry.fingerprint == hashed
