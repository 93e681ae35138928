"""File systems: where they are mounted, how large they are, and how full."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opdbus import listing
from opdbus.observe import pid1, space
from opdbus.observe.mounts import MAX_MOUNTS, Mount, SystemdMounts, seen_by_us
from opdbus.observe.report import Absent, Observer, Report
from opdbus.state.object import Json
from opdbus.tasks import at_most, until_first_ends

_MINUTE: Final = 60.0
# Places that are named in the status.
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
    """Observes what is mounted, and at intervals how full it is."""

    mountinfo: Path = Path("/proc/self/mountinfo")
    interval: float = _MINUTE
    patience: float = space.ANSWER_SECONDS
    measure: space.Measure = space.measure

    async def observe(self, report: Report) -> None:
        """Follow the mounts of systemd, or without it those that this process sees."""
        try:
            async with pid1.connected() as systemd:
                await self._follow(report, SystemdMounts(systemd, self.mountinfo).follow())
        except Absent:
            await self._follow(report, seen_by_us(self.mountinfo))

    async def _follow(self, report: Report, listings: AsyncGenerator[list[Mount]]) -> None:
        mounts: list[Mount] = []
        news = asyncio.Event()

        async def take() -> None:
            async with aclosing(listings):
                async for found in listings:
                    mounts[:] = [mount for mount in found if mount.has_files]
                    news.set()

        async def tell() -> None:
            # a restart rounds nothing anew
            told = await report.stored("mount")
            gauge = space.Gauge(self.mountinfo, self.patience, self.measure, told=told)
            await news.wait()
            while True:
                news.clear()
                listed = mounts[:MAX_MOUNTS]
                measured = await gauge.read(listed)
                report.replace("mount", {m.path: {**_facts(m), **measured[m.path]} for m in listed})
                report.busy(_limits(measured))
                async with at_most(self.interval):
                    await news.wait()

        await until_first_ends(take(), tell())


def _facts(mount: Mount) -> dict[str, Json]:
    description = mount.description or _PURPOSES.get(mount.path, "")
    return {
        **({"description": description} if description else {}),
        "source": mount.source,
        "fstype": mount.fstype,
        "options": mount.options,
        "read_only": "ro" in mount.options.split(","),
        "network": mount.fstype in _NETWORK,
    }


def _limits(measured: Mapping[str, Mapping[str, Json]]) -> str:
    """Name the mounts that could not be measured, and say why."""
    places: dict[str, list[str]] = {}
    for path, facts in measured.items():
        if reason := facts.get("not_measured") or ("answers" in facts and "it does not answer"):
            places.setdefault(str(reason), []).append(path)
    said = [
        f"how full is not known of {listing.first(paths, _MAX_NAMED)}: {why}"
        for why, paths in places.items()
    ]
    if len(measured) >= MAX_MOUNTS:
        said.append(f"there are more than {MAX_MOUNTS:,} mounts: the rest is left out")
    return "; ".join(said)


OBSERVER: Final = Observer("filesystems", "mounts", FileSystems().observe)
