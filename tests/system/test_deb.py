"""The .deb packages on hosts of Debian alone, from first installation to purge, and those of rpm.

`make packages && OP_DBUS_TEST_PACKAGES=dist pytest tests/system/test_deb.py`; `make test-all` does.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from system import http_calls, packaged
from system.host import Host
from system.packaged import ROOM
from system.service import SETTINGS, STARTED, STATE_FILE, UNIT, Service

FOLDER = os.environ.get("OP_DBUS_TEST_PACKAGES", "")
RULES, ALERTS = "/etc/op-dbus/notify.toml", "/etc/op-dbus/notify.d"
SOCKET, GATEWAY = "op-dbus-gateway.socket", "op-dbus-gateway.service"
SENDER, FLEET = "op-dbus-fleet.service", "op-dbus-fleet-server.service"
# Services that an administrator switches on.
OTHERS = ("op-dbus-journal.service", "op-dbus-notify.service")
# what packages of rpm need, as Fedora names it, besides Python
FEDORA = ("dbus", "glibc", "libgcc", "libstdc++", "systemd")
SPEC = """
Name: fedora
Version: 1
Release: 1
Summary: What dpkg installed
License: none
BuildArch: noarch
Provides: {}
%description
%files
"""
DOCS = Path(__file__).parents[2] / "docs/packages.md"
NEWER = """
    mkdir /root/newer
    dpkg-deb --control /root/new/op-dbus_*.deb /root/newer/DEBIAN
    sed -i 's/^Version: .*/Version: 9-1/' /root/newer/DEBIAN/control
    rm -f /root/newer/DEBIAN/conffiles
    dpkg-deb --build /root/newer /root/newer.deb
"""
JOB = "backup/job/home-dirs"
# what differs after an installation of any package
_LEFT_OUT = "/proc /sys /dev /run /tmp /root /mnt"
_LEFT_OUT += " /var/lib/dpkg /var/lib/apt /var/log /var/cache /var/tmp"
# the user database's copies, and the index of systemd's messages, which are made anew
_MADE_ANEW = {"/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/.pwd.lock"}
_MADE_ANEW |= {f"/var/lib/systemd/{name}" for name in ("catalog", "catalog/database", "linger")}


@pytest.fixture(scope="module", params=packaged.SUITES)
def debian(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    """Boot a host of each release for which there are packages."""
    if not FOLDER:
        pytest.skip("OP_DBUS_TEST_PACKAGES names no folder of packages: `make test-all` does")
    if reason := packaged.reason_against(Path(FOLDER), request.param):
        pytest.skip(reason)
    scratch = tmp_path_factory.mktemp("debian")
    with packaged.fresh(Path(FOLDER), request.param, scratch) as host:
        yield host


@pytest.fixture(scope="module")
def before(debian: Host) -> set[str]:
    """List the host's files before anything is installed."""
    return _files(debian)


def _files(host: Host) -> set[str]:
    skipped = " -o ".join(f"-path {path}" for path in _LEFT_OUT.split())
    return set(host.ask("sh", "-c", rf"find / \( {skipped} \) -prune -o -print").splitlines())


def _publish(host: Host, state: str) -> None:
    job = {"plugin": "backup", "kind": "job", "name": "home-dirs", "properties": {"state": state}}
    host.ask("op-dbus", "publish", "probe", stdin=json.dumps([job]))


def _history(host: Host) -> str:
    return host.ask("op-dbus", "history", JOB)


@pytest.mark.usefixtures("before")
def test_the_packages_bring_a_service_to_life(debian: Host) -> None:
    """Without a compiler, pip or network, the service answers by meaning once it is installed."""
    for missing in ("gcc", "pip3", f"{ROOM}/bin/pip"):
        assert debian.run("which", missing).returncode
    packaged.install(debian)
    packaged.until_answered(debian)
    assert "wrong " not in debian.run("op-dbus", "doctor").stdout
    assert debian.ask("systemctl", "is-enabled", UNIT) == "enabled"
    assert debian.show(UNIT, "NRestarts") == "0"


def _built(host: Host, name: str) -> Path:
    """Give the package of this name for a host."""
    of_release = host.ask("sh", "-c", ". /etc/os-release && echo $VERSION_ID")
    return max(Path(FOLDER).glob(f"{name}_*+deb{of_release}_*.deb"))


def test_the_gateways_package_lets_it_be_switched_on(debian: Host) -> None:
    """Without its package the gateway names it; with it, one line switches HTTP on."""
    done = debian.run("op-dbus", "gateway", "--listen", "unix:/tmp/http.sock")
    assert (done.returncode, "apt install ./op-dbus-gateway_*.deb" in done.stderr) == (2, True)
    shutil.copy(_built(debian, "op-dbus-gateway"), debian.path("/root/packages"))
    packaged.install(debian)
    assert debian.run("systemctl", "is-enabled", SOCKET).stdout.strip() == "disabled"
    debian.ask("systemctl", "enable", "--now", SOCKET)
    packaged.until_ready(debian)
    status, text = http_calls.ask(debian, "/health")
    assert (status, json.loads(text)["status"]) == (200, "ready"), debian.log()


def test_the_fleets_package_sends_this_host(debian: Host) -> None:
    """Without its package the fleet names it; with it, a server and a sender run by their units."""
    done = debian.run("op-dbus", "fleet", "hosts")
    assert (done.returncode, "apt install ./op-dbus-fleet_*.deb" in done.stderr) == (2, True), (
        done.stderr
    )
    package = _built(debian, "op-dbus-fleet")
    shutil.copy(package, debian.path("/root/packages"))
    packaged.install(debian)
    for unit in (SENDER, FLEET):
        assert debian.run("systemctl", "is-enabled", unit).stdout.strip() == "disabled"
    debian.ask("systemctl", "enable", "--now", FLEET)
    debian.ask("op-dbus", "fleet", "add", "here", "--out", "/etc/op-dbus-fleet")
    debian.ask("systemctl", "enable", "--now", SENDER)
    end = time.monotonic() + packaged.PATIENCE_SECONDS
    while not json.loads(debian.ask("op-dbus", "fleet", "hosts", "--json"))[0]["compared_at"]:
        assert time.monotonic() < end, debian.log()
        time.sleep(0.2)
    debian.ask("apt-get", "remove", "--yes", "op-dbus-fleet")
    for unit in (SENDER, FLEET):
        assert debian.show(unit, "ActiveState") == "inactive"
        assert debian.run("systemctl", "is-enabled", unit).stdout.strip() == "disabled"
    debian.path("/root/packages").joinpath(package.name).unlink()
    debian.ask("rm", "-r", "/etc/op-dbus-fleet", "/var/lib/op-dbus-fleet")


def test_an_upgrade_of_the_gateway_keeps_those_who_follow(debian: Host) -> None:
    """Its socket stays and its service restarts once: a stream goes on where it ended."""
    pid = debian.show(GATEWAY, "MainPID")
    with http_calls.following(debian, "/changes/stream") as until:
        until("status 200")
        _publish(debian, "before")
        until('"after":"before"')
        cursor = debian.cursor()
        packaged.install(debian)
        _publish(debian, "after")
        lines = until('"after":"after"')
    rows = [json.loads(line[5:])["seq"] for line in lines if line.startswith('data {"seq"')]
    assert rows == [*range(rows[0], rows[-1] + 1)], "rows are missing, or came twice"
    assert len([line for line in lines if line == "status 200"]) == 2, lines
    assert len(debian.journal(after=cursor, UNIT=GATEWAY, MESSAGE_ID=STARTED)) == 1
    assert debian.show(GATEWAY, "MainPID") not in {"0", pid}
    assert debian.show(SOCKET, "ActiveState") == "active"


def test_a_gateway_removed_is_off_and_leaves_nothing(debian: Host) -> None:
    """Remove it while it serves: nothing listens, and none of its files stay."""
    assert http_calls.ask(debian, "/health")[0] == 200
    listed = debian.ask("dpkg", "--listfiles", "op-dbus-gateway").splitlines()
    files = [path for path in listed if not debian.path(path).is_dir()]
    debian.ask("apt-get", "remove", "--yes", "op-dbus-gateway")
    assert debian.run("systemctl", "is-enabled", SOCKET).stdout.strip() == "disabled"
    for unit in (SOCKET, GATEWAY):
        assert debian.show(unit, "ActiveState") == "inactive"
    assert not debian.path(http_calls.PATH).exists()
    assert [path for path in files if debian.path(path).exists()] == []
    assert debian.run("systemctl", "is-failed", "op-dbus*").returncode
    debian.ask("apt-get", "purge", "--yes", "op-dbus-gateway")
    debian.path("/root/packages").joinpath(_built(debian, "op-dbus-gateway").name).unlink()
    assert debian.run("dpkg", "--verify").stdout == ""
    for path, mode in (("/etc/op-dbus", "750"), (SETTINGS, "640"), (RULES, "640")):
        assert debian.ask("stat", "--format=%a %U:%G", path) == f"{mode} root:op-dbus-config"


def test_an_upgrade_restarts_once_and_keeps_all(debian: Host) -> None:
    """An upgrade keeps settings, state and history, and restarts each service that runs once."""
    service = Service(debian)
    debian.ask("install", "-m", "755", "/usr/share/doc/op-dbus/notify.d/journal", ALERTS)
    debian.ask("systemctl", "start", *OTHERS)
    pids = [debian.show(unit, "MainPID") for unit in OTHERS]
    debian.write(SETTINGS, debian.path(SETTINGS).read_text() + "# mine\n")
    service.declare({"chrony.service": "keeps the clock right"})
    for state in ("running", "failed"):
        _publish(debian, state)
    before = _history(debian)
    assert "running -> failed" in before
    cursor = debian.cursor()
    packaged.install(debian)
    packaged.until_answered(debian)
    assert len(debian.journal(after=cursor, UNIT=UNIT, MESSAGE_ID=STARTED)) == 1
    assert debian.path(SETTINGS).read_text().endswith("# mine\n")
    assert debian.path(STATE_FILE).exists()
    assert _history(debian) == before
    assert [debian.show(unit, "ActiveState") for unit in OTHERS] == ["active"] * len(OTHERS)
    assert not {*pids} & {debian.show(unit, "MainPID") for unit in OTHERS}


def test_the_way_back_and_the_upgrade_from_an_earlier_version_keep_all(debian: Host) -> None:
    """An earlier commit's packages take the place of these, and these theirs; history stays."""
    suite = debian.ask("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME")
    if not (older := packaged.find(Path(FOLDER) / "before", suite)):
        pytest.skip("dist/before has no packages: `packaging/build-before COMMIT` makes them")
    before = _history(debian)
    debian.path("/root/before").mkdir()
    for package in older:
        shutil.copy(package, debian.path("/root/before"))
    debian.ask("sh", "-c", "apt-get install --yes --allow-downgrades /root/before/*.deb")
    packaged.until_answered(debian)
    assert "0.0.9" in debian.ask("op-dbus", "--version")
    assert _history(debian) == before
    cursor = debian.cursor()
    packaged.install(debian)
    packaged.until_answered(debian)
    assert "0.0.9" not in debian.ask("op-dbus", "--version")
    assert len(debian.journal(after=cursor, UNIT=UNIT, MESSAGE_ID=STARTED)) == 1
    assert _history(debian) == before


def test_one_command_upgrades_all_that_is_installed(debian: Host) -> None:
    """The command of docs/packages.md upgrades all packages that are there, and adds none."""
    suite = debian.ask("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME")
    names = ("op-dbus", "op-dbus-model-medium", "op-dbus-gateway", "op-dbus-fleet")
    for place, folder, wanted in (
        ("old", Path(FOLDER) / "before", names),
        ("new", Path(FOLDER), (*names, "op-dbus-openvino")),
    ):
        if not packaged.find(folder, suite):
            pytest.skip(f"{folder} has no packages: `packaging/build-before COMMIT` makes them")
        debian.path(f"/root/{place}").mkdir()
        for name in wanted:
            shutil.copy(packaged.find_one(folder, suite, name), debian.path(f"/root/{place}"))
    debian.ask("sh", "-c", "apt-get install --yes --allow-downgrades /root/old/*.deb")
    debian.ask("systemctl", "enable", "--now", SOCKET)
    command = re.search(r"`(apt install --only-upgrade) \./op-dbus\*\.deb`", DOCS.read_text())
    assert command
    debian.ask("sh", "-c", f"{command[1]} --yes /root/new/op-dbus*.deb")
    listed = debian.ask("dpkg-query", "--show", "--showformat=${Package} ${Version}\\n", "op-dbus*")
    versions = dict(line.split() for line in listed.splitlines() if " " in line)
    assert sorted(versions) == sorted(names)
    assert not [name for name, version in versions.items() if version.startswith("0.0.9")]
    assert debian.ask("systemctl", "is-enabled", SOCKET) == "enabled"
    packaged.until_answered(debian)
    assert http_calls.ask(debian, "/status")[0] == 200, debian.log()
    # a newer op-dbus by itself, of which apt reads the names only
    debian.ask("sh", "-ec", NEWER)
    said = debian.ask("apt-get", "install", "--simulate", "/root/newer.deb")
    assert "Inst op-dbus [" in said
    assert "Remv" not in said
    debian.ask("apt-get", "purge", "--yes", "op-dbus-gateway", "op-dbus-fleet")
    debian.ask("rm", "-r", "/root/old", "/root/new", "/root/newer", "/root/newer.deb")


def test_an_upgrade_on_a_full_disk_leaves_the_old_program(debian: Host) -> None:
    """An upgrade for which there is no room fails; the old program serves, also if restarted."""
    service = Service(debian)
    pid = service.pid
    script = f"""
        size=$(du -sm {ROOM} | cut -f1)
        mkdir /mnt/small
        mount -t tmpfs -o size=$((size + 20))m small /mnt/small
        cp -a {ROOM}/. /mnt/small
        mount --bind /mnt/small {ROOM}
    """
    debian.ask("sh", "-ec", script)
    done = debian.run("sh", "-c", "dpkg -i /root/packages/op-dbus_*.deb")
    assert done.returncode
    assert "No space left on device" in done.stderr
    assert service.pid == pid
    packaged.until_answered(debian)
    service.systemctl("restart")
    packaged.until_answered(debian)
    assert "running -> failed" in _history(debian)
    changed = debian.run("dpkg", "--verify", "op-dbus").stdout.splitlines()
    assert [line.split()[-1] for line in changed] == [SETTINGS]
    # the service's own mounts hold it
    service.systemctl("stop")
    debian.ask("umount", ROOM, "/mnt/small")
    service.systemctl("start")


def test_openvino_is_measured_beside_the_other_runtime(debian: Host) -> None:
    """Its package lets the next start choose the faster runtime, and leaves nothing."""
    package = _built(debian, "op-dbus-openvino")
    shutil.copy(package, debian.path("/root"))
    without = _files(debian)
    debian.ask("apt-get", "install", "--yes", f"/root/{package.name}")
    cursor = debian.cursor()
    debian.ask("systemctl", "restart", UNIT)
    packaged.until_ready(debian)
    told = [str(entry["MESSAGE"]) for entry in debian.journal(after=cursor, _SYSTEMD_UNIT=UNIT)]
    graded = [text for text in told if text.startswith("grading precisions")]
    assert graded, told
    assert "'cpu:onnxruntime': [" in graded[0]
    assert "'cpu:openvino': [" in graded[0]
    assert "ok       provider cpu:openvino: usable" in debian.run("op-dbus", "doctor").stdout
    debian.ask("apt-get", "purge", "--yes", "op-dbus-openvino")
    assert [path for path in _files(debian) - without if path.startswith((ROOM, "/etc"))] == []
    debian.ask("systemctl", "restart", UNIT)
    packaged.until_ready(debian)
    debian.ask("rm", f"/root/{package.name}")
    assert json.loads(debian.ask("op-dbus", "status", "--json"))["Provider"] == "cpu:onnxruntime"


def test_what_is_removed_comes_back_with_its_state(debian: Host) -> None:
    """A removed package leaves nothing that runs, and its state serves again once it is back."""
    debian.ask("apt-get", "remove", "--yes", "op-dbus")
    assert debian.run("systemctl", "is-active", UNIT).stdout.strip() == "inactive"
    assert debian.run("systemctl", "list-units", "--quiet", "--no-legend", "op-dbus*").stdout == ""
    assert not debian.path(ROOM).exists()
    packaged.install(debian)
    packaged.until_answered(debian)
    assert "running -> failed" in _history(debian)
    assert debian.path(SETTINGS).read_text().endswith("# mine\n")


def test_purge_leaves_nothing(debian: Host, before: set[str]) -> None:
    """A purge takes state, settings, caches, user, groups and what was switched on away."""
    debian.ask("systemctl", "enable", *OTHERS, SOCKET)
    debian.ask("apt-get", "purge", "--yes", "op-dbus", "op-dbus-model-medium")
    assert sorted(_files(debian) - before - _MADE_ANEW) == []
    for database in ("passwd", "group"):
        assert "op-dbus" not in debian.ask("getent", database)
    assert "org.opdbus" not in debian.ask("busctl", "list", "--activatable")


def test_rpm_packages_bring_the_same(debian: Host) -> None:
    """Packages of rpm serve once started, restart once at an upgrade, and keep state at the end.

    rpm knows nothing of what dpkg installed: a package with no files says under the names of
    Fedora that it is there, and nothing else may be missing.
    """
    packages = packaged.find_rpms(Path(FOLDER), debian)
    if len(packages) < len(("op-dbus", "gateway", "model")):
        pytest.skip("there are no packages of rpm for this Python")
    for package in packages:
        shutil.copy(package, debian.path("/root"))
    refused = debian.run("sh", "-c", "rpm -U /root/*.rpm")
    assert refused.returncode
    missing = set(re.findall(r"^\s+(\S+) .*is needed by", refused.stderr, re.MULTILINE))
    python = debian.ask("realpath", "/usr/bin/python3")
    assert missing == {*FEDORA, python}, refused.stderr
    libc = debian.ask("sh", "-c", "ldd --version | sed -n '1s/.* //p'")
    provided = ", ".join((*FEDORA, python)).replace("glibc", f"glibc = {libc}")
    debian.write("/root/fedora.spec", SPEC.format(provided))
    debian.ask("rpmbuild", "--define=_topdir /root/rpmbuild", "-bb", "/root/fedora.spec")
    debian.ask("sh", "-c", "rpm -i /root/rpmbuild/RPMS/noarch/fedora-*.rpm")
    rpm = "rpm --force -U /root/*.rpm"
    debian.ask("sh", "-c", rpm)
    debian.ask("systemctl", "enable", "--now", UNIT, SOCKET)
    packaged.until_ready(debian)
    assert http_calls.ask(debian, "/health")[0] == 200, debian.log()
    cursor = debian.cursor()
    debian.ask("sh", "-c", rpm)
    packaged.until_answered(debian)
    for unit in (UNIT, GATEWAY):
        assert len(debian.journal(after=cursor, UNIT=unit, MESSAGE_ID=STARTED)) == 1
    debian.ask("rpm", "-e", "op-dbus-gateway")
    assert debian.run("systemctl", "is-enabled", SOCKET).stdout.strip() == "disabled"
    assert debian.show(GATEWAY, "ActiveState") == "inactive"
    debian.ask("rpm", "-e", "op-dbus")
    assert debian.run("systemctl", "is-active", UNIT).stdout.strip() == "inactive"
    assert not debian.path(ROOM).exists()
    assert debian.path("/var/lib/op-dbus/memory.db").exists()
