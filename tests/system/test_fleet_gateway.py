"""The gateway of a booted host asks the fleet, from the sandbox of its unit."""

import json
import time
from collections.abc import Iterator

import pytest

from system.host import PATIENCE_SECONDS, Host
from system.http_calls import ask
from system.service import Service

SERVER, SOCKET, GATEWAY = (
    "op-dbus-fleet-server.service", "op-dbus-gateway.socket", "op-dbus-gateway.service",
)  # fmt: skip
PASSWORD = "/etc/credstore/op-dbus.fleet-password"
AUTHORITY = "/etc/op-dbus-gateway/fleet-ca.crt"
LEVEL = f"/run/systemd/system/{SERVER}.d/level.conf"
DROP_IN = f"/run/systemd/system/{GATEWAY}.d/fleet.conf"
# As docs/fleet.md has them.
BY_SOCKET = """
[Service]
SupplementaryGroups=op-dbus-fleet-server
Environment=OP_DBUS_FLEET_DATABASE=postgresql://page@/opdbus?host=/var/lib/op-dbus-fleet/run
"""
BY_TCP = """
[Service]
Environment=OP_DBUS_FLEET_DATABASE={url}
PrivateNetwork=no
RestrictAddressFamilies=AF_INET AF_INET6
IPAddressAllow=localhost
"""


@pytest.fixture
def url(host: Host, service: Service) -> Iterator[str]:  # noqa: ARG001 -- it runs
    """Run a server of a fleet with one host, and give the URL of a reader, who has a password."""
    host.write(LEVEL, "[Service]\nEnvironment=OP_DBUS_VECTOR_LEVEL=static\n")
    host.ask("systemctl", "daemon-reload")
    host.ask("systemctl", "start", SERVER)
    host.ask("sh", "-c", "cd /root && op-dbus fleet add here --tag demo --out here")
    said = host.ask("op-dbus", "fleet", "add-reader", "page")
    told = dict(line.split(maxsplit=1) for line in said.splitlines() if line)
    found, password = told["OP_DBUS_FLEET_DATABASE"].strip(), told["password"].strip()
    host.ask("sh", "-c", f"umask 077; mkdir -p /etc/credstore; echo {password} >{PASSWORD}")
    host.ask("install", "-m", "644", "/root/here/ca.crt", AUTHORITY)
    host.ask("systemctl", "start", SOCKET)
    yield found
    host.run("systemctl", "stop", SOCKET, GATEWAY, SERVER)
    host.run(
        "rm", "-rf", LEVEL, DROP_IN, PASSWORD, AUTHORITY, "/var/lib/op-dbus-fleet", "/root/here"
    )
    host.ask("systemctl", "daemon-reload")
    host.run("systemctl", "reset-failed", SERVER, GATEWAY)


def hosts_by(host: Host, drop_in: str) -> list[str]:
    """Return the names of the fleet's hosts, asked of a gateway with a drop-in."""
    host.write(DROP_IN, drop_in)
    host.ask("systemctl", "daemon-reload")
    host.run("systemctl", "stop", GATEWAY)
    end = time.monotonic() + PATIENCE_SECONDS
    while (answer := ask(host, "/fleet/hosts", user="member"))[0] != 200:
        assert time.monotonic() < end, (answer, host.log())
        time.sleep(0.5)
    return [each["name"] for each in json.loads(answer[1])["hosts"]]


def test_the_gateway_asks_the_fleet(host: Host, url: str) -> None:
    """Ask the server of this host by its unix socket, and any server by TCP, as documented."""
    status, text = ask(host, "/fleet/hosts", user="member")
    assert status == 404
    assert "OP_DBUS_FLEET_DATABASE" in text
    assert hosts_by(host, BY_SOCKET) == ["here"]
    assert json.loads(ask(host, "/status", user="member")[1])["Fleet"] == "answers"
    place, _, parameters = url.partition("?")
    kept = [each for each in parameters.split("&") if not each.startswith("sslrootcert")]
    by_name = f"{place}?{'&'.join([*kept, f'sslrootcert={AUTHORITY}'])}"
    # systemd reads % as the begin of a specifier
    assert hosts_by(host, BY_TCP.format(url=by_name.replace("%", "%%"))) == ["here"]
