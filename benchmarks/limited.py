"""A process and its children under a limit of memory, page cache included, by a control group."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Self

_ROOT: Final = Path("/sys/fs/cgroup")


class Limited:
    """A control group with `MemoryMax`, as systemd makes one; without a limit, no group.

    Needs root. `starter` is what a program is started by to be in it.
    """

    def __init__(self, most: str) -> None:
        self._group = _own() / f"op-dbus-{os.getpid()}" if most else None
        self._most = most

    def __enter__(self) -> Self:
        """Make the group."""
        if self._group:
            self._group.mkdir()
            self._file("limit_in_bytes", "max").write_text(self._most)
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it; all that ran in it has ended."""
        if self._group:
            self._group.rmdir()

    @property
    def starter(self) -> tuple[str, ...]:
        """What comes before a command."""
        if not self._group:
            return ()
        return "sh", "-c", f'echo $$ > {self._group}/cgroup.procs; exec "$@"', "sh"

    def figures(self) -> dict[str, float]:
        """Give the most that was used, the page cache included, and how often that was too much."""
        if not self._group:
            return {}
        used = int(self._file("max_usage_in_bytes", "peak").read_text())
        return {"peak with page cache MiB": round(used / (1 << 20), 1)}

    def _file(self, old: str, new: str) -> Path:
        group = self._group or Path()
        found = group / f"memory.{old}"
        return found if found.exists() else group / f"memory.{new}"


def _own() -> Path:
    """Return our own group in the hierarchy that has memory: of version 1, or the only one."""
    lines = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()
    rows = [line.split(":", 2) for line in lines]
    for _, controllers, path in rows:
        if "memory" in controllers.split(","):
            return _ROOT / "memory" / path.lstrip("/")
    return _ROOT / rows[0][2].lstrip("/")
