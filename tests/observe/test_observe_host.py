"""The observer of the host itself, on files of its own and a fake systemd."""

import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from harness.observing import FakeService, Host, fake_service, observed

from opdbus.observe.core.report import Observer
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.host import host_facts
from opdbus.observe.host.host_facts import HostFacts

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
    return observed(root.parent, Observer("host", "system", HostFacts(root).observe))


async def test_what_the_files_tell(root: Path) -> None:
    """Each fact has its values, says in words what it is, and follows its files alone."""
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
        # what only systemd would tell is missing
        assert "virtualization" not in hardware
        await host.until(lambda: host.status.state == "up")
        assert "org.freedesktop.systemd1 is not on the system bus" in host.status.detail
        generation = host.memory.generation
        (root / "etc/hostname").write_text(FILES["etc/hostname"])
        set_zone(root, "Asia/Tokyo")
        await host.until_shown("system/fact/time", timezone="Asia/Tokyo")
        assert host.memory.generation == generation + 1
        (root / "etc/hostname").write_text("birch\n")
        await host.until_shown("system/fact/hostname", hostname="birch")


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


async def test_files_that_are_not_sane(root: Path) -> None:
    """Empty, broken and missing files cost what they would tell, and nothing else."""
    for name in FILES:
        (root / name).write_bytes(b"\xff\0=\"'\n=\nA\n'=\n" * 3)
    (root / "etc/os-release").unlink()
    (root / "etc/localtime").unlink()
    (root / "proc/sys/kernel/tainted").write_text("9" * 5000)
    async with watched(root) as host:
        await host.until_shown("system/fact/time", timezone="unknown")
        described = "operating system, Linux distribution and release: unknown"
        await host.until_shown("system/fact/os", description=described)
        kernel = await host.until_shown("system/fact/kernel")
        hardware = await host.until_shown("system/fact/hardware")
        assert {"tainted", "taints", "cpus", "memory_gb"}.isdisjoint({*kernel, *hardware})
        assert "processors" not in hardware["description"]
        assert host.status.objects == 6
        assert "lines not understood" in host.status.detail
        assert f"{root}/proc/meminfo" in host.status.detail


async def test_what_a_file_says_and_is_not_understood(root: Path) -> None:
    """A line that sets nothing is noted with its file and number; the others count."""
    odd = "\n; c\n PRETTY_HOSTNAME='A\x0bB\u2028C'\r\nno assignment\nA-B=1\n"
    (root / "etc/machine-info").write_text(odd, newline="")
    async with watched(root) as host:
        await host.until_shown("system/fact/hostname", pretty_name="A\x0bB\u2028C")
        places = f"{root}/etc/machine-info:4, {root}/etc/machine-info:5"
        assert host.status.detail.endswith(f"2 lines not understood: {places}")
        (root / "etc/machine-info").write_text("DEPLOYMENT=test\n")
        await host.until_shown("system/fact/hostname", deployment="test")
        await host.until(lambda: "not understood" not in host.status.detail)


@pytest.mark.parametrize(
    ("text", "taints"),
    [
        ("131072\n", ["bit 17"]),
        ("9223372036854775809", ["a proprietary module was loaded", "bit 63"]),
        ("0\n", []),
    ],
)
def test_warnings_of_the_kernel_that_have_no_name_yet(
    tmp_path: Path, text: str, taints: list[str]
) -> None:
    """A bit that a later kernel sets taints it, too, and is called by its number."""
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/tainted").write_text(text)
    facts = host_facts.read_kernel(tmp_path, Skipped())
    assert (facts["tainted"], facts["taints"]) == (bool(taints), taints)


# As the kernels of these machines write /proc/cpuinfo, cut to what counts.
PROCESSORS: dict[str, tuple[str, int, str | None]] = {
    "s390x": (
        ("vendor_id       : IBM/S390\n# processors    : 2\ncache0          : level=1 type=Data\n"
        "processor 0: version = FF,  machine = 2964\nprocessor 1: version = FF,  machine = 2964\n"
        "\ncpu number      : 0\nversion         : FF\nmachine         : 2964\n"), 2, "IBM/S390",
    ),
    "aarch64": ("processor\t: 0\nCPU implementer\t: 0x41\n\nprocessor\t: 1\n", 2, None),
    "armv7l": (
        ("processor\t: 0\nmodel name\t: ARMv7 Processor rev 3 (v7l)\nBogoMIPS\t: 108.00\n\n"
        "Hardware\t: BCM2711\nModel\t\t: Raspberry Pi 4\n"), 1, "ARMv7 Processor rev 3 (v7l)",
    ),
    "riscv64": ("processor\t: 0\nhart\t\t: 2\nuarch\t\t: sifive,u74-mc\n", 1, "sifive,u74-mc"),
    "ppc64le": (
        ("processor\t: 0\ncpu\t\t: POWER9 (architected), altivec supported\n\nprocessor\t: 1\n"
        "timebase\t: 512000000\nmachine\t\t: CHRP\n"), 2, "POWER9 (architected), altivec supported",
    ),
    "loongarch64": (
        ("system type\t\t: generic-loongson-machine\n\nprocessor\t\t: 0\npackage\t\t\t: 0\n"
        "Model Name\t\t: Loongson-3A5000-HV\n"), 1, "Loongson-3A5000-HV",
    ),
    "mips": (
        ("system type\t\t: MediaTek MT7621\nmachine\t\t\t: Lab Router\nprocessor\t\t: 0\n"
        "cpu model\t\t: MIPS 1004Kc V2.15\n\nprocessor\t\t: 1\n"), 2, "MIPS 1004Kc V2.15",
    ),
    "arc": ("processor [0]\t: ARC HS38 R2.1\nprocessor [1]\t: ARC HS38 R2.1\n", 2, None),
}  # fmt: skip


@pytest.mark.parametrize("machine", PROCESSORS)
def test_processors_of_machines(tmp_path: Path, machine: str) -> None:
    """The processors of each kind of machine are counted, and called what the kernel calls them."""
    text, cpus, model = PROCESSORS[machine]
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(text)
    facts = host_facts.read_hardware(tmp_path, None, Skipped())
    assert (facts["cpus"], facts.get("cpu")) == (cpus, model)
    assert f"{cpus} processor" in str(facts["description"])


def test_processors_where_they_are_not_numbered(tmp_path: Path) -> None:
    """Without numbers in /proc/cpuinfo, or without it, the list of processors in use is counted."""
    online = tmp_path / "sys/devices/system/cpu/online"
    online.parent.mkdir(parents=True)
    online.write_text("0-3,8\n")
    assert host_facts.read_hardware(tmp_path, None, Skipped())["cpus"] == 5
    online.write_text("none\n")
    skipped = Skipped()
    facts = host_facts.read_hardware(tmp_path, None, skipped)
    assert "cpus" not in facts
    assert facts["description"] == "this machine"
    assert skipped.sentence == f"1 line not understood: {online}:1"


BERLIN = b"TZif2\0berlin\nCET-1CEST,M3.5.0,M10.5.0/3\n"
OLDER = b"TZif2\0older table\nCET-1CEST,M3.5.0,M10.5.0/3\n"
TOKYO = b"TZif2\0tokyo\nJST-9\n"


@pytest.mark.parametrize(
    ("clock", "setting", "zone"),
    [
        (BERLIN, "", "Europe/Berlin"),
        (BERLIN, "Arctic/Longyearbyen\n", "Arctic/Longyearbyen"),
        # the clock's own file counts
        (BERLIN, "Asia/Tokyo\n", "Europe/Berlin"),
        (TOKYO, "", "Asia/Tokyo"),
        # an older copy of a zone's file ends with the same rule
        (OLDER, "Europe/Berlin", "Europe/Berlin"),
        (OLDER, "Asia/Tokyo", "CET-1CEST,M3.5.0,M10.5.0/3"),
        (OLDER, "", "CET-1CEST,M3.5.0,M10.5.0/3"),
        (b"TZif2\0x\n<+0545>-5:45\n", "", "<+0545>-5:45"),
        (b"TZif2\0x\nno rule\n", "", "unknown"),
        (b"TZif2\0x", "", "unknown"),
        (b"no zone", "", "unknown"),
        (b"no zone", "Asia/Tokyo", "Asia/Tokyo"),
        (None, "Asia/Tokyo\n", "Asia/Tokyo"),
        (None, "../../etc/passwd\n", "unknown"),
        (None, "", "unknown"),
    ],
)
def test_the_time_zone_without_a_link(
    tmp_path: Path, clock: bytes | None, setting: str, zone: str
) -> None:
    """The zone is the one whose file is the clock's, or that a file names; else it is its rule."""
    zones = tmp_path / "usr/share/zoneinfo"
    for name, content in {
        "Europe/Berlin": BERLIN, "Arctic/Longyearbyen": BERLIN, "Asia/Tokyo": TOKYO,
        "posix/Asia/Tokyo": TOKYO, "posixrules": BERLIN,
        "zone1970.tab": b"# c\nDE\t+52+013\tEurope/Berlin\n",
    }.items():  # fmt: skip
        (zones / name).parent.mkdir(parents=True, exist_ok=True)
        (zones / name).write_bytes(content)
    # Debian has it among the zones
    (zones / "localtime").symlink_to(tmp_path / "etc/localtime")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/timezone").write_text(setting)
    if clock is not None:
        (tmp_path / "etc/localtime").write_bytes(clock)
    assert host_facts.read_time(tmp_path, None, Skipped())["timezone"] == zone
    # a link counts first, also one that it leads to
    (tmp_path / "etc/z").mkdir()
    (tmp_path / "etc/localtime").unlink(missing_ok=True)
    for name, target, linked in (
        ("localtime", "/usr/share/zoneinfo/America/Argentina/Salta", "America/Argentina/Salta"),
        ("localtime", "/usr/share/zoneinfo/posix/Europe/Berlin", "Europe/Berlin"),
        ("localtime", "../usr/share/zoneinfo/right/UTC", "UTC"),
        ("localtime", "z/tz", "unknown"),
        ("z/tz", "/etc/zoneinfo/Asia/Tokyo", "Asia/Tokyo"),
        ("z/tz", "../localtime", "unknown"),
    ):
        (tmp_path / "etc" / name).unlink(missing_ok=True)
        (tmp_path / "etc" / name).symlink_to(target)
        (tmp_path / "etc/timezone").write_text("")
        assert host_facts.read_time(tmp_path, None, Skipped())["timezone"] == linked


def test_only_timesyncd_tells_whether_the_clock_is_synchronized(tmp_path: Path) -> None:
    """With timesyncd its file decides; with no service the answer is no, with another unknown."""

    def is_synchronized(service: str) -> object:
        return host_facts.read_time(tmp_path, service, Skipped()).get("ntp_synchronized")

    services = ("systemd-timesyncd.service", "", "chrony.service")
    assert [is_synchronized(service) for service in services] == [False, False, None]
    (tmp_path / "run/systemd/timesync").mkdir(parents=True)
    (tmp_path / "run/systemd/timesync/synchronized").touch()
    assert [is_synchronized(service) for service in services] == [True, False, None]


def test_the_real_time_zone() -> None:
    """The zone of this machine has the offset that its clock has."""
    zone = str(host_facts.read_time(Path("/"), None, Skipped())["timezone"])
    if zone != "unknown":
        now = datetime.now().astimezone()
        assert now.astimezone(ZoneInfo(zone)).utcoffset() == now.utcoffset()


@pytest.mark.parametrize(
    ("file", "kernel", "name"),
    [
        ("\n  # ours\n\talder \r\n", "(none)\n", "alder"),
        ("alder\n", None, "alder"),
        ("alder\n", "birch\n", "birch"),
        ("# nothing\n", "birch\n", "birch"),
        (None, "birch\n", "birch"),
        (None, "(none)\n", None),
        (None, None, None),
    ],
)
def test_the_name_of_the_host(
    tmp_path: Path, file: str | None, kernel: str | None, name: str | None
) -> None:
    """The name is the kernel's, else that of the file; a host without one has none."""
    for path, text in {"etc/hostname": file, "proc/sys/kernel/hostname": kernel}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            (tmp_path / path).write_text(text, newline="")
    facts = host_facts.read_hostname(tmp_path, Skipped())
    assert facts.get("hostname") == name
    assert ("not known" in str(facts["description"])) is (name is None)
    static = "alder" if (file, kernel) == ("alder\n", "birch\n") else None
    assert facts.get("static_hostname") == static
    assert ("/etc/hostname has another name: alder" in str(facts["description"])) is bool(static)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have a name of its own")
def test_the_name_in_force_is_followed() -> None:
    """A host that is renamed without a file says so as soon as the kernel does."""
    program = """if True:
        import asyncio, pathlib, socket
        from opdbus.observe.core.file_reading import changes_of_kernel
        async def main():
            path = pathlib.Path("/proc/sys/kernel/hostname")
            async with asyncio.timeout(20):
                async for _ in changes_of_kernel(path):
                    if (name := path.read_text().strip()) == "birch":
                        return
                    socket.sethostname("birch" if name == "alder" else "alder")
        asyncio.run(main())
        print(socket.gethostname())
    """
    command = ("unshare", "--uts", sys.executable, "-c", program)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.stderr.startswith("unshare:"):
        pytest.skip("this root may not have a name of its own")
    assert (done.stdout, done.stderr) == ("birch\n", "")


def test_a_language_that_no_file_names(tmp_path: Path) -> None:
    """Without files of language and keyboard, that they are not set is not claimed."""
    assert host_facts.read_locale(tmp_path, Skipped()) == {
        "description": "language and keyboard are not known"
    }
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/locale.conf").write_text("# nothing\n")
    assert "is set" in str(host_facts.read_locale(tmp_path, Skipped())["description"])


@pytest.mark.parametrize(
    ("product", "shown"),
    [
        *((text, "") for text in (
            "To Be Filled By O.E.M.", "To be filled by O.E.M.", "Default string", "default_string",
            "System Product Name", "System manufacturer", "System Version", "Not Specified", "None",
            "Not Applicable", "N/A", "OEM", "O.E.M.", "Type1ProductConfigId", "XXXXXX", "Unknown",
            "Type2 - Board Product Name", "0123456789", "Not Available", "INVALID", "Undefined",
            "Fill By OEM", "Filled by OEM", "All Series", "  ", ".", "Base Board Product Name",
            "Type1Family", "OEM Default string 000", "default", "TBD", "x.x", "<BAD INDEX>",
            "System Serial Number", "Not Provided", "$(DEFAULT_STRING)", "(none)", "[Empty]",
            "ToBeFilledByO.E.M.", "TBD by OEM", "NotSpecified", "Type1Sku0", "Not-Set",
            "Set by OEM", "<OUT OF SPEC>", "FFFFFFFF", "System UUID",
        )),
        *((text, text) for text in (
            "OptiPlex 7010", "KVM", "Virtual Machine", "Standard PC (Q35 + ICH9, 2009)", "MS-7C37",
            "HVM domU", "m5.large", "System x3650 M4", "ProLiant DL380", "NUC7i5BNB", "VirtualBox",
            "TBDX-100", "Notebook", "Type 2 Server", "Set-top Box",
        )),
    ],
)  # fmt: skip
def test_what_makers_leave_is_no_name(tmp_path: Path, product: str, shown: str) -> None:
    """A placeholder in the tables of the firmware is no product, and no vendor."""
    folder = tmp_path / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    for file in ("product_name", "sys_vendor"):
        (folder / file).write_text(f"{product}\n")
    facts = host_facts.read_hardware(tmp_path, None, Skipped())
    assert [facts.get(key, "") for key in ("product", "vendor")] == [shown, shown]


@pytest.mark.parametrize(
    ("ago", "uptime"),
    [(0, "0min"), (59, "0min"), (61, "1min"), (3 * 3600, "3h"), (90061, "1d 1h 1min"),
     (-100, "0min")],
)  # fmt: skip
def test_when_the_host_was_started(tmp_path: Path, ago: int, uptime: str) -> None:
    """It is the time that PID 1 began, else the kernel's; how long ago never is negative."""
    now = int(time.time())
    booted = now - ago
    stamp = datetime.fromtimestamp(booted, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    assert host_facts.read_boot(tmp_path, 0.0) == {}
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(f"cpu 1 2\nbtime {booted}\nprocesses 3\n")
    facts = host_facts.read_boot(tmp_path, 0.0)
    assert facts["boot_time"] == stamp
    if now == int(time.time()):
        assert facts["uptime"] == uptime
    assert host_facts.read_boot(tmp_path, 86400.0)["boot_time"] == "1970-01-02 00:00:00 UTC"
