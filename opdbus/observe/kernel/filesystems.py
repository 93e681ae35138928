"""Observer of mounted file systems: their mount points, sizes and usage."""

import asyncio
import errno
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from opdbus.history.change import Cause
from opdbus.observe.core.file_reading import in_thread, text_of
from opdbus.observe.core.report import Absent, LostSource, Observer, Report
from opdbus.observe.kernel.mounts import (
    MAX_MOUNTS,
    Mount,
    SystemdMounts,
    follow_mountinfo,
    is_same,
    parse_mountinfo,
)
from opdbus.observe.systemd import pid1
from opdbus.platform import name_lists
from opdbus.platform.lines import split_lines, split_words
from opdbus.platform.tasks import at_most, until_first_ends
from opdbus.state.object import Json

_MINUTE: Final = 60.0
# The shortest interval between measurements that failing units cause.
_FAILURES_SECONDS: Final = 5.0
# Mount points named in one status message.
_MAX_NAMED: Final = 3
# Types whose files are elsewhere, also with `fuse.` before them.
_NETWORK: Final = frozenset(
    "9p acdfuse acfs afpfs afs alluxio alluxio-fuse auristorfs beegfs blobfuse blobfuse2 ceph"
    " ceph-fuse cifs coda cosfs cubefs curlftpfs cvmfs cvmfs2 daos davfs davfs2 dfuse eosxd"
    " fuse_dfs gcsfuse geesefs gfs gfs2 glusterfs google-drive-ocamlfuse goofys gpfs hdfs"
    " httpdirfs hubicfuse ipfs irodsfs juicefs kbfs lizardfs lustre mfs moosefs mount-s3"
    " mountpoint-s3 ncp ncpfs nfs nfs4 objectivefs ocfs2 oneclient onedriver orangefs ossfs panfs"
    " pcloud plexdrive prl_fs pvfs2 pvfs2fuse quobyte rbd-fuse rclone s3backer s3fs s3ql seaweedfs"
    " smb3 smbfs smbnetfs sshfs svfs tigrisfs vboxsf virtiofs vmhgfs vmhgfs-fuse weed wekafs"
    " xrootdfs yas3fs".split()
)
# Sources on other hosts: an address, a share, a folder of a host.
_REMOTE: Final = re.compile(r"[a-z][a-z0-9+.-]*://|//|[^/: ]+:/", re.ASCII)
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

# A file system that takes longer counts as unresponsive.
ANSWER_SECONDS: Final = 3.0
# A change of usage within a step is no row of history. A step is kept until the value is more than
# half a step plus the margin away from it.
_STEP: Final = 5
_USED: Final = ("used_percent", "inodes_used_percent")
_MARGIN: Final = 1.0
# From this percentage on, a file system is reported as 100% used. Less is never rounded up to 100%.
_FULL: Final = 99.5
# Inode usage in percent from which it is reported.
_MANY_INODES: Final = 80
# Read-only images are always full.
_IMAGES: Final = frozenset("squashfs erofs iso9660 udf cramfs".split())
# Errors of the file system itself, in contrast to denied access.
_FAULTS: Final = frozenset({errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN})


class Space(NamedTuple):
    """The size of a file system in bytes, and the usage of blocks and inodes in percent.

    `free` are the bytes that others than root may still write.
    """

    size: int
    used: float
    inodes_used: float
    free: int = 0


class UnreachableMount(Exception):
    """A mount whose path shows another mount to this process, since a sandbox hides it."""


# Measures a mount. The mapping has the mounts that this process sees, by mount id.
Measure: TypeAlias = Callable[[Mount, Mapping[int, Mount]], Space]


def measure_space(mount: Mount, seen: Mapping[int, Mount]) -> Space:
    """Return the usage of a mount; raises OSError, and UnreachableMount if a sandbox hides it."""
    # one descriptor for both calls: the path may lead to another mount in between
    descriptor = os.open(mount.path, os.O_PATH | os.O_CLOEXEC)
    try:
        text = text_of(Path(f"/proc/self/fdinfo/{descriptor}"))
        rows = map(split_words, split_lines(text))
        mount_id = next((int(words[1]) for words in rows if words[:1] == ["mnt_id:"]), -1)
        if mount_id not in seen or not is_same(mount, seen[mount_id]):
            raise UnreachableMount
        found = os.statvfs(descriptor)
    finally:
        os.close(descriptor)
    used = found.f_blocks - found.f_bfree
    # as in `df`: blocks reserved for root are neither used nor free
    usable = used + found.f_bavail
    inodes_used = found.f_files - found.f_ffree
    return Space(
        found.f_blocks * found.f_frsize,
        100.0 * used / usable if usable > 0 else 0.0,
        100.0 * inodes_used / found.f_files if found.f_files > 0 else 0.0,
        found.f_bavail * found.f_frsize,
    )


class Gauge:
    """Usage meter of mounts; keeps the steps of usage, at first of facts `shown` by path."""

    def __init__(
        self,
        mountinfo: Path,
        seconds: float = ANSWER_SECONDS,
        measure: Measure = measure_space,
        *,
        shown: Mapping[str, Mapping[str, Json]] = {},
    ) -> None:
        self._mountinfo = mountinfo
        self._seconds = seconds
        self._measure = measure
        self._steps = {path: _steps(facts, {}) for path, facts in shown.items()}
        # the fields of each path that have moved within a step since the last reading
        self.within_step: dict[str, frozenset[str]] = {}
        # paths without an answer yet: each blocks at most one thread, perhaps for ever
        self._pending: set[str] = set()

    async def read(self, mounts: Iterable[Mount]) -> dict[str, Mapping[str, Json]]:
        """Return the facts of each mount by path; never waits longer than `seconds` for one."""
        wanted = {mount.path: mount for mount in mounts}
        seen = parse_mountinfo(await in_thread(lambda: text_of(self._mountinfo)))
        measured = await asyncio.gather(*(self._read_one(each, seen) for each in wanted.values()))
        found = dict(zip(wanted, measured, strict=True))
        before = self._steps
        self._steps = {
            path: _steps(facts, before.get(path, {}))
            if "size_gb" in facts
            else before.get(path, {})
            for path, facts in found.items()
        }
        self.within_step = {
            path: frozenset(key for key, _ in steps.items() & before.get(path, {}).items())
            for path, steps in self._steps.items()
        }
        return found

    async def _read_one(self, mount: Mount, seen: Mapping[int, Mount]) -> Mapping[str, Json]:
        if mount.path in self._pending:
            return {"answers": False}
        self._pending.add(mount.path)

        def work() -> Space:
            try:
                return self._measure(mount, seen)
            finally:
                self._pending.discard(mount.path)

        try:
            found = await in_thread(work, self._seconds, most=MAX_MOUNTS)
        except LostSource:
            return {"answers": False}
        except UnreachableMount:
            return {"not_measured": "the sandbox of op-dbus hides it"}
        except OSError as error:
            if error.errno in _FAULTS:
                return {"answers": False}
            return {"not_measured": f"op-dbus may not look: {error.strerror}"}
        if not found.size:
            return {}  # some file servers report no size
        size = found.size / (1 << 30)
        facts: dict[str, Json] = {
            "size_gb": round(size) if size >= 10 else round(size, 2 if size < 1 else 1)
        }
        # as in `df`, which never rounds down
        if mount.fstype not in _IMAGES:
            facts |= {"used_percent": ceil(found.used), "free_bytes": found.free}
        if found.inodes_used >= _MANY_INODES:
            facts["inodes_used_percent"] = ceil(found.inodes_used)
        return facts


def _steps(facts: Mapping[str, Json], before: Mapping[str, int]) -> dict[str, int]:
    """Return the steps of the fields that say how full a file system is."""
    found = {key: facts.get(key) for key in _USED}
    return {
        key: _round_usage(used, before.get(key))
        for key, used in found.items()
        if isinstance(used, int)
    }


def _round_usage(used: float, before: int | None) -> int:
    """Return usage rounded to a step; the step before is kept while it is within the margin."""
    if used >= (_FULL - _MARGIN if before == 100 else _FULL):
        return 100
    if before is not None and before != 100 and abs(used - before) <= _STEP / 2 + _MARGIN:
        return before
    return min(_STEP * round(used / _STEP), 100 - _STEP)


@dataclass(frozen=True, slots=True)
class FileSystems:
    """Observer of mounts and their usage; measures at each change and every `interval` seconds."""

    mountinfo: Path = Path("/proc/self/mountinfo")
    interval: float = _MINUTE
    patience: float = ANSWER_SECONDS
    measure: Measure = measure_space

    async def observe(self, report: Report) -> None:
        """Follow the mounts that systemd lists; without systemd, those that this process sees."""
        try:
            async with pid1.Pid1() as systemd:
                await self._follow(report, SystemdMounts(systemd, self.mountinfo, report).follow())
        except Absent:
            await self._follow(report, follow_mountinfo(self.mountinfo, report))

    async def _follow(self, report: Report, listings: AsyncGenerator[list[Mount]]) -> None:
        mounts: list[Mount] = []
        news = asyncio.Event()

        async def take() -> None:
            async with aclosing(listings):
                async for found in listings:
                    mounts[:] = [mount for mount in found if mount.has_files]
                    news.set()

        async def measure_and_report() -> None:
            # continue from the stored steps, so that a restart changes no rounded value
            shown = await report.stored("mount")
            gauge = Gauge(self.mountinfo, self.patience, self.measure, shown=shown)
            await news.wait()
            while True:
                news.clear()
                listed = mounts[:MAX_MOUNTS]
                measured = await gauge.read(listed)
                described = _describe(listed, measured)
                for path in described.keys() & report.names("mount"):
                    # one that waits may have passed a step
                    if not report.is_waiting("mount", path):
                        moved = Cause(ignored_fields=gauge.within_step.get(path, frozenset()))
                        report.put("mount", path, described[path], moved)
                report.replace("mount", described)
                report.busy(_limits(measured))
                async with at_most(self.interval):
                    await news.wait()

        async def measure_after_failures() -> None:
            # a full file system may be the reason why a unit has failed
            while True:
                await report.causes.has_failed.wait()
                report.causes.has_failed.clear()
                news.set()
                await asyncio.sleep(_FAILURES_SECONDS)

        await until_first_ends(take(), measure_and_report(), measure_after_failures())


def _describe(
    mounts: Sequence[Mount], measured: Mapping[str, Mapping[str, Json]]
) -> dict[str, dict[str, Json]]:
    """Return the facts of each mount; only one mount of a file system has the usage.

    The mount of the whole file system has it, or else the mount with the shortest path.
    """

    def rank(mount: Mount) -> tuple[bool, bool, int, str]:
        # a sandbox may hide one mount of a file system: prefer one that was measured
        is_part = mount.root not in {"", "/"}
        return "size_gb" not in measured[mount.path], is_part, len(mount.path), mount.path

    whole: dict[str, Mount] = {}
    for mount in sorted(mounts, key=rank):
        whole.setdefault(mount.file_system, mount)
    found: dict[str, dict[str, Json]] = {}
    for mount in mounts:
        first = whole[mount.file_system].path
        description = mount.description or _PURPOSES.get(mount.path, "")
        part: dict[str, Json] = {"root": mount.root} if mount.root not in {"", "/"} else {}
        if first != mount.path:
            folder = f"folder {mount.root} of the" if part else "the same"
            part["same_file_system_as"] = first
            words = [description, f"{folder} file system as at {first}"]
            description = ", ".join(filter(None, words))
        found[mount.path] = {
            **({"description": description} if description else {}),
            "source": mount.source,
            "fstype": mount.fstype,
            "options": mount.options,
            "read_only": "ro" in mount.options.split(","),
            "network": _is_network(mount),
            **part,
            **(measured[mount.path] if first == mount.path else {}),
        }
    return found


def _is_network(mount: Mount) -> bool:
    """Return whether the files of a mount are on other hosts, by its type, options and source."""
    is_marked = "_netdev" in mount.options.split(",")
    is_remote = _REMOTE.match(mount.source) is not None
    # a program that gives FUSE no type of its own is the source
    program = mount.source if mount.fstype == "fuse" else mount.fstype.removeprefix("fuse.")
    return program.lower() in _NETWORK or is_marked or is_remote


def _limits(measured: Mapping[str, Mapping[str, Json]]) -> str:
    """Return a message that names the mounts that could not be measured, with the reasons."""
    places: dict[str, list[str]] = {}
    for path, facts in measured.items():
        if reason := facts.get("not_measured") or ("answers" in facts and "it does not answer"):
            places.setdefault(str(reason), []).append(path)
    limits = [
        f"how full is not known of {name_lists.join_first(paths, _MAX_NAMED)}: {why}"
        for why, paths in places.items()
    ]
    if len(measured) >= MAX_MOUNTS:
        limits.append(f"there are more than {MAX_MOUNTS:,} mounts: the rest is left out")
    return "; ".join(limits)


OBSERVER: Final = Observer(
    "filesystems",
    "mounts",
    FileSystems().observe,
    {"mount": frozenset({"free_bytes"})},
    polled=frozenset({"mount"}),
)
