"""Command `op-dbus mcp`: the host for an assistant, over stdin and stdout."""

from __future__ import annotations

import click

from opdbus.cli.root import load_settings, root
from opdbus.errors import ConfigError


@root.command()
@click.pass_context
def mcp(context: click.Context) -> None:
    """Let an assistant ask this host, by MCP over stdin and stdout.

    An assistant starts this command itself: docs/mcp.md has its settings. It asks the daemon as
    the user who runs it, and changes nothing.
    """
    import asyncio

    try:
        from opdbus.gateway.mcp.mcp_server import make_server
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"`op-dbus mcp` needs the MCP SDK: `pip install 'op-dbus[mcp]'` ({error})"
        ) from None
    from opdbus.gateway.daemon_link import DaemonLink

    async def serve(bus: str) -> None:
        async with DaemonLink(bus) as link:
            await make_server(link).run_stdio_async()

    asyncio.run(serve(load_settings(context.obj).bus))
