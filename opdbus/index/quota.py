"""Limits of what publishers may store, for each user and for all."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, Literal, NamedTuple

from opdbus.config import BY_KEY
from opdbus.errors import LimitsExceeded
from opdbus.index.store import Entry, Record
from opdbus.state.object import PUBLISHED, Identity


class Quota(NamedTuple):
    """Number of objects, and bytes of their names, properties and texts."""

    objects: int
    size: int


# What all users together may publish, as much as so many of them.
_USERS: Final = 4
_SETTINGS: Final = BY_KEY["publish_objects"], BY_KEY["publish_bytes"]
OF_EACH: Final = Quota(*(setting.parse(setting.default) for setting in _SETTINGS))


def of_all(of_each: Quota) -> Quota:
    """Return what all users together may publish."""
    return Quota(_USERS * of_each.objects, _USERS * of_each.size)


class Usage:
    """What publishers store now, by uid; all together may store four times as much by default."""

    def __init__(self, of_each: Quota = OF_EACH, of_all_users: Quota | None = None) -> None:
        self._of_each = of_each
        self._of_all = of_all_users or of_all(of_each)
        self._objects: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()

    def count(self, entry: Entry, sign: Literal[1, -1]) -> None:
        """Count an entry that was added, or with -1 one that was removed."""
        if entry.identity.source.startswith(PUBLISHED):
            self._objects[entry.owner] += sign
            self._sizes[entry.owner] += sign * entry.size

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
        for record in records:
            if not record.identity.source.startswith(PUBLISHED):
                continue
            before = known(record.identity)
            objects[record.owner] += before is None
            sizes[record.owner] += record.size - (before.size if before else 0)
        for owner in objects:
            now = Quota(self._objects[owner], self._sizes[owner])
            more = Quota(objects[owner], sizes[owner])
            _require(f"uid {owner}", now, more, self._of_each)
        now = Quota(self._objects.total(), self._sizes.total())
        more = Quota(objects.total(), sizes.total())
        _require("all publishers together", now, more, self._of_all)


def _require(publisher: str, now: Quota, more: Quota, limit: Quota) -> None:
    units = ("published objects", "bytes of published objects")
    for unit, setting, kept, added, most in zip(units, _SETTINGS, now, more, limit, strict=True):
        if added > 0 and kept + added > most:
            raise LimitsExceeded(
                f"{publisher} would keep {kept + added} {unit}, past the limit of {most}: nothing"
                " of this was taken; withdraw what is not needed any more, publish less of each, or"
                f" raise {setting.variable}"
            )
