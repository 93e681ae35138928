"""`make install` and `make uninstall` on a booted host, as an administrator runs them."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from system.booting import booted
from system.host import PROGRAM, Host
from system.installing import ROOT, SOURCES
from system.service import SETTINGS, STATE, STATE_FILE, STORE, UNIT, UNITS, Service

COMMAND = "/usr/local/bin/op-dbus"
CHECKOUT = "/usr/src/op-dbus"


@pytest.fixture(scope="module")
def bare(layer: Path) -> Iterator[Host]:
    """Boot a host that has the program, which pip made, and nothing else of op-dbus yet."""
    with booted("dbus", layer) as host:
        for path in _put(layer):
            if path != COMMAND:
                host.path(path).unlink()
        host.ask("userdel", "op-dbus")
        host.ask("systemctl", "daemon-reload")
        for name in (*SOURCES, "README.md", "LICENSE"):
            to = host.path(f"{CHECKOUT}/{name}")
            to.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, to)
        yield host


def _put(layer: Path) -> list[str]:
    """Give the paths of all files but those of the program."""
    files = (f"/{path.relative_to(layer)}" for path in layer.rglob("*") if not path.is_dir())
    return [path for path in files if not path.startswith(f"{PROGRAM}/")]


def _make(host: Host, *words: str) -> str:
    return host.ask("make", "-C", CHECKOUT, *words)


def test_install_brings_a_service_to_life(bare: Host, layer: Path) -> None:
    """After `make install` the user, the files and the bus's policy are there: it can start."""
    said = _make(bare, "install", "PREFIX=/usr/local", "FILES_ONLY=1")
    assert "secrets" not in said
    assert [path for path in _put(layer) if not bare.path(path).exists()] == []
    assert bare.ask("id", "--name", "--user", "op-dbus") == "op-dbus"
    service = Service(bare)
    bare.write(SETTINGS, "OP_DBUS_VECTOR_LEVEL=none\n")
    service.declare(UNITS)
    start, *asking = [line.strip() for line in said.splitlines() if line.startswith("    ")]
    bare.ask("sh", "-c", start)
    with bare.monitor() as heard:
        heard.until(lambda: service.get("Count", STATE) > len(UNITS))
    assert len(asking) == 2
    for command in asking:
        assert bare.ask("sh", "-c", command)
    assert "enabled" in bare.ask("systemctl", "is-enabled", UNIT)


def size_of(path: Path) -> int:
    """Give the bytes that a file, or all of a folder, takes."""
    return sum(each.lstat().st_blocks * 512 for each in (path, *path.rglob("*")))


def _paths(extras: str, more: str, libraries: Path) -> list[str]:
    command = [sys.executable, ROOT / ".ci" / "needed", "paths", extras, more, libraries]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout.split()


def test_an_installation_is_small(layer: Path) -> None:
    """Where there is no GPU and no AMX, program and model take less than 260 MiB, without pip.

    The gateway's libraries, which an administrator has to choose, take less than 40 MiB more, those
    of the fleet with PostgreSQL less than 90 MiB.
    """
    chosen = subprocess.run([ROOT / ".ci" / "choose-extras"], stdout=subprocess.PIPE, check=True)
    if chosen.stdout != b"cpu\n":
        pytest.skip(f"this machine gets {chosen.stdout.decode().strip()}")
    (libraries,) = layer.glob("usr/local/lib/op-dbus/lib/python3*/site-packages")
    of_gateway, of_fleet = (
        sum(size_of(libraries / name) for name in _paths(*extras, libraries))
        for extras in (("cpu", "http"), ("cpu,http", "fleet"))
    )
    assert 0 < of_gateway < 40 << 20
    assert 0 < of_fleet < 90 << 20
    assert size_of(layer) - of_gateway - of_fleet < 260 << 20
    assert not list(layer.glob("usr/local/lib/op-dbus/lib/python3*/site-packages/pip*"))


def test_systemd_has_nothing_to_say_of_the_unit(bare: Host) -> None:
    """The installed unit has no mistake, and is exposed to next to nothing."""
    done = bare.run("systemd-analyze", "verify", UNIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    # in tenths
    bare.ask("systemd-analyze", "security", "--offline=true", "--threshold=12", UNIT)


def test_an_installed_service_is_updated(bare: Host) -> None:
    """A second `make install` keeps the administrator's settings and restarts what runs."""
    service = Service(bare)
    pid = service.pid
    # from the next start on it observes less, which is sooner done
    settings = "OP_DBUS_VECTOR_LEVEL=none\nOP_DBUS_OBSERVE=users\n"
    bare.write(SETTINGS, settings)
    _make(bare, "install", "PREFIX=/usr/local", "FILES_ONLY=1")
    assert bare.path(SETTINGS).read_text() == settings
    assert service.pid not in ("0", pid)


def test_an_older_installation_is_updated(bare: Host) -> None:
    """An update brings the sockets of the kernel, and closes what was left open under /etc."""
    units = "/usr/lib/systemd/system"
    names = tuple(f"op-dbus-{name}.socket" for name in ("route", "diag", "uevent"))
    bare.ask("sed", "-i", "/^Sockets=/d", f"{units}/{UNIT}")
    bare.ask("rm", *(f"{units}/{name}" for name in names))
    bare.ask("systemctl", "daemon-reload")
    bare.ask("systemctl", "restart", UNIT)
    bare.run("systemctl", "stop", *names)
    bare.ask("chgrp", "-R", "root", "/etc/op-dbus")
    bare.ask("chmod", "755", "/etc/op-dbus")
    bare.ask("chmod", "644", SETTINGS, STATE_FILE)
    bare.ask("groupdel", "op-dbus-config")
    said = _make(bare, "install", "PREFIX=/usr/local", "FILES_ONLY=1")
    assert [bare.show(name, "ActiveState") for name in (UNIT, *names)] == ["active"] * 4
    assert f"-rw-r--r-- root:root {SETTINGS}\n" in said
    for path, mode in (("/etc/op-dbus", "750"), (SETTINGS, "640"), (STATE_FILE, "640")):
        assert bare.ask("stat", "--format=%a %U:%G", path) == f"{mode} root:op-dbus-config"
    service = Service(bare)
    assert service.get("LastError", STATE) == ""
    assert "secrets" not in _make(bare, "install", "PREFIX=/usr/local", "FILES_ONLY=1")


def test_uninstall_leaves_state_and_settings(bare: Host, layer: Path) -> None:
    """After `make uninstall` nothing runs, and nothing is left but state and configuration."""
    _make(bare, "uninstall", "PREFIX=/usr/local")
    left = [path for path in _put(layer) if bare.path(path).exists()]
    # this machine may have op-dbus itself
    left = sorted(path for path in left if not Path(path).exists())
    assert left == ["/etc/op-dbus/notify.toml", SETTINGS]
    assert bare.path(f"{STORE}/memory.db").exists()
    if not Path(PROGRAM).exists():
        assert not bare.path(PROGRAM).exists()
    assert bare.run("pgrep", "--uid", "op-dbus").stdout == ""
    assert "org.opdbus" not in bare.ask("busctl", "list")
