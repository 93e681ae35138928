"""How many processors this process may really use: its affinity, and its cgroup's quota."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def usable(root: Path = Path("/")) -> int:
    """Count the processors that affinity and cgroup quota (v1 or v2) leave us, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = _quota(root)
    return max(1, min(allowed or 1, math.ceil(quota) if quota else allowed or 1))


def _quota(root: Path) -> float | None:
    """Give the smallest CPU quota of our cgroups and those above them, in processors."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    quotas = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            quotas += _upwards(root / "sys/fs/cgroup", group, _v2)
        elif "cpu" in controllers.split(","):
            quotas += _upwards(root / "sys/fs/cgroup/cpu", group, _v1)
    return min(quotas, default=None)


def _upwards(mount: Path, group: str, read: Callable[[Path], float | None]) -> list[float]:
    """Read the quota of a group and of each one above it: the tightest counts.

    Inside a container the group's own path may not exist below the mount; its root does.
    """
    folders = [mount / group.strip("/"), *(mount / group.strip("/")).parents]
    inside = [folder for folder in folders if folder == mount or mount in folder.parents]
    found = [read(folder) for folder in inside]
    return [quota for quota in found if quota]


def _v2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError):
        return None
