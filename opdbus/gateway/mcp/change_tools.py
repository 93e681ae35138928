"""Tools about changes and drift: changes, around, drift and status."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult
from pydantic import Field

from opdbus.client import Client
from opdbus.errors import NotKept
from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.mcp import change_rows
from opdbus.gateway.mcp.object_tools import Limit, drift_rows, status_rows
from opdbus.gateway.mcp.tool_answers import (
    Result,
    count_fitting,
    make_note,
    make_page,
    make_result,
)
from opdbus.gateway.mcp.tool_arguments import find_object, read_offset
from opdbus.platform import timestamps
from opdbus.wording.change_lines import group_into_lines

# Times as options of `op-dbus changes` have them.
Time = Annotated[str, Field(description="yesterday, 2h, 03:10, boot, 2026-11-22 03:10")]
Span = Annotated[str, Field(description="30m, 2h, 1d")]
# Rows of history that are read for a page, of which many may become one line.
_ROWS_A_PAGE: Final = 200
# Rows of a first listing, which is one line.
_MOST_LISTED: Final = 5000
# Up to so many changes after a cursor are listed one by one.
_MOST_NEW: Final = 20
# Reasons why objects are not compared, at most.
_MOST_REASONS: Final = 3


class ChangeTools:
    """Questions about changes, each a tool: its docstring is its description."""

    def __init__(self, link: DaemonLink) -> None:
        self._link = link

    async def changes(
        self,
        since: Time = "",
        before: Time = "",
        about: Annotated[str, Field(description="by meaning: name resolution")] = "",
        object: Annotated[str, Field(description="only of this object, also if gone")] = "",  # noqa: A002 -- the argument's name
        plugin: str = "",
        kind: str = "",
        what: Annotated[str, Field(description="appeared, changed, gone, event, drift")] = "",
        where: Annotated[str, Field(description="changed fields: after.state=failed")] = "",
        cause: Annotated[str, Field(description="its beginning: job, apt, boot")] = "",
        like: Annotated[str, Field(description="did it happen before: row, object, words")] = "",
        limit: Limit = 10,
        cursor: str = "",
    ) -> Result:
        """List what changed, when and why, the newest first.

        With the cursor "after:N": what is new since row N, the oldest first.
        """
        client = await self._link.client()
        given = {"plugin": plugin, "kind": kind, "what": what, "where": where, "cause": cause}
        wanted: dict[str, Any] = {key: value for key, value in given.items() if value}
        wanted |= {
            k: timestamps.moment_here(v) for k, v in (("since", since), ("before", before)) if v
        }
        note = ""
        if object:
            wanted["object"], note = await find_object(client, object, past=True)
        if like:
            return await _similar_changes(client, wanted, like, limit)
        if about:
            return await _by_meaning(client, {**wanted, "about": about}, limit, cursor)
        if cursor.startswith("after:"):
            return await _new_changes(client, wanted, limit, read_offset(cursor[6:]))
        is_narrow = bool(object or where)
        return await newest_changes(client, wanted, limit, cursor, note, is_narrow=is_narrow)

    async def around(
        self,
        event: Annotated[str, Field(description="nginx failed")] = "",
        time: Time = "",
        object: Annotated[str, Field(description="only it and what is connected")] = "",  # noqa: A002 -- the argument's name
        within: Span = "30m",
        limit: Limit = 10,
        cursor: str = "",
    ) -> Result:
        """Find what may have led to an event, the likeliest first.

        Or what changed before a time, or around an object.
        """
        client, span, note = await self._link.client(), timestamps.span(within), ""
        if not (event or time or object):
            raise ToolError("give an event, a time or an object")
        wanted: dict[str, Any] = {}
        if event:
            wanted = {"before_event": event, "within": span}
            wanted |= {"before": timestamps.moment_here(time)} if time else {}
            return await _by_meaning(client, wanted, limit, cursor)
        if time:
            at = timestamps.moment_here(time)
            wanted = {"since": max(0, at - span), "before": at}
        if object:
            wanted["around"], note = await find_object(client, object, past=True)
        return await newest_changes(client, wanted, limit, cursor, note, is_narrow=True)

    async def drift(
        self,
        about: Annotated[str, Field(description="first what this names: packages")] = "",
        plugin: str = "",
        kind: str = "",
        severity: Annotated[str, Field(description="least: info, notice, warning, error")] = "",
        limit: Limit = 10,
        cursor: str = "",
    ) -> Result:
        """List what is other than declared, the worst first, and what cannot be compared."""
        client, offset = await self._link.client(), read_offset(cursor)
        given = {"about": about, "plugin": plugin, "kind": kind, "severity": severity}
        wanted = {key: value for key, value in given.items() if value}
        found = await client.drift(wanted, limit + 1, offset)
        none = "" if found or offset else "nothing that is compared is other than declared"
        note = await _describe_gaps(client, none) if not offset else ""
        found = found[: limit + 1]
        origins = await client.drift_origins([row[0] for row in found])
        return await asyncio.to_thread(make_page, drift_rows(found, origins), note, offset, limit)

    async def status(self) -> Result:
        """Show the state of op-dbus: level, provider, counts, faults, and the newest change."""
        client = await self._link.client()
        note = f'new changes from now on: `changes` with cursor "after:{await client.last_row()}"'
        rows = status_rows(await client.status())
        return make_page(rows, note, 0, len(rows))


async def newest_changes(
    client: Client,
    wanted: Mapping[str, Any],
    limit: int,
    cursor: str,
    note: str = "",
    *,
    is_narrow: bool = False,
) -> CallToolResult:
    """Return the newest changes in lines; the cursor is a row number."""
    below = {"below": read_offset(cursor)} if cursor else {}
    rows = await client.changes({**wanted, **below}, _ROWS_A_PAGE)
    is_cut = len(rows) == _ROWS_A_PAGE
    while is_cut and rows[-1]["cause"] == "first" and len(rows) < _MOST_LISTED:
        part = await client.changes({**wanted, "below": rows[-1]["seq"]}, _ROWS_A_PAGE)
        rows += part
        is_cut = len(part) == _ROWS_A_PAGE
    lines = [*group_into_lines(rows[::-1], is_cut=is_cut, is_narrow=is_narrow)][::-1]
    shown = await asyncio.to_thread(lambda: [*map(change_rows.row_of_line, lines)])
    count = count_fitting(shown[:limit], note)
    left = lines[count:]
    # changes of a line may lie between those of others
    at = max(change["seq"] for line in left for change in line.of) + 1 if left else 0
    at = at or (rows[-1]["seq"] if is_cut else 0)
    if not cursor:
        newest = rows[0]["seq"] if rows and not wanted else await client.last_row()
        new = f'what comes from now on: `changes` with cursor "after:{newest}"'
        empty = "" if rows else "no change is known\n"
        note = "\n".join(filter(None, (note, f"{empty}{new}")))
    more = sum(len(line.of) for line in left) + (1 if is_cut and not left else 0)
    return make_result(shown[:count], note, more=more, cursor=str(at) if at else None)


async def _new_changes(
    client: Client, wanted: Mapping[str, Any], limit: int, after: int
) -> CallToolResult:
    """Return the changes after a row, the oldest first, with a cursor for those to come."""
    if after > (last := await client.last_row()):
        raise ToolError(f"cursor: the newest row is {last}; history may have begun anew")
    most = min(limit, _MOST_NEW)
    found = await client.changes({**wanted, "after": after, "order": "oldest"}, most + 1)
    rows = await asyncio.to_thread(lambda: [*change_rows.rows_one_by_one(found[:most])])
    count = count_fitting(rows)
    is_more = count < len(found)
    at = found[count - 1]["seq"] if is_more else max(last, found[-1]["seq"] if found else 0)
    note = "" if is_more else f'that is all; what comes from now on: cursor "after:{at}"'
    cursor = f"after:{at}" if is_more else None
    return make_result(rows[:count], note, more=len(found) - count, cursor=cursor)


async def _by_meaning(
    client: Client, wanted: Mapping[str, Any], limit: int, cursor: str
) -> CallToolResult:
    """Return the changes that answer best."""
    offset = read_offset(cursor)
    try:
        found = await client.changes_by_meaning(wanted, offset + limit + 1)
    except NotKept as error:
        return not_happened(error)
    return await answer_by_meaning(client, found, limit, offset)


def not_happened(error: NotKept) -> CallToolResult:
    """Return that an event never happened, which is an answer."""
    return make_result([], make_note("", [str(error)]))


async def answer_by_meaning(
    client: Client, found: Sequence[dict[str, Any]], limit: int, offset: int
) -> CallToolResult:
    """Return a page of changes found by meaning; the event that they are about is in the note."""
    said = found[0].get("note", "") if found else ""
    note = make_note("" if found else "no change answers this", [said] if said else [])
    if found and (event := found[0].get("event")):
        own = await client.change(event)
        lines = [row.text for row in change_rows.rows_one_by_one([own] if own else [])]
        note = f"{make_note('the event:', lines)}\nwhat may have led to it, the likeliest first:"
    rows, total = (
        change_rows.rows_one_by_one(found[offset:]),
        found[0].get("total") if found else None,
    )
    return await asyncio.to_thread(make_page, rows, note, offset, limit, total)


async def _similar_changes(
    client: Client, wanted: Mapping[str, Any], like: str, limit: int
) -> CallToolResult:
    """Return the past changes most like one, each with those that followed."""
    key: dict[str, Any] = {"about": like}
    if like.isascii() and like.isdigit():
        key = {"seq": int(like)}
    elif " " not in like.strip():
        key = {"object": (await find_object(client, like, past=True))[0]}
    try:
        found = await client.nearest({**wanted, **key}, limit)
    except NotKept as error:
        return not_happened(error)
    rows = (change_rows.row_with_followers(change, after) for change, after in found)
    note = "the most similar first" if found else "nothing like it is known to have happened"
    return await asyncio.to_thread(make_page, rows, note, 0, limit)


async def _describe_gaps(client: Client, own: str) -> str:
    """Return a note on what drift does not see: faults, and objects that are not compared."""
    state = await client.state()
    quoted = [
        f"fault: {state[key]}" for key in ("StateFileError", "StorageError") if state.get(key)
    ]
    notes = [own] if own else []
    if state.get("DriftAwaits"):
        notes.append(f"not all is known yet; waiting for {', '.join(state['DriftAwaits'])}")
    counts: dict[str, int] = {}
    for *_, number, _, why in await client.unobserved():
        counts[why] = counts.get(why, 0) + number
    reasons = sorted(counts.items(), key=lambda one: -one[1])[:_MOST_REASONS]
    if counts:
        quoted += [f"{number}: {why}" for why, number in reasons]
        notes.append(f"{sum(counts.values())} declared are not compared:")
    return make_note("\n".join(notes), quoted)
