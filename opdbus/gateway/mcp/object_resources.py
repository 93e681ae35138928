"""Resources: objects, status, drift and changes, by address, with signals of their changes."""

from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ToolError
from mcp.server.mcpserver.resources import ResourceSecurity
from mcp.types import CallToolResult

from opdbus.bus import paths
from opdbus.gateway.mcp.change_tools import ChangeTools
from opdbus.gateway.mcp.object_tools import ObjectTools
from opdbus.gateway.mcp.tool_limits import bound

STATUS: Final = "opdbus://status"
DRIFT: Final = "opdbus://drift"
CHANGES: Final = "opdbus://changes"
_OBJECT: Final = "opdbus://objects/{plugin}/{kind}/{name}"
# Names of objects may be those of files.
_NAMES: Final = ResourceSecurity(exempt_params={"plugin", "kind", "name"})


def uri_of(path: str) -> str:
    """Return the address of an object's resource."""
    parts = (quote(part, safe="") for part in paths.parse(path))
    return _OBJECT.format(**dict(zip(("plugin", "kind", "name"), parts, strict=True)))


def add_resources(server: MCPServer[Any], objects: ObjectTools, changes: ChangeTools) -> None:
    """Add the resources to a server."""

    @server.resource(STATUS, description="State of op-dbus, and what is wrong")
    async def status() -> str:
        return await _read(changes.status)

    @server.resource(DRIFT, description="What is other than declared")
    async def drift() -> str:
        return await _read(changes.drift)

    @server.resource(CHANGES, name="changes", description="The newest changes of this host")
    async def newest() -> str:
        return await _read(changes.changes)

    @server.resource(_OBJECT, name="object", description="An object of this host", security=_NAMES)
    async def show(plugin: str, kind: str, name: str) -> str:
        path = paths.of(plugin, kind, name)
        return await _read(objects.show, path)


async def _read(tool: Callable[..., Awaitable[CallToolResult]], *given: str) -> str:
    """Return the text of a tool's answer; raises ResourceError."""
    try:
        answer = await bound(tool)(*given)
    except ToolError as error:
        raise ResourceError(str(error)) from None
    return "\n".join(part.text for part in answer.content if part.type == "text")
