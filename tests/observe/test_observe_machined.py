"""The observer of systemd-machined, on a fake one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.observing import FakeService, fake_service, observed

from opdbus.observe.dbus import machined

NAME = "org.freedesktop.machine1"
PATH = "/org/freedesktop/machine1"
MANAGER = f"{NAME}.Manager"
SHOP = f"{PATH}/machine/shop"


class Machines:
    """What a fake machined has registered."""

    def __init__(self, service: FakeService) -> None:
        self.rows = [[".host", "host", "", f"{PATH}/machine/_2ehost"]]
        self.service = service
        service.answers = {
            f"{MANAGER}.ListMachines": lambda _: ("a(ssso)", [self.rows]),
            f"{MANAGER}.GetMachineOSRelease": self._release,
        }

    def _release(self, _: str, name: str) -> tuple[str, list[Any]]:
        if name != "shop":
            raise KeyError(name)
        return "a{ss}", [{"PRETTY_NAME": "Debian GNU/Linux 12", "ID": "debian"}]

    def start(self, name: str, kind: str = "container") -> None:
        """Register a machine, and say so."""
        path = f"{PATH}/machine/{name}"
        self.rows.append([name, kind, "systemd-nspawn", path])
        self.service.properties[path] = {
            "Name": name, "Class": kind, "Service": "systemd-nspawn", "State": "running",
            "Unit": f"machine-{name}.scope", "RootDirectory": f"/srv/{name}", "Leader": 4711,
        }  # fmt: skip
        self.service.signal(PATH, f"{MANAGER}.MachineNew", "so", name, path)

    def stop(self, name: str) -> None:
        """Let a machine go, and say so."""
        self.rows = [row for row in self.rows if row[0] != name]
        path = f"{PATH}/machine/{name}"
        del self.service.properties[path]
        self.service.signal(PATH, f"{MANAGER}.MachineRemoved", "so", name, path)


@asynccontextmanager
async def serving(bus: str) -> AsyncIterator[Machines]:
    """Serve a machined without machines, but for the host itself."""
    async with fake_service(bus, NAME) as service:
        yield Machines(service)


async def test_machines_come_and_go(tmp_path: Path, system_bus: str) -> None:
    """A machine is an object until it leaves, and is asked once what it runs; the host is none."""
    async with serving(system_bus) as machines, observed(tmp_path, machined.OBSERVER) as host:
        await host.until(lambda: host.status.state == "up")
        assert host.names == set()
        machines.start("shop")
        machines.start("desk", "vm")
        await host.until_shown(
            "machined/machine/shop", type="container", unit="machine-shop.scope", root="/srv/shop",
            state="running", os="Debian GNU/Linux 12", description="container, Debian GNU/Linux 12",
        )  # fmt: skip
        shown = await host.until_shown("machined/machine/desk", type="virtual machine")
        assert "os" not in shown
        machines.service.changed(SHOP, f"{NAME}.Machine", State="closing")
        await host.until_shown("machined/machine/shop", state="closing")
        asked = [body for _, what, body in machines.service.calls if what.endswith("OSRelease")]
        assert asked.count(["shop"]) == 1
        machines.stop("shop")
        await host.until(lambda: host.names == {"machined/machine/desk"})


async def test_a_machined_that_ends_when_it_is_idle_is_seen_again(
    tmp_path: Path, system_bus: str
) -> None:
    """Without machined there are no machines, and it is not started; once it runs they show."""
    async with observed(tmp_path, machined.OBSERVER) as host:
        await host.until(lambda: host.status.state == "absent")
        assert host.status.detail == f"{NAME} is not on the system bus"
        for _ in range(2):
            async with serving(system_bus) as machines:
                machines.start("shop")
                await host.until_shown("machined/machine/shop")
                await host.until(lambda: host.status.state == "up")
            await host.until(lambda: host.status.state == "absent")
            assert host.names == set()
