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
from opdbus.errors import OpDbusError
from opdbus.publishers.retrying import repeat_forever

Row: TypeAlias = Mapping[str, Any]
_FAULTS: Final = (OSError, ValueError, LookupError, TypeError, OpDbusError)
_ANSWER_SECONDS: Final = 30.0
# Events within this time lead to one listing.
_QUIET_SECONDS: Final = 0.1
_AT_ONCE: Final = 1 << 16
_OF_DOCKER: Final = ("Image", "Command", "State", "Labels")
_OF_INCUS: Final = (
    "type", "description", "architecture", "profiles", "project", "ephemeral", "location",
)  # fmt: skip


def _read_docker(row: Row) -> tuple[str, Row]:
    """Return a container of docker or podman by name, without its uptime, which changes."""
    ports = {
        f"{p.get('PublicPort', '')}:{p['PrivatePort']}/{p['Type']}" for p in row["Ports"] or ()
    }
    mounts = [f"{m.get('Source')} on {m.get('Destination')}" for m in row.get("Mounts") or ()]
    networks = (row.get("NetworkSettings") or {}).get("Networks") or ()
    lists = {"ports": sorted(ports), "mounts": sorted(mounts), "networks": sorted(networks)}
    kept = {key.lower(): row.get(key) or "" for key in _OF_DOCKER}
    return row["Names"][0].lstrip("/"), {"id": row["Id"][:12], **kept, **lists}


def _read_incus(row: Row) -> tuple[str, Row]:
    """Return a container of incus by name; of its settings, which may be secret, only the image."""
    image = (row.get("config") or {}).get("image.description", "")
    kept = {name: row[name] for name in _OF_INCUS if row.get(name)}
    return row["name"], {"state": row["status"].lower(), "image": image, **kept}


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


async def _follow(engine: Engine, bus: str) -> None:
    """Publish all containers, again after events, with the lifetime of the connection."""
    async with _get(engine.path, engine.events) as events, Client(bus) as client:
        published: dict[str, Row] = {}
        while True:
            async with _get(engine.path, engine.listing) as body:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    rows = json.loads(await body.read())
            found = dict(map(engine.read, rows["metadata"] if isinstance(rows, dict) else rows))
            new = [row for row in found.items() if row[1] != published.get(row[0])]
            object_ids = [(engine.name, "container", *row) for row in new]
            await client.publish(engine.name, object_ids, lifetime="connection")
            gone = published.keys() - found.keys()
            await client.withdraw([paths.of(engine.name, "container", name) for name in gone])
            published = found
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
