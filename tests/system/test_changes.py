"""What changed on a booted host, as an administrator and others are told."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from system.host import Host, until_late
from system.service import Service

OBSERVED = "systemd"
WEB = "web.service"


def told(host: Host, *words: str, user: str = "") -> list[dict[str, Any]]:
    """Give what `op-dbus changes` tells."""
    text = host.ask("op-dbus", "changes", "--json", *words, user=user)
    return [json.loads(line) for line in text.splitlines()]


@contextmanager
def watching(host: Host, *words: str) -> Iterator[Iterator[str]]:
    """Give what `op-dbus changes --watch` tells of what changes from now on."""
    with host.running("op-dbus", "changes", "--watch", "-n", "1", *words) as process:
        assert process.stdout
        lines = (line.decode() for line in until_late(process.stdout.fileno()))
        assert next(lines), host.log()
        yield lines


@pytest.fixture(scope="module")
def served(host: Host, request: pytest.FixtureRequest) -> Service:
    """Observe the units of a host, where a service runs that wants another one."""
    host.write(
        f"/etc/systemd/system/{WEB}",
        "[Unit]\nDescription=Serves pages\nWants=pages.service\n"
        "[Service]\nExecStart=/bin/sleep 1000\n",
    )
    host.write(
        "/etc/systemd/system/pages.service", "[Service]\nType=oneshot\nExecStart=/bin/true\n"
    )
    host.ask("systemctl", "daemon-reload")
    host.ask("systemctl", "start", WEB)
    service: Service = request.getfixturevalue("observing")
    return service


def until(lines: Iterator[str], *texts: str) -> None:
    """Wait for a line that holds these texts."""
    before = []
    for line in lines:
        if all(text in line for text in texts):
            return
        before.append(line)
    raise AssertionError(f"no {texts} in {before}")


@pytest.mark.usefixtures("served")
def test_the_life_of_a_service_is_told(host: Host) -> None:
    """Tell that a service was started, stopped and failed, and by what, to root and the group."""
    with watching(host) as lines:
        host.ask("systemctl", "stop", WEB)
        # a busy host is slow enough for `deactivating` to be seen
        until(lines, "web.service stopped: ", " -> inactive (job ")
        host.ask("systemctl", "start", WEB)
        until(lines, "web.service started: inactive -> active (job ")
    rows = told(host, "--around", WEB, "--since", "boot", "--cause", "job", user="member")
    acts = [row["cause"].split()[1] for row in rows if row["name"] == WEB]
    assert [*dict.fromkeys(acts)] == ["stop", "start"]
    assert {row["name"] for row in rows} == {WEB, "pages.service"}
    assert "format_version" in rows[0]
    refused = host.run("op-dbus", "changes", user="outsider")
    assert refused.returncode == 5
    assert WEB not in refused.stdout


def test_a_stopped_service_is_not_started_by_watching(host: Host, served: Service) -> None:
    """Wait while op-dbus is stopped, go on when it is back, and tell what was restarted."""
    with watching(host) as lines:
        served.systemctl("stop")
        host.ask("systemctl", "restart", WEB)
        host.ask("systemctl", "daemon-reload")
        assert served.show("ActiveState") == "inactive"
        served.systemctl("start")
        served.until_ready()
        until(lines, "web.service restarted (while op-dbus was not running)")
        host.ask("systemctl", "stop", WEB)
        until(lines, "web.service stopped: ", " -> inactive (job ")


def test_a_restart_of_op_dbus_is_told(host: Host, served: Service) -> None:
    """A restart of op-dbus changes nothing and nothing sees it; it is in history all the same."""
    with watching(host) as lines:
        served.systemctl("restart")
        until(lines, "op-dbus.service restarted (while op-dbus was not running)")
