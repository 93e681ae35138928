"""Limits of what publishers may store, for each user and for all."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple, TypeAlias

from opdbus.config import BY_KEY
from opdbus.errors import LimitsExceeded
from opdbus.index.database.store import Entry, Record
from opdbus.state.object import PUBLISHED, Identity

# A source, a plugin and a kind.
Sort: TypeAlias = tuple[str, str, str]


class Quota(NamedTuple):
    """Number of objects, bytes of their names, properties and texts, and what they may be of.

    Objects are of a source, a plugin and a kind.
    """

    objects: int
    size: int
    sorts: int = 1000


# What all users together may publish, as much as so many of them.
_USERS: Final = 4
_SETTINGS: Final = BY_KEY["publish_objects"], BY_KEY["publish_bytes"]
_UNITS: Final = (
    *(
        (unit, f"publish less of each, or raise {setting.variable}")
        for unit, setting in zip(
            ("published objects", "bytes of published objects"), _SETTINGS, strict=True
        )
    ),
    ("publishers, plugins and kinds", "or publish objects under fewer of these names"),
)
OF_EACH: Final = Quota(*(setting.parse(setting.default) for setting in _SETTINGS))


def of_all(of_each: Quota) -> Quota:
    """Return what all users together may publish."""
    return Quota(*(_USERS * most for most in of_each))


class Usage:
    """What publishers store now, by uid; all together may store four times as much by default."""

    def __init__(self, of_each: Quota = OF_EACH, of_all_users: Quota | None = None) -> None:
        self._of_each = of_each
        self._of_all = of_all_users or of_all(of_each)
        self._objects: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()
        # how many objects of each source, plugin and kind each owner has
        self._sorts: dict[int, Counter[Sort]] = defaultdict(Counter)

    def count(self, entry: Entry, sign: Literal[1, -1]) -> None:
        """Count an entry that was added, or with -1 one that was removed."""
        if entry.identity.source.startswith(PUBLISHED):
            self._objects[entry.owner] += sign
            self._sizes[entry.owner] += sign * entry.size
            self.count_sort(entry.owner, entry.identity[:3], sign)

    def count_sort(self, owner: int, sort: Sort, more: int) -> None:
        """Count how many more objects a user has of a source, a plugin and a kind."""
        counts = self._sorts[owner]
        counts[sort] += more
        if not counts[sort]:
            del counts[sort]

    def add(self, owner: int, more: Quota) -> None:
        """Count what a user has published."""
        self._objects[owner] += more.objects
        self._sizes[owner] += more.size

    def require_room(
        self, records: Iterable[Record], known: Callable[[Identity], Entry | None]
    ) -> None:
        """Raise LimitsExceeded if there is no room for records beside those that they replace."""
        objects: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        sorts: dict[int, set[Sort]] = defaultdict(set)
        for record in records:
            if not record.identity.source.startswith(PUBLISHED):
                continue
            before = known(record.identity)
            if (sort := record.identity[:3]) not in self._sorts[record.owner]:
                sorts[record.owner].add(sort)
            objects[record.owner] += before is None
            sizes[record.owner] += record.size - (before.size if before else 0)
        for owner in objects:
            now = Quota(self._objects[owner], self._sizes[owner], len(self._sorts[owner]))
            more = Quota(objects[owner], sizes[owner], len(sorts[owner]))
            _require(f"uid {owner}", now, more, self._of_each)
        kept = sum(map(len, self._sorts.values()))
        now = Quota(self._objects.total(), self._sizes.total(), kept)
        more = Quota(objects.total(), sizes.total(), sum(map(len, sorts.values())))
        _require("all publishers together", now, more, self._of_all)


def _require(publisher: str, now: Quota, more: Quota, limit: Quota) -> None:
    for (unit, advice), kept, added, most in zip(_UNITS, now, more, limit, strict=True):
        if added > 0 and kept + added > most:
            raise LimitsExceeded(
                f"{publisher} would keep {kept + added} {unit}, past the limit of {most}: nothing"
                f" of this was taken; withdraw what is not needed any more, {advice}"
            )
