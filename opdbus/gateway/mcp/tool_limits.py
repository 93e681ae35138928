"""Bounds of a tool: its arguments are small, it ends in time, and every error is a sentence."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.tools import Tool
from pydantic import ValidationError

from opdbus.errors import BusError, DatabaseUnreachable, OpDbusError, ShuttingDown
from opdbus.gateway.mcp.host_text import mark, one_line

P = ParamSpec("P")
T = TypeVar("T")
# Clients give up after 30 to 45 seconds.
MOST_SECONDS: Final = 25.0
# Characters of a text in the arguments; also of a list that a client writes as JSON.
MOST_CHARACTERS: Final = 10_000
# Wrong arguments that are named in an error.
_MOST_NAMED: Final = 3
# Errors whose sentences quote nothing of a host.
_OWN: Final = (BusError, DatabaseUnreachable, ShuttingDown)


class BoundedTool(Tool):
    """A tool that refuses arguments which are too large, or wrong, by one short sentence."""

    async def run(
        self,
        arguments: dict[str, Any],
        context: Context[Any, Any],
        convert_result: bool = False,  # noqa: FBT001, FBT002 -- the SDK's signature
    ) -> Any:  # noqa: ANN401 -- the SDK's signature
        """Run the tool; raises ToolError."""
        for name in self.parameters["properties"].keys() & arguments.keys():
            value = arguments[name]
            if isinstance(value, str) and len(value) > MOST_CHARACTERS:
                raise ToolError(f"{name}: give at most {MOST_CHARACTERS:,} characters")
        try:
            return await super().run(arguments, context, convert_result)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            found = error.__cause__.errors(include_url=False, include_input=False)[:_MOST_NAMED]
            wrong = (self._describe(str(each["loc"][0]), each["msg"]) for each in found)
            raise ToolError("; ".join(dict.fromkeys(wrong))) from None

    def _describe(self, name: str, fault: str) -> str:
        """Return a sentence on a wrong argument, with all that would be accepted."""
        accepts: dict[str, Any] = self.parameters["properties"].get(name, {})
        if "maximum" in accepts:
            return f"{name}: give a number from {accepts['minimum']} to {accepts['maximum']}"
        if "maxItems" in accepts:
            return f"{name}: give a list of at most {accepts['maxItems']} texts"
        return f"{name}: {fault}"


def bound(
    question: Callable[P, Awaitable[T]], seconds: float = MOST_SECONDS
) -> Callable[P, Awaitable[T]]:
    """Return a question that raises ToolError for errors of the daemon, and when it takes long."""

    @wraps(question)
    async def ask(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            async with asyncio.timeout(seconds):
                return await question(*args, **kwargs)
        except TimeoutError:
            raise ToolError(
                f"op-dbus did not answer within {seconds:g} s: ask for less, or look at its status"
            ) from None
        except OpDbusError as error:
            raise ToolError(_sentence_of(error)) from None

    return ask


def _sentence_of(error: OpDbusError) -> str:
    """Return an error's sentence; one that may quote the host is marked."""
    return one_line(str(error)) if isinstance(error, _OWN) else mark([str(error)])
