"""Counts how often fields change, to find those that move by themselves and nobody said so."""

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from opdbus.observe.report import Key
from opdbus.state.redact import redact_text

# A field that changes more often than this in an hour, in more than half of its kind's objects,
# is restless. A kind with one object counts too: a battery's charge is noise on its own.
PER_HOUR: Final = 12
_HOUR: Final = 3600.0
# The changes of restless fields alone are written at most so often for each object.
FOLD_SECONDS: Final = 60.0
# Fields of objects whose changes are counted: about 200 bytes each.
_MAX_COUNTED: Final = 50_000
_MAX_SHOWN: Final = 64
_MAX_NAMED: Final = 3


class ChangesPerHour:
    """Knows which fields of an observer's objects are restless, and what of them was folded."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, fold_seconds: float = FOLD_SECONDS
    ) -> None:
        self.clock = clock
        self.fold_seconds = fold_seconds
        # the latest changes of each field of an object, one more than may be in an hour
        self._times: dict[Key, dict[str, array[float]]] = {}
        self._counted = 0
        # when room was made last, which takes time
        self._made_room = -_HOUR
        # of each kind and field that changes often: until when it does, by the object's name
        self._often: dict[tuple[str, str], dict[str, float]] = {}
        self._folded: Counter[tuple[str, str]] = Counter()

    def note(self, key: Key, fields: Iterable[str], *, is_folded: bool = False) -> None:
        """Count a change of some fields of an object, and whether it is stored later."""
        now = self.clock()
        for field in fields:
            times = self._of(key, field, now)
            self._folded[key.kind, field] += is_folded
            times.append(now)
            del times[: -PER_HOUR - 1]
            if len(times) > PER_HOUR and times[0] > now - _HOUR:
                self._often.setdefault((key.kind, field), {})[key.name] = times[0] + _HOUR

    def forget(self, key: Key) -> None:
        """Forget an object that is gone."""
        fields = self._times.pop(key, {})
        self._counted -= len(fields)
        for field in fields:
            self._often.get((key.kind, field), {}).pop(key.name, None)

    def restless(self, kind: str, objects: int) -> frozenset[str]:
        """Return the fields of a kind that change all the time; `objects` is how many it has."""
        now = self.clock()
        return frozenset(
            field
            # copies: another thread may be counting
            for (of, field), until in list(self._often.items())
            if of == kind and sum(end > now for end in list(until.values())) * 2 > objects
        )

    def proposal(self, plugin: str, objects: Callable[[str], int]) -> str:
        """Say which fields had better be volatile, and how; empty if there are none."""
        found = {
            (kind, field): self._folded[kind, field]
            for kind in sorted({kind for kind, _ in list(self._often)})
            for field in sorted(self.restless(kind, objects(kind)))
        }
        names = [redact_text(f"{plugin}/{kind}:{field}")[:_MAX_SHOWN] for kind, field in found]
        if not names:
            return ""
        shown = names[:_MAX_NAMED]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        return (
            f"{', '.join(shown)}{more}: more than {PER_HOUR} changes an hour, of which"
            f" {sum(found.values()):,} were folded; if they tell nothing, set"
            f" OP_DBUS_VOLATILE={','.join(shown)}"
        )

    def _of(self, key: Key, field: str, now: float) -> "array[float]":
        """Return where a field's changes are counted; nowhere, if there is no room."""
        fields = self._times.get(key, {})
        if field not in fields:
            if self._counted >= _MAX_COUNTED:
                self._make_room(now)
            if self._counted >= _MAX_COUNTED:
                return array("d")
            fields = self._times.setdefault(key, {})
            fields[field] = array("d")
            self._counted += 1
        return fields[field]

    def _make_room(self, now: float) -> None:
        """Forget objects that have not changed for an hour."""
        if now < self._made_room + FOLD_SECONDS:
            return
        self._made_room = now
        for key, fields in list(self._times.items()):
            if all(times[-1] < now - _HOUR for times in fields.values()):
                self.forget(key)
