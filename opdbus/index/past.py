"""Questions to history, read in parts from the event loop."""

from functools import partial

from opdbus.history import question
from opdbus.history.question import Filter, Row
from opdbus.index.memory import Memory
from opdbus.index.store import Store


async def changes(memory: Memory, wanted: Filter, limit: int) -> list[Row]:
    """Return the first rows of history that a filter means, at most so many."""
    numbers = await memory.archive.read(lambda store: store.history.numbers(wanted))

    def read(store: Store, part: range) -> list[Row]:
        return store.history.rows(wanted, part, limit - len(found))

    found: list[Row] = []
    for part in question.parts(wanted, numbers):
        if len(found) == limit:
            break
        found += await memory.archive.read(partial(read, part=part))
    return found
