"""Rules for publishers: objects that a user may replace or withdraw, and limits on stored ones."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from opdbus.config import BY_KEY
from opdbus.errors import AccessDenied, LimitsExceeded
from opdbus.index.database.store import Entry, Record
from opdbus.state.object import FILE, PUBLISHED, Identity

ROOT: Final = 0
# (source, plugin, kind).
SourceKind: TypeAlias = tuple[str, str, str]


class Quota(NamedTuple):
    """Number of objects, their size in bytes as Record.size, and number of distinct Sorts."""

    objects: int
    size: int
    source_kinds: int = 1000


# The quota of all users together, as a multiple of the quota of one.
_USERS: Final = 4
_SETTINGS: Final = BY_KEY["publish_objects"], BY_KEY["publish_bytes"]
# The unit of each limit, and advice.
_UNITS: Final = (
    ("published objects", f"publish less of each, or raise {_SETTINGS[0].variable}"),
    ("bytes of published objects", f"publish less of each, or raise {_SETTINGS[1].variable}"),
    ("publishers, plugins and kinds", "or publish objects under fewer of these names"),
)
OF_EACH: Final = Quota(*(setting.parse(setting.default) for setting in _SETTINGS))


def of_all(of_each: Quota) -> Quota:
    """Return the quota of all users together."""
    return Quota(*(_USERS * most for most in of_each))


class Usage:
    """Current usage of publishers by uid, checked against the quotas."""

    def __init__(self, of_each: Quota = OF_EACH, of_all_users: Quota | None = None) -> None:
        self._of_each = of_each
        self._of_all = of_all_users or of_all(of_each)
        self._objects: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()
        # number of objects by owner and Sort
        self._source_kinds: dict[int, Counter[SourceKind]] = defaultdict(Counter)

    def count(self, entries: Iterable[Entry], sign: Literal[1, -1]) -> None:
        """Add entries to the usage of their owners, or subtract them; ignore unpublished ones."""
        for entry in entries:
            if not entry.identity.source.startswith(PUBLISHED):
                continue
            self._objects[entry.owner] += sign
            self._sizes[entry.owner] += sign * entry.size
            counts, source_kind = self._source_kinds[entry.owner], entry.identity[:3]
            counts[source_kind] += sign
            if not counts[source_kind]:
                del counts[source_kind]

    def require_room(
        self, records: Iterable[Record], known: Callable[[Identity], Entry | None]
    ) -> None:
        """Raise LimitsExceeded if storing published records would exceed a quota.

        `known` returns the entry that a record replaces.
        """
        objects: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        source_kinds: dict[int, set[SourceKind]] = defaultdict(set)
        for record in records:
            if not record.identity.source.startswith(PUBLISHED):
                continue
            before = known(record.identity)
            if (source_kind := record.identity[:3]) not in self._source_kinds[record.owner]:
                source_kinds[record.owner].add(source_kind)
            objects[record.owner] += before is None
            sizes[record.owner] += record.size - (before.size if before else 0)
        if not objects:
            return
        for owner in objects:
            now = Quota(self._objects[owner], self._sizes[owner], len(self._source_kinds[owner]))
            more = Quota(objects[owner], sizes[owner], len(source_kinds[owner]))
            _require(f"uid {owner}", now, more, self._of_each)
        kept = sum(map(len, self._source_kinds.values()))
        now = Quota(self._objects.total(), self._sizes.total(), kept)
        more = Quota(objects.total(), sizes.total(), sum(map(len, source_kinds.values())))
        _require("all publishers together", now, more, self._of_all)


def _require(publisher: str, now: Quota, more: Quota, limit: Quota) -> None:
    for (unit, advice), kept, added, most in zip(_UNITS, now, more, limit, strict=True):
        if added > 0 and kept + added > most:
            raise LimitsExceeded(
                f"{publisher} would keep {kept + added} {unit}, past the limit of {most}: nothing"
                f" of this was taken; withdraw what is not needed any more, {advice}"
            )


def require_owner(entry: Entry, owner: int) -> None:
    """Raise AccessDenied unless `owner` may replace an entry: its owner, or root."""
    if owner not in {ROOT, entry.owner}:
        raise AccessDenied(
            f"{'/'.join(entry.identity[1:])} of {entry.identity.source} belongs to uid"
            f" {entry.owner}: publish under a source name of your own"
        )


def is_published(entries: Sequence[Entry]) -> bool:
    """Return whether a program publishes one of some entries."""
    return any(e.identity.source.startswith(PUBLISHED) for e in entries)


def owned(entries: Sequence[Entry], owner: int) -> list[Entry]:
    """Return the published entries of an object that `owner` may withdraw.

    Raises AccessDenied if there is none. `entries` must not be empty.
    """
    published = [e for e in entries if e.identity.source.startswith(PUBLISHED)]
    mine = [e for e in published if owner in {ROOT, e.owner}]
    if not mine:
        first = entries[0].identity
        other = "the state file declares it" if first.source == FILE else "op-dbus observes it"
        raise AccessDenied(
            f"{'/'.join(first[1:])} was not published by you, so you cannot withdraw it;"
            f" {'its publisher can' if published else other}"
        )
    return mine
