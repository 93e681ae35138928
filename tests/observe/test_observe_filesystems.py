"""The observer of file systems: a fake systemd, a fake kernel, and real mounts where root."""

import asyncio
import errno
import subprocess
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from math import ceil
from pathlib import Path

import pytest
from harness.observing import PATIENCE, FakeService, Host, fake_service, history, observed

from opdbus.observe.core.report import Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.kernel.filesystems import (
    FileSystems,
    Gauge,
    Space,
    UnreachableMount,
    measure_space,
)
from opdbus.observe.kernel.mounts import Mount, parse_mountinfo
from opdbus.platform.tasks import cancel

MANAGER = "org.freedesktop.systemd1.Manager"
MOUNT = "org.freedesktop.systemd1.Mount"
PATH = "/org/freedesktop/systemd1"
GIB = 1 << 30
INFO = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 0:27 / /run ro,nosuid - tmpfs tmpfs rw,size=10k
31 27 0:28 / /run/user/1000 rw - tmpfs tmpfs rw
32 27 0:29 / /mnt/a\\040b\\012c rw - nfs4 nas:/export rw,addr=10.0.0.9
33 27 0:30 / /var/lib/docker/overlay2/x/merged rw - overlay overlay rw
34 27 0:31 / /media/stick ro - vfat /dev/sdb1 rw,shortname=mixed
garbage - - -
35 x
"""


class Disk:
    """What is measured: how full, or a fault."""

    def __init__(self) -> None:
        self.used: dict[str, float] = {}
        self.faults: dict[str, Exception] = {}
        self.hangs: set[str] = set()
        self.free = threading.Event()
        self.asked: list[str] = []

    def measure(self, mount: Mount, _seen: Mapping[int, Mount]) -> Space:
        """Measure a mount."""
        self.asked.append(mount.path)
        if mount.path in self.hangs:
            self.free.wait()
        if mount.path in self.faults:
            raise self.faults[mount.path]
        used = self.used.get(mount.path, 50.0)
        return Space(60 * GIB, used, used)


@pytest.fixture
def mountinfo(tmp_path: Path, system_bus: str) -> Path:
    """Give a file as the kernel has it, on a host that has a system bus."""
    assert system_bus
    path = tmp_path / "mountinfo"
    path.write_text(INFO)
    return path


@asynccontextmanager
async def systemd(bus: str) -> AsyncIterator[FakeService]:
    """Serve a manager that has mounted / and /home."""
    async with fake_service(bus, "org.freedesktop.systemd1") as service:
        service.properties = {
            f"{PATH}/unit/_2d_2emount": unit("/", "/dev/vda", "ext4"),
            f"{PATH}/unit/home_2emount": unit("/home", "nas:/home", "nfs4"),
        }
        service.answers = {
            f"{MANAGER}.Subscribe": lambda _: ("", []),
            f"{MANAGER}.ListUnitsByPatterns": lambda *_: (
                "a(ssssssouso)",
                [
                    [
                        ["x.mount", "Homes", "loaded", "active", "", "", path, 0, "", "/"]
                        for path in service.properties
                    ]
                ],
            ),
        }
        yield service


def unit(path: str, source: str, fstype: str, options: str = "rw,relatime") -> dict[str, object]:
    """Give the properties of a mount unit."""
    return {"Where": path, "What": source, "Type": fstype, "Options": options}


@asynccontextmanager
async def watched(mountinfo: Path, disk: Disk, patience: float = PATIENCE) -> AsyncIterator[Host]:
    """Observe mounts, with a minute of 20 ms; what answers later than patience lasts, does not."""
    source = FileSystems(mountinfo, 0.02, patience, disk.measure)
    observer = Observer("filesystems", "mounts", source.observe)
    try:
        async with observed(mountinfo.parent, observer) as host:
            yield host
    finally:
        disk.free.set()


async def test_mounts_of_systemd(mountinfo: Path, system_bus: str) -> None:
    """What systemd has mounted is listed as the host sees it, not as our sandbox does."""
    async with systemd(system_bus), watched(mountinfo, Disk()) as host:
        root = await host.until_shown("mounts/mount//", source="/dev/vda", fstype="ext4")
        assert (root["size_gb"], root["used_percent"], root["network"]) == (60, 50, False)
        await host.until_shown("mounts/mount//home", network=True, description="Homes")
        # the place is read-only for us, and the file system is not
        run = await host.until_shown("mounts/mount//run", read_only=False)
        assert run["options"] == "rw,size=10k"
        assert len(host.names) == 3


async def test_a_mount_that_comes_changes_and_goes(mountinfo: Path, system_bus: str) -> None:
    """Signals of mount units are followed; those of others ask systemd nothing."""
    async with systemd(system_bus) as service, watched(mountinfo, Disk()) as host:
        await host.until_shown("mounts/mount//home", read_only=False)
        home = f"{PATH}/unit/home_2emount"
        service.changed(home, MOUNT, Options="ro,relatime")
        await host.until_shown("mounts/mount//home", read_only=True)
        asked = len(service.calls)
        service.signal(PATH, f"{MANAGER}.UnitNew", "so", "ssh.service", f"{PATH}/unit/ssh")
        added = f"{PATH}/unit/srv_2emount"
        service.properties[added] = unit("/srv", "/dev/vdb", "xfs")
        service.signal(PATH, f"{MANAGER}.UnitNew", "so", "srv.mount", added)
        await host.until_shown("mounts/mount//srv", fstype="xfs")
        read = [call[0] for call in service.calls[asked:] if call[1].endswith("GetAll")]
        assert read == [added]
        del service.properties[home]
        service.signal(PATH, f"{MANAGER}.UnitRemoved", "so", "home.mount", home)
        await host.until(lambda: "mounts/mount//home" not in host.names)


async def test_a_dead_server_costs_only_its_own_object(mountinfo: Path, system_bus: str) -> None:
    """A file system that hangs does not answer, is not asked a second time, and may come back."""
    disk = Disk()
    disk.hangs.add("/home")
    async with systemd(system_bus), watched(mountinfo, disk, 0.2) as host:
        await host.until_shown("mounts/mount//home", answers=False, source="nas:/home")
        await host.until_shown("mounts/mount//", used_percent=50)
        rounds = disk.asked.count("/")
        await host.until(lambda: disk.asked.count("/") > rounds + 3)
        assert disk.asked.count("/home") == 1
        said = "how full is not known of /home: it does not answer"
        odd = f"2 lines not understood: {mountinfo}:8, {mountinfo}:9"
        await host.until(lambda: host.status.detail == f"{said}; {odd}")
        disk.free.set()
        home = await host.until_shown("mounts/mount//home", used_percent=50)
        assert "answers" not in home
        await host.until(lambda: host.status.detail == odd)


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        (UnreachableMount(), {"not_measured": "the sandbox of op-dbus hides it"}),
        (
            PermissionError(errno.EACCES, "Permission denied"),
            {"not_measured": "op-dbus may not look: Permission denied"},
        ),
        (OSError(errno.ENOTCONN, "x"), {"answers": False}),
    ],
)
async def test_what_is_not_measured_says_why(
    mountinfo: Path, system_bus: str, fault: Exception, shown: dict[str, object]
) -> None:
    """Nothing is told of a file system that is not seen, in place of what lies there instead."""
    disk = Disk()
    disk.faults["/home"] = fault
    async with systemd(system_bus), watched(mountinfo, disk) as host:
        home = await host.until_shown("mounts/mount//home", **shown)
        assert "used_percent" not in home
        await host.until(lambda: "not known of /home" in host.status.detail)


async def test_without_systemd_the_kernel_is_read(mountinfo: Path) -> None:
    """Only what holds files is listed, by the names that the kernel escapes, without secrets."""
    line = "40 27 0:9 / /mnt/share rw - cifs //nas/share rw,username=x,password=hunter2-PLANTED\n"
    mountinfo.write_text(INFO + line)  # noqa: ASYNC240 -- nothing else runs
    async with watched(mountinfo, Disk()) as host:
        places = {"/", "/run", "/mnt/a b\nc", "/media/stick", "/mnt/share"}
        await host.until(lambda: host.names == {f"mounts/mount/{place}" for place in places})
        await host.until_shown("mounts/mount//media/stick", read_only=True, network=False)
        await host.until_shown("mounts/mount//mnt/a b\nc", network=True)
        assert "PLANTED" not in str(
            await host.until_shown("mounts/mount//mnt/share", fstype="cifs")
        )


async def test_how_full_is_what_df_says(mountinfo: Path) -> None:
    """It is never rounded down; only a change of the step counts; inodes come from 80% on."""
    disk = Disk()
    gauge = Gauge(mountinfo, 5.0, disk.measure)
    mount = Mount("/", "/dev/vda", "ext4", "rw")
    told, moved = [], []
    for used in (71.0, 73.0, 73.6, 71.6, 71.0, 96.1, 98.4, 98.6, 0.2, 0.0):
        disk.used["/"] = used
        told.append((await gauge.read([mount]))["/"]["used_percent"])
        moved.append("used_percent" not in gauge.within_step["/"])
    assert told == [71, 73, 74, 72, 71, 97, 99, 99, 1, 0]
    assert moved == [True, False, True, False, True, True, False, False, True, False]
    image = Mount("/snap/x", "/dev/loop0", "squashfs", "ro")
    assert "inodes_used_percent" not in (await gauge.read([mount, image]))["/"]
    disk.used = {"/": 91.0, "/snap/x": 100.0}
    found = await gauge.read([mount, image])
    assert found["/"]["inodes_used_percent"] == 91
    assert not {"used_percent", "free_bytes"} & found["/snap/x"].keys()


@pytest.mark.parametrize("path", ["/", "/dev/shm", "/run"])  # noqa: S108 -- observed, not written
def test_usage_is_that_of_df(path: str) -> None:
    """Percent, size and free bytes of a real file system are those that df prints."""
    command = ["df", "--block-size=1", "--output=pcent,size,avail,source,fstype", path]

    def df() -> list[str]:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return done.stdout.split()[-5:]

    percent, size, free, source, fstype = df()
    if percent == "-":
        pytest.skip(f"{path} has no size")
    mount = Mount(path, source, fstype, "rw")
    for _ in range(20):
        found = measure_space(mount, AnyMount(mount))
        before, (percent, size, free, *_rest) = percent, df()
        # somebody may write meanwhile
        if before == percent and abs(found.free - int(free)) < 64 << 20:
            break
    assert (found.size, ceil(found.used)) == (int(size), int(percent.rstrip("%")))
    assert abs(found.free - int(free)) < 64 << 20


class AnyMount(dict[int, Mount]):
    """The mounts that a process sees: whatever number one has, it is this."""

    def __init__(self, mount: Mount) -> None:
        super().__init__()
        self._mount = mount

    def __contains__(self, _number: object) -> bool:
        """Have all numbers."""
        return True

    def __missing__(self, _number: int) -> Mount:
        """Return the only mount."""
        return self._mount


async def test_a_move_within_a_step_is_no_row_of_history(mountinfo: Path) -> None:
    """What is shown is of now, also after a restart; history has what passes a step."""
    disk = Disk()
    for root, stick in ((65.0, 50.0), (67.0, 20.0)):
        disk.used = {"/": root, "/media/stick": stick}
        async with watched(mountinfo, disk) as host:
            await host.until_shown("mounts/mount//media/stick", used_percent=int(stick))
            await host.until_shown("mounts/mount//", used_percent=int(root))
            disk.used["/"] += 1.0
            await host.until_shown("mounts/mount//", used_percent=int(root) + 1)
    changed = [row["name"] for row in history(mountinfo.parent) if row["what"] == "changed"]
    assert changed == ["/media/stick"]


@pytest.mark.parametrize(
    ("fstype", "source", "options", "is_network"),
    [
        *((fstype, "x", "rw", True) for fstype in (
            "davfs fuse.davfs fuse.gcsfuse fuse.mount-s3 fuse.juicefs ceph fuse.ceph gpfs cvmfs"
            " fuse.cvmfs2 fuse.s3fs fuse.goofys fuse.blobfuse2 fuse.rclone wekafs moosefs smb3"
            " fuse.sshfs nfs4 glusterfs fuse.lizardfs lustre 9p orangefs fuse.ossfs".split()
        )),
        *((f"fuse.{program}", "x", "rw", True) for program in (
            "alluxio-fuse objectivefs s3backer google-drive-ocamlfuse pvfs2fuse dfuse".split()
        )),
        *((f"fuse.{program}", "x", "rw", True) for program in (
            "eosxd xrootdfs irodsFs oneclient kbfs weed yas3fs svfs hubicfuse onedriver".split()
        )),
        # a program that gives FUSE no type of its own
        ("fuse", "cvmfs2", "ro", True),
        ("fuse", "ACDFuse", "rw", True),
        ("fuse", "gocryptfs", "rw", False),
        ("fuse.new", "https://dav.example.net/files", "rw", True),
        ("fuse.new", "alice@nas:/home", "rw", True),
        ("fuse.new", "remote:/", "rw", True),
        ("fuse.new", "//nas/share", "rw", True),
        ("xfs", "/dev/sdb1", "rw,_netdev", True),
        *((fstype, source, "rw", False) for fstype, source in (
            ("ext4", "/dev/vda"), ("zfs", "tank/home"), ("btrfs", "/dev/sdb"), ("tmpfs", "tmpfs"),
            ("overlay", "overlay"), ("fuse.ntfs-3g", "/dev/sdc1"), ("fuseblk", "/dev/sdc1"),
            ("fuse.mergerfs", "a:b"), ("fuse.encfs", "encfs"), ("bcachefs", "/dev/a:/dev/b"),
            ("vfat", "UUID=1"), ("nfsd", "nfsd"),
            ("fuse.mergerfs", "/mnt/a:/mnt/b"), ("fuse.unionfs", "a=RW:b=RO"), ("drvfs", "C:\\"),
        )),
    ],
)  # fmt: skip
async def test_file_systems_of_other_hosts(
    mountinfo: Path, fstype: str, source: str, options: str, *, is_network: bool
) -> None:
    """Files are elsewhere by the type, with `fuse.` or without, by the source or an option."""
    mountinfo.write_text(f"50 1 0:50 / /mnt {options} - {fstype} {source} {options}\n")  # noqa: ASYNC240 -- nothing else runs
    report = Report()
    observe = FileSystems(mountinfo, measure=Disk().measure).observe
    task = asyncio.create_task(observe(report))
    while not report.names("mount"):
        await report.news.wait()
    await cancel([task])
    found = report.take().kinds["mount"]["/mnt"]
    assert found
    assert found["network"] is is_network


BOUND = """\
27 1 254:0 / / rw - ext4 /dev/vda rw
36 27 254:0 /srv/data /var/www rw - ext4 /dev/vda rw
37 27 254:0 / /mnt/again rw - ext4 /dev/vda rw
38 27 0:40 /@home /home rw - btrfs /dev/vdb rw,subvol=/@home
39 27 0:40 /@log /var/log rw - btrfs /dev/vdb rw,subvol=/@log
40 27 0:41 / /srv/a rw - tmpfs tmpfs rw
41 27 0:42 / /srv/b rw - tmpfs tmpfs rw
"""


async def test_mounts_of_one_file_system(mountinfo: Path) -> None:
    """Mounts of one file system are told apart by their folder, and one says how full it is."""
    mountinfo.write_text(BOUND)  # noqa: ASYNC240 -- nothing else runs
    disk = Disk()
    disk.used = dict.fromkeys(("/", "/var/www", "/mnt/again"), 97.0)
    async with watched(mountinfo, disk) as host:
        root = await host.until_shown("mounts/mount//", used_percent=97)
        assert not {"root", "same_file_system_as"} & root.keys()
        www = await host.until_shown("mounts/mount//var/www", root="/srv/data")
        assert www["same_file_system_as"] == "/"
        assert www["description"] == "folder /srv/data of the file system as at /"
        again = await host.until_shown("mounts/mount//mnt/again", same_file_system_as="/")
        home = await host.until_shown("mounts/mount//home", root="/@home", used_percent=50)
        log = await host.until_shown("mounts/mount//var/log", same_file_system_as="/home")
        assert not [
            found for found in (www, again, log) if {"used_percent", "size_gb"} & found.keys()
        ]
        assert "same_file_system_as" not in home
        # tmpfs has no device: each is a file system of its own
        for name in ("a", "b"):
            await host.until_shown(f"mounts/mount//srv/{name}", used_percent=50)
        shown = {name: await host.properties(name) for name in host.names}
        assert [n for n in shown if shown[n].get("used_percent", 0) > 90] == ["mounts/mount//"]


async def test_bind_mounts_of_systemd(mountinfo: Path, system_bus: str) -> None:
    """Units do not say which folder they show: that is read where we see the same mount."""
    bound = "36 27 254:0 /srv/data /var/www rw - ext4 /dev/root rw\n"
    private = "37 27 0:50 /systemd-private-1-x/tmp /tmp rw - tmpfs tmpfs rw\n"
    shown = INFO.replace("ext4 /dev/vda", "ext4 /dev/root") + bound + private
    mountinfo.write_text(shown)  # noqa: ASYNC240 -- nothing else runs
    disk = Disk()
    disk.faults["/"] = UnreachableMount()
    async with systemd(system_bus) as service, watched(mountinfo, disk) as host:
        service.properties[f"{PATH}/unit/www"] = unit("/var/www", "/dev/vda", "ext4")
        service.properties[f"{PATH}/unit/tmp"] = unit("/tmp", "tmpfs", "tmpfs")  # noqa: S108
        for name in ("www", "tmp"):
            path = f"{PATH}/unit/{name}"
            service.signal(PATH, f"{MANAGER}.UnitNew", "so", f"{name}.mount", path)
        # of the two that of which it is known says how full
        www = await host.until_shown("mounts/mount//var/www", root="/srv/data", used_percent=50)
        assert "same_file_system_as" not in www
        await host.until_shown("mounts/mount//", same_file_system_as="/var/www")
        assert "root" not in await host.until_shown("mounts/mount//tmp", used_percent=50)


def test_places_with_any_character() -> None:
    """The kernel escapes some characters, and all others are part of a name; odd lines are none."""
    odd = "/mnt/vt\x0bff\x0cnel\x85ls\u2028nbsp\xa0cr\rfs\x1c"
    skipped = Skipped()
    line = f"41 27 0:42 / {odd}\\040\\011\\012\\134\\043 rw - ext4 /dev/x\x0by rw\n"
    (mount,) = parse_mountinfo(line, skipped=skipped).values()
    assert (mount.path, mount.source) == (f"{odd} \t\n\\#", "/dev/x\x0by")
    assert skipped.sentence == ""
    assert [mount.path for mount in parse_mountinfo(INFO).values()][-1] == "/media/stick"
    assert parse_mountinfo("- \n\0\n1 - a\n99 1 0:1 / / rw\n") == {}
