"""Commands `op-dbus fleet send` and `op-dbus fleet preview`: all that leaves this host."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from opdbus.cli import output
from opdbus.cli.daemon_calls import ask
from opdbus.cli.fleet import fleet, read_password, require_library
from opdbus.cli.root import as_json, load_settings
from opdbus.errors import ConfigError, OpDbusError

if TYPE_CHECKING:
    from opdbus.client import Client


@fleet.command()
@click.pass_context
def send(context: click.Context) -> None:
    """Send this host's state to the fleet until stopped.

    op-dbus-fleet.service runs this command. OP_DBUS_FLEET_DATABASE is the database, as this host's
    role, and its password is in the file of OP_DBUS_FLEET_PASSWORD_FILE or the credential
    op-dbus.fleet-password.
    """
    import asyncio

    from opdbus import log
    from opdbus.systemd import notify

    try:
        settings = load_settings(context.obj)
        log.configure(settings, os.environ)
        require_library()
        if not settings.fleet_database:
            raise ConfigError(
                "OP_DBUS_FLEET_DATABASE is not set: it names the database of the fleet, such as"
                " postgresql://host-web1@fleet.example/opdbus"
            )
        from opdbus.fleet import sender
        from opdbus.fleet.uplink import Uplink

        def connect() -> Uplink:
            # read again each time: a new password needs no restart
            return Uplink(settings.fleet_database, read_password(settings.fleet_password_file))

        service = notify.connect(os.environ, os.getpid())
        asyncio.run(sender.send_until_stopped(sender.Sender(settings.bus, connect), service))
    except OpDbusError as error:
        notify.leave(os.environ, os.getpid(), error)
        raise


class _Preview(NamedTuple):
    """Everything that a first synchronization sends."""

    objects: list[dict[str, Any]]
    first_row: int
    last_row: int
    drifted: int
    level: str
    numerics: str


@fleet.command()
@as_json
def preview(json_: bool) -> None:
    """List what `op-dbus fleet send` sends; send nothing.

    No database is needed. The rows of history are those of `op-dbus changes`, and drift is that of
    `op-dbus drift`.
    """
    require_library()
    found = ask(_gather)
    kinds = Counter((row["plugin"], row["kind"]) for row in found.objects)
    counts = [(*kind, number) for kind, number in sorted(kinds.items())]
    columns = ("plugin", "kind", "objects")
    if json_:
        rest = {**found._asdict(), "kinds": output.as_dicts(columns, counts)}
        output.print_json(rest | {"objects": rest.pop("objects")})
        return
    output.print_table(columns, counts)
    rows = f"{found.first_row} to {found.last_row}" if found.last_row else ""
    summary = {
        "objects": len(found.objects),
        "rows of history": rows or "none",
        "drifted objects": found.drifted,
        "vectors": found.numerics and f"of the level {found.level}: {found.numerics}",
    }
    output.print_section("Altogether", {name: str(value) for name, value in summary.items()})
    for row in found.objects:
        fields = {side: output.json_text(row[side]) for side in ("declared", "observed")}
        sides = {name: text for name, text in fields.items() if text != "null"}
        title = f"{row['plugin']}/{row['kind']}/{row['name']}"
        output.print_section(
            output.escape_hidden(title), {"source": row["source"], "text": row["text"], **sides}
        )


async def _gather(client: Client) -> _Preview:
    import json

    from opdbus.fleet import host_reader

    kept, _ = await client.kept_rows()
    model = await host_reader.read_model(client)
    level = str((await client.status())["Level"])
    drifted = len(await client.drift({}))
    objects = [
        json.loads(row.body) async for row in host_reader.read_everything(client) if row.body
    ]
    return _Preview(
        objects, kept.start if kept else 0, kept.stop - 1, drifted, level, model.numerics
    )
