"""Commands that run the server: `op-dbus fleet init` and `op-dbus fleet serve`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import click

from opdbus.cli.fleet import find_database, fleet, require_library
from opdbus.cli.root import level_names, load_settings
from opdbus.errors import DatabaseUnreachable, InvalidArgs, OpDbusError
from opdbus.settings import parsing


@fleet.command()
@click.pass_context
def init(context: click.Context) -> None:
    """Make the database's schema, unless it is there.

    Without a database named, that of the embedded server in --folder, which is started for it if it
    does not run.
    """
    require_library()
    is_new = asyncio.run(_init(context))
    click.echo("the schema was made" if is_new else "the schema is there")


async def _init(context: click.Context) -> bool:
    from opdbus.fleet.embedded_server import EmbeddedServer

    folder = context.meta["folder"]
    if load_settings(context.obj).fleet_database:
        return await _make_schema(*find_database(context))
    server = EmbeddedServer(folder)
    if (folder / "password").exists():
        try:
            return await _make_schema(server.url, server.password)
        except DatabaseUnreachable:
            pass  # it does not run
    async with server:
        return await _make_schema(server.url, server.password)


async def _make_schema(url: str, password: str | None) -> bool:
    from opdbus.fleet import postgres

    async with postgres.connected(url, password) as connection:
        return await postgres.make_schema(connection)


@fleet.command()
@click.option(
    "--listen",
    metavar="ADDRESS:PORT",
    multiple=True,
    help="Where hosts and readers come in by TLS (OP_DBUS_FLEET_LISTEN).",
)
@click.option(
    "--name",
    "names",
    metavar="NAME",
    multiple=True,
    help="A name or address by which they reach it (OP_DBUS_FLEET_NAMES).",
)
@click.option(
    "--level",
    metavar="LEVEL",
    default="",
    shell_complete=level_names,
    help="Of its worker: not the level that the fleet wants; `none` runs no worker.",
)
@click.pass_context
def serve(
    context: click.Context, listen: tuple[str, ...], names: tuple[str, ...], level: str
) -> None:
    """Run the embedded PostgreSQL in --folder, with TLS in front, until SIGTERM.

    It makes the folder, the certificates and the schema where they are missing. Hosts need the
    certificate that `op-dbus fleet add` makes, and their password; readers and workers only a
    password. Nobody comes in without TLS. A worker, a process of its own, computes vectors.
    """
    from opdbus.systemd import notify

    try:
        require_library()
        from opdbus import log
        from opdbus.fleet import fleet_server

        settings = load_settings(context.obj)
        log.configure(settings, os.environ)
        options = fleet_server.ServeOptions(
            context.meta["folder"],
            listen or settings.fleet_listen,
            _parse_names(names) or settings.fleet_names,
            level,
            os.environ,
        )
        service = notify.connect(os.environ, os.getpid())
        asyncio.run(fleet_server.serve(options, service, click.echo))
    except OpDbusError as error:
        notify.leave(os.environ, os.getpid(), error)
        raise


def _parse_names(given: Sequence[str]) -> Sequence[str]:
    try:
        return parsing.server_names(",".join(given))
    except ValueError as error:
        raise InvalidArgs(f"--name {' '.join(given)} is not accepted: {error}") from None
