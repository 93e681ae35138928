"""Command `op-dbus gateway`: HTTP for embedding clients, assistants, metrics and the page."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import click

from opdbus.cli.root import load_settings, root
from opdbus.errors import ConfigError, OpDbusError


@root.command()
@click.option(
    "--listen",
    metavar="ADDRESS",
    multiple=True,
    envvar="OP_DBUS_LISTEN",
    help="unix:PATH or HOST:PORT, where systemd passes no socket.",
)
@click.pass_context
def gateway(context: click.Context, listen: tuple[str, ...]) -> None:
    """Serve HTTP: embeddings, the host's objects, MCP, metrics and a page."""
    import asyncio

    from opdbus.systemd import notify

    try:
        from opdbus.gateway import server

        service = notify.connect(os.environ, os.getpid())
        passed = notify.take_sockets(os.environ, os.getpid())
        listeners = [server.Listener(name, own) for name, own in passed.items()]
        listeners += [server.Listener("http", _listen(address)) for address in listen]
        if not listeners:
            raise ConfigError(
                "there is nothing to listen on: start op-dbus-gateway.socket, or give"
                " `--listen unix:PATH` or `--listen 127.0.0.1:9900`"
            )
        for each in listeners:
            click.echo(f"listening on {each.socket.getsockname()}")
        asyncio.run(server.serve(load_settings(context.obj).bus, listeners, service))
    except OpDbusError as error:
        notify.leave(os.environ, os.getpid(), error)
        raise


def _listen(address: str) -> socket.socket:
    """Return a listening socket; raises ConfigError."""
    try:
        if address.startswith("unix:"):
            path = Path(address.removeprefix("unix:"))
            path.unlink(missing_ok=True)
            own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            own.bind(str(path))
            own.listen(1024)
            return own
        host, _, port = address.rpartition(":")
        return socket.create_server((host.strip("[]"), int(port)), backlog=1024)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot listen on {address!r}: {error}") from None
