"""Reads of history in parts, from the event loop."""

from collections.abc import AsyncGenerator, Awaitable, Collection, Sequence
from contextlib import aclosing
from itertools import takewhile
from typing import Final

from opdbus.errors import LimitsExceeded, NotKept, UnknownObject
from opdbus.history import change, row_filter
from opdbus.history.row_filter import MAX_INT64, Filter, Part, Row, StateRewinder
from opdbus.index.state_store.state_store import StateStore
from opdbus.platform.timestamps import format_utc
from opdbus.state.object import Json, ObjectId

# Limit of one reply, as JSON.
MAX_BYTES: Final = 1 << 20


async def row_parts(memory: StateStore, wanted: Filter) -> AsyncGenerator[Part, None]:
    """Yield the rows that pass a filter, part by part; rows added meanwhile are left out."""
    numbers = await memory.archive.read(lambda store: store.history.candidate_range(wanted))

    def read(rest: range) -> Awaitable[Part]:
        return memory.archive.read(lambda store: store.history.rows(wanted, rest))

    for some in row_filter.read_ranges(wanted, numbers):
        rest = some
        while rest:
            part = await read(rest)
            yield part
            rest = part.rest


async def first_rows(
    memory: StateStore, wanted: Filter, limit: int, *, is_sent: bool = False
) -> list[Row]:
    """Return the first rows that pass a filter, at most `limit`.

    With `is_sent`, raise LimitsExceeded if they are too large for a reply.
    """
    found: list[Row] = []
    async with aclosing(row_parts(memory, wanted)) as read:
        async for part in read:
            found += part.rows[: limit - len(found)]
            if is_sent:
                require_small(found)
            if len(found) == limit:
                break
    return found


def require_small(rows: Collection[Row], added: int = 0) -> None:
    """Raise LimitsExceeded if several rows, and what is added, are larger than `MAX_BYTES`."""
    if sum(row.size for row in rows) + added > MAX_BYTES and len(rows) > 1:
        raise LimitsExceeded("these changes have more than 1 MiB: ask for fewer at a time")


async def rows_by_seq(memory: StateStore, numbers: Sequence[int]) -> list[Row]:
    """Return the rows with some numbers that are still kept, in the order of the numbers."""
    return await memory.archive.read(lambda store: store.history.rows_by_seq(numbers))


async def begin(memory: StateStore, wanted: Filter) -> str:
    """Return the time from which on history has rows of a filter, in words."""
    begins = await memory.archive.read(lambda store: store.history.span().start)
    first = [row.at for row in await rows_by_seq(memory, [begins])]
    return format_utc(max([wanted.since, *first]))


async def object_at(memory: StateStore, object_id: ObjectId, at: int) -> dict[str, dict[str, Json]]:
    """Return the state of an object at a time (microseconds since 1970), by source.

    Raises UnknownObject if it did not exist then, and NotKept if history does not reach so far.
    """
    historic = await memory.archive.read(lambda store: store.history.sources(object_id))
    sources = [*memory.catalogue.sources, *historic]
    now = await memory.archive.read(lambda store: store.history.present(object_id, sources))
    if at < now.first_at:
        is_empty = now.first_at == MAX_INT64
        begins = "has no rows yet" if is_empty else f"begins at {format_utc(now.first_at)}"
        raise NotKept(f"what was at {format_utc(at)} is not known: history {begins}")
    then = StateRewinder(now.states)
    wanted, before = Filter(object_ids=[object_id], before_seq=now.numbers.stop), None
    async with aclosing(row_parts(memory, wanted)) as read:
        async for part in read:
            later = list(takewhile(lambda row: row.at > at, part.rows))
            for row in later:
                then.undo(row)
            if len(later) < len(part.rows):
                before = part.rows[len(later)]
                break
    if then.states and not then.unknown:
        return then.states
    raise _not_there(object_id, at, then, before)


def _not_there(
    object_id: ObjectId, at: int, then: StateRewinder, before: Row | None
) -> UnknownObject | NotKept:
    """Return the error for an object without a state at a time.

    `then` is the state after undoing later rows, `before` the last row at or before the time.
    """
    name, when = "/".join(object_id), format_utc(at)
    if then.unknown:
        fields = ", ".join(filter(None, then.unknown)) or "it"
        return NotKept(f"what {name} was at {when} is not known: no values are kept of {fields}")
    if before:
        return UnknownObject(f"{name} was not there at {when}: it left at {format_utc(before.at)}")
    if then.last is None:
        return UnknownObject(f"there is no object {name}, and history has none")
    came = format_utc(then.last.at)
    if then.last.cause == change.FIRST:
        return NotKept(f"what {name} was at {when} is not known: op-dbus first saw it at {came}")
    return UnknownObject(f"{name} was not there at {when}: it appeared at {came}")


async def object_ids(memory: StateStore) -> list[ObjectId]:
    """Return all objects with rows in history, also those that no longer exist."""
    found: list[ObjectId] = []

    def read(after: Sequence[str]) -> Awaitable[list[ObjectId]]:
        return memory.archive.read(lambda store: store.history.object_ids(after))

    while more := await read(found[-1] if found else ("", "", "")):
        found += more
    return found
