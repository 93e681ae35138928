"""Container engines: their sockets, requests, and the format of their lists."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

Row: TypeAlias = Mapping[str, Any]


def _of_docker(row: Row) -> tuple[str, Row]:
    """Return a container of docker or podman by name, without its uptime, which changes."""
    ports = {
        f"{p.get('PublicPort', '')}:{p['PrivatePort']}/{p['Type']}" for p in row["Ports"] or ()
    }
    mounts = [f"{m.get('Source')} on {m.get('Destination')}" for m in row.get("Mounts") or ()]
    networks = (row.get("NetworkSettings") or {}).get("Networks") or ()
    lists = {"ports": sorted(ports), "mounts": sorted(mounts), "networks": sorted(networks)}
    kept = {key.lower(): row.get(key) or "" for key in ("Image", "Command", "State", "Labels")}
    return row["Names"][0].lstrip("/"), {"id": row["Id"][:12], **kept, **lists}


def _of_incus(row: Row) -> tuple[str, Row]:
    """Return a container of incus by name; of its settings, which may be secret, only the image."""
    kept = ("type", "description", "architecture", "profiles", "project", "ephemeral", "location")
    image = (row.get("config") or {}).get("image.description", "")
    found = {name: row[name] for name in kept if row.get(name)}
    return row["name"], {"state": row["status"].lower(), "image": image, **found}


class Engine(NamedTuple):
    """A container engine: its socket, request targets, and reader of a container."""

    name: str
    path: str
    listed: str = "/containers/json?all=1"
    events: str = "/events?filters=%7B%22type%22%3A%5B%22container%22%5D%7D"
    read: Callable[[Row], tuple[str, Row]] = _of_docker


_INCUS: Final = "/1.0/instances?recursion=1", "/1.0/events?type=lifecycle", _of_incus
ENGINES: Final = (
    Engine("podman", "/run/podman/podman.sock"),
    Engine("docker", "/run/docker.sock"),
    Engine("incus", "/var/lib/incus/unix.socket", *_INCUS),
)
