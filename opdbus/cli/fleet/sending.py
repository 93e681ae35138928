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
    from opdbus.fleet.uplink import HostFacts


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
    """Everything that a first synchronization sends, but for rows and drift, which are counted."""

    facts: HostFacts
    drifted: int
    objects: list[dict[str, Any]]


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
    facts, has_rows = found.facts, found.facts.last >= found.facts.first_kept
    if json_:
        rest = {
            "machine": facts.machine,
            "version": facts.version,
            "level": facts.level,
            "numerics": facts.numerics,
            "observers": output.as_dicts(("name", "state", "objects", "reason"), facts.observers),
            "first_row": facts.first_kept if has_rows else 0,
            "last_row": facts.last,
            "drifted": found.drifted,
            "kinds": output.as_dicts(columns, counts),
        }
        output.print_json(rest | {"objects": found.objects})
        return
    output.print_table(columns, counts)
    summary = {
        "objects": len(found.objects),
        "rows of history": f"{facts.first_kept} to {facts.last}" if has_rows else "none",
        "drifted objects": found.drifted,
        "vectors": facts.numerics and f"of the level {facts.level}: {facts.numerics}",
        "machine": facts.machine,
        "version": facts.version,
        "observers": ", ".join(f"{name} {state}" for name, state, *_ in facts.observers),
    }
    output.print_section("Altogether", {name: str(value) for name, value in summary.items()})
    for row in found.objects:
        fields = {side: output.json_text(row[side]) for side in ("declared", "observed")}
        sides = {name: text for name, text in fields.items() if text != "null"}
        title = f"{row['plugin']}/{row['kind']}/{row['name']}"
        text = output.join_lines(row["text"].split("\n"))
        output.print_section(
            output.escape_hidden(title), {"source": row["source"], "text": text, **sides}
        )


async def _gather(client: Client) -> _Preview:
    import json

    from opdbus.fleet import host_reader

    facts = await host_reader.read_facts(client, await host_reader.read_model(client))
    drifted = len(await client.drift({}))
    objects = [
        json.loads(row.body) async for row in host_reader.read_everything(client) if row.body
    ]
    return _Preview(facts, drifted, objects)
