"""The observer of devices, on a folder like /sys and a kernel that is none."""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from attacks.kernel import FakeKernel, sent
from harness.hardware import database, device, uevent
from harness.observing import Host, history, observed

from opdbus.observe.core.report import Observer
from opdbus.observe.kernel.hardware import Database, Devices, name_pci_class
from opdbus.observe.kernel.uevents import Uevents

CARD, STICK = "pci0000:00/0000:00:02.0", "pci0000:00/0000:00:14.0/usb1/1-2"
SSD = f"{CARD}/nvme0n1"
NAMES = {
    "pci:v000010DE*": {"ID_VENDOR_FROM_DATABASE": "NVIDIA Corporation"},
    "pci:v000010DEd00001EB8*": {"ID_MODEL_FROM_DATABASE": "TU104GL [Tesla T4]"},
    "pci:v*d*sv*sd*bc03sc00*": {"ID_PCI_SUBCLASS_FROM_DATABASE": "VGA compatible controller"},
    "usb:v046D*": {"ID_VENDOR_FROM_DATABASE": "Logitech, Inc."},
}


def plug(sys: Path) -> None:
    """Give a host a graphics card, a keyboard behind a hub, and a disk with a partition."""
    device(
        sys, CARD, "bus/pci/devices", "nvidia", modalias="pci:v000010DEd00001EB8sv0sd0bc03sc00i00",
        **{"class": "0x030000", "vendor": "0x10de", "device": "0x1eb8"},
    )  # fmt: skip
    device(
        sys, STICK, "bus/usb/devices", "usb", idVendor="046d", idProduct="c31c", product="K120",
        bDeviceClass="00", bDeviceProtocol="00",
    )  # fmt: skip
    device(
        sys, f"{STICK}/1-2:1.0", "bus/usb/devices", "usbhid", bInterfaceClass="03",
        bInterfaceProtocol="01", modalias="usb:v046D",
    )  # fmt: skip
    disk = device(
        sys, SSD, "class/block", size="1000215216", ro="0", removable="0", queue__rotational="0",
        device__model="Swift 500",
    )  # fmt: skip
    device(sys, f"{SSD}/nvme0n1p1", "class/block", size="1000000", ro="0", partition="1")
    (disk / "nvme0n1p1" / "holders" / "dm-0").mkdir(parents=True)
    mapped = device(sys, "virtual/block/dm-0", "class/block", size="999000", ro="0")
    (mapped / "dm").mkdir()
    (mapped / "dm" / "uuid").write_text("CRYPT-LUKS2-0123\n")
    (mapped / "dm" / "name").write_text("vault\n")
    (mapped / "slaves" / "nvme0n1p1").mkdir(parents=True)
    device(sys, "virtual/block/loop0", "class/block", size="0", ro="0")


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    """Plug in some devices; their names are in a hardware database beside."""
    database(tmp_path / "hwdb.bin", NAMES)
    plug(tmp_path / "sys")
    return tmp_path / "sys"


@asynccontextmanager
async def watched(sys: Path) -> AsyncIterator[tuple[FakeKernel, Host]]:
    """Observe the devices of a folder."""
    with FakeKernel() as kernel:
        source = Devices(Uevents(kernel.passed), sys, (sys.parent / "hwdb.bin",))
        async with observed(sys.parent, Observer("devices", "devices", source.observe)) as host:
            yield kernel, host


async def test_devices_have_names_and_drivers(sys: Path) -> None:
    """What is plugged in has its vendor, model, sort and driver; disks, what is on them."""
    async with watched(sys) as (_, host):
        await host.until_shown(
            "devices/pci/0000:00:02.0", vendor="NVIDIA Corporation", driver="nvidia",
            model="TU104GL [Tesla T4]", type="graphics card",
            description="NVIDIA Corporation TU104GL [Tesla T4], graphics card,"
            " VGA compatible controller",
        )  # fmt: skip
        await host.until_shown(
            "devices/usb/1-2", vendor="Logitech, Inc.", model="K120", type="keyboard",
            driver="usbhid", parent="usb1",
        )  # fmt: skip
        await host.until_shown(
            "devices/block/nvme0n1", type="solid state disk", size_gb=512.11, read_only=False,
            parent="0000:00:02.0", description="Swift 500, solid state disk, 512.11 GB",
        )  # fmt: skip
        await host.until_shown(
            "devices/block/nvme0n1p1", type="partition", parent="nvme0n1", used_by=["dm-0"]
        )
        await host.until_shown(
            "devices/block/dm-0", type="encrypted volume", label="vault", on=["nvme0n1p1"]
        )
        # an interface of a device, and an empty loop
        assert not {"devices/usb/1-2:1.0", "devices/block/loop0"} & host.names


async def test_an_event_of_the_kernel_shows_at_once(sys: Path) -> None:
    """A device that comes and goes is seen by its event; a replayed event changes nothing."""
    async with watched(sys) as (kernel, host):
        await host.until_shown("devices/block/nvme0n1")
        device(sys, "virtual/block/sdb", "class/block", size="2048", ro="1")
        kernel.tell(uevent("add", "block"))
        await host.until_shown("devices/block/sdb", read_only=True)
        generation = host.memory.generation
        device(sys, "virtual/block/sdc", "class/block", size="2048", ro="1")
        kernel.tell(uevent("add", "block"))  # of none that is there: all are listed
        await host.until_shown("devices/block/sdc")
        assert host.memory.generation == generation + 1
        (sys / "class/block/sdb").unlink()
        kernel.tell(uevent("remove", "block"))
        await host.until(lambda: "devices/block/sdb" not in host.names)
        assert host.memory.generation == generation + 2


async def test_events_of_others_are_not_believed() -> None:
    """Each observer hears of its subsystem, from the kernel alone, also after another has ended."""
    with FakeKernel() as kernel:
        events = Uevents(kernel.passed)
        with events.follow("module") as other, events.follow("block") as one:
            kernel.tell(uevent("add", "block", sender=4711))
            kernel.tell(uevent("add", "net"))
            for data in (b"", b"\0", b"\0SUBSYSTEM=", b"SUBSYSTEM=block", b"\xff" * 60_000):
                kernel.tell(sent(data))
            # comes after all of these
            kernel.tell(uevent("add", "module"))
            await other.wait_for_events()
            assert not one.news.is_set()
            kernel.tell(uevent("change", "block"))
            await one.wait_for_events()
            assert not other.news.is_set()
        with events.follow("block") as one:
            kernel.tell(uevent("add", "block"))
            await one.wait_for_events()


async def test_a_socket_that_fails_is_opened_again(sys: Path) -> None:
    """Where messages were lost all is listed again; a fault of the socket is the observer's."""
    async with watched(sys) as (kernel, host):
        await host.until_shown("devices/block/nvme0n1")
        device(sys, "virtual/block/sda", "class/block", size="2048", ro="0")
        kernel.tell(sent(b"", fault=errno.ENOBUFS))
        await host.until_shown("devices/block/sda")
        kernel.tell(sent(b"", fault=errno.EIO))
        await host.until(lambda: host.status.state == "failed")
        assert "Input/output error" in host.status.detail
        await host.until(lambda: host.status.state == "up")
        device(sys, "virtual/block/sdb", "class/block", size="2048", ro="0")
        kernel.tell(uevent("add", "block"))
        await host.until_shown("devices/block/sdb")


async def test_a_flood_of_events_leads_to_few_lists(
    sys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of events cost little, and what is true is shown afterwards."""
    lists = []
    plain = Devices._list
    monkeypatch.setattr(Devices, "_list", lambda self: lists.append(1) or plain(self))
    async with watched(sys) as (kernel, host):
        await host.until_shown("devices/block/nvme0n1")
        event = uevent("change", "block")
        await asyncio.to_thread(lambda: [kernel.tell(event) for _ in range(5_000)])
        device(sys, "virtual/block/sdb", "class/block", size="2048", ro="0")
        kernel.tell(event)
        await host.until_shown("devices/block/sdb")
        assert len(lists) < 50


def test_a_database_that_lies() -> None:
    """A broken hardware database names nothing, and ends no search."""
    lies = [b"", b"KSLPHHRH", b"KSLPHHRH" + b"\xff" * 200, b"KSLPHHRH" + b"\x08" * 4096]
    circle = bytearray(b"KSLPHHRH" + bytes(200))
    for at, value in ((32, 24), (40, 16), (48, 16), (56, 80)):
        circle[at : at + 8] = value.to_bytes(8, "little")
    circle[88] = 1  # a child, which is the node itself
    circle[104] = ord("*")
    circle[112:120] = (80).to_bytes(8, "little")
    for content in (*lies, bytes(circle)):
        assert Database(content).find("pci:v00008086d00001237") == {}


@pytest.mark.parametrize(
    ("number", "name"),
    [
        ("030200", "graphics card"),
        ("010802", "NVMe disk"),
        ("0c0330", "USB controller"),
        ("ffff00", ""),
        ("", ""),
    ],
)
def test_classes_of_pci(number: str, name: str) -> None:
    """The longest beginning of a class that has a name counts."""
    assert name_pci_class(number) == name


def _rows(folder: Path) -> list[tuple[str, str, str]]:
    """Give what happened to which device, and why, but for the first listing."""
    found = [row for row in history(folder) if row["cause"] != "first"]
    return [(row["what"], row["name"], row["cause"]) for row in found]


async def test_history_tells_of_events(sys: Path) -> None:
    """The kernel is the cause of what its events lead to; a replayed one is told once a minute."""
    async with watched(sys) as (kernel, host):
        await host.until_shown("devices/block/nvme0n1")
        device(sys, "virtual/block/sdb", "class/block", size="2048", ro="0")
        kernel.tell(uevent("add", "block", "/devices/virtual/block/sdb"))
        await host.until_shown("devices/block/sdb")
        (sys / "devices/virtual/block/sdb/ro").write_text("1")
        kernel.tell(uevent("change", "block", "/devices/virtual/block/sdb"))
        await host.until_shown("devices/block/sdb", read_only=True)
        kernel.tell(uevent("add", "pci", "/devices/x/0000:00:02.0"))
        await host.until(lambda: len(_rows(sys.parent)) == 3)
        for path in ("x/0000:00:02.0", "x/unknown", "nvme0n1"):
            kernel.tell(uevent("add", "pci", f"/devices/{path}"))
        await host.until(lambda: len(_rows(sys.parent)) == 4)
    assert _rows(sys.parent) == [
        ("appeared", "sdb", "kernel"),
        ("changed", "sdb", "kernel"),
        ("event", "0000:00:02.0", "kernel"),
        ("event", "nvme0n1", "kernel"),
    ]


async def test_what_of_a_device_is_not_understood(sys: Path) -> None:
    """A size that is no number is left out and noted, as is a database that is none."""
    (sys / "class/block/nvme0n1/size").write_text("much\n")
    (sys / "class/block/nvme0n1/device/model").write_text("Swift\xa05\x0b00 \t x\n")
    (sys.parent / "hwdb.bin").write_bytes(b"no database")
    async with watched(sys) as (_, host):
        disk = await host.until_shown("devices/block/nvme0n1", model="Swift\xa05\x0b00 x")
        assert "size_gb" not in disk
        assert "GB" not in disk["description"]
        assert f"1 line not understood: {sys}/class/block/nvme0n1/size:1" in host.status.detail
        database = f"1 file not read or not understood: {sys.parent}/hwdb.bin"
        assert database in host.status.detail
