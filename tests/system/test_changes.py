"""What changed on a booted host, as an administrator and others are told."""

import json
from typing import Any

from system.host import Host
from system.service import Service

WEB = "web.service"


def told(host: Host, *words: str, user: str = "") -> list[dict[str, Any]]:
    """Give what `op-dbus changes` tells."""
    text = host.ask("op-dbus", "changes", "--json", *words, user=user)
    return [json.loads(line) for line in text.splitlines()]


def test_the_life_of_a_service_is_told(host: Host, service: Service) -> None:
    """Tell that a service was started, stopped and failed, and by what, to root and the group."""
    host.write(
        f"/etc/systemd/system/{WEB}",
        "[Unit]\nDescription=Serves pages\n[Service]\nExecStart=/bin/sleep 1000\n",
    )
    host.ask("systemctl", "daemon-reload")
    service.observe("systemd")
    with host.running("op-dbus", "changes", "--watch", "-n", "0", "--around", WEB) as watching:
        assert watching.stdout
        host.ask("systemctl", "start", WEB)
        assert b"web.service started: inactive -> active (job " in watching.stdout.readline()
        host.ask("systemctl", "stop", WEB)
        assert b"web.service stopped: active -> inactive (job " in watching.stdout.readline()
    rows = told(host, "--around", WEB, "--since", "boot", "--cause", "job", user="member")
    assert {row["name"] for row in rows} == {WEB}
    assert [row["cause"].split()[1] for row in rows] == ["start", "stop"]
    assert "format_version" in rows[0]
    refused = host.run("op-dbus", "changes", user="outsider")
    assert refused.returncode == 5
    assert WEB not in refused.stdout


def test_a_stopped_service_is_not_started_by_watching(host: Host, service: Service) -> None:
    """Wait while op-dbus is stopped, and go on when it is back."""
    service.observe("systemd")
    with host.running("op-dbus", "changes", "--watch", "-n", "1") as watching:
        assert watching.stdout
        watching.stdout.readline()
        service.systemctl("stop")
        host.ask("systemctl", "daemon-reload")
        assert service.show("ActiveState") == "inactive"
        service.systemctl("start")
        service.until_ready()
        line = watching.stdout.readline()
        assert line, host.log
