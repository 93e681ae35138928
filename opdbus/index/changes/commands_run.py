"""Commands that users ran as root, as answers: those asked for, and those for an event."""

from collections.abc import Callable, Collection
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from opdbus.errors import NotKept
from opdbus.history import acts, command_questions
from opdbus.history.row_filter import Filter, Row
from opdbus.index.changes import attribution, history_reader
from opdbus.index.state_store.state_store import StateStore
from opdbus.state.object import ObjectId

# Rows of commands that are returned at most.
_MOST: Final = 1000


async def find_commands(memory: StateStore, question: str, wanted: Filter) -> list[Row]:
    """Return the rows of the commands that a question asks for, the newest first.

    Empty if it asks for none, if none was run and it may ask for something else, or if the journal
    was never read. Raises NotKept if none was run.
    """
    asked = command_questions.read_question(question)
    if asked is None or not memory.catalogue.sources[acts.SOURCE]:
        return []
    found = await _read_commands(memory, wanted, lambda row: command_questions.answers(asked, row))
    if not found and asked.is_only:
        since = await history_reader.begin(memory, wanted)
        raise NotKept(f"no such command was run as root in the history (since {since})")
    return found


async def find_tries(
    memory: StateStore, object_ids: Collection[ObjectId], events: Collection[str], wanted: Filter
) -> list[Row]:
    """Return the rows of the commands that were to bring an event of an object about."""

    def is_try(row: Row) -> bool:
        return any(
            acts.tries(act, object_id, events)
            for act in command_questions.acts_in(row)
            for object_id in object_ids
        )

    return await _read_commands(memory, wanted, is_try)


async def _read_commands(
    memory: StateStore, wanted: Filter, is_wanted: Callable[[Row], bool]
) -> list[Row]:
    """Return the rows of what users ran as root, as far as they are believed."""
    plugin, kind = acts.USER
    of_users = replace(wanted, plugin=plugin, kind=kind, object_ids=None, is_oldest_first=False)
    believed, found = attribution.believed_users(), list[Row]()
    async with aclosing(history_reader.row_parts(memory, of_users)) as parts:
        async for part in parts:
            own = (row for row in part.rows if attribution.is_believed(believed, row))
            found += filter(is_wanted, own)
            if len(found) >= _MOST:
                break
    return found[:_MOST]
