"""Commands about hosts and roles, such as `op-dbus fleet add` and `op-dbus fleet hosts`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from opdbus.cli import output
from opdbus.cli.fleet import fleet, run_with_database
from opdbus.cli.root import COUNT, as_json, load_settings
from opdbus.errors import ConfigError, InvalidArgs

if TYPE_CHECKING:
    import asyncpg

    from opdbus.fleet.fleet_server import Endpoint
    from opdbus.fleet.host_overview import HostOverview

# Where a host keeps the files, and where its sender reads them, as credentials of its unit.
HOST_FOLDER: Final = "/etc/op-dbus-fleet"
_CREDENTIALS: Final = "/run/credentials/op-dbus-fleet.service/fleet_"
_ENV: Final = "fleet.env"
# Hosts that a list prints.
_MOST: Final = 100


@fleet.command()
@click.argument("host")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="A tag of it.")
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path, readable=False),
    help="The folder to write. [op-dbus-fleet-HOST]",
)
@click.option(
    "--server", metavar="NAME[:PORT]", default="", help="How the host reaches the server."
)
@click.option("--renew", is_flag=True, help="New credentials for a host that was added before.")
@click.pass_context
def add(
    context: click.Context,
    host: str,
    tags: tuple[str, ...],
    out: Path | None,
    server: str,
    renew: bool,
) -> None:
    """Add a host, and write a folder with its credentials.

    Copy the folder to the host by a way that others cannot read: who has it can write as this host.
    """
    from opdbus.fleet import administration

    role = administration.role_of(host)
    folder = Path(out or f"op-dbus-fleet-{host}").absolute()
    place = _find_endpoint(context, server)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidArgs(f"{folder} is not empty: give another folder by --out")
    if renew and tags:
        raise InvalidArgs("--renew keeps the tags: `op-dbus fleet tag` changes them")

    async def work(connection: asyncpg.Connection) -> str:
        if renew:
            return await administration.renew_host(connection, host)
        return await administration.add_host(connection, host, tags)

    password = run_with_database(context, work)
    _write_folder(context, folder, role, password, place)
    done = "renewed" if renew else "added"
    click.echo(f"{done} {host}: its credentials are in {folder}")
    click.echo("Copy this folder to the host; there, as root, beside it:")
    steps = [f"cp -rT {folder.name} {HOST_FOLDER}", "systemctl enable --now op-dbus-fleet"]
    if renew:
        steps = [f"cp -rT {folder.name} {HOST_FOLDER}", "systemctl restart op-dbus-fleet"]
    for step in (*steps, "op-dbus doctor"):
        click.echo(f"    {step}")


def _find_endpoint(context: click.Context, server: str) -> Endpoint | None:
    """Return how hosts reach the embedded server; None for a database of somebody else's."""
    from opdbus.fleet import fleet_server

    if load_settings(context.obj).fleet_database:
        if server:
            raise InvalidArgs("--server is for the embedded server: --database names another one")
        return None
    folder = context.meta["folder"]
    known = fleet_server.read_endpoint(folder)
    if not known:
        raise ConfigError(f"no server runs in {folder} yet: begin with `op-dbus fleet serve`")
    if not server:
        return known
    name, has_port, port = server.rpartition(":")
    if not has_port or server.endswith("]") or (server.count(":") > 1 and "]" not in server):
        return known._replace(name=server.strip("[]"))
    if not port.isdecimal():
        raise InvalidArgs(f"{server!r} is not NAME or NAME:PORT")
    return fleet_server.Endpoint(name.strip("[]"), int(port))


def _write_folder(
    context: click.Context, folder: Path, role: str, password: str, place: Endpoint | None
) -> None:
    """Write what the host needs; the folder can be read by its owner only."""
    from opdbus.fleet import fleet_server

    files = {"password": password + "\n"}
    if place:
        authority = fleet_server.open_authority(context.meta["folder"])
        issued = authority.issue(role)
        files["ca.crt"] = authority.certificate_file.read_text("ascii")
        files["host.crt"], files["host.key"] = issued
        url = place.url(role, _CREDENTIALS)
        url += f"&sslcert={_CREDENTIALS}host.crt&sslkey={_CREDENTIALS}host.key"
    else:
        url = _with_role(load_settings(context.obj).fleet_database, role)
    files[_ENV] = (
        f"OP_DBUS_FLEET_DATABASE={url}\nOP_DBUS_FLEET_PASSWORD_FILE={_CREDENTIALS}password\n"
    )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name, text in files.items():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(folder / name, flags, 0o600), "w", encoding="ascii") as file:
                file.write(text)
    except OSError as error:
        raise InvalidArgs(
            f"cannot write {folder}: {error.strerror}; the host was added: `op-dbus fleet add"
            " --renew` writes its credentials again"
        ) from None


def _with_role(url: str, role: str) -> str:
    """Return a database's URL for another role."""
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role}@{place}"))


@fleet.command()
@click.argument("host")
@click.option("--new-machine", is_flag=True, help="Take the next machine with its credentials.")
@click.pass_context
def accept(context: click.Context, host: str, *, new_machine: bool) -> None:
    """Take a host as it is, after its faults were looked into.

    Forgets the conflict of its history and the fault of its vectors; its stored history stays. If
    another machine came with its credentials that is not yours, they were stolen: first `op-dbus
    fleet add HOST --renew`.
    """
    from opdbus.fleet import administration

    cleared = run_with_database(
        context,
        lambda connection: administration.accept_host(connection, host, is_new_machine=new_machine),
    )
    click.echo(f"accepted {host}: " + ("forgotten" if cleared else "there was nothing to forget"))
    for line in cleared:
        click.echo(output.escape_hidden(f"    {line}"))


@fleet.command()
@click.argument("host")
@click.pass_context
def remove(context: click.Context, host: str) -> None:
    """Remove a host: its rows, its role and its certificate."""
    from opdbus.fleet import administration, fleet_server

    role = administration.role_of(host)
    counts = run_with_database(
        context, lambda connection: administration.remove_host(connection, host)
    )
    if not load_settings(context.obj).fleet_database:
        fleet_server.open_authority(context.meta["folder"]).withdraw(role)
    click.echo(
        f"removed {host}: {counts['object']:,} objects, {counts['change']:,} changes, its role and"
        " its certificate"
    )


@fleet.command(context_settings={"ignore_unknown_options": True})
@click.argument("host")
@click.argument("changes", metavar="+TAG|-TAG...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def tag(context: click.Context, host: str, changes: tuple[str, ...]) -> None:
    """Add tags to a host (+TAG) and remove others (-TAG)."""
    from opdbus.fleet import administration

    if wrong := [each for each in changes if each[:1] not in ("+", "-")]:
        raise InvalidArgs(f"{wrong[0]!r} is not +TAG or -TAG")
    more = [each[1:] for each in changes if each[0] == "+"]
    fewer = [each[1:] for each in changes if each[0] == "-"]
    tags = run_with_database(
        context, lambda connection: administration.tag_host(connection, host, more, fewer)
    )
    click.echo(f"{host}: {', '.join(tags) or 'no tags'}")


@fleet.command()
@click.argument("host")
@click.argument("mib", metavar="[MIB]", default="")
@click.option("--objects", metavar="NUMBER", default="", help="How many objects it may have.")
@click.pass_context
def limit(context: click.Context, host: str, mib: str, objects: str) -> None:
    """Let a host send MIB a day, states and history together, or have more objects.

    `default` is the fleet's limit. Without either, show the host's limits.
    """
    from opdbus.fleet import administration

    async def work(connection: asyncpg.Connection) -> administration.HostLimits:
        if mib:
            await administration.limit_host(connection, host, _parse_limit(mib, "MiB"))
        if objects:
            number = _parse_limit(objects, "objects")
            return await administration.limit_objects(connection, host, number)
        return await administration.read_limits(connection, host)

    found = run_with_database(context, work)
    click.echo(
        f"{host}: at most {found.mib:,} MiB a day, {found.sent_mib:,} today; at most"
        f" {found.most_objects:,} objects, {found.objects:,} now"
    )
    if found.refusal:
        output.print_paragraph(f"its batches are refused: {found.refusal}")


def _parse_limit(text: str, unit: str) -> int | None:
    """Return a number, None for `default`; raises InvalidArgs."""
    if text == "default":
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidArgs(f"{text!r} is no number of {unit}, and not `default`")
    return int(text)


@fleet.command("add-reader")
@click.argument("name")
@click.pass_context
def add_reader(context: click.Context, name: str) -> None:
    """Add a role that may ask, and print its password and URL."""
    from opdbus.fleet.administration import READER

    _add_role(context, name, READER)


@fleet.command("add-worker")
@click.argument("name")
@click.pass_context
def add_worker(context: click.Context, name: str) -> None:
    """Add a role that computes vectors, and print its password and URL."""
    from opdbus.fleet.administration import WORKER

    _add_role(context, name, WORKER)


def _add_role(context: click.Context, name: str, group: str) -> None:
    from opdbus.fleet import administration

    place = _find_endpoint(context, "")
    password = run_with_database(
        context, lambda connection: administration.add_role(connection, name, group)
    )
    database = load_settings(context.obj).fleet_database
    url = place.url(name, "") if place else _with_role(database, name)
    pairs = {"password": password, "OP_DBUS_FLEET_DATABASE": url}
    if place:
        folder = context.meta["folder"]
        pairs["ca.crt"] = f"{folder / 'tls' / 'ca.crt'}: its full path there is sslrootcert"
    output.print_pairs(pairs)


@fleet.command("remove-role")
@click.argument("name")
@click.pass_context
def remove_role(context: click.Context, name: str) -> None:
    """Remove a reader or a worker."""
    from opdbus.fleet import administration

    run_with_database(context, lambda connection: administration.remove_role(connection, name))
    click.echo(f"removed {name}")


@fleet.command()
@click.option(
    "--changed-since",
    "cursor",
    metavar="CURSOR",
    help="Only hosts that changed since an answer's cursor; '' begins, with all hosts.",
)
@click.option(
    "--sort",
    type=click.Choice(("findings", "name", "seen", "objects", "drift")),
    default="findings",
    help="What comes first: silent hosts and findings, the longest unseen, or the most. [findings]",
)
@click.option("-n", "--limit", type=COUNT, default=_MOST, help=f"How many hosts. [{_MOST}]")
@as_json
@click.pass_context
def hosts(context: click.Context, cursor: str | None, sort: str, limit: int, json_: bool) -> None:
    """List the hosts: those that fell silent first, then those with findings.

    SEEN: when its sender was last here. COMPLETE: when all that the host had was here. With
    --changed-since, the next cursor is printed too, in JSON beside the hosts. JSON has all hosts.
    """
    found, after = run_with_database(context, lambda connection: _list(connection, cursor))
    if sort != "findings":
        found = sorted(found, key=_SORTS[sort])
    if json_:
        rows = [host.as_dict() for host in found]
        output.print_json(rows if cursor is None else {"cursor": after, "hosts": rows})
        return
    _print_hosts(found[:limit])
    if len(found) > limit:
        output.print_note(f"... {len(found) - limit:,} more: -n N gives more")
    if cursor is not None:
        output.print_pairs({"cursor": after})


_SORTS: Final[dict[str, Callable[[HostOverview], Any]]] = {
    "name": lambda host: host.name,
    "seen": lambda host: (host.seen_at or 0.0, host.name),
    "objects": lambda host: (-host.objects, host.name),
    "drift": lambda host: (-host.drifted, host.name),
}


async def _list(
    connection: asyncpg.Connection, cursor: str | None
) -> tuple[list[HostOverview], str]:
    """Return hosts and the next cursor; without a cursor all hosts, and none."""
    from opdbus.fleet import host_overview
    from opdbus.fleet.questions.fleet_scope import list_changed_hosts

    if cursor is None:
        return await host_overview.list_hosts(connection), ""
    return await list_changed_hosts(connection, cursor)


def _print_hosts(found: Sequence[HostOverview]) -> None:
    columns = ("host", "tags", "objects", "drift", "seen", "complete", "version", "level")
    output.print_table(columns, [_row(host) for host in found])
    for host in found:
        for finding in host.findings():
            output.print_paragraph(output.escape_hidden(f"{host.name}: {finding}"))


def _row(host: HostOverview) -> list[Any]:
    return [
        host.name,
        " ".join(host.tags) or "-",
        f"{host.objects:,}",
        f"{host.drifted:,}",
        _age(host.seen_at) + (" (silent)" if host.is_silent and host.seen_at else ""),
        _age(host.current_at),
        host.version or "-",
        host.level or "-",
    ]


def _age(seconds: float | None) -> str:
    return "never" if seconds is None else output.format_age(seconds)
