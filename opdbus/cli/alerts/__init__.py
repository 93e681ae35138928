"""Command `op-dbus notify`: runs executables for drift, failed units and chosen changes."""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from opdbus.cli.root import load_settings, root
from opdbus.cli.show_history import parse_time
from opdbus.errors import ConfigError, OpDbusError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opdbus.cli.alerts.alert_rules import Rules
    from opdbus.systemd.notify import Systemd

CONFIG: Final = "/etc/op-dbus/notify.toml"
STATE: Final = "/var/lib/op-dbus-notify"
# The folder of executables, beside the rules.
FOLDER: Final = "notify.d"
_COPIES: Final = ("~", ".bak", ".orig", ".rej", ".dpkg-old", ".dpkg-new", ".dpkg-dist", ".rpmsave")


@root.command()
@click.option("--config", metavar="FILE", default=CONFIG, help=f"The rules. [{CONFIG}]")
@click.option(
    "--state-dir",
    metavar="DIR",
    envvar="STATE_DIRECTORY",
    default=STATE,
    help=f"Where it is noted how far each executable is. [{STATE}]",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Where an executable that runs for the first time begins; default: now.",
)
@click.pass_context
def notify(context: click.Context, config: str, state_dir: str, since: str | None) -> None:
    """Run executables for drift, failed units and other changes.

    Each executable in notify.d beside the rules gets one JSON object on standard input for each
    alert, in order; one that fails gets it again. op-dbus-notify.service runs this command. TIME
    is as of `op-dbus changes`.
    """
    # asyncio and the D-Bus library are slow to import
    import asyncio

    from opdbus.cli.alerts.alert_rules import read_rules
    from opdbus.systemd import notify as sd_notify

    try:
        # executables run in another folder
        rules_file = Path(config).absolute()
        executables = _find_executables(rules_file.parent / FOLDER)
        rules = read_rules(rules_file, [path.name for path in executables])
        service = sd_notify.connect(os.environ, os.getpid())
        bus = load_settings(context.obj).bus
        asyncio.run(_run(bus, service, rules, executables, Path(state_dir), parse_time(since)))
    except OpDbusError as error:
        sd_notify.leave(os.environ, os.getpid(), error)
        raise


def _find_executables(folder: Path) -> list[Path]:
    """Return the executables of a folder, by name; raises ConfigError if there is none.

    Hidden files, copies that editors and dpkg keep and files that nobody may execute are left out.
    """
    try:
        paths = [path for path in sorted(folder.iterdir()) if path.is_file()]
    except OSError as error:
        raise ConfigError(f"cannot read {folder}: {error.strerror}") from None
    named = [path for path in paths if path.name[0] != "." and not path.name.endswith(_COPIES)]
    found = [path for path in named if path.stat().st_mode & 0o111]
    if not found:
        raise ConfigError(
            f"there is no executable in {folder}: put one there, such as an example of"
            " share/doc/op-dbus/notify.d"
        )
    for path in found:
        if not os.access(path, os.R_OK | os.X_OK):
            raise ConfigError(
                f"{path} may not be read and executed by this user: as root,"
                f" `chgrp op-dbus-config {path}; chmod 750 {path}`"
            )
    return found


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Hold the folder of cursors, so that no alert is given twice; raises ConfigError."""
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"cannot open {folder}: {error.strerror}; see --state-dir") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another `op-dbus notify` uses {folder}; see --state-dir") from None
        yield
    finally:
        os.close(descriptor)


async def _run(
    bus: str, service: Systemd, rules: Rules, executables: list[Path], folder: Path, since: int
) -> None:
    """Deliver alerts until stopped; raises BusError if the bus is lost."""
    import asyncio
    from contextlib import aclosing

    from opdbus.cli.alerts.delivery import Cursor, Delivery, Host, Setting
    from opdbus.client import Client
    from opdbus.platform.tasks import signals, until_first_ends

    with _lock(folder):
        async with Client(bus) as client, signals(asyncio.Event()) as stopped:
            client.ask_no_user()
            setting = Setting(client, rules, socket.gethostname(), since, service.renew)
            deliveries = [Delivery(setting, p, Cursor(folder, p.name)) for p in executables]

            host = Host(client, rules)

            async def listen() -> None:
                async with aclosing(client.new_rows()) as news:
                    async for signals in news:
                        for delivery in deliveries:
                            delivery.news.set()
                        # rows alone mean that all is as before
                        if signals != {"Recorded"}:
                            await host.check()
                            service.renew()

            service.describe = lambda: "; ".join(filter(None, map(str, (host, *deliveries))))
            for each in deliveries:
                await each.begin()
            service.ready()
            await until_first_ends(listen(), stopped.wait(), *(each.run() for each in deliveries))
            service.stopping()
