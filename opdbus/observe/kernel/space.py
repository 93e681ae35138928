"""How large and how full file systems are; one that does not answer delays no other."""

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

# A file system that takes longer does not answer.
ANSWER_SECONDS: Final = 3.0
# How full is rounded to steps, so that not every write is a change. A step is left when the real
# value is more than half a step and the margin away from it.
_STEP: Final = 5
_MARGIN: Final = 1.0
# Less than this is not full: nothing is rounded up to 100%.
_FULL: Final = 99.5
# Inodes are shown only where they are about to run out.
_MANY_INODES: Final = 80
# Images that are made full.
_IMAGES: Final = frozenset("squashfs erofs iso9660 udf cramfs".split())
# The file system itself fails, in contrast to a place that may not be looked at.
_FAULTS: Final = frozenset({errno.EIO, errno.ESTALE, errno.ENOTCONN, errno.EHOSTDOWN})


class Space(NamedTuple):
    """The bytes that a file system has, and what is used of it and of its inodes in percent."""

    size: int
    used: float
    inodes_used: float


class UnreachableMount(Exception):
    """What we see at a place is not what is mounted there on the host."""


# Measures a mount; the other argument is what we see mounted, by the ids of the mounts.
Measure: TypeAlias = Callable[[Mount, Mapping[int, Mount]], Space]


def measure(mount: Mount, seen: Mapping[int, Mount]) -> Space:
    """Measure a file system; raises OSError, and Hidden where a sandbox shows another one."""
    # what is mounted at a place may change between two calls: both are of one descriptor
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
        # as in `df`: what is reserved for root is neither used nor free
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
    """Measures mounts; `told` is what was told of each last, whose steps it keeps."""

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
        # paths that have not answered yet, perhaps never will: only one thread waits for each
        self._asked: set[str] = set()

    async def read(self, mounts: Iterable[Mount]) -> dict[str, Mapping[str, Json]]:
        """Return what was measured of each mount, by its path."""
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
            return {}  # some servers do not tell
        told = self._told.get(mount.path, {})
        facts: dict[str, Json] = {"size_gb": _gigabytes(found.size)}
        if mount.fstype not in _IMAGES:
            facts["used_percent"] = _step(found.used, told.get("used_percent"))
        if found.inodes_used >= _MANY_INODES:
            facts["inodes_used_percent"] = _step(found.inodes_used, told.get("inodes_used_percent"))
        return facts


def _step(used: float, before: Json) -> int:
    """Return the closest step; that of before as long as it is nearly as close."""
    if used >= (_FULL - _MARGIN if before == 100 else _FULL):
        return 100
    if isinstance(before, int) and before != 100 and abs(used - before) <= _STEP / 2 + _MARGIN:
        return before
    return min(_STEP * round(used / _STEP), 100 - _STEP)


def _gigabytes(size: int) -> float:
    number = size / (1 << 30)
    return round(number, 2 if number < 1 else 1) if number < 10 else round(number)
