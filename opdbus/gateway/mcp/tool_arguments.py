"""Arguments of tools read: names of objects, times, cursors; raises ToolError with what to do."""

import difflib
from collections.abc import Iterable
from typing import Final

from mcp.server.mcpserver.exceptions import ToolError

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.gateway.mcp.host_text import clean, mark, shorten
from opdbus.state import conditions

# Kinds preferred for a name that several objects have.
_LIKELIEST: Final = (["systemd", "unit"], ["packages", "package"], ["users", "account"])
_MAX_OFFSET: Final = 100_000
# Longer names are cut in a note.
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
        others = mark(_names(row for row in found if row is not likely))
        return likely[0], f"other objects of that name:\n{others}" if len(found) > 1 else ""
    if found:
        listed = mark(_names(found))
        raise ToolError(f"several objects have this name; give one of these names:\n{listed}")
    hint = f"; near names:\n{mark(_names(close))}" if close else "; `list` lists all"
    raise ToolError(f"there is no object of this name{hint}")


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


async def describe_unknown_fields(client: Client, fields: Iterable[str]) -> str:
    """Return a sentence on fields that no object has, with near ones; empty if all are known."""
    known = [path for path, _ in await client.fields({})]
    notes = []
    for field in fields:
        name = field.removeprefix("before.").removeprefix("after.")
        if not conditions.AllOf([conditions.Condition(name, "=", "")]).names.are_in(known):
            near = difflib.get_close_matches(name, known, 3, 0.7)
            hint = (
                f"; near ones:\n{mark([shorten(clean(one), _MAX_NAME) for one in near])}"
                if near
                else ""
            )
            notes.append(f"no object has a field {shorten(clean(field), _MAX_NAME)}{hint}")
    return "\n".join(notes)


def _names(rows: Iterable[list[str]]) -> list[str]:
    return [shorten(clean("/".join(row[1:])), _MAX_NAME) for row in rows]
