"""Commands `op-dbus fleet worker`, `level` and `embed`: the vectors of a fleet."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Final

import click

from opdbus.cli import output
from opdbus.cli.fleet import find_database, fleet, require_library, run_with_database
from opdbus.cli.root import NumberIn, as_json, level_names, load_settings
from opdbus.errors import ConfigError, OpDbusError
from opdbus.settings.parsing import decimal

if TYPE_CHECKING:
    import asyncpg

    from opdbus.config import Config

_CONNECT_SECONDS: Final = 5.0
_THREADS: Final = NumberIn(range(1, 4097))


@fleet.command()
@click.option(
    "--level",
    metavar="LEVEL",
    default="",
    help="Compute this level only, not the one that the fleet wants.",
    shell_complete=level_names,
)
@click.option("--threads", type=_THREADS, help="Threads of the model (OP_DBUS_THREADS).")
@click.option("--once", is_flag=True, help="End when nothing is left to do.")
@click.pass_context
def worker(context: click.Context, level: str, threads: int | None, once: bool) -> None:
    """Compute the vectors that the fleet lacks, and check those that hosts send.

    Any number of workers may run, on any machines, and each may be stopped at any moment: what it
    was computing, at most 256 texts, is computed by another one.
    """
    require_library()
    from opdbus import log
    from opdbus.fleet.worker import Worker
    from opdbus.systemd import notify

    try:
        settings = _settings(context, level, threads)
        access = find_database(context)
        log.configure(settings, os.environ)
        service = notify.connect(os.environ, os.getpid())
        service.ready()
        asyncio.run(Worker(settings, *access, level).run(once=once))
    except OpDbusError as error:
        notify.leave(os.environ, os.getpid(), error)
        raise


@fleet.command()
@click.argument("wanted", metavar="[LEVEL]", default="", shell_complete=level_names)
@as_json
@click.pass_context
def level(context: click.Context, wanted: str, json_: bool) -> None:
    """Change the fleet's level, or say how far the change is.

    Questions use the level before until workers have computed all vectors of LEVEL. Run this where
    LEVEL's model is.
    """
    require_library()
    from opdbus.fleet.fleet_level import LevelProgress, change_level, read_progress

    async def ask(connection: asyncpg.Connection) -> LevelProgress:
        if wanted:
            await change_level(connection, _settings(context, wanted))
        return await read_progress(connection)

    found = run_with_database(context, ask)
    if json_:
        output.print_json(found._asdict())
    elif not found.wanted:
        click.echo("no level yet: the first `op-dbus fleet worker` brings its own")
    else:
        vectors = f"{found.done:,} of {found.total:,} texts"
        output.print_pairs({"serving": found.serving, "wanted": found.wanted, "vectors": vectors})


@fleet.command()
@click.option("--ray", "address", metavar="ADDRESS", default="local", help="The cluster. [local]")
@click.option("--threads", type=_THREADS, default=1, help="Threads of each engine. [1]")
@click.option("--actors", type=_THREADS, help="Engines at a time; by default all GPUs or CPUs.")
@click.pass_context
def embed(context: click.Context, address: str, threads: int, actors: int | None) -> None:
    """Compute all vectors that the fleet lacks now, by Ray.

    Without `--ray`, Ray runs on this machine. Workers may run beside it.
    """
    require_library()
    from opdbus.fleet.ray_embed import RayRun

    _require_cluster(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    run = RayRun(_settings(context, "", threads), *find_database(context), threads, actors)
    click.echo(f"{run.embed(address):,} texts were computed")


def _require_cluster(address: str) -> None:
    """Raise ConfigError if nothing listens at HOST:PORT, for which Ray would wait many minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    number = decimal(port)
    if not host or number is None:
        return
    try:
        socket.create_connection((host.strip("[]"), number), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error}") from None


def _settings(context: click.Context, level: str, threads: int | None = None) -> Config:
    flags = {"vector_level": level} if level else {}
    return load_settings(
        (context.obj or {}) | flags | ({"threads": str(threads)} if threads else {})
    )
