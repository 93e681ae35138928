"""Mirrors of services on the bus that have an ObjectManager, on fake ones."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from attacks import crowd
from attacks.crowd import Crowd
from harness.observing import FakeService, Host, fake_service, history, observed

from opdbus.bus.transport.values import Typed, variant
from opdbus.observe.core.changes_per_hour import ChangesPerHour
from opdbus.observe.core.report import MAX_OBJECTS
from opdbus.observe.core.system_bus import Signal
from opdbus.observe.dbus.mirror import Mirror
from opdbus.observe.dbus.mirror_objects import MirroredObjects
from opdbus.observe.dbus.mirror_table import MANAGERS, plugin_of

MANAGER = "org.freedesktop.DBus.ObjectManager"
CHANGED = "org.freedesktop.DBus.Properties.PropertiesChanged"
LISTED = "a{oa{sa{sv}}}"
NAME = "org.freedesktop.UDisks2"
TOP = "/org/freedesktop/UDisks2"
DRIVE, BLOCK = f"{TOP}/drives/WDC_1", f"{TOP}/block_devices/sda1"
Tree = dict[str, dict[str, dict[str, Any]]]


def disks() -> Tree:
    """Give a drive, and a partition with a file system on it."""
    return {
        DRIVE: {
            f"{NAME}.Drive": {"Id": "WDC-WD10-1", "Vendor": "WDC", "Removable": False},
            f"{NAME}.Drive.Ata": {"SmartTemperature": 300.1, "SmartFailing": False},
        },
        BLOCK: {
            f"{NAME}.Block": {
                "Id": "by-uuid-1",
                "Device": Typed("ay", b"/dev/sda1\0"),
                "Label": Typed("ay", b"two\nlines"),
                "Crypttab": Typed("ay", b"data none luks,passphrase=hunter-2x\n"),
                "Serial": Typed("ay", b"\x01token=hunter-2x\x02"),
                "Mac": Typed("ay", b"\x52\x54\x00\x12\x34\x56"),
                "Drive": Typed("o", DRIVE),
                "CryptoBackingDevice": Typed("o", "/"),
                "Size": 500,
                "IdUUID": "1-2",
                "IdLabel": "",
            },
            f"{NAME}.Filesystem": {
                "MountPoints": Typed("aay", [b"/\0", b"/mnt/a b\0"]),
                "Size": 499,
            },
        },
    }


class Managed:
    """A service with an ObjectManager at a path, whose objects can be changed."""

    def __init__(self, service: FakeService, top: str, tree: Tree) -> None:
        self.service = service
        self.top = top
        self.tree = tree
        service.answers[f"{MANAGER}.GetManagedObjects"] = self._list

    def _list(self, path: str) -> tuple[str, list[Any]]:
        if path != self.top:
            raise KeyError(path)
        return LISTED, [self.tree]

    def add(self, path: str, interfaces: dict[str, dict[str, Any]]) -> None:
        """Add interfaces of an object, and say so."""
        self.tree[path] = self.tree.get(path, {}) | interfaces
        self.service.signal(self.top, f"{MANAGER}.InterfacesAdded", "oa{sa{sv}}", path, interfaces)

    def remove(self, path: str, *interfaces: str) -> None:
        """Remove interfaces of an object, all unless some are named, and say so."""
        gone = list(interfaces or self.tree[path])
        for interface in gone:
            del self.tree[path][interface]
        if not self.tree[path]:
            del self.tree[path]
        self.service.signal(self.top, f"{MANAGER}.InterfacesRemoved", "oas", path, gone)

    def change(self, path: str, interface: str, **values: Any) -> None:
        """Change properties, and say so."""
        self.tree[path][interface] |= values
        self.service.signal(path, CHANGED, "sa{sv}as", interface, values, [])

    def invalidate(self, path: str, interface: str, **values: Any) -> None:
        """Change properties, and say only which."""
        self.tree[path][interface] |= values
        self.service.properties[path] = self.tree[path][interface]
        self.service.signal(path, CHANGED, "sa{sv}as", interface, {}, list(values))


@asynccontextmanager
async def managed(
    bus: str, name: str = NAME, top: str = TOP, tree: Tree | None = None
) -> AsyncIterator[Managed]:
    """Serve objects under a name."""
    async with fake_service(bus, name) as service:
        yield Managed(service, top, disks() if tree is None else tree)


def mirrored(folder: Path, asked: str = NAME) -> AbstractAsyncContextManager[Host]:
    """Mirror a service."""
    return observed(folder, Mirror(asked).observer)


async def test_objects_of_a_service_are_objects_of_ours(tmp_path: Path, system_bus: str) -> None:
    """An object has its readable name, the properties of all its interfaces, and relations."""
    async with managed(system_bus), mirrored(tmp_path) as host:
        found = await host.until_shown("udisks2/block/sda1")
        assert found == {
            "object_path": BLOCK,
            "id": "by-uuid-1",
            "device": "/dev/sda1",
            "label": "two\nlines",
            "crypttab": "data none luks,passphrase=[redacted]\n",
            "serial": "[redacted]",
            "mac": "525400123456",
            "drive": "WDC-WD10-1",
            "size": 500,
            "id_uuid": "1-2",
            "mount_points": ["/", "/mnt/a b"],
            "filesystem_size": 499,
        }
        drive = await host.until_shown("udisks2/drive/WDC-WD10-1", vendor="WDC", removable=False)
        assert drive["smart_temperature"] == 300.1
        assert host.names == {"udisks2/block/sda1", "udisks2/drive/WDC-WD10-1"}


async def test_signals_reach_the_objects(tmp_path: Path, system_bus: str) -> None:
    """What is added, changed, invalidated and removed is so here; a moving field writes nothing."""
    async with managed(system_bus) as service, mirrored(tmp_path) as host:
        await host.until_shown("udisks2/block/sda1")
        service.change(BLOCK, f"{NAME}.Block", IdLabel="root")
        await host.until_shown("udisks2/block/sda1", id_label="root", size=500)
        generation = host.memory.generation
        service.change(DRIVE, f"{NAME}.Drive.Ata", SmartTemperature=310.0)
        await host.until_shown("udisks2/drive/WDC-WD10-1", smart_temperature=310.0)
        assert host.memory.generation == generation
        service.invalidate(BLOCK, f"{NAME}.Block", Size=600)
        await host.until_shown("udisks2/block/sda1", size=600)
        service.remove(BLOCK, f"{NAME}.Filesystem")
        await host.until(lambda: host.memory.generation > generation + 1)
        assert "mount_points" not in await host.properties("udisks2/block/sda1")
        service.add(f"{TOP}/drives/B", {f"{NAME}.Drive": {"Id": "B"}})
        await host.until_shown("udisks2/drive/B", object_path=f"{TOP}/drives/B")
        service.remove(f"{TOP}/drives/B")
        await host.until(lambda: "udisks2/drive/B" not in host.names)


async def test_an_object_that_gets_another_name(tmp_path: Path, system_bus: str) -> None:
    """The old name is gone, and what refers to the object has the new one."""
    async with managed(system_bus) as service, mirrored(tmp_path) as host:
        await host.until_shown("udisks2/block/sda1", drive="WDC-WD10-1")
        service.change(DRIVE, f"{NAME}.Drive", Id="NEW")
        await host.until_shown("udisks2/block/sda1", drive="NEW")
        assert host.names == {"udisks2/block/sda1", "udisks2/drive/NEW"}
        service.remove(DRIVE)
        await host.until_shown("udisks2/block/sda1", drive=DRIVE)
        service.add(DRIVE, disks()[DRIVE])
        await host.until_shown("udisks2/block/sda1", drive="WDC-WD10-1")


BLUEZ, NM = "org.bluez", "org.freedesktop.NetworkManager"
HCI, NET, IWD = "/org/bluez/hci", "/org/freedesktop/NetworkManager", "/net/connman/iwd"
ADAPTERS: Tree = {
    "/org/bluez": {f"{BLUEZ}.AgentManager1": {}},
    f"{HCI}0": {f"{BLUEZ}.Adapter1": {"Address": "C0"}},
    f"{HCI}1": {f"{BLUEZ}.Adapter1": {"Address": "C1"}},
}
# For each kind, objects of a service that are there, two that are alike, and their names.
ALIKE: dict[str, tuple[str, Tree, Tree, list[str]]] = {
    "named alike": (BLUEZ, {}, {
        f"{HCI}0/dev_{n}": {f"{BLUEZ}.Device1": {"Name": "Headset"}} for n in (9, 10)
    }, ["device/Headset (dev_9)", "device/Headset (dev_10)"]),
    "one device at two adapters": (BLUEZ, ADAPTERS, {
        f"{HCI}{n}/dev_A": {f"{BLUEZ}.Device1": {"Name": "Headset", "Address": "A"}} for n in (0, 1)
    }, ["device/Headset (hci0/dev_A)", "device/Headset (hci1/dev_A)"]),
    "one nameless device at two adapters": (BLUEZ, ADAPTERS, {
        f"{HCI}{n}/dev_A": {f"{BLUEZ}.Device1": {"Address": "A"}} for n in (0, 1)
    }, ["device/A (hci0)", "device/A (hci1)"]),
    "services of two devices": (BLUEZ, ADAPTERS | {
        f"{HCI}0/dev_{n}": {f"{BLUEZ}.Device1": {"Address": n}} for n in "AB"
    }, {
        f"{HCI}0/dev_{n}/service1": {f"{BLUEZ}.GattService1": {"UUID": "1801"}} for n in "AB"
    }, ["gatt_service/hci0/dev_A/service1", "gatt_service/hci0/dev_B/service1"]),
    "adapters of one host": (BLUEZ, {}, {
        f"{HCI}{n}": {f"{BLUEZ}.Adapter1": {"Name": "box", "Address": f"C{n}"}} for n in (0, 1)
    }, ["adapter/box (hci0)", "adapter/box (hci1)"]),
    "access points of one network": (NM, {}, {
        f"{NET}/AccessPoint/{n}": {
            f"{NM}.AccessPoint": {"Ssid": "home", "HwAddress": f"0{n}"}} for n in (1, 2)
    }, ["access_point/home (01)", "access_point/home (02)"]),
    "connections of one id": (NM, {}, {
        f"{NET}/ActiveConnection/{n}": {
            f"{NM}.Connection.Active": {"Id": "Wired", "Uuid": f"u{n}"}} for n in (1, 2)
    }, ["connection_active/Wired (u1)", "connection_active/Wired (u2)"]),
    "networks of two kinds": ("net.connman.iwd", {f"{IWD}/0": {"net.connman.iwd.Adapter": {}}}, {
        f"{IWD}/0/{n}": {"net.connman.iwd.Network": {"Name": "home"}} for n in ("a_psk", "a_open")
    }, ["network/home (0/a_psk)", "network/home (0/a_open)"]),
    "disks": (NAME, {}, {
        f"{TOP}/drives/{n}": {f"{NAME}.Drive": {"Id": n, "Model": "WD10"}} for n in ("a", "b")
    }, ["drive/a", "drive/b"]),
    "a name that is the end of its path": ("org.example.Lamps", {}, {
        f"/org/example/Lamps/{n}": {"org.example.Lamps.Lamp": {"Name": "desk"}}
        for n in ("desk", "b")
    }, ["lamp/desk", "lamp/desk (b)"]),
}  # fmt: skip


@pytest.mark.parametrize("case", ALIKE)
@pytest.mark.parametrize("first", [0, 1])
def test_an_object_keeps_its_name(case: str, first: int) -> None:
    """Of two that are alike, each has its name whichever comes first, goes, or is listed alone."""
    service, others, alike, names = ALIKE[case]
    top, plugin = MANAGERS.get(service, "/"), plugin_of(service)

    def listed(tree: Tree) -> tuple[MirroredObjects, dict[str, str]]:
        objects = MirroredObjects(service, plugin, top)
        for path, interfaces in tree.items():
            typed = {i: {k: variant(v) for k, v in p.items()} for i, p in interfaces.items()}
            objects.add(path, typed)
        rendered = {str(values["object_path"]): key for key, values in objects.render_all()}
        return objects, {path: "/".join(rendered[path]) for path in tree if path in rendered}

    wanted = dict(zip(alike, names, strict=True))
    own = list(alike)[first]
    objects, both = listed({**alike, **others} if first else {**others, **alike})
    assert {path: both[path] for path in alike} == wanted
    _, alone = listed({**others, own: alike[own]})
    assert alone[own] == wanted[own]
    gone = list(alike)[1 - first]
    objects.apply(Signal(top, MANAGER, "InterfacesRemoved", [gone, [*alike[gone]]], "oas"))
    (removed,) = objects.render_changes(gone)
    assert ("/".join(removed[0]), removed[1]) == (wanted[gone], None)
    assert list(objects.render_changes(own)) == []


async def test_a_service_that_leaves_and_comes_back(tmp_path: Path, system_bus: str) -> None:
    """Its objects are gone with it, the status says why, and it is listed as soon as it is back."""
    async with mirrored(tmp_path) as host:
        async with managed(system_bus):
            await host.until_shown("udisks2/block/sda1")
        await host.until(lambda: host.status.state == "absent" and not host.names)
        assert host.status.detail == f"{NAME} is not on the system bus"
        async with managed(system_bus, tree={DRIVE: disks()[DRIVE]}):
            await host.until(lambda: host.names == {"udisks2/drive/WDC-WD10-1"})


@pytest.mark.parametrize(
    ("top", "asked"),
    [
        ("/", "org.example.Lamps"),
        ("/org/example/Lamps", "org.example.Lamps"),
        ("/else", "org.example.Lamps:/else"),
    ],
)
async def test_where_the_manager_is(tmp_path: Path, system_bus: str, top: str, asked: str) -> None:
    """It is looked for at the root, at the path that is like the name, or where it is said."""
    path, lamp = f"{top.rstrip('/')}/desk", "org.example.Lamps.Lamp"
    async with (
        managed(
            system_bus, "org.example.Lamps", top, {path: {lamp: {"Name": "desk", "Watts": 3}}}
        ) as service,
        mirrored(tmp_path, asked) as host,
    ):
        await host.until_shown("lamps/lamp/desk", watts=3)
        service.change(path, lamp, Watts=5)
        await host.until_shown("lamps/lamp/desk", watts=5)


async def test_a_service_without_a_manager(tmp_path: Path, system_bus: str) -> None:
    """The status says what to write instead; read as a tree it has objects."""
    name, top = "org.example.Wall", "/org/example/Wall"
    async with fake_service(system_bus, name) as service:
        describe(service, lambda path: ["left"] if path == top else [])
        service.properties = {top: {"Open": True}, f"{top}/left": {"Open": False}}
        async with mirrored(tmp_path, name) as host:
            await host.until(lambda: host.status.state == "failed")
            assert "no ObjectManager at / or /org/example/Wall: give its path" in host.status.detail
        async with mirrored(tmp_path, f"introspect:{name}") as host:
            await host.until_shown("wall/gate/Wall", open=True)
            await host.until_shown("wall/gate/left", open=False)
            service.changed(f"{top}/left", f"{name}.Gate", Open=True)
            await host.until_shown("wall/gate/left", open=True)


async def test_a_tree_without_end_is_limited(tmp_path: Path, system_bus: str) -> None:
    """Two thousand of its objects are read, and the status says that there are others."""
    name = "org.example.Wall"
    async with fake_service(system_bus, name) as service:
        describe(service, lambda _: ["a", "b", "c"])
        async with mirrored(tmp_path, f"introspect:{name}") as host:
            await host.until(lambda: "left out: objects beyond 2,000" in host.status.detail)
            assert len([c for c in service.calls if c[1].endswith("Introspect")]) == 2000


def describe(service: FakeService, below: Callable[[str], list[str]]) -> None:
    """Have gates, with others below them."""
    gate = '<interface name="org.example.Wall.Gate"><property name="Open" type="b"/></interface>'

    def described(path: str) -> tuple[str, list[str]]:
        nodes = "".join(f'<node name="{child}"/>' for child in below(path))
        return "s", [f"<node>{gate}{nodes}</node>"]

    service.answers["org.freedesktop.DBus.Introspectable.Introspect"] = described


async def test_each_change_is_a_row_of_history_with_its_cause(
    tmp_path: Path, system_bus: str
) -> None:
    """What the service says is caused by it, what comes and leaves with it by its coming."""
    cause, name = f"bus:{NAME}", "WDC-WD10-1"
    lone = {DRIVE: {f"{NAME}.Drive": {"Id": name, "Size": 1}, f"{NAME}.Drive.Ata": {}}}
    async with mirrored(tmp_path) as host:
        async with managed(system_bus, tree=lone) as service:
            await host.until_shown(f"udisks2/drive/{name}", size=1)
            service.change(DRIVE, f"{NAME}.Drive.Ata", SmartTemperature=3.5)
            service.change(DRIVE, f"{NAME}.Drive", Size=2)
            await host.until_shown(f"udisks2/drive/{name}", size=2)
            service.add(f"{TOP}/drives/B", {f"{NAME}.Drive": {"Id": "B"}})
            await host.until_shown("udisks2/drive/B")
            service.remove(f"{TOP}/drives/B")
            await host.until(lambda: len(host.names) == 1)
        await host.until(lambda: not host.names)
        async with managed(system_bus, tree=lone):
            await host.until_shown(f"udisks2/drive/{name}")
    found = [
        (*(row[key] for key in ("what", "name", "cause")), " ".join(f[0][0] for f in row["fields"]))
        for row in history(tmp_path)
    ]
    assert found == [
        ("appeared", name, "first", ""),
        ("changed", name, cause, "size"),
        ("appeared", "B", cause, "id object_path"),
        ("gone", "B", cause, "id object_path"),
        ("gone", name, "source", "id object_path size"),
        ("appeared", name, "source", "id object_path size"),
    ]


async def test_what_was_said_before_the_listing_is_no_change(
    tmp_path: Path, system_bus: str
) -> None:
    """Signals that came before the answer bring the listed state about, and are no rows."""
    async with managed(system_bus) as service:

        def listed(_path: str) -> tuple[str, list[Any]]:
            for size in (1, 2, 3):
                service.change(DRIVE, f"{NAME}.Drive", Size=size)
            return LISTED, [service.tree]

        service.service.answers[f"{MANAGER}.GetManagedObjects"] = listed
        async with mirrored(tmp_path) as host:
            await host.until_shown("udisks2/drive/WDC-WD10-1", size=3)
            service.change(DRIVE, f"{NAME}.Drive", Size=4)
            await host.until_shown("udisks2/drive/WDC-WD10-1", size=4)
    told = [(row["what"], row["folded"]) for row in history(tmp_path)]
    assert told == [("appeared", 0), ("appeared", 0), ("changed", 0)]


async def test_too_many_objects_are_limited(tmp_path: Path, system_bus: str) -> None:
    """As many as any observer may have are there, and the status says that others are not."""
    tree = {f"{TOP}/{n}": {f"{NAME}.Drive": {"Id": f"drive{n}"}} for n in range(20_010)}
    async with managed(system_bus, tree=tree), mirrored(tmp_path) as host:
        await host.until(lambda: host.status.detail == "left out: objects beyond 20,000")
        await host.until(lambda: len(host.names) == MAX_OBJECTS)


async def test_a_service_that_lies(tmp_path: Path, system_bus: str) -> None:
    """What is not its own, too large or of another type is left out; the rest is there."""
    tree = disks() | {
        "/org/freedesktop/systemd1/unit/a": {f"{NAME}.Drive": {"Id": "not below"}},
        f"{TOP}/huge": {f"{NAME}.Drive": {"Id": "huge", "Text": "x" * 300_000}},
        f"{TOP}/standard": {"org.freedesktop.DBus.Properties": {}},
        f"{TOP}/file": {f"{NAME}.Drive": {"Id": "", "Name": Typed("as", ["a"])}},
    }
    async with managed(system_bus, tree=tree) as service, mirrored(tmp_path) as host:
        await host.until_shown("udisks2/drive/file", object_path=f"{TOP}/file")
        told = service.service.signal
        told(BLOCK, CHANGED, "s", "text")
        told(TOP, f"{MANAGER}.InterfacesAdded", "as", [BLOCK])
        told(BLOCK, CHANGED, "sa{sv}as", f"{NAME}.Block", {"Id": "y" * 2_000_000}, [])
        service.change(DRIVE, f"{NAME}.Drive", Size=7)
        await host.until_shown("udisks2/drive/WDC-WD10-1", size=7)
        assert host.names == {"udisks2/drive/WDC-WD10-1", "udisks2/drive/file"}
        assert host.status.detail == (
            "left out: objects that are not below /org/freedesktop/UDisks2 (1), objects that are"
            " too large (1), signals that cannot be read (2), signals that are too large (1)"
        )


async def test_each_of_a_thousand_changes_a_second_is_counted(
    tmp_path: Path, system_bus: str
) -> None:
    """The final state is the service's; rows, and those they stand for, are as many as sent."""
    observer, cause = Mirror(crowd.NAME).observer, f"bus:{crowd.NAME}"
    # most are coalesced: the fields are noisy before long
    changes = partial(ChangesPerHour, coalesce_seconds=1.0)
    async with (
        fake_service(system_bus, crowd.NAME) as service,
        observed(tmp_path, observer, changes=changes) as host,
    ):
        lamps = Crowd(service, 50)
        await host.until(lambda: host.status.state == "up")
        await lamps.run(1000.0, 2.0)

        def is_same() -> bool:
            found = [1 + row["folded"] for row in history(tmp_path) if row["cause"] == cause]
            return lamps.changes == sum(found)

        await host.until(is_same)
        shown = {name: await host.properties(f"crowd/lamp/{name}") for name in lamps.state}
        assert {f"crowd/lamp/{name}" for name in shown} == host.names
    assert {name: [v["colour"], v["level"]] for name, v in shown.items()} == lamps.state
