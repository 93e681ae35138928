"""Tool `ask`: a question in plain words, answered by objects, changes, drift or status."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from mcp.types import CallToolResult

from opdbus.errors import NotKept
from opdbus.gateway.daemon_link import DaemonLink
from opdbus.gateway.mcp.change_tools import answer_by_meaning, newest_changes, not_happened
from opdbus.gateway.mcp.object_tools import Limit, drift_rows, hit_rows, status_rows
from opdbus.gateway.mcp.tool_answers import Result, Row, make_page
from opdbus.gateway.mcp.tool_arguments import read_offset

# Rows that the daemon returns at most.
_MOST_ROWS: Final = 1000
_READERS: Final[Mapping[str, Callable[[Sequence[Any]], Iterator[Row]]]] = {
    "objects": hit_rows,
    "drift": drift_rows,
}
# Options of changes that are found by meaning.
_BY_MEANING: Final = frozenset({"about", "before_event"})


class AskTool:
    """The question in plain words; its docstring is the tool's description."""

    def __init__(self, link: DaemonLink) -> None:
        self._link = link

    async def ask(self, question: str, limit: Limit = 8, cursor: str = "") -> Result:
        """Ask about this host in plain words; answered by objects, changes, drift or status."""
        client, offset = await self._link.client(), read_offset(cursor)
        try:
            most = min(offset + limit + 1, _MOST_ROWS)
            route, given, rows = await client.ask(question, most)
        except NotKept as error:
            return not_happened(error)
        if route == "status":
            status = status_rows(rows)
            return make_page(status, "status of op-dbus", 0, len(status))
        if route == "changes" and _BY_MEANING.isdisjoint(given):
            return await newest_changes(client, given, limit, cursor)
        if route == "changes":
            return await answer_by_meaning(client, rows, limit, offset)
        return await asyncio.to_thread(_answer, route, rows, limit, offset)


def _answer(route: str, found: Sequence[Any], limit: int, offset: int) -> CallToolResult:
    rows = [*_READERS[route](found)][offset:]
    none = {"objects": "nothing here is about that", "drift": "nothing is other than declared"}
    return make_page(rows, f"answered by {route}" if rows else none[route], offset, limit)
