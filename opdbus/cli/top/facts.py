"""Last known facts of op-dbus, as the screen shows them; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from opdbus.cli import grouping

if TYPE_CHECKING:
    from opdbus.cli.drifting import Row
    from opdbus.cli.telling import Change

# Time over which texts are counted for the rate.
_SECONDS: Final = 10.0


class Changes:
    """The last changes, the oldest first; `is_cut` if there are older ones."""

    def __init__(self, rows: Sequence[Change] = (), *, is_cut: bool = False) -> None:
        self.rows = rows
        self.is_cut = is_cut

    @cached_property
    def lines(self) -> Sequence[grouping.Line]:
        """The changes in the words of `op-dbus changes`; a thousand take a tenth of a second."""
        return [*grouping.lines(self.rows, is_cut=self.is_cut)]

    @property
    def last(self) -> int:
        """Number of the newest row, 0 if there is none."""
        return int(self.rows[-1]["seq"]) if self.rows else 0


@dataclass(frozen=True, slots=True)
class Facts:
    """Known state of op-dbus; `values` is empty until its first answer.

    `at` is the time of the last answer, in seconds since 1970. `trouble` is the reason for missing
    updates, `rate` the number of texts that get their vectors in a second.
    """

    host: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    at: float = 0.0
    changes: Changes = field(default_factory=Changes)
    drifts: Sequence[Row] = ()
    rate: float | None = None
    trouble: str = ""


class Rate:
    """Growth rate of a counter of op-dbus."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def count(self, at: float, number: int) -> float | None:
        """Add a count at a time in seconds; return the growth per second, None if unknown."""
        if self._counts and number < self._counts[-1][1]:  # another model serves
            self._counts.clear()
        self._counts.append((at, number))
        while len(self._counts) > 2 and at - self._counts[1][0] >= _SECONDS:
            self._counts.popleft()
        since, first = self._counts[0]
        return (number - first) / (at - since) if at > since else None
