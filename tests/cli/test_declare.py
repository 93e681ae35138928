"""`op-dbus declare`: a host that was declared drifts in nothing, and differences are taken over."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.commands import as_json, fails, ok, run
from harness.running import Bus, Caller, Running, ask, environment

from opdbus.bus import paths
from opdbus.bus.transport.connection import RemoteError

CANARY = "hunter2-yellowfeather"
EMPTY = '{"version": 1, "plugins": {}}'
HOST: list[tuple[str, str, str, dict[str, Any]]] = [
    ("users", "account", "root", {"uid": 0, "shell": "/bin/bash", "home": "/root", "gid": 0}),
    ("users", "group", "sudo", {"gid": 27, "members": ["alice"], "member_count": 1}),
    ("packages", "package", "nginx", {"status": "installed", "version": "1.2"}),
    ("packages", "package", "libc6", {"status": "installed", "automatic": True}),
    ("systemd", "unit", "ssh.service", {"active_state": "active", "unit_file_state": "enabled"}),
    ("net", "listener", "tcp 0.0.0.0:22", {"port": 22, "user": "root"}),
    ("kernel", "sysctl", "vm.swappiness", {"value": "10"}),
    ("backup", "job", "home", {"state": "ok", "url": f"https://u:{CANARY}@h", "pid": 7}),
]


class Declared:
    """A daemon on a private bus with a host that a program publishes."""

    def __init__(self, daemon: Running, file: Path) -> None:
        self.daemon = daemon
        self.file = file

    def publish(self, *objects: tuple[str, str, str, dict[str, Any]]) -> None:
        """Let the host be so."""
        keys = ("plugin", "kind", "name", "properties")
        given = [dict(zip(keys, one, strict=True)) for one in objects]
        ok(self.daemon, "publish", "probe", stdin=json.dumps(given))

    def load(self, text: str | None = None) -> None:
        """Let the daemon read the state file, written anew if a text is given."""
        if text is not None:
            self.file.write_text(text)
        ask(self.daemon, lambda caller: caller.ask("Reload", {}))

    def drifting(self) -> dict[str, list[str]]:
        """Give what drifts, with its fields."""
        rows = as_json(self.daemon, "drift")["drifts"]
        return {row["name"]: sorted(field["path"] for field in row["fields"]) for row in rows}

    def until(self, *names: str) -> dict[str, list[str]]:
        """Wait until just these objects drift."""

        async def wait(caller: Caller) -> None:
            async def drifting() -> set[str]:
                (rows,) = await caller.ask("DriftReport", {})
                return {paths.parse(row[0])[2] for row in rows}

            await caller.until(drifting, {*names})

        ask(self.daemon, wait)
        return self.drifting()


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Declared]:
    """Serve a host that is published, with an empty state file."""
    folder = tmp_path_factory.mktemp("declare")
    file = folder / "state.json"
    file.write_text(EMPTY)
    bus = Bus()
    try:
        with Running(
            folder, bus.address, STATE_FILE=file, OBSERVE="none", VECTOR_LEVEL="none"
        ) as daemon:
            ask(daemon, lambda caller: caller.ready())
            host = Declared(daemon, file)
            host.publish(*HOST)
            yield host
    finally:
        bus.kill()


def test_a_baseline_is_a_state_file_without_drift(declared: Declared) -> None:
    """Print only a valid file, which declares what lasts and from which nothing drifts."""
    done = run(declared.daemon, "declare")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "version": 1,
        "plugins": {
            "kernel": {"sysctls": {"vm.swappiness": {"value": "10"}}},
            "net": {"listeners": {"tcp 0.0.0.0:22": {"user": "root"}}},
            "packages": {"packages": {"nginx": {"ensure": "installed"}}},
            "systemd": {"units": {"ssh.service": {"active_state": "active", "enabled": True}}},
            "users": {
                "accounts": {"root": {"uid": 0, "gid": 0, "home": "/root", "shell": "/bin/bash"}},
                "groups": {"sudo": {"gid": 27, "members": ["alice"]}},
            },
        },
    }
    assert done.stderr == "6 objects, 1 KiB\n"
    # an object has a line, so that versions of the file compare well
    assert '        "nginx": {"ensure": "installed"}\n' in done.stdout
    declared.load(done.stdout)
    assert declared.drifting() == {}
    # declared objects are declared as they are observed
    assert run(declared.daemon, "declare").stdout == done.stdout


def test_what_is_named_is_declared_without_its_secrets(declared: Declared) -> None:
    """Declare a published object that is named; a secret is left out and counted."""
    for arguments in (["backup/job/home"], ["--plugin", "backup"]):
        done = run(declared.daemon, "declare", *arguments)
        assert json.loads(done.stdout)["plugins"] == {"backup": {"jobs": {"home": {"state": "ok"}}}}
        assert "left out: 1 value with a secret" in done.stderr
    libc = json.loads(run(declared.daemon, "declare", "libc6").stdout)["plugins"]
    assert libc == {"packages": {"packages": {"libc6": {"ensure": "installed"}}}}
    every = run(declared.daemon, "declare", "--all").stdout
    assert '"automatic": true' in every
    assert CANARY not in every
    assert "redacted" not in every


def test_differences_are_taken_over_into_a_file(declared: Declared) -> None:
    """Take over only the named differences: values, and objects that are gone or new."""
    written = (
        '{ "version": 1, "mine": 0.50,\n "plugins": {\n'
        '  "users": {"groups": [{"name": "sudo", "members": ["alice"]},\n'
        '     {"name": "old"}, {"name": "ops", "members": []} ], "exclusive": ["groups"]},\n'
        '  "systemd": {"units": {"ssh": {"state": "active", "enabled": "yes", "x": 1}}},\n'
        '  "packages": {"packages": {"nginx": {"ensure": "absent"}}}\n } }'
    )
    declared.publish(
        ("users", "group", "sudo", {"members": ["alice", "bob"]}),
        ("users", "group", "old", {"members": []}),
        ("users", "group", "ops", {"members": ["eve"]}),
        ("users", "group", "new", {"gid": 7, "members": []}),
        # of the objects of a short name, one differs
        ("systemd", "unit", "sudo.service", {"active_state": "inactive"}),
        (
            "systemd",
            "unit",
            "ssh.service",
            {"active_state": "failed", "unit_file_state": "disabled"},
        ),
    )
    declared.load(written)
    ok(declared.daemon, "withdraw", "users/group/old")
    declared.until("sudo", "old", "ops", "new", "ssh", "nginx")
    named = ["sudo", "users/group/old", "users/group/new", "ssh.service", "nginx"]
    mode = declared.file.stat().st_mode
    declared.file.chmod(0o640)
    done = run(declared.daemon, "declare", "--update", str(declared.file), *named)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert declared.file.read_text() == (
        '{ "version": 1, "mine": 0.50,\n "plugins": {\n'
        '  "users": {"groups": [{"name": "sudo", "members": ["alice", "bob"]},'
        ' {"name": "ops", "members": []}, {"name": "new", "gid": 7, "members": []} ],'
        ' "exclusive": ["groups"]},\n'
        '  "systemd": {"units": {"ssh": {"state": "failed", "enabled": false, "x": 1}}},\n'
        '  "packages": {"packages": {"nginx": {"ensure": "installed"}}}\n } }'
    )
    assert declared.file.stat().st_mode & 0o777 == 0o640
    assert "users/group/old: declared no more" in done.stderr
    declared.file.chmod(mode)
    declared.load()
    assert declared.until("ops") == {"ops": ["members"]}
    again = run(declared.daemon, "declare", "--update", str(declared.file), "users/group/sudo")
    assert (again.returncode, again.stderr) == (
        0,
        f"nothing to take over: {declared.file} is unchanged\n",
    )


def _answer(declared: Declared, said: str, meanwhile: str = "") -> tuple[int, str]:
    """Answer the question on a terminal, after writing the file anew if a text is given."""
    main, other = pty.openpty()
    daemon = declared.daemon
    with subprocess.Popen(
        [sys.executable, "-m", "opdbus", "declare", "--update", str(declared.file)],
        env=environment(daemon.bus, daemon.state_dir, daemon.settings),
        stdin=other,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(other)
        assert process.stderr
        shown = ""
        while "take over?" not in shown and (more := process.stderr.read(1)):
            shown += more
        if meanwhile:
            declared.file.write_text(meanwhile)
        os.write(main, f"{said}\n".encode())
        shown += process.stderr.read()
        os.close(main)
    return process.returncode, shown


def test_a_terminal_is_asked_for_each(declared: Declared) -> None:
    """Ask on a terminal for each difference; a file that changes meanwhile is left alone."""
    declared.until("ops")
    assert "name the objects" in fails(
        declared.daemon, 2, "declare", "--update", str(declared.file)
    )
    before = declared.file.read_text()
    code, shown = _answer(declared, "n")
    assert (code, declared.file.read_text()) == (0, before)
    assert "warning: group ops: members declared none, observed eve" in shown
    code, shown = _answer(declared, "y", meanwhile=f"{before}\n")
    assert (code, declared.file.read_text()) == (2, f"{before}\n")
    assert "was changed meanwhile" in shown
    assert _answer(declared, "y")[0] == 0
    assert '"ops", "members": ["eve"]' in declared.file.read_text()


def test_a_file_is_kept_if_it_is_bad_or_has_changed(declared: Declared) -> None:
    """Leave alone a file that is not valid, and one that declares other than op-dbus has read."""
    declared.file.write_text('{"version": 1,')
    assert "line 1" in fails(declared.daemon, 1, "declare", "--update", str(declared.file), "ops")
    assert declared.file.read_text() == '{"version": 1,'
    with pytest.raises(RemoteError, match="line 1"):
        declared.load()
    # what was declared before still counts, but not that nothing is other than declared
    done = run(declared.daemon, "drift", "--plugin", "kernel", "--exit-code")
    assert (done.returncode, done.stdout) == (11, "")
    assert "line 1" in done.stderr
    declared.load('{"version": 1, "plugins": {"users": {"groups": {"ops": {"members": []}}}}}')
    declared.until("ops")
    other = '{"version": 1, "plugins": {"users": {"groups": {"ops": {"members": ["x"]}}}}}'
    # not the file that the daemon has read, which it would read again
    copy = declared.file.with_name("copy.json")
    copy.write_text(other)
    done = run(declared.daemon, "declare", "--update", str(copy), "users/group/ops")
    assert copy.read_text() == other, done.stderr


def test_facts_are_one_object(declared: Declared) -> None:
    """Print what configuration management asks of a host as one compact object."""
    declared.load('{"version": 1, "plugins": {"users": {"groups": {"ops": {"members": []}}}}}')
    declared.until("ops")
    found = as_json(declared.daemon, "facts")
    assert found["drift"] == {"error": 0, "warning": 1, "notice": 0, "info": 0}
    assert found["drifting"] == ["users/group/ops"]
    assert (found["failed_units"], found["failed"]) == (1, ["ssh.service"])
    assert found["objects"]["packages/package"] == 2
    assert found["daemon"]["state"] == "ready"


def test_no_daemon_is_a_plain_error(tmp_path: Path) -> None:
    """Say that no daemon answers, with exit code 4 and nothing on standard output."""
    bus = Bus()
    try:
        nobody = Running(tmp_path, bus.address)
        for command in ("declare", "facts"):
            assert "op-dbus is not running" in fails(nobody, 4, command)
    finally:
        bus.kill()


def test_units_that_do_not_run_are_told(declared: Declared) -> None:
    """Say which units start at boot and do not run; once one runs, its state is taken over."""
    inactive = {"active_state": "inactive", "unit_file_state": "enabled"}
    declared.load(EMPTY)
    declared.publish(
        ("systemd", "unit", "idle.service", inactive),
        ("systemd", "unit", "idle.timer", inactive),
        # these end by themselves, wait for what is not there, or are no services
        ("systemd", "unit", "once.service", {**inactive, "type": "oneshot"}),
        ("systemd", "unit", "unmet.service", {**inactive, "unmet_condition": ["ConditionX=y"]}),
        ("systemd", "unit", "some.target", inactive),
        ("systemd", "unit", "off.service", {**inactive, "unit_file_state": "disabled"}),
    )
    done = run(declared.daemon, "declare", "--plugin", "systemd", "--kind", "unit")
    assert "at boot" not in done.stderr
    done = run(declared.daemon, "declare")
    told = "2 units start at boot and do not run: idle.service, idle.timer; declared as enabled"
    assert f"{told} only\n" in done.stderr
    units = json.loads(done.stdout)["plugins"]["systemd"]["units"]
    assert units["idle.service"] == {"enabled": True}
    declared.load(done.stdout)
    declared.publish(("systemd", "unit", "idle.service", {**inactive, "active_state": "active"}))
    update = ("declare", "--update", str(declared.file), "idle.service", "idle.timer")
    done = run(declared.daemon, *update)
    assert done.stderr == (
        'systemd/unit/idle.service: active_state "active": declared\n'
        f"the daemon reads {declared.file} within 2 seconds\n"
    )
    units = json.loads(declared.file.read_text())["plugins"]["systemd"]["units"]
    assert units["idle.service"] == {"enabled": True, "active_state": "active"}
    assert units["idle.timer"] == {"enabled": True}
    declared.load()
    assert declared.until() == {}
