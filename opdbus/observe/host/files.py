"""Observer of configuration files: changes and differences from their packages; never contents."""

import asyncio
import hashlib
import os
import stat
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.observe.core.file_reading import changed_at, in_thread, read_at_most
from opdbus.observe.core.pace import Allowance
from opdbus.observe.core.report import Absent, Observer, Report
from opdbus.observe.host.conffiles import Conffiles, Listing, Origin, Sources
from opdbus.state.object import Json
from opdbus.state.watch import Watch

# Larger files are not hashed; in one pass, at most this many bytes are hashed in all.
_MAX_BYTES: Final = 4 << 20
_MAX_ALL_BYTES: Final = 256 << 20
_SECONDS: Final = 60.0
# Events within this time are handled together.
_SETTLE_SECONDS: Final = 0.3


class _Digests(NamedTuple):
    """Hashes of a file's content, and the file's signature when it was read."""

    signature: tuple[int, ...]
    sha256: str
    md5: str


class Examiner:
    """Reader of file properties; blocking, for one thread at a time. Skips unchanged content."""

    def __init__(self) -> None:
        # origins of the files examined so far
        self.origins: dict[str, Origin] = {}
        self._known: dict[str, _Digests] = {}
        self._left = _MAX_ALL_BYTES

    def examine(self, origins: Mapping[str, Origin]) -> dict[str, dict[str, Json]]:
        """Return the properties of files by path; reads changed content, up to a total limit."""
        self._left = _MAX_ALL_BYTES
        self.origins |= origins
        is_open = _Folders()
        return {
            path: _told(origin) | self._seen(path, origin, is_open)
            for path, origin in origins.items()
        }

    def forget(self, others: Collection[str]) -> None:
        """Drop all files but `others`."""
        self.origins = {path: known for path, known in self.origins.items() if path in others}
        self._known = {path: known for path, known in self._known.items() if path in others}

    def _seen(self, path: str, origin: Origin, folders: "_Folders") -> dict[str, Json]:
        try:
            found = os.stat(path)  # noqa: PTH116 -- of thousands of paths, Path() takes most of the time
        except (FileNotFoundError, NotADirectoryError):
            return {"missing": True}
        except (OSError, ValueError):
            return {"readable": False}
        seen: dict[str, Json] = {
            "mode": f"{stat.S_IMODE(found.st_mode):04o}",
            "modified_at": _time(found.st_mtime),
        }
        if not stat.S_ISREG(found.st_mode):
            return seen | {"regular": False}
        seen["size"] = found.st_size
        if not (found.st_mode & stat.S_IROTH and folders.are_open(path)):
            return seen | {"readable": False}
        if found.st_size > min(_MAX_BYTES, self._left):
            return seen | {"too_large": True}
        try:
            digests = self._digests(path, found)
        except OSError:
            return seen | {"readable": False}
        seen["sha256"] = digests.sha256
        if origin.md5:
            seen["modified"] = digests.md5 != origin.md5
        return seen

    def _digests(self, path: str, found: os.stat_result) -> _Digests:
        signature = (
            found.st_dev,
            found.st_ino,
            found.st_size,
            found.st_mtime_ns,
            found.st_ctime_ns,
        )
        known = self._known.get(path)
        if not known or known.signature != signature:
            content, _ = read_at_most(Path(path), _MAX_BYTES)
            self._left -= len(content)
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()  # dpkg's sum
            known = _Digests(signature, hashlib.sha256(content).hexdigest(), md5)
            self._known[path] = known
        return known


class _Folders:
    """Cached permissions of folders: files are read only if all users may reach them."""

    def __init__(self) -> None:
        self._are_open = {"/": True}

    def are_open(self, path: str) -> bool:
        """Return whether all users may enter each folder on the way to a file."""
        is_link = os.path.islink(path)  # noqa: PTH114 -- see above
        return self._is_open(os.path.dirname(os.path.realpath(path) if is_link else path))  # noqa: PTH120 -- see above

    def _is_open(self, folder: str) -> bool:
        if folder not in self._are_open:
            mode = os.stat(folder).st_mode  # noqa: PTH116 -- see above
            above = os.path.dirname(os.path.realpath(folder))  # noqa: PTH120 -- see above
            self._are_open[folder] = bool(mode & stat.S_IXOTH) and self._is_open(above)
        return self._are_open[folder]


def _told(origin: Origin) -> dict[str, Json]:
    """Return the properties that come from the file's origin alone."""
    told: dict[str, Json] = {"description": origin.description}
    if origin.package:
        told["package"] = origin.package
    if origin.unit:
        told["unit"] = origin.unit
    if origin.is_obsolete:
        told["obsolete"] = True
    return told


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return ""  # not a year that datetime supports


@dataclass(frozen=True, slots=True)
class Files:
    """Observer of configuration files."""

    sources: Sources = field(default_factory=Sources)

    async def observe(self, report: Report) -> None:
        """List files and follow their changes; raises Absent and LostSource."""
        conffiles, examiner = Conffiles(self.sources), Examiner()
        listing = await in_thread(conffiles.list, _SECONDS)
        while True:
            if not listing.origins:
                raise Absent("no package and no unit names a configuration file here")
            files = {*listing.origins, *self.sources.files}
            with await in_thread(partial(Watch, files, listing.folders), _SECONDS) as watch:
                listing = await _follow(report, conffiles, examiner, watch, listing)


async def _follow(
    report: Report, conffiles: Conffiles, examiner: Examiner, watch: Watch, watched: Listing
) -> Listing:
    """Report files until others must be watched; return the new listing."""
    changed: set[str] | None = set(watched.origins)
    # list again: files may have changed before they were watched
    listing = await in_thread(conffiles.list, _SECONDS)
    is_first = True
    allowance = Allowance()
    while changed is not None and _is_same(listing, watched):
        started = time.monotonic()
        before, watched = watched.origins, listing
        new = {p: o for p, o in listing.origins.items() if p in changed or o != before[p]}
        known = examiner.origins
        gone = {p: o for p, o in known.items() if p not in new} if is_first else {}
        # the package of these has changed
        others = {p for p in new if known.get(p, new[p]) != new[p]}
        others |= {p for p in gone if gone[p].package}
        told_by = {p: conffiles.status if p in others else p for p in (*new, *gone)}
        times = await in_thread(partial(_changed_at, told_by), _SECONDS)
        found = await in_thread(partial(examiner.examine, new), _SECONDS)
        if not is_first or report.has_listed("file"):
            _tell(report, found, times)
        if is_first:
            report.replace("file", found)
            examiner.forget(found)
        is_first = False
        report.busy(listing.limited)
        report.skip("file", listing.skipped)
        await asyncio.sleep(allowance.rest(time.monotonic() - started))
        change = await watch.change(_SETTLE_SECONDS)
        # during a package run a file may be new while dpkg's database is old
        await report.causes.run_over()
        changed = change and change.paths
        listing = await in_thread(conffiles.list, _SECONDS)
    return listing


def _tell(
    report: Report, found: Mapping[str, Mapping[str, Json]], times: Mapping[str, float]
) -> None:
    """Report files with the package run in which they changed as the cause."""
    for path, at in times.items():
        if path in found:
            report.put("file", path, found[path], report.causes.run(at))
        else:
            report.gone("file", path, report.causes.run(at))


def _changed_at(told_by: Mapping[str, str]) -> dict[str, float]:
    """Return when each file changed, by the modification time of the file that shows the change."""
    return {path: changed_at(other) for path, other in told_by.items()}


def _is_same(one: Listing, other: Listing) -> bool:
    return one.origins.keys() == other.origins.keys() and one.folders == other.folders


OBSERVER: Final = Observer(
    "files", "files", Files().observe, volatile={"file": frozenset({"modified_at"})}
)
