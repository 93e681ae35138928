"""Name and features of the processor, and the processors this process may use."""

import math
import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from opdbus.platform.lines import split_lines, split_words, strip_blanks

# The CPU features that make a number format faster than fp32, under Linux's names.
BF16: Final = frozenset({"amx_bf16", "avx512_bf16"})
INT8: Final = frozenset({"amx_int8", "avx512_vnni", "avx_vnni"})
INT8_ARM: Final = frozenset({"asimddp", "i8mm"})


def usable(root: Path = Path("/")) -> int:
    """Count the processors that affinity and cgroup quota (v1 or v2) allow, at least 1."""
    most = quota(root)
    return max(1, min(allowed(), math.ceil(most) if most else allowed()))


def allowed() -> int:
    """Count the processors that affinity allows; all, if the system has no affinity."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def features(root: Path = Path("/")) -> frozenset[str]:
    """Return the processor's features under Linux's names: avx512_vnni, amx_bf16, ...

    If they cannot be read (not Linux, /proc hidden) the set is empty, and fp32 is used.
    """
    return frozenset(split_words(_read_cpuinfo(root, "flags", "features")))


@cache
def name(root: Path = Path("/")) -> str:
    """Return the processor's name as its maker writes it."""
    return _read_cpuinfo(root, "model name") or platform.processor() or platform.machine()


def _read_cpuinfo(root: Path, *keys: str) -> str:
    """Return the first value of /proc/cpuinfo under one of the keys, empty if there is none."""
    try:
        text = (root / "proc/cpuinfo").read_bytes().decode(errors="replace")
    except OSError:
        return ""
    pairs = (line.partition(":") for line in split_lines(text))
    named = ((strip_blanks(key).lower(), strip_blanks(value)) for key, _, value in pairs)
    return next((value for key, value in named if key in keys), "")


def quota(root: Path) -> float | None:
    """Return the smallest CPU quota of this process's cgroups and their parents, in processors."""
    try:
        text = os.fsdecode((root / "proc/self/cgroup").read_bytes())
    except (OSError, ValueError):
        return None
    quotas = []
    for line in split_lines(text):
        # A line is HIERARCHY:CONTROLLERS:GROUP.
        _, _, rest = line.partition(":")
        controllers, colon, group = rest.partition(":")
        if not colon:
            continue
        if controllers == "":
            # no quota is written as "max"
            quotas += _find_quotas(root / "sys/fs/cgroup", group, "cpu.max")
        elif "cpu" in controllers.split(","):
            # no quota is written as -1
            files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quotas += _find_quotas(root / "sys/fs/cgroup/cpu", group, *files)
    return min(quotas, default=None)


def _find_quotas(mount: Path, group: str, *files: str) -> list[float]:
    """Read quota and period of a cgroup and its parents from files, as processors.

    Inside a container the cgroup's own path may not exist below the mount; the mount's root does.
    """
    found = []
    own = mount / group.strip("/")
    for folder in (own, *own.parents):
        if folder == mount or mount in folder.parents:
            with suppress(OSError, ValueError, ZeroDivisionError):
                texts = [(folder / file).read_text() for file in files]
                quota, period = map(int, split_words(" ".join(texts)))
                found.append(quota / period)
    return [each for each in found if each > 0]
