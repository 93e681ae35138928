"""Lists of mounted file systems, from systemd or from /proc/self/mountinfo."""

import re
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.observe.core.file_reading import changes_of_kernel, in_thread, text_of
from opdbus.observe.core.report import Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.systemd import pid1
from opdbus.observe.systemd.pid1 import Pid1
from opdbus.platform.lines import split_lines

_MOUNT: Final = f"{pid1.NAME}.Mount"
_SUFFIX: Final = ".mount"
# Mounted by systemd before all else; they have no units.
_EARLY: Final = ("/run", "/dev/shm")  # noqa: S108 -- observed, not written
# File systems that are interfaces of the kernel or of programs and hold no files.
_NO_FILES: Final = frozenset(
    "autofs bdev binfmt_misc bpf cgroup cgroup2 configfs debugfs devpts devtmpfs efivarfs fusectl"
    " fuse.gvfsd-fuse fuse.lxcfs fuse.portal fuse.snapfuse hugetlbfs mqueue nsfs proc pstore ramfs"
    " rpc_pipefs securityfs selinuxfs smackfs sysfs tracefs".split()
)
# Types that containers and services mount for themselves, and the folders where they do.
_OWN_KINDS: Final = frozenset({"overlay", "tmpfs"})
_OWN_FOLDERS: Final = re.compile(
    r"/(run|dev|sys|proc|var/lib/(containerd|containers|docker|incus|kubelet|lxc|lxd|rancher))/"
)
_OWN_TEMPORARY: Final = "/systemd-private-"
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
# A host with containers may have thousands of bind mounts.
MAX_MOUNTS: Final = 1000


class Mount(NamedTuple):
    """A mounted file system; the options are the host's, not those of this service's sandbox."""

    path: str
    source: str
    fstype: str
    options: str
    description: str = ""
    # the folder of the file system that is mounted, and the device's number (`major:minor`)
    root: str = ""
    device: str = ""

    @property
    def has_files(self) -> bool:
        """Return whether the mount holds files of the host and is not private to a service."""
        if self.fstype in _NO_FILES or not self.path.startswith("/"):
            return False
        is_own = self.fstype in _OWN_KINDS and _OWN_FOLDERS.match(self.path)
        return self.path in _EARLY or not is_own

    @property
    def file_system(self) -> str:
        """Return a key that all mounts of one file system share."""
        if self.device:
            return self.device
        is_of_device = self.source.startswith("/dev/") and self.source != "/dev/root"
        return self.source if is_of_device else f"mounted at {self.path}"


def parse_mountinfo(
    mountinfo: str,
    *,
    of_superblock: bool = False,
    path: Path = Path("/proc/self/mountinfo"),
    skipped: Skipped | None = None,
) -> dict[int, Mount]:
    """Return the mounts of a mountinfo file by mount id, in order.

    `of_superblock` leaves out the options of the mount point, which in a sandbox are the sandbox's.
    """
    found = {}
    for line_number, line in enumerate(split_lines(mountinfo), 1):
        before, _, after = line.partition(" - ")
        match before.split(" "), after.split(" "):
            case [number, _, device, root, place, own, *_], [fstype, source, *rest] if (
                number.isascii() and number.isdecimal()
            ):
                options = [] if of_superblock else own.split(",")
                options += rest[0].split(",") if rest else []
                text = ",".join(dict.fromkeys(options))
                mount = Mount(_unescape(place), _unescape(source), fstype, text)
                found[int(number)] = mount._replace(root=_unescape(root), device=device)
            case _ if skipped:
                skipped.line(path, line_number)
    return found


async def follow_mountinfo(mountinfo: Path, report: Report) -> AsyncGenerator[list[Mount]]:
    """Yield the mounts that this process sees, at once and after each change."""
    async for _ in changes_of_kernel(mountinfo):
        skipped = Skipped()
        text = await in_thread(partial(text_of, mountinfo, skipped=skipped))
        found = parse_mountinfo(text, path=mountinfo, skipped=skipped)
        report.skip("mount", skipped)
        # of several mounts on one path, the last hides the others
        yield list({mount.path: mount for mount in found.values()}.values())


class SystemdMounts:
    """The mounts that systemd lists.

    A service sees its own mounts, most of them read-only; systemd sees those of the host.
    """

    def __init__(self, systemd: Pid1, mountinfo: Path, report: Report) -> None:
        self._systemd = systemd
        self._report = report
        self._mountinfo = mountinfo
        # by the D-Bus path of the unit
        self._known: dict[str, Mount] = {}

    async def follow(self) -> AsyncGenerator[list[Mount]]:
        """Yield the mounts, at once and after each change."""
        listed = map(pid1.of_manager, ("UnitNew", "UnitRemoved"))
        await self._systemd.subscribe(*listed, f"member='PropertiesChanged',arg0='{_MOUNT}'")
        yield await self._list()
        async for burst in self._systemd.bursts():
            if any(
                signal.member == "PropertiesChanged" or str(*signal.body[:1]).endswith(_SUFFIX)
                for signal in burst
            ):
                for signal in burst:
                    self._known.pop(signal.path, None)
                yield await self._list()

    async def _list(self) -> list[Mount]:
        """Return the active mounts; reads new units only: reading an unloaded unit loads it."""
        units = (await self._systemd.active([f"*{_SUFFIX}"]))[:MAX_MOUNTS]
        there_are = {unit.path for unit in units}
        self._known = {path: mount for path, mount in self._known.items() if path in there_are}
        for unit in units:
            if unit.path not in self._known and (
                values := await self._systemd.unit_properties(unit, _MOUNT)
            ):
                path, source, fstype, options = (
                    str(values.get(key, "")) for key in ("Where", "What", "Type", "Options")
                )
                # systemd describes a mount by its path unless the unit has a description
                description = "" if unit.description == path else unit.description
                self._known[unit.path] = Mount(path, source, fstype, options, description)
        skipped = Skipped()
        text = await in_thread(partial(text_of, self._mountinfo, skipped=skipped))
        seen = parse_mountinfo(text, of_superblock=True, path=self._mountinfo, skipped=skipped)
        self._report.skip("mount", skipped)
        places = {(mount.path, mount.fstype): mount for mount in seen.values()}
        listed: list[Mount] = []
        for mount in self._known.values():
            same = places.get((mount.path, mount.fstype))
            if same and is_same(mount, same):
                # a service with PrivateTmp sees another folder of the same file system
                root = "" if _OWN_TEMPORARY in same.root else same.root
                listed.append(mount._replace(root=root, device=same.device))
            else:
                listed.append(mount)
        return [*listed, *(mount for mount in seen.values() if mount.path in _EARLY)]


def is_same(mount: Mount, seen: Mount) -> bool:
    """Return whether a mount of systemd and one that this process sees show one file system."""
    # the kernel lists the root file system as /dev/root; systemd names the device
    return seen.fstype == mount.fstype and seen.source in {mount.source, "/dev/root"}


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), text)
