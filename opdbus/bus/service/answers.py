"""Answers to questions by the method that the question's route selects (State1.Ask)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from opdbus.bus import names
from opdbus.bus.admission.limits import require_text
from opdbus.bus.service import contract
from opdbus.bus.service.call_options import Given, require_range
from opdbus.bus.service.contract import BusInterface, Caller
from opdbus.bus.service.history1 import HistoryInterface
from opdbus.bus.transport.values import Plain, Typed
from opdbus.errors import InvalidArgs
from opdbus.language import routes
from opdbus.platform import timestamps

_NUMBERS: Final = ("since", "before")


class Answers:
    """Answers questions with the rows of other methods, which convert and check them.

    `reporting` returns the interfaces whose properties are the status.
    """

    def __init__(
        self,
        history: HistoryInterface,
        reporting: Callable[[], Sequence[BusInterface]],
        booted_at: float = 0.0,
    ) -> None:
        self._booted_at = booted_at
        self._history = history
        self._reporting = reporting

    async def answer(
        self,
        caller: Caller,
        question: str,
        limit: int,
        of_state: Mapping[str, Callable[[Given], Awaitable[Plain]]],
    ) -> tuple[str, Mapping[str, Plain], Plain]:
        """Return the route of a question, the options that it sets, and the rows.

        `of_state` has a function for each route to State1.
        """
        require_text([question])
        require_range("limit", limit, 1)
        if not question.strip():
            raise InvalidArgs("the question is empty: ask in words")
        now = time.time()
        here = datetime.fromtimestamp(now, UTC).astimezone().replace(tzinfo=None)
        # on a thread: compiling the patterns takes 40 ms the first time
        route = await asyncio.to_thread(routes.find_route, question, here)
        boot = self._booted_at or now - time.clock_gettime(time.CLOCK_BOOTTIME)
        given = _to_method_options(route.options, now, boot)
        if route.name == "changes":
            rows: Plain = await self._history.changes(caller, given, limit)
        elif route.name == "status":
            rows = {
                name: Typed(interface.info.properties[name].signature, value)
                for interface in self._reporting()
                for name, value in (await interface.properties()).items()
            }
        else:
            rows = await of_state[route.name](given)
        wire = {
            key: Typed("t", value) if key in _NUMBERS else value for key, value in given.items()
        }
        return route.name, wire, Typed(_SIGNATURES[route.name], rows)


def _to_method_options(options: Mapping[str, str], now: float, boot: float) -> dict[str, Plain]:
    """Return the options of a command as those of its method."""
    given: dict[str, Plain] = {}
    for key, value in options.items():
        if key == "before" and timestamps.is_event(value):
            given["before_event"] = value
        elif key == "until":
            given["before"] = timestamps.moment(value, now, boot)
        else:
            given[key] = timestamps.moment(value, now, boot) if key in _NUMBERS else value
    return given


# The output signature of each route's method.
_SIGNATURES: Final[Mapping[str, str]] = {
    route: contract.interface(interface).methods[method].outputs
    for route, interface, method in (
        (routes.OBJECTS, names.STATE, "Search"),
        ("changes", names.HISTORY, "Changes"),
        ("drift", names.STATE, "DriftReport"),
        ("status", names.VECTORIZER, "Status"),
    )
}
