"""Publishes the containers of podman, docker and incus, whose sockets only root may use.

op-dbus-containers.service runs it, apart from the daemon: access to the sockets equals root.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from opdbus.bus import paths
from opdbus.client import Client
from opdbus.errors import InvalidArgs, OpDbusError
from opdbus.publishers.journal_lines import describe_shape
from opdbus.publishers.retrying import print_reason, repeat_forever

Row: TypeAlias = Mapping[str, Any]
# Faults of one row of a list, and of a whole answer.
_ODD: Final = (ValueError, LookupError, TypeError, AttributeError)
_FAULTS: Final = (OSError, *_ODD, RecursionError, OpDbusError)
_ANSWER_SECONDS: Final = 30.0
# Events within this time lead to one listing.
_QUIET_SECONDS: Final = 0.1
_AT_ONCE: Final = 1 << 16
_OF_DOCKER: Final = ("Image", "Command", "State", "Labels")
_OF_INCUS: Final = (
    "type", "description", "architecture", "profiles", "project", "ephemeral", "location",
)  # fmt: skip


def _read_docker(row: Row) -> tuple[str, Row]:
    """Return a container of docker or podman by name, without its uptime, which changes.

    A name with a slash is the one by which another container calls it; without one of its own, its
    id names it.
    """
    names, identifier = row.get("Names") or (), str(row.get("Id") or "")[:12]
    named = [names] if type(names) is str else names
    plain = (name.removeprefix("/") for name in named if isinstance(name, str))
    name = next((name for name in plain if name and "/" not in name), identifier)
    ports = {
        f"{port.get('PublicPort') or ''}:{port.get('PrivatePort')}/{port.get('Type')}"
        for port in _rows(row.get("Ports"))
    }
    mounts = [f"{m.get('Source')} on {m.get('Destination')}" for m in _rows(row.get("Mounts"))]
    (networks,) = _rows([row.get("NetworkSettings") or {}])
    lists = {
        "ports": sorted(ports),
        "mounts": sorted(mounts),
        "networks": sorted(networks.get("Networks") or ()),
    }
    kept = {key.lower(): row.get(key) or "" for key in _OF_DOCKER}
    return name, {"id": identifier, **kept, **lists}


def _drop_nulls(row: Row) -> Row:
    return {key: value for key, value in row.items() if value is not None}


def _rows(value: object) -> list[Row]:
    """Return the objects in a list of an engine; other values have nothing to read."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_incus(row: Row) -> tuple[str, Row]:
    """Return a container of incus by name; of its settings, which may be secret, only the image."""
    image = (row.get("config") or {}).get("image.description", "")
    kept = {name: row[name] for name in _OF_INCUS if row.get(name)}
    state = str(row.get("status") or "").lower()
    return row["name"], {"state": state, "image": image, **kept}


class Engine(NamedTuple):
    """A container engine: its socket, request targets, and reader of a container."""

    name: str
    path: str
    listing: str = "/containers/json?all=1"
    events: str = "/events?filters=%7B%22type%22%3A%5B%22container%22%5D%7D"
    read: Callable[[Row], tuple[str, Row]] = _read_docker


_INCUS: Final = "/1.0/instances?recursion=1", "/1.0/events?type=lifecycle", _read_incus
ENGINES: Final = (
    Engine("podman", "/run/podman/podman.sock"),
    Engine("docker", "/run/docker.sock"),
    Engine("incus", "/var/lib/incus/unix.socket", *_INCUS),
)


@asynccontextmanager
async def _get(path: str, target: str) -> AsyncIterator[asyncio.StreamReader]:
    """Send a GET request and yield the body's reader; HTTP/1.0 sends it unchunked."""
    async with asyncio.timeout(_ANSWER_SECONDS) as limit:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(f"GET {target} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
            if (line := await reader.readline()).split()[1:2] != [b"200"]:
                raise ValueError(f"it answered {target} with {line!r}")
            while (await reader.readline()).strip():
                pass
            limit.reschedule(None)
            yield reader
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def read_containers(engine: Engine, answer: object) -> tuple[dict[str, Row], list[object]]:
    """Return the containers in an engine's list by name, and the rows without one.

    Each row is read by itself. Raises ValueError if there is no list.
    """
    rows = answer.get("metadata") if isinstance(answer, dict) else answer
    if not isinstance(rows, list):
        raise ValueError("its list of containers is none")  # noqa: TRY004 -- of another program
    found: dict[str, Row] = {}
    odd: list[object] = []
    for row in rows:
        try:
            name, properties = engine.read(row)
        except _ODD:
            name, properties = "", {}
        if name and isinstance(name, str):
            found[name] = properties
        else:
            odd.append(row)
    return found, odd


async def _publish(client: Client, engine: Engine, rows: Mapping[str, Row]) -> set[str]:
    """Publish containers; return the names of those that are refused, such as too large ones."""
    objects = [(engine.name, "container", *row) for row in rows.items()]
    try:
        await client.publish(engine.name, objects, lifetime="connection")
    except (InvalidArgs, *_ODD):
        if len(rows) == 1:
            return set(rows)
        refused = [await _publish(client, engine, {name: rows[name]}) for name in rows]
        return set().union(*refused)
    return set()


def _describe_rest(rows: Sequence[object]) -> str:
    """Return how many containers were left out, and the shape of the last; empty if none."""
    last = "".join(describe_shape(json.dumps(row)) for row in rows[-1:])
    many = f"{len(rows):,} container{'s' * (len(rows) > 1)}"
    return f"{many} not understood or refused; the last: {last}" if rows else ""


async def _follow(engine: Engine, bus: str) -> None:
    """Publish all containers, again after events, with the lifetime of the connection."""
    async with _get(engine.path, engine.events) as events, Client(bus) as client:
        published: dict[str, Row] = {}
        last_note = ""
        while True:
            async with _get(engine.path, engine.listing) as body:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    answer = json.loads(await body.read(), object_hook=_drop_nulls)
            found, odd = read_containers(engine, answer)
            new = {name: row for name, row in found.items() if row != published.get(name)}
            refused = await _publish(client, engine, new)
            kept = {name: row for name, row in found.items() if name not in refused}
            gone = published.keys() - kept.keys()
            await client.withdraw([paths.of(engine.name, "container", name) for name in gone])
            published = kept
            rest = [*(found[name] for name in refused), *odd]
            if (note := _describe_rest(rest)) != last_note:
                print_reason(f"{engine.name}: {note or 'all containers are understood'}")
                reader = (engine.name, "reader", engine.name, {"unread": note})
                await client.publish(f"{engine.name}.reader", [reader], lifetime="connection")
            last_note = note
            if not await events.read(_AT_ONCE):
                raise ConnectionError("it went away")
            await asyncio.sleep(_QUIET_SECONDS)


async def _keep_following(engine: Engine, bus: str) -> None:
    """Follow an engine forever, also one that starts later; print why it cannot be followed."""
    await repeat_forever(
        partial(_follow, engine, bus), _FAULTS, subject=f"{engine.name} at {engine.path}: "
    )


async def main(engines: Sequence[Engine], bus: str = "system") -> None:
    """Follow all engines."""
    async with asyncio.TaskGroup() as group:
        for engine in engines:
            group.create_task(_keep_following(engine, bus))


if __name__ == "__main__":
    # docker's socket may be a link to podman's: follow that once
    engines = {Path(engine.path).resolve(): engine for engine in reversed(ENGINES)}
    asyncio.run(main(tuple(engines.values())))
