"""The HTTP gateway on a booted host: its sockets, who may, and what becomes of it."""

import json
from collections.abc import Iterator
from time import monotonic, sleep

import pytest

from system.host import PATIENCE_SECONDS, Host
from system.http_calls import PATH, ask
from system.service import Service

SOCKET, GATEWAY = "op-dbus-gateway.socket", "op-dbus-gateway.service"
WRITING, METRICS = "op-dbus-gateway-write.socket", "op-dbus-gateway-metrics.socket"
TOKEN = "/etc/credstore/op-dbus.http-token"
DROP_IN = f"/run/systemd/system/{SOCKET}.d/tcp.conf"


@pytest.fixture
def gateway(host: Host, service: Service) -> Iterator[Service]:
    """Switch it on as the documentation says, and off again."""
    assert host.run("systemctl", "is-enabled", SOCKET).stdout.strip() == "disabled"
    host.ask("systemctl", "enable", "--now", SOCKET)
    yield service
    units = (SOCKET, WRITING, METRICS, GATEWAY, "op-dbus-gateway-write.service")
    host.run("rm", "-f", DROP_IN, TOKEN)
    host.run("systemctl", "disable", "--now", *units)
    host.ask("systemctl", "daemon-reload")
    host.run("systemctl", "reset-failed", *units)


def test_its_socket_starts_it_for_the_group(host: Host, gateway: Service) -> None:
    """Start with the first request, and let the group's members ask and nobody else."""
    assert host.show(GATEWAY, "ActiveState") == "inactive"
    assert ask(host, "/health", user="outsider")[0] == 0
    assert host.show(GATEWAY, "ActiveState") == "inactive"
    status, text = ask(host, "/health", user="member")
    assert (status, json.loads(text)["status"]) == (200, "ready"), host.log()
    wanted = json.dumps({"input": "mail server", "model": "static"})
    assert ask(host, "/v1/embeddings", user="member", body=wanted)[0] == 200
    assert host.show(GATEWAY, "User") == "op-dbus-gateway"
    assert "gateway: on; Serving http on /run" in host.run("op-dbus", "doctor").stdout
    # it is used while the daemon is away, which the next request starts
    gateway.systemctl("stop")
    assert host.path(PATH).is_socket()
    assert ask(host, "/health", user="member")[0] in {200, 503}


@pytest.mark.usefixtures("gateway")
def test_it_answers_from_its_sandbox(host: Host) -> None:
    """Answer every question that needs no parameter, with a user that is not the daemon's."""
    status, text = ask(host, "/openapi.json", user="member")
    assert status == 200, host.log()
    routes = json.loads(text)["paths"]
    plain = [
        path
        for path, methods in routes.items()
        if "{" not in path
        and "get" in methods
        and not any(one.get("required") for one in methods["get"].get("parameters", []))
        and path not in {"/", "/changes/stream"}
        # without a fleet they are not there: test_fleet_gateway.py asks them
        and not path.startswith("/fleet/")
    ]
    assert {"/map", "/drift", "/status", "/clusters"} <= {*plain}
    for path in plain:
        status, text = ask(host, path, user="member")
        assert status == 200, (path, text, host.log())


def test_its_user_may_not_publish(host: Host, gateway: Service) -> None:
    """Let the gateway's user read over the bus and not publish; the other's user may."""
    assert gateway.show("ActiveState") == "active"
    one = json.dumps({"plugin": "test", "kind": "lamp", "name": "desk", "properties": {}})
    for user, may in (("op-dbus-gateway", False), ("op-dbus-gateway-write", True)):
        assert host.run("op-dbus", "list", user=user).returncode == 0
        done = host.run("op-dbus", "publish", "test", user=user, stdin=one)
        assert (done.returncode == 0) == may, done.stderr


def test_systemd_starts_it_again(host: Host, gateway: Service) -> None:
    """Serve again after a kill, with the daemon untouched."""
    assert ask(host, "/health")[0] == 200
    before, daemon = host.show(GATEWAY, "MainPID"), gateway.pid
    host.ask("systemctl", "kill", "--signal=KILL", GATEWAY)
    end = monotonic() + PATIENCE_SECONDS
    while host.show(GATEWAY, "MainPID") in {before, "0"}:
        assert monotonic() < end, host.log()
        sleep(0.1)
    assert ask(host, "/health")[0] == 200
    assert gateway.pid == daemon


def test_tcp_needs_the_credential(host: Host, gateway: Service) -> None:
    """Refuse to serve TCP without a token, say so, and serve it with one."""
    host.write(DROP_IN, "[Socket]\nListenStream=127.0.0.1:9900\n")
    host.ask("systemctl", "daemon-reload")
    host.ask("systemctl", "restart", SOCKET)
    assert gateway.show("ActiveState") == "active"
    host.run("systemctl", "start", GATEWAY)
    doctor = host.run("op-dbus", "doctor").stdout
    assert "needs a token" in doctor, doctor + host.log()
    host.write(TOKEN, "a-token-of-the-test-host\n")
    host.path(TOKEN).chmod(0o600)
    host.run("systemctl", "reset-failed", SOCKET, GATEWAY)
    host.ask("systemctl", "restart", SOCKET)
    tcp = "127.0.0.1:9900"
    assert ask(host, "/health", address=tcp, user="outsider")[0] == 401
    token = "a-token-of-the-test-host"
    assert ask(host, "/health", address=tcp, user="outsider", token=token)[0] == 200
    assert ask(host, "/health", user="member")[0] == 200


def test_metrics_are_served_on_a_port_of_their_own(host: Host, gateway: Service) -> None:
    """Serve metrics once their socket is on, also of a daemon that is down."""
    assert gateway.show("ActiveState") == "active"
    host.ask("systemctl", "enable", "--now", METRICS)
    status, text = ask(host, "/metrics", address="127.0.0.1:9911", user="outsider")
    assert (status, "\nopdbus_up 1.0\n" in text) == (200, True), host.log()
    gateway.systemctl("stop")
    status, text = ask(host, "/metrics", address="127.0.0.1:9911", user="outsider")
    assert (status, "\nopdbus_up 0.0\n" in text) == (200, True)
    assert gateway.show("ActiveState") == "inactive"


def test_the_socket_for_writing_is_roots(host: Host, gateway: Service) -> None:
    """Let root alone connect, to a process of another user."""
    assert gateway.show("ActiveState") == "active"
    host.ask("systemctl", "start", WRITING)
    path = "/run/op-dbus/write.sock"
    assert ask(host, "/health", address=path, user="member")[0] == 0
    lamp = json.dumps({"plugin": "test", "kind": "lamp", "name": "of the gateway"})
    assert ask(host, "/add", address=path, body=lamp)[0] == 200, host.log()
    assert ask(host, "/add", body=lamp)[0] in {404, 405}
    assert "of the gateway" in host.ask("op-dbus", "list", "--plugin", "test")
    assert host.show("op-dbus-gateway-write.service", "User") == "op-dbus-gateway-write"
