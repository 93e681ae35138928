"""Bounds of a tool: it ends in time, and every error of the daemon is a sentence."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from mcp.server.mcpserver.exceptions import ToolError

from opdbus.errors import BusError, DatabaseUnreachable, OpDbusError, ShuttingDown
from opdbus.gateway.mcp.host_text import clean, mark, shorten

P = ParamSpec("P")
T = TypeVar("T")
# Clients give up after 30 to 45 seconds.
MOST_SECONDS: Final = 25.0
# Errors whose sentences quote nothing of a host.
_OWN: Final = (BusError, DatabaseUnreachable, ShuttingDown)


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
    text = shorten(clean(str(error)))
    return text if isinstance(error, _OWN) else mark([text])
