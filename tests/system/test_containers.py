"""Containers on a booted host: a service of its own publishes what engines tell only root."""

from collections.abc import Iterator

import pytest

from system.host import Host
from system.observing import shown, until_shown
from system.service import Service

PUBLISHER = "op-dbus-containers.service"
ENGINE = "tests-engine.service"
WEB = "podman/container/web"
PROGRAM = "/run/tests-engine.py"
# One container, whose state is in a file; an event is sent when the file is there.
TEXT = """
import json, os, pathlib, socketserver, time

row = {"Id": "0" * 64, "Names": ["/web"], "Image": "nginx", "Ports": [], "State": "running"}
stopped = pathlib.Path("/run/tests-stopped")

class Engine(socketserver.StreamRequestHandler):
    def handle(self):
        target = self.rfile.readline().split()[1]
        self.wfile.write(b"HTTP/1.0 200 OK\\r\\n\\r\\n")
        if target.startswith(b"/events"):
            while not stopped.exists():
                time.sleep(0.05)
            self.wfile.write(b"{}\\n")
            time.sleep(1000)
        state = "exited" if stopped.exists() else "running"
        self.wfile.write(json.dumps([row | {"State": state}]).encode())

os.makedirs("/run/podman", 0o700, exist_ok=True)
os.umask(0o177)
pathlib.Path("/run/podman/podman.sock").unlink(missing_ok=True)
socketserver.ThreadingUnixStreamServer("/run/podman/podman.sock", Engine).serve_forever()
"""


@pytest.fixture
def engine(host: Host) -> Iterator[None]:
    """Run a fake of podman, as root."""
    host.write(PROGRAM, TEXT)
    host.ask("systemd-run", f"--unit={ENGINE}", "/usr/bin/python3", PROGRAM)
    yield
    host.run("systemctl", "disable", "--now", PUBLISHER)
    host.run("systemctl", "stop", ENGINE)
    host.run("rm", "-f", "/run/tests-stopped", "/run/podman/podman.sock")


@pytest.mark.usefixtures("engine")
def test_containers_come_and_go_with_the_service(host: Host, service: Service) -> None:
    """Once it is enabled they are published, by root without capabilities, also after faults."""
    assert host.run("systemctl", "is-enabled", PUBLISHER).stdout.strip() == "disabled"
    assert not shown(host, WEB)
    service.drop_in("RestartSec=1")
    host.ask("systemctl", "enable", "--now", PUBLISHER)
    until_shown(service, WEB, state="running", image="nginx")
    pid = host.ask("systemctl", "show", "--value", "--property=MainPID", PUBLISHER)
    status = host.ask("cat", f"/proc/{pid}/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (facts["Uid"].split()[0], facts["CapEff"], facts["NoNewPrivs"]) == ("0", "0" * 16, "1")
    host.write("/run/tests-stopped", "")
    until_shown(service, WEB, state="exited")
    host.ask("systemctl", "kill", "--signal=KILL", "op-dbus.service")
    until_shown(service, WEB, state="exited")
    host.ask("systemctl", "stop", PUBLISHER)
    until_shown(service, WEB)
