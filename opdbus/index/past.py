"""Questions to history, read in parts from the event loop."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import Final

from opdbus.errors import LimitsExceeded, NotKept, UnknownObject
from opdbus.history import change, question
from opdbus.history.backwards import Backwards
from opdbus.history.question import NEVER, Filter, Part, Row
from opdbus.index.memory import Memory
from opdbus.index.store import Store
from opdbus.state.object import Json, Thing, canonical

# Of what is given at a time, as JSON.
MAX_BYTES: Final = 1 << 20


async def parts(memory: Memory, wanted: Filter) -> AsyncGenerator[Part, None]:
    """Yield the rows that a filter means, part by part; those that come meanwhile are left out."""
    numbers = await memory.archive.read(lambda store: store.history.numbers(wanted))

    def read(store: Store, some: range) -> Part:
        return store.history.rows(wanted, some)

    for some in question.parts(wanted, numbers):
        rest = some
        while rest:
            part = await memory.archive.read(partial(read, some=rest))
            yield part
            rest = part.rest


async def changes(memory: Memory, wanted: Filter, limit: int) -> Sequence[Row]:
    """Return the first rows that a filter means, at most so many; raises LimitsExceeded."""
    found: list[Row] = []
    size = 0
    async with aclosing(parts(memory, wanted)) as read:
        async for part in read:
            taken = part.rows[: limit - len(found)]
            found += taken
            size += part.bytes * len(taken) // max(1, len(part.rows))
            if size > MAX_BYTES and len(found) > 1:
                raise LimitsExceeded("these changes have more than 1 MiB: ask for fewer at a time")
            if len(found) == limit:
                break
    return found


def require_small(rows: Iterable[Row]) -> None:
    """Raise LimitsExceeded where rows are too much to be given at a time, but for a single one."""
    sizes = [len(canonical(row.fields)) for row in rows]
    if sum(sizes) > MAX_BYTES and len(sizes) > 1:
        raise LimitsExceeded("these changes have more than 1 MiB: ask for fewer at a time")


async def first(memory: Memory, wanted: Filter, limit: int) -> list[Row]:
    """Return the first rows that a filter means, however long they are."""
    found: list[Row] = []
    async with aclosing(parts(memory, wanted)) as read:
        async for part in read:
            found += part.rows
            if len(found) >= limit:
                break
    return found[:limit]


async def numbered(memory: Memory, numbers: Sequence[int]) -> list[Row]:
    """Return the rows of some numbers that are kept, in their order."""
    return await memory.archive.read(lambda store: store.history.numbered(numbers))


async def object_at(memory: Memory, thing: Thing, at: int) -> dict[str, dict[str, Json]]:
    """Return what a thing was at a time (microseconds since 1970), by source.

    Raises UnknownObject where it was not there, and NotKept where history does not say.
    """
    sources = [*memory.catalogue.sources, *await _sources(memory, thing)]
    now = await memory.archive.read(lambda store: store.history.present(thing, sources))
    if at < now.begun:
        begins = "has no rows yet" if now.begun == NEVER else f"begins at {_said(now.begun)}"
        raise NotKept(f"what was at {_said(at)} is not known: history {begins}")
    then = Backwards(now.states)
    wanted, before = Filter(things=[thing], below=now.numbers.stop), None
    async with aclosing(parts(memory, wanted)) as read:
        async for part in read:
            later = list(takewhile(lambda row: row.at > at, part.rows))
            for row in later:
                then.undo(row)
            if len(later) < len(part.rows):
                before = part.rows[len(later)]
                break
    if then.states and not then.unknown:
        return then.states
    raise _not_there(thing, at, then, before)


async def _sources(memory: Memory, thing: Thing) -> list[str]:
    return await memory.archive.read(lambda store: store.history.sources(thing))


def _not_there(
    thing: Thing, at: int, then: Backwards, before: Row | None
) -> UnknownObject | NotKept:
    """Say why a thing has no state at a time, by the changes after that and the one before."""
    name, when = "/".join(thing), _said(at)
    if then.unknown:
        fields = ", ".join(filter(None, then.unknown)) or "it"
        return NotKept(f"what {name} was at {when} is not known: no values are kept of {fields}")
    if before:
        return UnknownObject(f"{name} was not there at {when}: it left at {_said(before.at)}")
    if then.last is None:
        return UnknownObject(f"there is no object {name}, and history has none")
    came = _said(then.last.at)
    if then.last.cause == change.FIRST:
        return NotKept(f"what {name} was at {when} is not known: op-dbus first saw it at {came}")
    return UnknownObject(f"{name} was not there at {when}: it appeared at {came}")


async def things(memory: Memory) -> list[Thing]:
    """Return all things that have rows, also those that are gone."""
    found: list[Thing] = []
    while True:
        after = found[-1] if found else ("", "", "")
        more = await memory.archive.read(partial(_things, after=after))
        found += more
        if not more:
            return found


def _things(store: Store, after: Sequence[str]) -> list[Thing]:
    return store.history.things(after)


def _said(at: int) -> str:
    try:
        return datetime.fromtimestamp(at / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{at} us"
