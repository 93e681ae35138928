"""Simulated hosts of a fleet, for tests, the demo and benchmarks: shared and own objects, drift.

Objects of the shared part come from a generator, or from a live daemon's State1.Export. A host has
most of them unchanged, objects of its own (addresses, disks, sessions), and a few that drifted:
another version, a failed unit, a unit that is missing.
"""

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Final, NamedTuple

from opdbus.language.object_text import render
from opdbus.state.object import Identity, Json, ObjectId, StateObject, canonical

_STEMS: Final = (
    "openssh nginx postgresql redis python perl systemd curl openssl bash coreutils grep tar gzip"
    " rsync git docker containerd cron chrony rsyslog logrotate fail2ban sudo apt dpkg gnupg vim"
    " nano tmux screen wget bind unbound dnsmasq haproxy varnish squid samba nfs dovecot postfix"
    " exim mysql mariadb sqlite memcached rabbitmq prometheus grafana zabbix collectd node ruby"
    " golang gcc make cmake glibc zlib libxml libxslt pcre ncurses readline util mount lvm mdadm"
    " parted xfs btrfs iptables nftables wireguard openvpn strongswan certbot apparmor audit"
).split()
_PARTS: Final = ("", "-common", "-server", "-client", "-tools", "-doc", "-dev", "-utils", "-data",
                 "-core", "-extra", "-modules", "-plugins", "-libs")  # fmt: skip
_ROLES: Final = ("keeps time", "serves pages", "stores data", "rotates logs", "watches the host",
                 "forwards mail", "answers names", "runs containers", "backs up files")  # fmt: skip
# The parts of a host's objects, in per mille, by the kind that they are made of.
_MIX: Final = (
    ("package", 600), ("unit", 190), ("file", 70), ("account", 40), ("sysctl", 50), ("module", 30),
    ("listener", 20),
)  # fmt: skip
_PLUGINS: Final = {
    "package": "packages", "unit": "systemd", "file": "files", "account": "users",
    "sysctl": "kernel", "module": "kernel", "listener": "net", "mount": "mounts",
    "address": "net", "interface": "net", "session": "login1",
}  # fmt: skip


class SimulatedObject(NamedTuple):
    """An object of a host: its identity and its observed fields; `state` as it was exported."""

    object_id: ObjectId
    fields: Mapping[str, Json]
    state: str = ""

    def body(self) -> str:
        """Return the canonical JSON of the state, as State1.Export has it."""
        if self.state:
            return self.state
        item = StateObject(Identity("live:simulated", *self.object_id), self.fields)
        return canonical(
            {
                **self.object_id._asdict(),
                "source": item.identity.source,
                "declared": None,
                "observed": self.fields,
                "text": render(item).text,
            }
        )


def shared_objects(count: int) -> list[SimulatedObject]:
    """Return `count` objects that every host of the fleet has, always the same ones."""
    found: list[SimulatedObject] = []
    for kind, share in _MIX:
        names = _names(kind)
        wanted = max(1, count * share // 1000) if kind != _MIX[0][0] else 0
        found += [_made_object(kind, next(names), place) for place in range(wanted)]
    names = _names(_MIX[0][0])
    packages = [_made_object("package", next(names), n) for n in range(count - len(found))]
    return [*packages, *found]


def read_exported(bodies: Iterable[str]) -> list[SimulatedObject]:
    """Return the objects in the states of State1.Export; they keep these states."""
    found = ((json.loads(body), body) for body in bodies)
    return [
        SimulatedObject(
            ObjectId(state["plugin"], state["kind"], state["name"]), state["observed"] or {}, body
        )
        for state, body in found
    ]


def host_objects(
    shared: list[SimulatedObject],
    number: int,
    *,
    own: float = 0.15,
    drift: float = 0.004,
    seed: int = 0,
) -> Iterator[SimulatedObject]:
    """Yield as many objects as `shared` has, of the host with this number.

    `own` is the share of objects that only this host has, `drift` that of other ones which differ
    from what most hosts have.
    """
    chance = random.Random(f"{seed}/{number}")  # noqa: S311 -- the same host each time
    kept = len(shared) - round(own * len(shared))
    for each in shared[: kept // 2] + shared[len(shared) - (kept - kept // 2) :]:
        if chance.random() >= drift:
            yield each
        elif chance.random() < 0.75:
            yield drifted(each)
    yield from (_own(number, place, chance) for place in range(len(shared) - kept))


def drifted(shared: SimulatedObject) -> SimulatedObject:
    """Return an object as few hosts have it: an older version, a failed unit, another value."""
    fields = dict(shared.fields)
    if "version" in fields:
        fields["version"] = "0.9-1"
    elif "active_state" in fields:
        fields |= {"active_state": "failed", "sub_state": "failed"}
    else:
        key = max(fields)
        fields[key] = "drifted"
    return SimulatedObject(shared.object_id, fields)


def _names(kind: str) -> Iterator[str]:
    numbers = ("", *(str(n) for n in range(2, 1000)))
    for number, part, stem in product(numbers, _PARTS, _STEMS):
        name = f"{stem}{part}{number}"
        yield {
            "unit": f"{name}.service",
            "file": f"/etc/{stem}{number}/{stem}{part}.conf",
            "sysctl": f"net.{stem}.{(part or '-all')[1:]}{number}",
        }.get(kind, name)


def _made_object(kind: str, name: str, place: int) -> SimulatedObject:
    says = f"{name.partition('.')[0]} {_ROLES[place % len(_ROLES)]}"
    fields: dict[str, Any]
    if kind == "package":
        fields = {"version": f"{1 + place % 9}.{place % 37}-{1 + place % 5}", "summary": says,
                  "architecture": "amd64", "on_hold": False}  # fmt: skip
    elif kind == "unit":
        running = place % 3 != 0
        fields = {"description": says, "load_state": "loaded", "unit_file_state": "enabled",
                  "active_state": "active" if running else "inactive",
                  "sub_state": "running" if running else "dead", "type": "service",
                  "exec_start": [f"/usr/sbin/{name.partition('.')[0]} --config /etc/{name}"],
                  "user": "root", "requires": ["sysinit.target"]}  # fmt: skip
    elif kind == "file":
        fields = {"mode": "0644", "owner": "root", "group": "root", "size": 100 + place,
                  "sha256": f"{place:064x}"}  # fmt: skip
    elif kind == "account":
        fields = {"uid": 100 + place, "shell": "/usr/sbin/nologin", "home": f"/var/lib/{name}"}
    elif kind == "listener":
        fields = {"address": "0.0.0.0", "port": 1000 + place, "process": name}  # noqa: S104
    else:
        fields = {"value": place, "loaded": True}
    return SimulatedObject(ObjectId(_PLUGINS[kind], kind, name), fields)


def _own(number: int, place: int, chance: random.Random) -> SimulatedObject:
    kind = ("address", "mount", "interface", "session", "file", "unit")[place % 6]
    octets = f"10.{number // 256}.{number % 256}.{place % 250 + 1}"
    fields: dict[str, Any]
    if kind == "address":
        name, fields = f"{octets}/24", {"interface": f"eth{place}", "address": octets}
    elif kind == "mount":
        name = f"/srv/disk{place}"
        fields = {"fstype": "ext4", "uuid": f"{chance.getrandbits(128):032x}", "size": place << 20}
    elif kind == "interface":
        mac = ":".join(f"{chance.getrandbits(8):02x}" for _ in range(6))
        name, fields = f"veth{place}", {"mac_address": mac, "mtu": 1500, "state": "up"}
    elif kind == "session":
        name, fields = f"{number}-{place}", {"user": f"user{number}", "remote_host": octets}
    elif kind == "file":
        name = f"/etc/own/{place}.conf"
        fields = {"mode": "0600", "owner": "root", "sha256": f"{chance.getrandbits(256):064x}"}
    else:
        name = f"job-{number}-{place}.service"
        fields = {"description": f"job {place} of host {number}", "active_state": "active"}
    return SimulatedObject(ObjectId(_PLUGINS[kind], kind, name), fields)
