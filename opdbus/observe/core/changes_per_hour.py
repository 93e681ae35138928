"""Counts of field changes per hour, to find fields that should be volatile."""

import time
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final

from opdbus.observe.core.report import Key
from opdbus.platform import name_lists
from opdbus.state.redact import redact_text

# A field that changes more often than this in an hour, in more than half of its kind's objects,
# is noisy. A kind with one object counts too: a battery's charge is noise on its own.
PER_HOUR: Final = 12
_HOUR: Final = 3600.0
# A unit that a timer runs that often has one row for all of its runs in so many seconds.
COALESCE_RUNS_SECONDS: Final = 600.0
# The name under which runs are counted; no field has it.
RUNS: Final = ""
# Pause between rows of an object whose noisy fields alone change: the last change is written
# within a minute.
COALESCE_SECONDS: Final = 55.0
# The most counted fields of objects: about 250 bytes each, 6 MiB for each observer.
_MAX_COUNTED: Final = 25_000
_MAX_SHOWN: Final = 64
_MAX_NAMED: Final = 3


class ChangesPerHour:
    """Change counts of an observer's fields: finds noisy ones, counts coalesced changes."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        coalesce_seconds: float = COALESCE_SECONDS,
    ) -> None:
        self.clock = clock
        self.coalesce_seconds = coalesce_seconds
        # by kind and field, then by the object's name: the times of the latest changes, one more
        # than there may be in an hour
        self._times: dict[tuple[str, str], dict[str, array[int]]] = {}
        self._counted = 0
        # when objects at rest were last dropped, which takes time
        self._made_room = -_HOUR
        self._coalesced: Counter[tuple[str, str]] = Counter()
        # number of reports that differed from the one before, and of those that are stored later
        self.reports = self.delayed = 0

    def note(self, key: Key, fields: Iterable[str], *, is_deferred: bool = False) -> None:
        """Count a change of some fields of an object, and whether it is stored later."""
        now = int(self.clock())
        for field in fields:
            if self._counted >= _MAX_COUNTED and now >= self._made_room + COALESCE_SECONDS:
                self._drop_resting(now)
            times = self._times.get((key.kind, field), {}).get(key.name)
            if times is None:
                times = array("Q")
                if self._counted < _MAX_COUNTED:
                    self._times.setdefault((key.kind, field), {})[key.name] = times
                    self._counted += 1
            times.append(now)
            del times[: -PER_HOUR - 1]
            if is_deferred:
                self._coalesced[key.kind, field] += 1

    def forget(self, keys: Collection[Key]) -> None:
        """Forget objects that are gone."""
        if not keys:
            return
        for (kind, _), objects in self._times.items():
            for name in [name for name in objects if Key(kind, name) in keys]:
                del objects[name]
                self._counted -= 1

    def noisy_fields(self, kind: str, objects: int) -> frozenset[str]:
        """Return the fields of a kind that change all the time; `objects` is how many it has."""
        since = self.clock() - _HOUR
        return frozenset(
            field
            # copies: another thread may be counting
            for (of, field), counted in list(self._times.items())
            if of == kind and field != RUNS and len(counted) * 2 > objects
            if sum(_often(times, since) for times in list(counted.values())) * 2 > objects
        )

    def runs_often(self, key: Key) -> bool:
        """Return whether an object had more runs in the last hour than each is to be a row."""
        times = self._times.get((key.kind, RUNS), {}).get(key.name)
        return times is not None and _often(times, self.clock() - _HOUR)

    def proposal(self, plugin: str, objects: Callable[[str], int]) -> str:
        """Propose the fields that should be volatile, in a sentence; empty if there are none."""
        found = {
            (kind, field): self._coalesced[kind, field]
            for kind in sorted({kind for kind, _ in list(self._times)})
            for field in sorted(self.noisy_fields(kind, objects(kind)))
        }
        names = [redact_text(f"{plugin}/{kind}:{field}")[:_MAX_SHOWN] for kind, field in found]
        if not names:
            return ""
        shown = names[:_MAX_NAMED]
        return (
            f"{name_lists.join_first(names, _MAX_NAMED)}: more than {PER_HOUR} changes an hour, of"
            f" which {sum(found.values()):,} were coalesced; if nobody needs them, set"
            f" OP_DBUS_VOLATILE={','.join(shown)}"
        )

    def _drop_resting(self, now: int) -> None:
        """Drop fields that have not changed for an hour."""
        self._made_room = now
        kept = {
            of: {name: times for name, times in objects.items() if times[-1] > now - _HOUR}
            for of, objects in self._times.items()
        }
        self._times = {of: objects for of, objects in kept.items() if objects}
        self._counted = sum(map(len, self._times.values()))
        self._coalesced = Counter({of: self._coalesced[of] for of in self._times})


def _often(times: "array[int]", since: float) -> bool:
    return len(times) > PER_HOUR and times[0] > since
