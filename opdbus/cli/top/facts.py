"""What op-dbus said last, as the screen shows it. Pure."""

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

# Over so long texts are counted, to say how many there are a second.
_SECONDS: Final = 10.0


class Changes:
    """The last changes, the oldest first; `is_cut` says that there are older ones."""

    def __init__(self, rows: Sequence[Change] = (), *, is_cut: bool = False) -> None:
        self.rows = rows
        self.is_cut = is_cut

    @cached_property
    def lines(self) -> Sequence[grouping.Line]:
        """The changes as `op-dbus changes` words them; a thousand take a tenth of a second."""
        return [*grouping.lines(self.rows, is_cut=self.is_cut)]

    @property
    def last(self) -> int:
        """The number of the newest one, 0 if there is none."""
        return int(self.rows[-1]["seq"]) if self.rows else 0


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of op-dbus; `values` is empty until it has answered once.

    `at` is when it last answered, in seconds since 1970. `trouble` says why nothing new is known,
    `rate` how many texts a second get their vectors.
    """

    host: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    at: float = 0.0
    changes: Changes = field(default_factory=Changes)
    drifts: Sequence[Row] = ()
    rate: float | None = None
    trouble: str = ""


class Rate:
    """Says how fast a number grows that op-dbus counts."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def count(self, at: float, number: int) -> float | None:
        """Take what was counted at a time in seconds; return the growth in a second, if known."""
        if self._counts and number < self._counts[-1][1]:  # another model serves
            self._counts.clear()
        self._counts.append((at, number))
        while len(self._counts) > 2 and at - self._counts[1][0] >= _SECONDS:
            self._counts.popleft()
        since, first = self._counts[0]
        return (number - first) / (at - since) if at > since else None
