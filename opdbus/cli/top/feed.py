"""Facts about op-dbus that `top` shows, read by signals and once a second."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from opdbus.cli.status import Properties
from opdbus.client import Client
from opdbus.errors import AccessDenied, BusError, OpDbusError, ShuttingDown
from opdbus.platform.tasks import at_most, until_first_ends
from opdbus.systemd import unit
from opdbus.wording import change_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opdbus.cli.drifting import Row
    from opdbus.wording.change_words import Change

# Time over which texts are counted for the rate.
_RATE_SECONDS: Final = 10.0


class Changes:
    """The last changes, the oldest first; `is_cut` if there are older ones."""

    def __init__(self, rows: Sequence[Change] = (), *, is_cut: bool = False) -> None:
        self.rows = rows
        self.is_cut = is_cut

    @cached_property
    def lines(self) -> Sequence[change_lines.ChangeLine]:
        """The changes in the words of `op-dbus changes`; a thousand take a tenth of a second."""
        return [*change_lines.group_into_lines(self.rows, is_cut=self.is_cut)]

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
    # the failed units: their number and the first names
    failed: tuple[int, Sequence[str]] = (0, ())
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
        while len(self._counts) > 2 and at - self._counts[1][0] >= _RATE_SECONDS:
            self._counts.popleft()
        since, first = self._counts[0]
        return (number - first) / (at - since) if at > since else None


WAITING: Final = "waiting for op-dbus ..."
_NOT_SHOWN: Final = "what serves, objects, changes and drift are not shown"
# Interval of readings for values without a signal, such as the queue, and least interval of all.
_SECONDS: Final = 1.0
# Delays between attempts to reach a bus, and to read after access was denied.
_RETRY_SECONDS: Final = 2.0
_REFUSED_SECONDS: Final = 60.0
# Limits: changes in all, new and older changes read in a second, drift rows, and failed
# units.
_MOST_CHANGES: Final = 1000
_MOST_NEW: Final = 50
_MOST_OLD: Final = 200
_MOST_DRIFTS: Final = 100
_MOST_FAILED: Final = 10
# Fewer lines than this do not fill a screen.
_FEW_LINES: Final = 20
# Kinds of rows about drift.
_DRIFT_EVENTS: Final = frozenset({"drift", "healed", "intended", "undeclared"})
_EVERYTHING: Final = frozenset({"Recorded", "DriftDetected", "NameOwnerChanged"})


class Feed:
    """Feed of facts about op-dbus, through restarts of it and the bus; calls `on_change`."""

    def __init__(self, bus: str, host: str, on_change: Callable[[], None] = lambda: None) -> None:
        self.facts = Facts(host)
        # connection for further requests, None while there is none
        self.client: Client | None = None
        self._bus = bus
        self._on_change = on_change
        self._rate = Rate()
        self._received_signals: set[str] = set()
        self._woken = asyncio.Event()

    async def run(self) -> None:
        """Follow forever; raises BusError if there is no bus at the start."""
        is_known = False
        while True:
            try:
                async with Client(self._bus) as self.client:
                    if is_known:
                        # a password prompt must not appear without a user's action
                        self.client.ask_no_user()
                    is_known = True
                    await self._follow(self.client)
            except BusError:
                if not is_known:
                    raise
                self._say(trouble=f"the message bus {self._bus} is gone: trying again")
            finally:
                self.client = None
            await asyncio.sleep(_RETRY_SECONDS)

    async def read(self, client: Client, signals: frozenset[str] = _EVERYTHING) -> None:
        """Read the cheap values, and what signals announced."""
        values = Properties(await client.status())
        news: dict[str, Any] = {"values": values}
        if "Recorded" in signals:
            news["changes"] = await self._changes(client, is_anew="NameOwnerChanged" in signals)
        elif self._is_scant():
            news["changes"] = await self._older(client)
        if "Recorded" in signals:
            news["failed"] = await client.failed_units(_MOST_FAILED)
        if "DriftDetected" in signals or self._has_drifted(news):
            news["drifts"] = await client.drift({}, _MOST_DRIFTS)
        rate = self._rate.count(time.monotonic(), values["Texts"])
        self._say(**news, at=time.time(), rate=rate, trouble="")

    def _has_drifted(self, news: Mapping[str, Any]) -> bool:
        """Return true if other objects drift than before; some changes have no signal."""
        last, changes = self.facts.changes.last, news.get("changes", Changes())
        rows = (row for row in changes.rows if row["seq"] > last)
        is_other = news["values"]["Drifted"] != self.facts.values.get("Drifted")
        return is_other or any(row["what"] in _DRIFT_EVENTS for row in rows)

    async def _changes(self, client: Client, *, is_anew: bool) -> Changes:
        """Return the known changes and the new ones."""
        known = Changes() if is_anew else self.facts.changes
        most = _MOST_NEW if known.rows else _MOST_OLD
        rows = await client.changes({"after": known.last}, most)
        if known.rows and any(row["what"] == "forgot" for row in rows):
            return await self._changes(client, is_anew=True)
        # a full page may leave a gap between the known changes and the new ones
        is_far = len(rows) == most
        found = [*(() if is_far else known.rows), *reversed(rows)]
        return Changes(
            found[-_MOST_CHANGES:], is_cut=is_far or known.is_cut or len(found) > _MOST_CHANGES
        )

    def _is_scant(self) -> bool:
        """Return true if older changes exist and the known ones make too few lines."""
        known = self.facts.changes
        has_room = 0 < len(known.rows) <= _MOST_CHANGES - _MOST_OLD
        return known.is_cut and has_room and len(known.lines) < _FEW_LINES

    async def _older(self, client: Client) -> Changes:
        """Return the known changes with some older ones before them."""
        known = self.facts.changes.rows
        rows = await client.changes({"below": known[0]["seq"]}, _MOST_OLD)
        return Changes([*reversed(rows), *known], is_cut=len(rows) == _MOST_OLD)

    async def _follow(self, client: Client) -> None:
        async with aclosing(client.news()) as news:
            await anext(news)
            self._received_signals = set(_EVERYTHING)

            async def listen() -> None:
                async for members in news:
                    self._received_signals |= members & _EVERYTHING
                    if self._received_signals:
                        self._woken.set()

            await until_first_ends(listen(), self._keep_reading(client))

    async def _keep_reading(self, client: Client) -> None:
        """Read once a second; while op-dbus is down, wait for the signal of its start.

        Only the first call may start the service, as every command does.
        """
        may_start = not self.facts.at
        while True:
            self._woken.clear()
            signals, self._received_signals = frozenset(self._received_signals), set()
            if "NameOwnerChanged" in signals:
                signals = _EVERYTHING
            if not (may_start or await client.is_served()):
                self._say(trouble=await asyncio.to_thread(self._why_down))
                await self._wait_for_restart(None)
                continue
            may_start = False
            try:
                await self.read(client, signals)
                client.ask_no_user()
            except (BusError, ShuttingDown):
                self._received_signals |= _EVERYTHING
                self._say(trouble=WAITING)
            except AccessDenied as error:
                self.facts = Facts(self.facts.host)
                self._say(trouble=f"{_NOT_SHOWN}: {error}")
                await self._wait_for_restart(_REFUSED_SECONDS)
                self._received_signals |= _EVERYTHING
            except OpDbusError as error:
                self._received_signals |= signals
                self._say(trouble=str(error))
            await asyncio.sleep(_SECONDS)

    def _why_down(self) -> str:
        """Return a waiting message, with the reason if the service failed; blocks."""
        service = unit.find_unit() if self._bus == "system" else None
        is_failed = service and service.has_failed
        return f"{service.fault()}; {WAITING}" if service and is_failed else WAITING

    async def _wait_for_restart(self, seconds: float | None) -> None:
        """Wait until op-dbus starts or ends, for at most `seconds` (None: no limit)."""
        async with at_most(seconds):
            while "NameOwnerChanged" not in self._received_signals:
                self._woken.clear()
                await self._woken.wait()

    def _say(self, **news: Any) -> None:
        self.facts = replace(self.facts, **news)
        self._on_change()
