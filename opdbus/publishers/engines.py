"""What is known of engines of containers: where they listen, and what their lists look like."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

Row: TypeAlias = Mapping[str, Any]


def _of_docker(row: Row) -> tuple[str, Row]:
    """Read what docker and podman say of a container, but not for how long it has been so."""
    ports = {
        f"{p.get('PublicPort', '')}:{p['PrivatePort']}/{p['Type']}" for p in row["Ports"] or ()
    }
    mounts = [f"{m.get('Source')} on {m.get('Destination')}" for m in row.get("Mounts") or ()]
    networks = (row.get("NetworkSettings") or {}).get("Networks") or ()
    lists = {"ports": sorted(ports), "mounts": sorted(mounts), "networks": sorted(networks)}
    kept = {key.lower(): row.get(key) or "" for key in ("Image", "Command", "State", "Labels")}
    return row["Names"][0].lstrip("/"), {"id": row["Id"][:12], **kept, **lists}


def _of_incus(row: Row) -> tuple[str, Row]:
    """Read what incus says of a container; of its settings, which may be secret, only the image."""
    kept = ("type", "description", "architecture", "profiles", "project", "ephemeral", "location")
    image = (row.get("config") or {}).get("image.description", "")
    found = {name: row[name] for name in kept if row.get(name)}
    return row["name"], {"state": row["status"].lower(), "image": image, **found}


class Engine(NamedTuple):
    """Where an engine listens, what it is asked for, and how one of its containers is read."""

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
