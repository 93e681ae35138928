"""A service on the system bus of a booted host, mirrored by the sandboxed op-dbus."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from system import lamps
from system.host import PROGRAM, Host
from system.observing import rows, until_shown
from system.service import STATE, Service

pytestmark = pytest.mark.each_bus
SCRIPT, UNIT = "/run/lamps.py", "lamps.service"
LAMP = "lamps/lamp/desk"


def start(host: Host) -> None:
    """Start the service that is mirrored."""
    options = ["--service-type=dbus", f"--property=BusName={lamps.NAME}"]
    host.ask("systemd-run", *options, f"--unit={UNIT}", f"{PROGRAM}/bin/python", SCRIPT)


@pytest.fixture
def lamp_service(host: Host) -> Iterator[None]:
    """Run the service."""
    host.write(SCRIPT, Path(lamps.__file__).read_text())
    start(host)
    yield
    host.run("systemctl", "stop", UNIT)


def tell(host: Host, method: str) -> None:
    """Have a lamp added or removed."""
    where = (lamps.NAME, lamps.TOP, lamps.NAME)
    host.ask("busctl", "call", *where, method, "s", "desk")


@pytest.mark.usefixtures("lamp_service")
def test_objects_come_and_go(host: Host, observer: Service) -> None:
    """An object of the service is one of ours while both are there; history names the service."""
    observer.observe(lamps.NAME)
    before, earlier = observer.get("Count", STATE), rows(host)
    tell(host, "Add")
    until_shown(observer, LAMP, colour="red")
    tell(host, "Remove")
    until_shown(observer, LAMP)
    assert observer.get("Count", STATE) == before
    told = [(what, "lamp", "desk", f"bus:{lamps.NAME}") for what in ("appeared", "gone")]
    assert rows(host) == [*earlier, *told]
    tell(host, "Add")
    until_shown(observer, LAMP, colour="red")
    host.ask("systemctl", "stop", UNIT)
    until_shown(observer, LAMP)
    start(host)
    tell(host, "Add")
    until_shown(observer, LAMP, colour="red")
