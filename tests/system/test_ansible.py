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

from system.host import Host
from system.installing import ROOT
from system.service import CHANGES, SETTINGS, STATE_FILE, UNIT, Service

PLACE = "/opt/ansible"
FACTS = "/etc/ansible/facts.d/op_dbus.fact"
PLAY: dict[str, Any] = {
    "hosts": "localhost",
    "connection": "local",
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
def playing(host: Host, ansible: Path, observer: Service) -> Iterator[Host]:
    """Put ansible-core, the role and what it declares on the host."""
    shutil.copytree(ansible, host.path(f"{PLACE}/core"), dirs_exist_ok=True)
    shutil.copytree(ROOT / "etc/ansible", host.path(f"{PLACE}/play"), dirs_exist_ok=True)
    settings = {"VECTOR_LEVEL": "none", "OBSERVE": "users"}
    observer.configure(**settings)
    given = {"op_dbus_state_file": f"{PLACE}/play/state.json", "op_dbus_settings": settings}
    host.write(f"{PLACE}/play/site.yml", json.dumps([{**PLAY, "vars": given}]))
    yield host
    host.ask("rm", "-rf", PLACE, "/etc/ansible")
    host.run("systemctl", "disable", UNIT)


def _declare(host: Host, **groups: Any) -> None:
    file = {"version": 1, "plugins": {"users": {"groups": groups}}}
    host.write(f"{PLACE}/play/state.json", json.dumps(file))


def _run(host: Host, *options: str) -> subprocess.CompletedProcess[str]:
    python = str(Path(sys.executable).resolve())
    command = [python, "-m", "ansible", "playbook", "-i", "localhost,", "-v", *options]
    where = ["env", f"PYTHONPATH={PLACE}/core", "HOME=/root", "ANSIBLE_NOCOLOR=1"]
    where.append("ANSIBLE_PYTHON_INTERPRETER=/usr/bin/python3")
    return host.run(*where, *command, f"{PLACE}/play/site.yml")


def _play(host: Host, *options: str) -> tuple[int, str]:
    """Play the playbook that has to succeed; give how many tasks changed, and the output."""
    done = _run(host, *options)
    found = re.search(r"changed=(\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout
    return int(found[1]), done.stdout


def _drifting(host: Host) -> list[str]:
    rows = json.loads(host.ask("op-dbus", "drift", "--json"))["drifts"]
    return [row["name"] for row in rows]


def test_a_role_configures_declares_and_gathers(playing: Host) -> None:
    """Check mode changes nothing; a run declares, a second changes nothing; facts show drift."""
    host = playing
    _declare(host, sudo={"members": []})
    before = host.path(STATE_FILE).read_text()
    changed, _ = _play(host, "--check")
    assert changed > 0
    assert host.path(STATE_FILE).read_text() == before
    assert not host.path(FACTS).exists()
    changed, _ = _play(host)
    assert changed > 0
    assert host.ask("stat", "--format=%a %U:%G", STATE_FILE, SETTINGS) == (
        "640 root:op-dbus-config\n640 root:op-dbus-config"
    )
    assert host.ask("systemctl", "is-enabled", UNIT) == "enabled"
    for options in ((), ("--check",)):
        changed, said = _play(host, *options)
        assert changed == 0, said
    # of a changed file, the daemon is told; what drifts then is in the facts
    _declare(host, sudo={"members": ["nobody-at-all"]})
    with host.monitor(*CHANGES) as heard:
        assert _play(host)[0] > 0
        heard.until(lambda: _drifting(host) == ["sudo"])
    facts = json.loads(host.ask(FACTS))
    assert (facts["drift"]["warning"], facts["drifting"]) == (1, ["users/group/sudo"])
    changed, said = _play(host)
    assert (changed, "users/group/sudo" in said) == (0, True)
    # a file that the daemon would refuse is not put there
    host.write(f"{PLACE}/play/state.json", '{"version": 2}')
    done = _run(host)
    assert (done.returncode, "version 2 is unknown" in done.stdout) == (2, True)
    assert "nobody-at-all" in host.path(STATE_FILE).read_text()
