"""How much publishers may keep, each user and all together; what files declare is free."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opdbus.errors import LimitsExceeded
from opdbus.state.object import FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Literal

    from opdbus.index.store import Entry, Record
    from opdbus.state.object import Identity


@dataclass(frozen=True, slots=True)
class Quota:
    """So many objects, and so many bytes of their names, properties and texts."""

    objects: int
    size: int


OF_EACH: Final = Quota(50_000, 64 << 20)
OF_ALL: Final = Quota(200_000, 256 << 20)


class Usage:
    """What publishers keep now, by uid, and whether there is room for more."""

    def __init__(self, of_each: Quota = OF_EACH, of_all: Quota = OF_ALL) -> None:
        self._of_each = of_each
        self._of_all = of_all
        self._objects: Counter[int] = Counter()
        self._sizes: Counter[int] = Counter()

    def count(self, entry: Entry, sign: Literal[1, -1]) -> None:
        """Count an entry that came, or with -1 one that went."""
        if entry.identity.source != FILE:
            self._objects[entry.owner] += sign
            self._sizes[entry.owner] += sign * entry.size

    def require_room(
        self, records: Iterable[Record], known: Callable[[Identity], Entry | None]
    ) -> None:
        """Raise LimitsExceeded if records do not fit in beside what they do not replace."""
        objects: Counter[int] = Counter()
        sizes: Counter[int] = Counter()
        for record in records:
            if record.identity.source == FILE:
                continue
            before = known(record.identity)
            objects[record.owner] += before is None
            sizes[record.owner] += record.size - (before.size if before else 0)
        for owner in objects:
            now = Quota(self._objects[owner], self._sizes[owner])
            more = Quota(objects[owner], sizes[owner])
            _require(f"uid {owner}", now, more, self._of_each)
        now = Quota(self._objects.total(), self._sizes.total())
        _require(
            "all publishers together", now, Quota(objects.total(), sizes.total()), self._of_all
        )


def _require(who: str, now: Quota, more: Quota, limit: Quota) -> None:
    if more.objects > 0 and now.objects + more.objects > limit.objects:
        raise LimitsExceeded(
            f"{who} would keep {now.objects + more.objects} published objects, past the limit of"
            f" {limit.objects}: nothing of this was taken; withdraw what is not needed any more"
        )
    if more.size > 0 and now.size + more.size > limit.size:
        raise LimitsExceeded(
            f"{who} would keep {now.size + more.size} bytes of published objects, past the limit of"
            f" {limit.size}: nothing of this was taken; withdraw what is not needed any more, or"
            " publish less of each"
        )
