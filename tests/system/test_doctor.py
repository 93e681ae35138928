"""What an administrator is told of a service that does not serve, or not everybody."""

import json
import re
from itertools import product

import pytest

from system.host import Host
from system.service import SETTINGS, STATE, STATE_FILE, Service


def said(host: Host, *command: str, user: str = "") -> tuple[int, str]:
    """Give a command's exit code and all that it printed."""
    done = host.run("op-dbus", *command, user=user)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


@pytest.mark.usefixtures("service")
def test_all_is_well_for_root_and_the_group(host: Host) -> None:
    """Find nothing wrong with a service that serves."""
    for user in ("", "member"):
        code, text = said(host, "doctor", user=user)
        assert code == 0, text
        assert "ok       service: op-dbus.service runs" in text
        assert "org.opdbus is served; it is ready" in text


@pytest.mark.usefixtures("service")
def test_other_readers_of_the_settings_are_told(host: Host) -> None:
    """An open file and a stranger in the group are warned of, and the advice mends both."""
    host.ask("chmod", "o+r", SETTINGS)
    host.ask("usermod", "--append", "--groups", "op-dbus-config", "outsider")
    code, text = said(host, "doctor")
    assert (code, f"{SETTINGS} is -rw-r--r-- root:op-dbus-config" in text) == (0, True), text
    assert "outsider is in the group op-dbus-config" in text
    for command in re.findall(r"as root, `(.*)`", text):
        host.ask("sh", "-c", command)
    code, text = said(host, "doctor")
    assert "ok       privacy of /etc/op-dbus: only root and the service may read it" in text


def test_a_service_that_cannot_serve(host: Host, observer: Service) -> None:
    """Every command and the doctor say why the service ended, and do not start it again."""
    service = observer
    service.configure(VECTOR_LEVEL="high")
    fault = "the high model sentence-transformers/all-mpnet-base-v2 is not"
    after = host.cursor()
    host.run("systemctl", "restart", "op-dbus")
    service.until_failed(after)
    for command in (["status"], ["search", "x"], ["reload"]):
        code, text = said(host, *command)
        assert (code, f"op-dbus.service ended by a fault: {fault}" in text) == (4, True), text
    code, text = said(host, "doctor")
    wrong = f"wrong    service: op-dbus.service ended by a fault: {fault}"
    assert (code, wrong in text) == (1, True)
    assert service.show("ActiveState") == "failed"


def test_a_user_outside_the_group(host: Host, service: Service) -> None:
    """A user outside the group is told how to get in, whether the service runs or not."""
    code, text = said(host, "doctor", user="outsider")
    assert (code, "outsider (uid " in text) == (1, True)
    assert "usermod -aG op-dbus outsider" in text
    service.systemctl("stop")
    code, text = said(host, "doctor", user="outsider")
    assert code == 1
    assert "wrong    group: this user is not in the group op-dbus" in text
    assert "as root, `usermod -aG op-dbus outsider`; then log in again" in text


def test_only_root_and_the_service_read_the_settings(host: Host, service: Service) -> None:
    """A state file put there as the README says is read by the service, and by nobody else."""
    assert host.ask("stat", "--format=%a %U:%G", "/etc/op-dbus") == "750 root:op-dbus-config"
    assert host.ask("stat", "--format=%a %U:%G", SETTINGS) == "640 root:op-dbus-config"
    assert host.ask("getent", "group", "op-dbus-config").split(":")[3] == "op-dbus"
    for count, mode in enumerate(("640", "644"), 1):
        units = {f"a{number}.service": {} for number in range(count)}
        text = json.dumps({"version": 1, "plugins": {"systemd": {"units": units}}})
        host.write("/root/state.json", text)
        host.ask("install", "-g", "op-dbus-config", "-m", mode, "/root/state.json", STATE_FILE)
        service.reload()
        assert service.get("LastError", STATE) == ""
        assert service.get("Count", STATE) == count
        for user, path in product(("outsider", "member"), (STATE_FILE, SETTINGS)):
            assert "Permission denied" in host.run("cat", path, user=user).stderr
    for user in ("outsider", "member"):
        for command in ("config", "models list", "doctor"):
            done = host.run("op-dbus", *command.split(), user=user)
            assert "Traceback" not in done.stderr
            assert done.returncode == (command == "doctor" and user == "outsider"), done.stdout
        said = host.run("op-dbus", "config", user=user).stderr
        assert f"{SETTINGS}, which are not shown here" in said
    assert "what op-dbus.service runs with" in host.run("op-dbus", "config").stderr
