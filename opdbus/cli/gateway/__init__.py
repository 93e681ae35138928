"""Command `op-dbus gateway`: HTTP for embedding clients, assistants, metrics and the page."""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from opdbus.cli.fleet import read_password
from opdbus.cli.root import load_settings, root
from opdbus.errors import ConfigError, OpDbusError
from opdbus.gateway.listeners import (
    METRICS,
    READ,
    WRITE,
    FleetAccess,
    Listener,
    Options,
    require_tokens,
)
from opdbus.platform import pip
from opdbus.platform.lines import write_line
from opdbus.platform.token_files import find_credential, read_token

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opdbus.config import Config
    from opdbus.gateway.web_config import WebConfig

NAMES: Final = (READ, WRITE, METRICS)
_LEAST_TOKEN: Final = 16
_BACKLOG: Final = 1024
# The socket's users are its group, as of the sockets that systemd makes.
_CLOSED: Final = 0o117


@root.command()
@click.option(
    "--listen",
    metavar="ADDRESS",
    multiple=True,
    help="unix:PATH or HOST:PORT, where systemd passes no socket (OP_DBUS_LISTEN).",
)
@click.pass_context
def gateway(context: click.Context, listen: tuple[str, ...]) -> None:
    """Serve HTTP: embeddings, objects, MCP, metrics, a page.

    ADDRESS may begin with what it is for: `metrics=127.0.0.1:9911`, or `write=unix:PATH` for
    routes that publish. TCP needs a token in the file that OP_DBUS_HTTP_TOKEN_FILE names, and
    another one to publish, in that of OP_DBUS_HTTP_WRITE_TOKEN_FILE.
    """
    import asyncio

    from opdbus.systemd import notify

    try:
        flags = {"listen": ",".join(listen)} if listen else {}
        settings = load_settings(context.obj | flags)
        from opdbus import log

        log.configure(settings, os.environ)
        service = notify.connect(os.environ, os.getpid())
        passed = notify.take_socket_list(os.environ, os.getpid())
        listeners = [Listener(_known(name), own) for name, own in passed]
        if not listeners:
            listeners = [_listen(each) for each in settings.listen]
        if not listeners:
            raise ConfigError(
                "there is nothing to listen on: start op-dbus-gateway.socket, or give"
                " `--listen unix:PATH` or `--listen 127.0.0.1:9900`"
            )
        options = Options(
            settings.bus,
            _read_token(settings.http_token_file, "op-dbus.http-token"),
            _read_token(settings.http_write_token_file, "op-dbus.http-write-token"),
            settings.http_hosts,
            _read_web_config(settings.http_web_config, listeners),
            fleet=_find_fleet(settings),
        )
        require_tokens(options, listeners)
        # imported after these checks, since it takes a second
        with pip.required("http"):
            from opdbus.gateway import server
        for each in listeners:
            write_line(f"listening: {each}", sys.stdout)
        asyncio.run(server.serve(options, listeners, service))
    except OpDbusError as error:
        notify.leave(os.environ, os.getpid(), error)
        raise


def _find_fleet(settings: Config) -> FleetAccess | None:
    """Return the fleet's database, if one is set; raises ConfigError for its password's file."""
    if not settings.fleet_database:
        return None
    return FleetAccess(settings.fleet_database, read_password(settings.fleet_password_file))


def _read_web_config(path: Path | None, listeners: Sequence[Listener]) -> WebConfig | None:
    """Return the configuration of the metrics' listeners; raises ConfigError for its file."""
    if not path:
        return None
    if not any(each.name == METRICS for each in listeners):
        import structlog

        reason = "there is no listener for metrics"
        structlog.get_logger().info("web configuration not used", reason=reason)
        return None
    with pip.required("http"):
        from opdbus.gateway.web_config import WebConfig
    return WebConfig(path)


def _known(name: str) -> str:
    if name not in NAMES:
        raise ConfigError(
            f"there is no listener {name!r}: a socket's FileDescriptorName= is one of"
            f" {', '.join(NAMES)}"
        )
    return name


def _read_token(path: Path | None, credential: str) -> str:
    """Return the token of a file or else of systemd's credential, or none; raises ConfigError."""
    found = find_credential(path, credential, os.environ)
    return read_token(found, _LEAST_TOKEN) if found else ""


def _listen(given: str) -> Listener:
    """Return a listener of `[NAME=]unix:PATH` or `[NAME=]HOST:PORT`; raises ConfigError."""
    name, is_named, address = given.partition("=")
    if not is_named or "/" in name or ":" in name:
        name, address = "http", given
    try:
        if address.startswith("unix:"):
            return Listener(_known(name), _listen_unix(Path(address.removeprefix("unix:"))))
        host, _, port = address.rpartition(":")
        family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
        own = socket.create_server(
            (host.strip("[]"), int(port)), family=family, backlog=_BACKLOG, reuse_port=False
        )
        return Listener(_known(name), own)
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(f"cannot listen on {given!r}: {error}") from None


def _listen_unix(path: Path) -> socket.socket:
    """Listen on a path, where a socket that nobody serves any more may lie."""
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError):
        if stat.S_ISSOCK(path.lstat().st_mode) and own.connect_ex(str(path)) == errno.ECONNREFUSED:
            path.unlink()
    own.close()
    own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(_CLOSED)
    try:
        own.bind(str(path))
    finally:
        os.umask(before)
    own.listen(_BACKLOG)
    return own
