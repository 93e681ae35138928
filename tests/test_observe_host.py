"""The observer of the host itself, on files of its own and a fake systemd."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from observing import FakeService, Host, fake_service, in_loop, observed

from opdbus.observe.host import HostItself
from opdbus.observe.report import Observer

MANAGER = "org.freedesktop.systemd1.Manager"
PATH = "/org/freedesktop/systemd1"
FILES = {
    "etc/hostname": "# ours\nalder\n",
    "etc/machine-info": 'PRETTY_HOSTNAME="Alder, the first"\nDEPLOYMENT=production\nJUNK\n',
    "etc/locale.conf": "LANG=de_AT.UTF-8\nLC_TIME='C.UTF-8'\nPATH=/tmp\n",
    "etc/vconsole.conf": "KEYMAP=de\n",
    "etc/default/keyboard": 'XKBLAYOUT="at"\nXKBVARIANT=""\n',
    "etc/os-release": 'ID=debian\nPRETTY_NAME="Debian 12"\nVERSION_ID="12"\n'
    "VERSION_CODENAME=bookworm\n",
    "etc/adjtime": "0.0 0 0.0\n0\nUTC\n",
    "usr/share/distro-info/debian.csv": "version,codename,series,created,release,eol\n"
    "12,Bookworm,bookworm,2021-08-14,2023-06-10,2026-06-10\n",
    "proc/sys/kernel/osrelease": "6.1.0-18\n",
    "proc/sys/kernel/version": "#1 SMP\n",
    "proc/sys/kernel/tainted": "4097\n",
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: AMD  EPYC\n\nprocessor\t: 1\nmodel name\t: x\n",
    "proc/meminfo": "MemTotal:       16384000 kB\nMemFree: 3 kB\n",
    "sys/class/dmi/id/sys_vendor": "Larkmoor\n",
    "sys/class/dmi/id/product_name": "Rack 2\n",
    "sys/firmware/efi/fw_platform_size": "64\n",
}


@pytest.fixture
def root(tmp_path: Path, system_bus: str) -> Path:
    """Give the files of a small host, which has a system bus."""
    assert system_bus
    root = tmp_path / "root"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    set_zone(root, "Europe/Vienna")
    return root


def set_zone(root: Path, zone: str) -> None:
    """Set the time zone as timedatectl does: by another link."""
    part = root / "etc/.localtime"
    part.symlink_to(f"../usr/share/zoneinfo/{zone}")
    part.rename(root / "etc/localtime")


@asynccontextmanager
async def systemd(bus: str) -> AsyncIterator[FakeService]:
    """Serve a manager that runs in KVM, and whose clock chrony sets."""
    async with fake_service(bus, "org.freedesktop.systemd1") as service:
        rows = [["chrony.service", "", "loaded", "active", "", "", f"{PATH}/unit/x", 0, "", "/"]]
        service.answers = {
            f"{MANAGER}.Subscribe": lambda _: ("", []),
            f"{MANAGER}.ListUnitsByPatterns": lambda _path, _states, names: (
                "a(ssssssouso)",
                [[row for row in rows if row[0] in names]],
            ),
        }
        service.properties = {PATH: {"Virtualization": "kvm"}}
        yield service


def watched(root: Path) -> AbstractAsyncContextManager[Host]:
    """Observe the host that has these files."""
    return observed(root.parent, Observer("host", "system", HostItself(root).observe))


@in_loop
async def test_what_the_files_tell(root: Path) -> None:
    """Each fact has its values, and says in words what it is."""
    async with watched(root) as host:
        name = await host.until_shown("system/fact/hostname", hostname="alder")
        assert name["pretty_name"] == "Alder, the first"
        assert name["description"].endswith("deployment production")
        time = await host.until_shown("system/fact/time", timezone="Europe/Vienna")
        assert time["rtc_in_local_time"] is False
        locale = await host.until_shown("system/fact/locale", lang="de_AT.UTF-8", keymap="de")
        assert (locale["keyboard_layout"], locale["lc_time"]) == ("at", "C.UTF-8")
        assert "path" not in locale
        await host.until_shown("system/fact/os", id="debian", end_of_support="2026-06-10")
        kernel = await host.until_shown("system/fact/kernel", release="6.1.0-18", tainted=True)
        assert kernel["taints"] == [
            "a proprietary module was loaded",
            "a module from outside the kernel was loaded",
        ]
        hardware = await host.until_shown("system/fact/hardware", cpus=2, memory_gb=15.6)
        assert (hardware["cpu"], hardware["firmware"]) == ("AMD EPYC", "UEFI")
        assert hardware["description"].startswith("Larkmoor Rack 2, 2 processors AMD EPYC")


@in_loop
async def test_a_change_reaches_its_fact_alone(root: Path) -> None:
    """Another time zone changes one object; a file written again as it was changes none."""
    async with watched(root) as host:
        await host.until_shown("system/fact/time", timezone="Europe/Vienna")
        generation = host.memory.generation
        (root / "etc/hostname").write_text(FILES["etc/hostname"])
        set_zone(root, "Asia/Tokyo")
        await host.until_shown("system/fact/time", timezone="Asia/Tokyo")
        assert host.memory.generation == generation + 1
        (root / "etc/hostname").write_text("birch\n")
        await host.until_shown("system/fact/hostname", hostname="birch")


@in_loop
async def test_what_only_systemd_knows(root: Path, system_bus: str) -> None:
    """The hypervisor and the service of the clock come from systemd, and follow its jobs."""
    async with systemd(system_bus) as manager, watched(root) as host:
        time = await host.until_shown("system/fact/time", ntp_service="chrony.service")
        assert "ntp_synchronized" not in time
        await host.until_shown("system/fact/hardware", virtualization="kvm")
        manager.answers[f"{MANAGER}.ListUnitsByPatterns"] = lambda *_: ("a(ssssssouso)", [[]])
        job = 7, "/org/freedesktop/systemd1/job/7", "chrony.service", "done"
        manager.signal(PATH, f"{MANAGER}.JobRemoved", "uoss", *job)
        await host.until_shown("system/fact/time", ntp_service="none", ntp_synchronized=False)


@in_loop
async def test_without_systemd_the_files_are_observed(root: Path) -> None:
    """What systemd would tell is missing, and the status says why."""
    async with watched(root) as host:
        hardware = await host.until_shown("system/fact/hardware")
        assert "virtualization" not in hardware
        await host.until(lambda: host.status.state == "up")
        assert "org.freedesktop.systemd1 is not on the system bus" in host.status.detail


@in_loop
async def test_files_that_are_not_sane(root: Path) -> None:
    """Empty, broken and missing files cost what they would tell, and nothing else."""
    for name in FILES:
        (root / name).write_bytes(b"\xff\0=\"'\n=\nA\n'=\n" * 3)
    (root / "etc/os-release").unlink()
    (root / "etc/localtime").unlink()
    (root / "proc/sys/kernel/tainted").write_text("9" * 5000)
    async with watched(root) as host:
        await host.until_shown("system/fact/time", timezone="UTC")
        described = "operating system, Linux distribution and release: unknown"
        await host.until_shown("system/fact/os", description=described)
        await host.until_shown("system/fact/kernel", tainted=False)
        assert host.status.objects == 6
