"""Sizes and usage of file systems; one that does not answer does not delay the others."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from opdbus.observe.core.file_reading import in_thread, text_of
from opdbus.observe.core.report import LostSource
from opdbus.observe.kernel.mounts import MAX_MOUNTS, Mount, is_same, parsed
from opdbus.platform.lines import split_lines, split_words
from opdbus.state.object import Json

# A file system that takes longer counts as unresponsive.
ANSWER_SECONDS: Final = 3.0
# Usage in percent is rounded to steps, so that not every write is a change. A step is kept until
# the value is more than half a step plus the margin away from it.
_STEP: Final = 5
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
    """The size of a file system in bytes, and the usage of blocks and inodes in percent."""

    size: int
    used: float
    inodes_used: float


class UnreachableMount(Exception):
    """A mount whose path shows another mount to this process, since a sandbox hides it."""


# Measures a mount. The mapping has the mounts that this process sees, by mount id.
Measure: TypeAlias = Callable[[Mount, Mapping[int, Mount]], Space]


def measure(mount: Mount, seen: Mapping[int, Mount]) -> Space:
    """Return the usage of a mount; raises OSError, and UnreachableMount if a sandbox hides it."""
    # one descriptor for both calls: the path may lead to another mount in between
    descriptor = os.open(mount.path, os.O_PATH | os.O_CLOEXEC)
    try:
        shown = seen.get(_mount_id(descriptor))
        if shown is None or not is_same(mount, shown):
            raise UnreachableMount
        found = os.statvfs(descriptor)
    finally:
        os.close(descriptor)
    used = found.f_blocks - found.f_bfree
    return Space(
        found.f_blocks * found.f_frsize,
        # as in `df`: blocks reserved for root are neither used nor free
        _percent(used, used + found.f_bavail),
        _percent(found.f_files - found.f_ffree, found.f_files),
    )


def _mount_id(descriptor: int) -> int:
    text = text_of(Path(f"/proc/self/fdinfo/{descriptor}"))
    rows = map(split_words, split_lines(text))
    return next((int(words[1]) for words in rows if words[:1] == ["mnt_id:"]), -1)


def _percent(part: int, whole: int) -> float:
    return 100.0 * part / whole if whole > 0 else 0.0


class Gauge:
    """Usage meter of mounts; `told` has the facts last reported by path, whose rounding is kept."""

    def __init__(
        self,
        mountinfo: Path,
        seconds: float = ANSWER_SECONDS,
        measure: Measure = measure,
        *,
        told: Mapping[str, Mapping[str, Json]] = {},
    ) -> None:
        self._mountinfo = mountinfo
        self._seconds = seconds
        self._measure = measure
        self._told = told
        # paths without an answer yet: each blocks at most one thread, perhaps for ever
        self._asked: set[str] = set()

    async def read(self, mounts: Iterable[Mount]) -> dict[str, Mapping[str, Json]]:
        """Return the facts of each mount by path; never waits longer than `seconds` for one."""
        wanted = {mount.path: mount for mount in mounts}
        seen = parsed(await in_thread(lambda: text_of(self._mountinfo)))
        measured = await asyncio.gather(*(self._one(mount, seen) for mount in wanted.values()))
        found = dict(zip(wanted, measured, strict=True))
        self._told = {
            path: facts if "size_gb" in facts else self._told.get(path, {})
            for path, facts in found.items()
        }
        return found

    async def _one(self, mount: Mount, seen: Mapping[int, Mount]) -> Mapping[str, Json]:
        if mount.path in self._asked:
            return {"answers": False}
        self._asked.add(mount.path)

        def work() -> Space:
            try:
                return self._measure(mount, seen)
            finally:
                self._asked.discard(mount.path)

        try:
            return self._facts(mount, await in_thread(work, self._seconds, most=MAX_MOUNTS))
        except LostSource:
            return {"answers": False}
        except UnreachableMount:
            return {"not_measured": "the sandbox of op-dbus hides it"}
        except OSError as error:
            if error.errno in _FAULTS:
                return {"answers": False}
            return {"not_measured": f"op-dbus may not look: {error.strerror}"}

    def _facts(self, mount: Mount, found: Space) -> Mapping[str, Json]:
        if not found.size:
            return {}  # some file servers report no size
        told = self._told.get(mount.path, {})
        facts: dict[str, Json] = {"size_gb": _gigabytes(found.size)}
        if mount.fstype not in _IMAGES:
            facts["used_percent"] = _step(found.used, told.get("used_percent"))
        if found.inodes_used >= _MANY_INODES:
            facts["inodes_used_percent"] = _step(found.inodes_used, told.get("inodes_used_percent"))
        return facts


def _step(used: float, before: Json) -> int:
    """Return usage rounded to a step; the step before is kept while it is within the margin."""
    if used >= (_FULL - _MARGIN if before == 100 else _FULL):
        return 100
    if isinstance(before, int) and before != 100 and abs(used - before) <= _STEP / 2 + _MARGIN:
        return before
    return min(_STEP * round(used / _STEP), 100 - _STEP)


def _gigabytes(size: int) -> float:
    number = size / (1 << 30)
    return round(number, 2 if number < 1 else 1) if number < 10 else round(number)
