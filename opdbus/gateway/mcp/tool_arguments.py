"""Arguments of tools read: names of objects, times, cursors; raises ToolError with what to do."""

import asyncio
import difflib
from collections.abc import Iterable, Sequence
from typing import Final

from mcp.server.mcpserver.exceptions import ToolError

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.gateway.mcp.tool_answers import make_note
from opdbus.state import conditions

# Kinds preferred for a name that several objects have.
_LIKELIEST: Final = (["systemd", "unit"], ["packages", "package"], ["users", "account"])
_MAX_OFFSET: Final = 100_000
# Unknown fields of a call for which near ones are looked for, and their longest names.
_MOST_COMPARED: Final = 3
_MAX_NAME: Final = 200


async def find_object(client: Client, name: str, *, past: bool = False) -> tuple[str, str]:
    """Return the path of a named object, and a note on others of that name."""
    if name.startswith(paths.STATE + "/"):
        return name, ""
    found, close = await client.resolve(name, past=past)
    likely = next(
        (r for kind in _LIKELIEST for r in found if r[1:3] == kind), found[0] if found else None
    )
    same_kind = [row for row in found if likely and row[1:3] == likely[1:3]]
    if likely and (len(found) == 1 or (likely[1:3] in _LIKELIEST and len(same_kind) == 1)):
        others = _names(row for row in found if row is not likely)
        return likely[0], make_note("other objects of that name:", others) if others else ""
    if found:
        several = "several objects have this name; give one of these names:"
        raise ToolError(make_note(several, _names(found)))
    none = "there is no object of this name; "
    raise ToolError(
        make_note(f"{none}near names:" if close else f"{none}`list` lists all", _names(close))
    )


def object_name(path: str) -> str:
    """Return the PLUGIN/KIND/NAME of a path."""
    return "/".join(paths.parse(path))


def read_offset(cursor: str) -> int:
    """Return the number of rows before a cursor's page."""
    if not cursor:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 8):
        raise ToolError("cursor: give the one of the answer before, or none")
    return min(int(cursor), _MAX_OFFSET)


async def describe_unknown_fields(client: Client, fields: Iterable[str]) -> list[str]:
    """Return sentences on fields that no object has, with near ones of the first few."""
    known = [path for path, _ in await client.fields({})]
    return await asyncio.to_thread(_compare_fields, known, fields)


def _compare_fields(known: Sequence[str], fields: Iterable[str]) -> list[str]:
    notes: list[str] = []
    for field in fields:
        name = field.removeprefix("before.").removeprefix("after.")
        if not conditions.AllOf([conditions.Condition(name, "=", "")]).names.are_in(known):
            is_compared = len(notes) < _MOST_COMPARED and len(name) <= _MAX_NAME
            near = difflib.get_close_matches(name, known, 3, 0.7) if is_compared else ()
            notes.append(f"{field}; near ones: {', '.join(near)}" if near else field)
    return notes


def _names(rows: Iterable[list[str]]) -> list[str]:
    return ["/".join(row[1:]) for row in rows]
