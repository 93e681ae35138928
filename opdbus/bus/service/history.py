"""History on the bus: what changed (History1)."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from opdbus.bus import names, paths
from opdbus.bus.service import contract
from opdbus.bus.service.options import MAX_LIMIT, Options
from opdbus.bus.service.state import thing_at, whole
from opdbus.bus.transport.values import Typed
from opdbus.errors import InvalidArgs
from opdbus.history.question import NEVER, Filter
from opdbus.index import past
from opdbus.state import conditions
from opdbus.state.object import FILE, LIVE, Json, canonical

if TYPE_CHECKING:
    from opdbus.bus.service.node import Caller
    from opdbus.bus.service.options import Given
    from opdbus.bus.transport.values import Plain
    from opdbus.history.change import FieldChange
    from opdbus.history.question import Row
    from opdbus.index.memory import Memory

_NUMBERS: Final = ("since", "before", "after", "below")
_TEXTS: Final = ("cause", "what", "plugin", "kind")
_FILTER: Final = {
    **dict.fromkeys(_NUMBERS, int),
    **dict.fromkeys((*_TEXTS, "object", "where", "order"), str),
}
_ORDERS: Final = ("newest", "oldest")


class HistoryInterface:
    """org.opdbus.History1: all changes."""

    info = contract.interface(names.HISTORY)

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def changes(self, _caller: Caller, wanted: Given, limit: int) -> list[dict[str, Plain]]:
        """List changes."""
        if not 1 <= limit <= MAX_LIMIT:
            raise InvalidArgs(f"limit must be from 1 to {MAX_LIMIT}")
        return [_wire(row) for row in await past.changes(self._memory, _filter(wanted), limit)]

    async def object_at(self, _caller: Caller, path: str, at: int, options: Given) -> str:
        """Give an object as it was."""
        is_large = Options(options, {"large": bool}).get("large", default=False)
        thing = thing_at(path)
        states = await past.object_at(self._memory, thing, at)
        declared = states.pop(FILE, None)
        # what op-dbus saw itself comes first, as in Memory.joined
        ranked = sorted(states, key=lambda source: (not source.startswith(LIVE), source))
        observed = ChainMap(*(states[source] for source in ranked)) if states else None
        source = ranked[0] if declared is None else FILE
        known = None if observed is None else dict(observed)
        return whole(thing, source, declared, known, is_large=is_large)

    async def properties(self) -> Mapping[str, Plain]:
        """Give every property's value."""
        span = await self._memory.archive.read(lambda store: store.history.span())
        return {"Rows": len(span), "First": span.start}


def _filter(given: Given) -> Filter:
    """Read a filter; raises InvalidArgs, and UnknownObject for what is no object's path."""
    checked = Options(given, _FILTER)
    for key in _NUMBERS:
        if not 0 <= checked.get(key, 0) <= NEVER:
            raise InvalidArgs(f"the option {key!r} must be from 0 to {NEVER}, not {given[key]}")
    order = checked.get("order", _ORDERS[0])
    if order not in _ORDERS:
        raise InvalidArgs(f"order must be {' or '.join(_ORDERS)}, not {order!r}")
    return Filter(
        **{key: given[key] for key in (*_NUMBERS, *_TEXTS) if key in given},
        things=[thing_at(given["object"])] if "object" in given else None,
        where=conditions.parse(checked.get("where", "")),
        is_oldest_first=order != _ORDERS[0],
    )


def _wire(row: Row) -> dict[str, Plain]:
    """Give a row as it goes over the bus."""
    _, *thing = row.identity
    found = {
        "seq": Typed("t", row.seq),
        "at": Typed("t", row.at),
        "boot": row.boot,
        "object": Typed("o", paths.of(*thing)),
        **row.identity._asdict(),
        "what": row.what,
        "cause": row.cause,
        "fields": Typed("a(sss)", [_field(field) for field in row.fields]),
        "folded": Typed("u", row.folded),
        "sentence": row.sentence,
    }
    return found if row.moved is None else {**found, "moved": row.moved}


def _field(field: FieldChange) -> tuple[str, str, str]:
    return ".".join(field.path), _json(field.before), _json(field.after)


def _json(values: Sequence[Json] | None) -> str:
    return canonical(values[0]) if values else ""
