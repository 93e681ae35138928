"""Commands `op-dbus fleet`: many hosts in one database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import click

from opdbus.cli.root import load_settings, root
from opdbus.errors import AccessDenied, ConfigError
from opdbus.platform import pip
from opdbus.platform.token_files import find_credential, read_token

if TYPE_CHECKING:
    import asyncpg

T = TypeVar("T")
# The folder of the embedded server.
FOLDER: Final = Path("/var/lib/op-dbus-fleet")
_CREDENTIAL: Final = "op-dbus.fleet-password"


@root.group()
@click.option(
    "--database",
    metavar="URL",
    default="",
    help="postgresql://USER@HOST/DATABASE (OP_DBUS_FLEET_DATABASE).",
)
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path, readable=False),
    default=FOLDER,
    help=f"The embedded server's folder, without a database. [{FOLDER}]",
)
@click.pass_context
def fleet(context: click.Context, database: str, folder: Path) -> None:
    """Many hosts in one database: ask, compare, find the odd one."""
    context.obj = (context.obj or {}) | ({"fleet_database": database} if database else {})
    context.meta["folder"] = folder


class Access(NamedTuple):
    """A database's URL and its password; None leaves it to libpq's password file."""

    url: str
    password: str | None


def find_database(context: click.Context) -> Access:
    """Return the configured database, else the embedded server's; raises ConfigError."""
    from opdbus.fleet.embedded_server import EmbeddedServer

    settings = load_settings(context.obj)
    if settings.fleet_database:
        return Access(settings.fleet_database, read_password(settings.fleet_password_file))
    folder = context.meta["folder"]
    server = EmbeddedServer(folder)
    try:
        return Access(server.url, server.password)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no database in {folder}: `op-dbus fleet serve` makes one; elsewhere, ask"
            " by OP_DBUS_FLEET_DATABASE as a reader: `op-dbus fleet add-reader` on the server"
        ) from None
    except PermissionError:
        raise AccessDenied(
            f"{folder} may be read by root and its own user only: others ask as readers, whom"
            " `op-dbus fleet add-reader` adds"
        ) from None


def read_password(file: Path | None) -> str | None:
    """Return the password of a file or else of systemd's credential, or None."""
    found = find_credential(file, _CREDENTIAL, os.environ)
    return read_token(found) if found else None


def run_with_database(
    context: click.Context, work: Callable[[asyncpg.Connection], Awaitable[T]]
) -> T:
    """Run a coroutine function with a connection to the fleet's database of this version."""
    require_library()
    from opdbus.fleet import postgres

    access = find_database(context)

    async def run() -> T:
        async with postgres.connected(*access) as connection:
            await postgres.require_schema(connection)
            return await work(connection)

    return asyncio.run(run())


def require_library() -> None:
    """Raise ConfigError if the extra `fleet` is not installed."""
    with pip.required("fleet"):
        import asyncpg  # noqa: F401
