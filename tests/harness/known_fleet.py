"""A fleet of six hosts whose differences are known, and a gateway's access to it."""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.assistants import HOSTILE
from harness.fleet_workers import work
from harness.fleets import FleetDatabase, facts, fleet_database
from opdbus import config
from opdbus.fleet import administration
from opdbus.fleet.embedded_server import SUPERUSER
from opdbus.fleet.uplink import ChangeRow, StateRow
from opdbus.history.hash_chain import row_hash
from opdbus.state.object import ObjectId, canonical

sys.path.append(str(Path(__file__).parents[2] / ".ci"))
from simulated_hosts import SimulatedObject, drifted, shared_objects

WEB = ("web1", "web2", "web3", "web4", "web5")
HOSTS = ("db1", *WEB)
# web5 has another version of it, web4 none of the unit, and web1 a text with commands.
OTHER = ObjectId("packages", "package", "openssh")
LACKING = ObjectId("systemd", "unit", "nginx.service")
EVIL = ObjectId("systemd", "unit", "evil.service")
ONLY_DB = ObjectId("packages", "package", "postgresql-18")
DRIFTED = ObjectId("systemd", "unit", "cron.service")
# Of web1 to web4; web1 and web2 drifted.
UPGRADED = "package redis was upgraded: version 1.1 -> 1.2"
THINGS = 90
# Of db1: objects whose names differ only in numbers.
SESSIONS = 8


@dataclass
class KnownFleet:
    """The database, and the file with the password of a reader."""

    database: FleetDatabase
    url: str
    password_file: Path

    @property
    def settings(self) -> dict[str, object]:
        """The settings of a gateway."""
        return {"FLEET_DATABASE": self.url, "FLEET_PASSWORD_FILE": self.password_file}


@contextmanager
def known_fleet(folder: Path) -> Iterator[KnownFleet]:
    """Run a server with the six hosts, their history, drift and vectors."""
    with fleet_database() as database:
        for host in HOSTS:
            database.add(host, "web" if host in WEB else "db")
            asyncio.run(_send(database, host))
        settings = {"HOME": str(folder), "OP_DBUS_STATE_DIR": str(folder / "state")}
        work(database, config.load(settings, {"vector_level": "static"}), "static")
        database.run(lambda each: each.execute(_SILENT))
        password = database.run(
            lambda each: administration.add_role(each, "page", administration.READER)
        )
        file = folder / "password"
        file.write_text(password)
        file.chmod(0o600)
        url = database.server.url.replace(SUPERUSER, "page", 1)
        yield KnownFleet(database, url, file)


def _things(host: str) -> list[SimulatedObject]:
    things = {each.object_id: each for each in shared_objects(THINGS)}
    if host == "web5":
        things[OTHER] = drifted(things[OTHER])
    if host == "web4":
        del things[LACKING]
    if host == "web1":
        things[EVIL] = SimulatedObject(EVIL, {"active_state": "active", "description": HOSTILE})
    if host == "db1":
        things[ONLY_DB] = SimulatedObject(ONLY_DB, {"version": "18.1", "summary": "stores tables"})
        for number in range(SESSIONS):
            one = ObjectId("login1", "session", str(number))
            things[one] = SimulatedObject(
                one, {"user": "backup", "state": "active", "remote": False}
            )
    return [*things.values()]


async def _send(database: FleetDatabase, host: str) -> None:
    rows = [StateRow(*each.object_id, 1, each.body()) for each in _things(host)]
    changes = [*_history()] if host in WEB[:4] else []
    async with database.uplink(host) as uplink:
        await uplink.begin(facts(f"machine-{host}", 1, len(changes)), None)
        await uplink.send(changes, rows, 0)
        if host in WEB[:2]:
            field = ["enabled", "true", "false", "error"]
            await uplink.put_drift([[*DRIFTED, "drift", "error", int(time.time()) - 60, [field]]])
        await uplink.end_comparison()
        failed = [["docker", "failed", 0, "no answer"]] if host == "web3" else []
        await uplink.keep_alive(failed)


def _history() -> Sequence[ChangeRow]:
    """Return the rows of an upgrade, a minute ago."""
    hashed = (
        *(1, int((time.time() - 60) * 1e6), "boot", "live:test", "packages", "package", "redis"),
        *("changed", "apt", 0, "00" * 32),
    )
    details = {
        "fields": [["version", '"1.1"', '"1.2"']],
        "sentence": UPGRADED,
        "severity": "",
        "known": {},
    }
    return [ChangeRow(1, canonical(hashed), row_hash(bytes(32), hashed), details)]


_SILENT = (
    "UPDATE opdbus.host SET seen_at = now() - interval '2 days',"
    " current_at = now() - interval '2 days' WHERE name = 'db1'"
)
