"""Observer of mounted file systems: their mount points, sizes and usage."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdbus.observe.core.report import Absent, Observer, Report
from opdbus.observe.kernel import space
from opdbus.observe.kernel.mounts import MAX_MOUNTS, Mount, SystemdMounts, seen_by_us
from opdbus.observe.systemd import pid1
from opdbus.platform import name_lists
from opdbus.platform.tasks import at_most, until_first_ends
from opdbus.state.object import Json

_MINUTE: Final = 60.0
# The shortest interval between measurements that failing units cause.
_FAILURES_SECONDS: Final = 5.0
# Mount points named in one status message.
_MAX_NAMED: Final = 3
_NETWORK: Final = frozenset(
    "nfs nfs4 cifs smb3 ceph glusterfs 9p virtiofs afs lustre beegfs ocfs2 gfs2 fuse.sshfs"
    " fuse.glusterfs fuse.ceph fuse.rclone fuse.s3fs".split()
)
_PURPOSES: Final = {
    "/": "root file system, holds the operating system",
    "/boot": "kernels and what starts them",
    "/boot/efi": "programs that the firmware starts",
    "/dev/shm": "memory that programs share",  # noqa: S108 -- observed, not written
    "/home": "home folders of people",
    "/run": "what services keep in memory while they run",
    "/srv": "what this host serves",
    "/tmp": "temporary files",  # noqa: S108 -- observed, not written
    "/var": "data, logs and caches of services",
    "/var/tmp": "temporary files that outlive a restart",  # noqa: S108 -- observed, not written
}


@dataclass(frozen=True, slots=True)
class FileSystems:
    """Observer of mounts and their usage; measures at each change and every `interval` seconds."""

    mountinfo: Path = Path("/proc/self/mountinfo")
    interval: float = _MINUTE
    patience: float = space.ANSWER_SECONDS
    measure: space.Measure = space.measure

    async def observe(self, report: Report) -> None:
        """Follow the mounts that systemd lists; without systemd, those that this process sees."""
        try:
            async with pid1.Pid1() as systemd:
                await self._follow(report, SystemdMounts(systemd, self.mountinfo, report).follow())
        except Absent:
            await self._follow(report, seen_by_us(self.mountinfo, report))

    async def _follow(self, report: Report, listings: AsyncGenerator[list[Mount]]) -> None:
        mounts: list[Mount] = []
        news = asyncio.Event()

        async def take() -> None:
            async with aclosing(listings):
                async for found in listings:
                    mounts[:] = [mount for mount in found if mount.has_files]
                    news.set()

        async def tell() -> None:
            # continue from the stored steps, so that a restart changes no rounded value
            told = await report.stored("mount")
            gauge = space.Gauge(self.mountinfo, self.patience, self.measure, told=told)
            await news.wait()
            while True:
                news.clear()
                listed = mounts[:MAX_MOUNTS]
                measured = await gauge.read(listed)
                report.replace("mount", _described(listed, measured))
                report.busy(_limits(measured))
                async with at_most(self.interval):
                    await news.wait()

        async def look_after_failures() -> None:
            # a full file system may be the reason why a unit has failed
            while True:
                await report.causes.has_failed.wait()
                report.causes.has_failed.clear()
                news.set()
                await asyncio.sleep(_FAILURES_SECONDS)

        await until_first_ends(take(), tell(), look_after_failures())


def _described(
    mounts: Sequence[Mount], measured: Mapping[str, Mapping[str, Json]]
) -> dict[str, dict[str, Json]]:
    """Return the facts of each mount; only one mount of a file system has the usage.

    The mount of the whole file system has it, or else the mount with the shortest path.
    """
    whole: dict[str, Mount] = {}
    # a sandbox may hide one mount of a file system: prefer one that was measured
    for mount in sorted(mounts, key=lambda m: ("size_gb" not in measured[m.path], *_rank(m))):
        whole.setdefault(_file_system(mount), mount)
    found = {}
    for mount in mounts:
        first = whole[_file_system(mount)]
        found[mount.path] = _facts(mount, first)
        if first.path == mount.path:
            found[mount.path] |= measured[mount.path]
    return found


def _file_system(mount: Mount) -> str:
    """Return a key that all mounts of one file system share."""
    if mount.device:
        return mount.device
    is_of_device = mount.source.startswith("/dev/") and mount.source != "/dev/root"
    return mount.source if is_of_device else f"mounted at {mount.path}"


def _rank(mount: Mount) -> tuple[bool, int, str]:
    return mount.root not in {"", "/"}, len(mount.path), mount.path


def _facts(mount: Mount, first: Mount) -> dict[str, Json]:
    """Return the facts of a mount; `first` is the mount that represents its file system."""
    description = mount.description or _PURPOSES.get(mount.path, "")
    part: dict[str, Json] = {"root": mount.root} if mount.root not in {"", "/"} else {}
    if first.path != mount.path:
        part["same_file_system_as"] = first.path
        folder = f"folder {mount.root} of the" if "root" in part else "the same"
        said = f"{folder} file system as at {first.path}"
        description = ", ".join(filter(None, [description, said]))
    return {
        **({"description": description} if description else {}),
        "source": mount.source,
        "fstype": mount.fstype,
        "options": mount.options,
        "read_only": "ro" in mount.options.split(","),
        "network": mount.fstype in _NETWORK,
        **part,
    }


def _limits(measured: Mapping[str, Mapping[str, Json]]) -> str:
    """Return a message that names the mounts that could not be measured, with the reasons."""
    places: dict[str, list[str]] = {}
    for path, facts in measured.items():
        if reason := facts.get("not_measured") or ("answers" in facts and "it does not answer"):
            places.setdefault(str(reason), []).append(path)
    said = [
        f"how full is not known of {name_lists.first(paths, _MAX_NAMED)}: {why}"
        for why, paths in places.items()
    ]
    if len(measured) >= MAX_MOUNTS:
        said.append(f"there are more than {MAX_MOUNTS:,} mounts: the rest is left out")
    return "; ".join(said)


OBSERVER: Final = Observer("filesystems", "mounts", FileSystems().observe)
