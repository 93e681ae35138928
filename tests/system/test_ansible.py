"""The role of Ansible on a booted host, played by ansible-core."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.debian import build, needs_dpkg

from system.conftest import IS_ALL
from system.host import Host
from system.installing import ROOT
from system.service import CHANGES, SETTINGS, STATE_FILE, UNIT, Service

PLACE = "/opt/ansible"
FACTS = "/etc/ansible/facts.d/op_dbus.fact"
# stands for that of op-dbus, which the host has already
PACKAGE, FILE = "op-dbus-demo", "op-dbus-demo_1.0_all.deb"
pytestmark = needs_dpkg
# a play takes 12 s of processor time
all_plays = pytest.mark.skipif(not IS_ALL, reason="it plays for minutes: `make test-all` does")
PLAY: dict[str, Any] = {
    "hosts": "localhost",
    "connection": "local",
    "gather_facts": False,
    "roles": ["op_dbus"],
    "post_tasks": [
        {"ansible.builtin.setup": {"filter": "ansible_local"}},
        {"ansible.builtin.debug": {"msg": "FACTS={{ ansible_local.op_dbus | default({}) }}"}},
    ],
}


@pytest.fixture(scope="module")
def ansible(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fetch ansible-core once into the cache; skips where no packages can be fetched."""
    cache: pytest.Cache | None = getattr(pytestconfig, "cache", None)
    folder = (cache.mkdir("ansible") if cache else tmp_path_factory.mktemp("ansible")) / "core"
    if not folder.exists():
        new = folder.with_name("new")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(new)]
        done = subprocess.run([*pip, "ansible-core"], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"ansible-core cannot be fetched here: {done.stderr.strip()[-200:]}")
        new.rename(folder)
    return folder


@pytest.fixture
def playing(host: Host, ansible: Path, observer: Service, tmp_path: Path) -> Iterator[Host]:
    """Put ansible-core, the role, a package and what it declares on the host."""
    shutil.copytree(ansible, host.path(f"{PLACE}/core"), dirs_exist_ok=True)
    shutil.copytree(ROOT / "etc/ansible", host.path(f"{PLACE}/play"), dirs_exist_ok=True)
    observer.systemctl("stop")
    settings = {"VECTOR_LEVEL": "none", "OBSERVE": "users"}
    observer.configure(**settings)
    built = build(tmp_path, PACKAGE, files={"/etc/op-dbus-demo.conf": "a=1\n"})
    shutil.copy(built, host.path(f"{PLACE}/play/{FILE}"))
    given = {
        "op_dbus_state_file": f"{PLACE}/play/state.json",
        "op_dbus_settings": settings,
        "op_dbus_members": ["outsider"],
        "op_dbus_package": FILE,
    }
    host.write(f"{PLACE}/play/site.yml", json.dumps([{**PLAY, "vars": given}]))
    yield host
    host.ask("rm", "-rf", PLACE, "/etc/ansible")
    host.run("dpkg", "--purge", PACKAGE)
    host.run("gpasswd", "--delete", "outsider", "op-dbus")
    host.run("systemctl", "disable", UNIT)


def _declare(host: Host, **groups: Any) -> None:
    file = {"version": 1, "plugins": {"users": {"groups": groups}}}
    host.write(f"{PLACE}/play/state.json", json.dumps(file))


def _run(host: Host, *options: str, playbook: str = "site.yml") -> subprocess.CompletedProcess[str]:
    python = str(Path(sys.executable).resolve())
    command = [python, "-m", "ansible", "playbook", "-i", "localhost,", "-v", *options]
    where = ["env", f"PYTHONPATH={PLACE}/core", "HOME=/root", "ANSIBLE_NOCOLOR=1"]
    where.append("ANSIBLE_PIPELINING=1")
    where.append("ANSIBLE_PYTHON_INTERPRETER=/usr/bin/python3")
    return host.run(*where, *command, f"{PLACE}/play/{playbook}", seconds=600)


def _play(host: Host, *options: str, playbook: str = "site.yml") -> tuple[int, str]:
    """Play a playbook that has to succeed; give how many tasks changed, and the output."""
    done = _run(host, *options, playbook=playbook)
    found = re.search(r"changed=(\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    return int(found[1]), done.stdout


def _drifting(host: Host) -> list[str]:
    rows = json.loads(host.ask("op-dbus", "drift", "--json"))["drifts"]
    return [row["name"] for row in rows]


def _apply(host: Host) -> None:
    """Play the role once, and see that the host has all that it brings."""
    assert _play(host)[0] > 0
    assert "install ok installed" in host.ask("dpkg", "--status", PACKAGE)
    assert "outsider" in host.ask("getent", "group", "op-dbus")
    assert host.ask("stat", "--format=%a %U:%G", STATE_FILE, SETTINGS) == (
        "640 root:op-dbus-config\n640 root:op-dbus-config"
    )
    assert host.ask("systemctl", "is-enabled", UNIT) == "enabled"


def test_a_role_configures_declares_and_gathers(playing: Host) -> None:
    """A run declares, a second changes nothing; facts show drift; a wrong file is refused."""
    host = playing
    _declare(host, sudo={"members": ["nobody-at-all"]})
    with host.monitor(*CHANGES) as heard:
        _apply(host)
        heard.until(lambda: _drifting(host) == ["sudo"])
    facts = json.loads(host.ask(FACTS))
    assert (facts["drift"]["warning"], facts["drifting"]) == (1, ["users/group/sudo"])
    changed, said = _play(host)
    assert (changed, "users/group/sudo" in said) == (0, True), said
    # a file that the daemon would refuse is not put there
    host.write(f"{PLACE}/play/state.json", '{"version": 2}')
    done = _run(host, "--extra-vars", json.dumps({"op_dbus_package": "", "op_dbus_settings": {}}))
    assert (done.returncode, "version 2 is unknown" in done.stdout) == (2, True)
    assert "nobody-at-all" in host.path(STATE_FILE).read_text()


@all_plays
def test_check_mode_changes_nothing(playing: Host) -> None:
    """Check mode changes nothing before a run and after it; of a changed file the daemon hears."""
    host = playing
    _declare(host, sudo={"members": []})
    before = host.path(STATE_FILE).read_text()
    changed, _ = _play(host, "--check")
    assert changed > 0
    assert host.path(STATE_FILE).read_text() == before
    assert not host.path(FACTS).exists()
    assert host.run("dpkg", "--status", PACKAGE).returncode
    _apply(host)
    for options in ((), ("--check",)):
        changed, said = _play(host, *options)
        assert changed == 0, said
    _declare(host, sudo={"members": ["nobody-at-all"]})
    with host.monitor(*CHANGES) as heard:
        assert _play(host)[0] > 0
        heard.until(lambda: _drifting(host) == ["sudo"])


@all_plays
def test_what_the_role_brought_is_taken_away(playing: Host) -> None:
    """Take away all that a run brought with `absent`; a second run changes nothing."""
    host = playing
    _declare(host, sudo={"members": []})
    _play(host)
    absent = ("--extra-vars", "op_dbus_state=absent")
    changed, _ = _play(host, "--check", *absent)
    assert changed > 0
    assert host.path(STATE_FILE).exists()
    changed, _ = _play(host, *absent)
    assert changed > 0
    assert not host.path(STATE_FILE).exists()
    assert not host.path(FACTS).exists()
    assert "OP_DBUS_OBSERVE=users" not in host.path(SETTINGS).read_text()
    assert host.run("systemctl", "is-enabled", UNIT).stdout.strip() == "disabled"
    assert host.show(UNIT, "ActiveState") == "inactive"
    assert "outsider" not in host.ask("getent", "group", "op-dbus")
    assert "install ok installed" not in host.run("dpkg", "--status", PACKAGE).stdout
    for options in ((), ("--check",)):
        changed, said = _play(host, *absent, *options)
        assert changed == 0, said


@all_plays
def test_the_example_plays_on_a_host_without_facts(playing: Host) -> None:
    """Check mode of the example passes on a host that no run has configured yet."""
    host = playing
    host.path(f"{PLACE}/play/states").mkdir()
    host.write(f"{PLACE}/play/states/localhost.json", '{"version": 1, "plugins": {}}')
    assert not host.path(FACTS).exists()
    example = ("--connection=local", "--extra-vars", "ansible_become=false")
    for options in (("--check",), ()):
        assert "failed=0" in _play(host, *example, *options, playbook="site.example.yml")[1]
