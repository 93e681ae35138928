"""Configuration files: which differ from their package, and when they change; never contents."""

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

# Larger files are not hashed; in one reading, no more than so many bytes in all.
_MAX_BYTES: Final = 4 << 20
_MAX_ALL_BYTES: Final = 256 << 20
_SECONDS: Final = 60.0
# Events within this time are read together.
_SETTLE_SECONDS: Final = 0.3


class _Digests(NamedTuple):
    """Of a file's content, when the file had this signature."""

    signature: tuple[int, ...]
    sha256: str
    md5: str


class Examiner:
    """Looks at files; in a thread, and in one at a time. Unchanged ones are not read again."""

    def __init__(self) -> None:
        # where the files come from that it looked at
        self.origins: dict[str, Origin] = {}
        self._known: dict[str, _Digests] = {}
        self._left = _MAX_ALL_BYTES

    def examine(self, origins: Mapping[str, Origin]) -> dict[str, dict[str, Json]]:
        """Return the properties of each file."""
        self._left = _MAX_ALL_BYTES
        self.origins |= origins
        is_open = _Folders()
        return {
            path: _told(origin) | self._seen(path, origin, is_open)
            for path, origin in origins.items()
        }

    def forget(self, others: Collection[str]) -> None:
        """Forget all files but some."""
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
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()  # as dpkg has it
            known = _Digests(signature, hashlib.sha256(content).hexdigest(), md5)
            self._known[path] = known
        return known


class _Folders:
    """Which folders everybody may look into: a file in another one is not for everybody."""

    def __init__(self) -> None:
        self._are_open = {"/": True}

    def are_open(self, path: str) -> bool:
        """Return whether all folders on the way to a file are open."""
        is_link = os.path.islink(path)  # noqa: PTH114 -- see above
        return self._is_open(os.path.dirname(os.path.realpath(path) if is_link else path))  # noqa: PTH120 -- see above

    def _is_open(self, folder: str) -> bool:
        if folder not in self._are_open:
            mode = os.stat(folder).st_mode  # noqa: PTH116 -- see above
            above = os.path.dirname(os.path.realpath(folder))  # noqa: PTH120 -- see above
            self._are_open[folder] = bool(mode & stat.S_IXOTH) and self._is_open(above)
        return self._are_open[folder]


def _told(origin: Origin) -> dict[str, Json]:
    """Return what is known of a file without looking at it."""
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
        return ""  # no year of ours


@dataclass(frozen=True, slots=True)
class Files:
    """Where configuration files are named."""

    sources: Sources = field(default_factory=Sources)

    async def observe(self, report: Report) -> None:
        """List files, and look again at those that change; raises Absent and LostSource."""
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
    """Report files until others are to be watched, and return those."""
    changed: set[str] | None = set(watched.origins)
    # again, since files may have been named before there was a watch
    listing = await in_thread(conffiles.list, _SECONDS)
    is_first = True
    allowance = Allowance()
    while changed is not None and _is_same(listing, watched):
        started = time.monotonic()
        before, watched = watched.origins, listing
        new = {p: o for p, o in listing.origins.items() if p in changed or o != before[p]}
        known = examiner.origins
        gone = {p: o for p, o in known.items() if p not in new} if is_first else {}
        # their package says something else of these, or nothing any more
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
        # until then a file may be new, and what dpkg says of it old
        await report.causes.run_over()
        changed = change and change.paths
        listing = await in_thread(conffiles.list, _SECONDS)
    return listing


def _tell(
    report: Report, found: Mapping[str, Mapping[str, Json]], times: Mapping[str, float]
) -> None:
    """Report files, each with the package run during which it was changed."""
    for path, at in times.items():
        if path in found:
            report.put("file", path, found[path], report.causes.run(at))
        else:
            report.gone("file", path, report.causes.run(at))


def _changed_at(told_by: Mapping[str, str]) -> dict[str, float]:
    """Return when what tells of files was changed: a file itself, or what names it."""
    return {path: changed_at(other) for path, other in told_by.items()}


def _is_same(one: Listing, other: Listing) -> bool:
    return one.origins.keys() == other.origins.keys() and one.folders == other.folders


OBSERVER: Final = Observer(
    "files", "files", Files().observe, volatile={"file": frozenset({"modified_at"})}
)
