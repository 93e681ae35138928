"""Command `op-dbus mcp`: the host for an assistant, over stdin and stdout."""

from __future__ import annotations

import click

from opdbus.cli.fleet import read_password, require_library
from opdbus.cli.root import load_settings, root
from opdbus.errors import ConfigError
from opdbus.platform import pip


@root.command()
@click.option("--fleet", is_flag=True, help="Ask about all hosts of a fleet instead.")
@click.pass_context
def mcp(context: click.Context, fleet: bool) -> None:
    """Let an assistant ask this host, by MCP over stdin and stdout.

    An assistant starts this command itself: docs/mcp.md has its settings. It asks the daemon as
    the user who runs it, and changes nothing. With --fleet, it asks the database that
    OP_DBUS_FLEET_DATABASE names.
    """
    import asyncio

    with pip.required("mcp"):
        from opdbus.gateway.mcp.mcp_server import make_fleet_server, make_server
    from opdbus.gateway.daemon_link import DaemonLink
    from opdbus.gateway.fleet.fleet_link import NO_FLEET, FleetLink

    settings = load_settings(context.obj)
    password = None
    if fleet:
        require_library()
        if not settings.fleet_database:
            raise ConfigError(NO_FLEET)
        password = read_password(settings.fleet_password_file)

    async def serve() -> None:
        async with DaemonLink(settings.bus) as link:
            await make_server(link).run_stdio_async()

    async def serve_fleet() -> None:
        from opdbus.fleet.questions.question_vectors import QuestionVectors

        vectors = QuestionVectors(settings)
        link = FleetLink(settings.fleet_database, password, vectors.embed)
        try:
            await make_fleet_server(link).run_stdio_async()
        finally:
            await link.close()
            await vectors.close()

    asyncio.run(serve_fleet() if fleet else serve())
