"""Observer of configuration files: changes and differences from their packages; never contents."""

import asyncio
import hashlib
import os
import re
import stat
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.history.change import Cause
from opdbus.index.query import config_mentions
from opdbus.observe.core.file_reading import changed_at, in_thread, read_at_most, text_of
from opdbus.observe.core.pace import Allowance
from opdbus.observe.core.report import Absent, Observer, Report
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.packages.documents import Documents, Places
from opdbus.observe.packages.dpkg import Package, StatusFile, read_diversions
from opdbus.observe.systemd.unit_files import TYPES, is_unit
from opdbus.platform.lines import split_lines, strip_blanks
from opdbus.platform.regular_files import answers
from opdbus.platform.tasks import until_first_ends
from opdbus.state.object import Json
from opdbus.state.secret_names import is_secret_name
from opdbus.state.watch import Change, Watch

# Suffixes of folders that hold parts of one configuration. Folders with the second suffix hold
# links to the parts in use.
_OF_PARTS: Final = (".d", "-enabled")
_OF_LINKS: Final = "-enabled"
# Hosts usually have 200 to 1,000.
MAX_FILES: Final = 10_000
_MAX_REGISTRY_BYTES: Final = 4 << 20
_MAX_MANUALS: Final = 20_000
_MD5 = re.compile(r"[0-9a-f]{32}")
# Files that editors, package managers and programs leave, and generated files.
_LEFT_BESIDE = re.compile(
    r"\..*|.*(?:[~-]|\.(?:swp|bak|old|orig|lock|cache|(?:dpkg|ucf|rpm)[.-]?\w+))"
)
# The first bytes of a file that are searched for paths, and the most paths taken in all.
_MAX_NAMING_BYTES: Final = 64 << 10
_MAX_NAMED_FILES: Final = 2_000
_NAMED_IN: Final = "named in "
_DECLARED: Final = "declared by the state file"
# Purposes of files by folder, where no manual page describes them.
_NOUNS: Final = {
    "/etc/apparmor.d": "AppArmor profile",
    "/etc/bash_completion.d": "shell completion",
    "/etc/cron.d": "scheduled jobs (cron)",
    "/etc/cron.daily": "daily job (cron)",
    "/etc/cron.hourly": "hourly job (cron)",
    "/etc/cron.monthly": "monthly job (cron)",
    "/etc/cron.weekly": "weekly job (cron)",
    "/etc/dbus-1/system.d": "message bus policy",
    "/etc/default": "default settings",
    "/etc/init.d": "start script",
    "/etc/logrotate.d": "log rotation",
    "/etc/modprobe.d": "kernel module settings",
    "/etc/pam.d": "login and authentication rules (PAM)",
    "/etc/profile.d": "login shell settings",
    "/etc/sudoers.d": "sudo rules",
    "/etc/sysctl.d": "kernel settings (sysctl)",
    "/etc/udev/rules.d": "device rules (udev)",
}
# Larger files are not hashed; in one pass, at most this many bytes are hashed in all.
_MAX_HASHED_BYTES: Final = 4 << 20
_MAX_HASHED_BYTES_IN_ALL: Final = 256 << 20
_NOT_ROOT: Final = "not root"
# Fields that a first reading adds, or that of the package's sum, unless the file came or went.
_OF_READING: Final = frozenset(("sha256", "modified", "too_large"))
_OF_ACCESS: Final = frozenset(("missing", "readable", "regular"))
_SECONDS: Final = 60.0
# Events within this time are handled together.
_SETTLE_SECONDS: Final = 0.3


@dataclass(frozen=True, slots=True)
class Origin:
    """The description, package or unit of a configuration file.

    `md5` is the sum that the package records; empty if it has none or is not fully installed.
    """

    description: str
    package: str = ""
    unit: str = ""
    md5: str = ""
    is_obsolete: bool = False


@dataclass(frozen=True, slots=True)
class Sources:
    """Paths of the databases and folders in which configuration files are listed."""

    places: Places = field(default_factory=Places)
    ucf: Path = Path("/var/lib/ucf")
    # without packages' units, which change only with these, and generated or transient units
    units: tuple[Path, ...] = (
        Path("/etc/systemd/system"),
        Path("/run/systemd/system"),
        Path("/usr/local/lib/systemd/system"),
    )
    # its files are configuration if section 5 of the manual has a page of their name: fstab, hosts
    etc: Path = Path("/etc")

    @property
    def files(self) -> set[str]:
        """Return the files that list others."""
        ucf = {str(self.ucf / "registry"), str(self.ucf / "hashfile")}
        return {*(str(self.places.dpkg / name) for name in ("status", "diversions")), *ucf}


@dataclass(frozen=True, slots=True)
class Listing:
    """Configuration files by path, the folders to watch, and a sentence on what was left out."""

    origins: dict[str, Origin]
    folders: frozenset[str]
    limited: str = ""
    skipped: Skipped = field(default_factory=Skipped)


def _is_plain(path: str) -> bool:
    """Return whether a path is absolute and has no other spelling."""
    return path.startswith("/") and os.path.normpath(path) == path and path.isprintable()


class ConfigFileLists:
    """Reader of the lists of configuration files: of packages, units and manual pages.

    Also lists files in the same folders. Blocking; for one thread at a time.
    """

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        # dpkg's status file, which lists the conffiles of packages
        self.status = str(sources.places.dpkg / "status")
        self._documents = Documents(sources.places)
        self._status = StatusFile(sources.places.dpkg / "status")
        self._manuals: dict[str, str] = {}
        self._skipped = Skipped()
        # the paths in each file that was searched, with the file's signature at that time
        self._mentions: dict[str, tuple[tuple[int, ...], Sequence[str]]] = {}

    def list(self, declared: Collection[str] = ()) -> Listing:
        """Return all listed configuration files, including those that do not exist.

        `declared` are the names that the state file has of files.
        """
        self._skipped = Skipped()
        try:
            listed = self._status.read()
        except OSError:
            listed = []  # a host without dpkg
        # of several architectures, one that is installed counts
        by_status = sorted(listed, key=lambda package: package.status == "installed")
        packages = {package.name: package for package in by_status}
        self._skipped.include(self._status.skipped)
        folders = {str(folder) for folder in (*self._sources.units, self._sources.etc)}
        # files that belong to no package but have a manual page
        found = {
            entry.path: Origin(title)
            for entry in _entries(self._sources.etc)
            if entry.is_file(follow_symlinks=False) and (title := self._page_title(entry.name))
        }
        found |= self._of_units(folders)
        # files that packages install with ucf, which dpkg does not list
        sums = {path: md5 for md5, path in self._read_registry("hashfile")}
        conffiles = [
            (packages[name], path, sums.get(path, ""))
            for name, path in self._read_registry("registry")
            if name in packages and path.startswith("/")
        ]
        for package in listed:
            conffiles += [(package, *each) for each in package.conffiles.items()]
        diversions = read_diversions(self._sources.places.dpkg)
        for package, path, note in conffiles:
            target, owner = diversions.get(path, (path, package.name))
            if owner != package.name and path not in found:
                instead = f"{self._purpose(path)} in place of that of {package.name}"
                found[path] = Origin(instead, owner)
            place = path if owner == package.name else target
            # several packages may list one file
            is_better = "obsolete" not in note and package.status == "installed"
            if "remove-on-upgrade" not in note and (is_better or place not in found):
                found[place] = self._of_package(path, package, note)
        found |= self._find_mentioned(found)
        found |= self._beside(found, folders)
        found |= self._find_mentioned(found)
        # one that is gone may have been listed only because it was there
        others = (path for path in sorted(declared) if path not in found)
        found |= {path: Origin(_DECLARED) for path in others if _is_plain(path)}
        limited = self._status.limited
        if len(found) > MAX_FILES:
            limited = f"there are more than {MAX_FILES:,} files: the rest is left out"
            found = dict(list(found.items())[:MAX_FILES])
        return Listing(found, frozenset(folders), limited, self._skipped)

    def _of_package(self, path: str, package: Package, note: str) -> Origin:
        md5, _, flags = note.partition(" ")
        is_sum = package.is_configured and _MD5.fullmatch(md5)
        gone = ", which was removed" if package.status == "config-files" else ""
        return Origin(
            f"{self._purpose(path)} of {_name_package(package.name, package.summary)}{gone}",
            package.name,
            md5=md5 if is_sum else "",
            is_obsolete="obsolete" in flags,
        )

    def _purpose(self, path: str) -> str:
        """Return a file's purpose, by its folder or by the section 5 manual page of its name."""
        folder, _, name = path.rpartition("/")
        if folder in _NOUNS:
            return _NOUNS[folder]
        # elsewhere, a page called `login` or `common` describes another file
        is_own = folder == "/etc" or not {".", "_"}.isdisjoint(name)
        return (self._page_title(name) if is_own else "") or "configuration"

    def _page_title(self, name: str) -> str:
        """Return the title of the section 5 manual page of this name; empty if there is none."""
        if name not in self._manuals:
            if len(self._manuals) >= _MAX_MANUALS:
                self._manuals.clear()
            self._manuals[name] = self._documents.manual(f"{name}(5)")
        return self._manuals[name]

    def _beside(self, found: Mapping[str, Origin], folders: set[str]) -> dict[str, Origin]:
        """Return the files of no package in packages' folders; add these folders to `folders`.

        These are the folders in /etc with files of packages, and the `.d` folders beside them,
        which may be empty.
        """
        homes = set()
        for path, origin in found.items():
            # a file lies in a folder of its program, unless a file of another program names it
            is_shared = path.rpartition("/")[0] in config_mentions.SHARED
            if not origin.unit and not (origin.description.startswith(_NAMED_IN) and is_shared):
                homes.add(Path(path).parent)
        homes |= {home.parent for home in homes if home.name.endswith(_OF_PARTS)}
        homes = {home for home in homes if home.is_relative_to(self._sources.etc)}
        parts = (e for e in chain.from_iterable(map(_entries, homes)) if e.name.endswith(_OF_PARTS))
        homes |= {Path(e.path) for e in parts if e.is_dir(follow_symlinks=False)}
        folders.update(map(str, homes))
        beside: dict[str, Origin] = {}
        for home in sorted(homes):
            for entry in _entries(home):
                # in an `-enabled` folder, links to files count too
                follow = home.name.endswith(_OF_LINKS) and answers(entry.path)
                is_file = entry.is_file(follow_symlinks=follow)
                if entry.path not in found and is_file and not _LEFT_BESIDE.fullmatch(entry.name):
                    what = f"{self._purpose(entry.path)} of no package"
                    link = (
                        f", a link to {os.path.realpath(entry.path)}" if entry.is_symlink() else ""
                    )
                    beside[entry.path] = Origin(what + link)
        return beside

    def _find_mentioned(self, found: Mapping[str, Origin]) -> dict[str, Origin]:
        """Return the files in /etc that other configuration files name, such as certificates.

        Of the text only these paths are kept.
        """
        before, self._mentions = self._mentions, {}
        named: dict[str, Origin] = {}
        waiting = deque(found)
        while waiting and len(named) < _MAX_NAMED_FILES:
            path = waiting.popleft()
            is_other = path.rpartition("/")[0] in _NOUNS and not path.startswith("/etc/default/")
            if is_other or not answers(path):
                continue
            try:
                status = os.stat(path)  # noqa: PTH116 -- of thousands of paths
            except (OSError, ValueError):
                continue
            signature = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            known = before.get(path)
            if not known or known[0] != signature:
                known = signature, self._read_mentions(Path(path))
            self._mentions[path] = known
            for other in known[1]:
                if other not in found and other not in named and _is_file(other):
                    named[other] = Origin(f"{_NAMED_IN}{path}")
                    waiting.append(other)
        return named

    def _read_mentions(self, path: Path) -> Sequence[str]:
        """Return the files in /etc that a file names."""
        top = f"{self._sources.etc}/"
        paths = config_mentions.in_text(text_of(path, _MAX_NAMING_BYTES)).paths
        others = sorted(other for other in paths if other.startswith(top) and ".." not in other)
        return [other for other in others if not _LEFT_BESIDE.fullmatch(Path(other).name)]

    def _read_registry(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield the first word and the path in each line of a file of ucf."""
        file = self._sources.ucf / name
        try:
            content, _ = read_at_most(file, _MAX_REGISTRY_BYTES)
        except OSError:
            return
        for number, line in enumerate(split_lines(os.fsdecode(content)), 1):
            first, _, path = line.partition(" ")
            if path:
                yield first, strip_blanks(path)
            elif line:
                self._skipped.line(file, number)

    def _of_units(self, folders: set[str]) -> Iterator[tuple[str, Origin]]:
        """Yield unit files and drop-ins; add the folders of drop-ins to `folders`."""
        found: dict[str, tuple[str, str]] = {}
        for entry in chain.from_iterable(map(_entries, self._sources.units)):
            unit = entry.name.removesuffix(".d")
            # drop-ins may exist for a unit, and for all units of a type
            is_folder = unit != entry.name and (is_unit(unit) or unit in TYPES)
            if is_folder and answers(entry.path) and entry.is_dir():
                folders.add(entry.path)
                for inner in _entries(Path(entry.path)):
                    if inner.name.endswith(".conf"):
                        found[inner.path] = (unit, "drop-in")
            # links are aliases, masks or enablement
            elif is_unit(entry.name) and entry.is_file(follow_symlinks=False):
                found[entry.path] = (entry.name, "unit file")
        packaged = {unit: f"/usr/lib/systemd/system/{unit}" for unit, _ in found.values()}
        owners = self._documents.owners(packaged.values())
        for path, (unit, what) in found.items():
            owner = owners.get(packaged[unit])
            of = _name_package(owner.package, owner.summary) if owner else ""
            whose = f"of {of}" if of else "written on this host"
            yield path, Origin(f"{what} of {unit}, {whose}", unit=unit)


def _name_package(name: str, summary: str) -> str:
    """Return a package's name and summary; `passwd: change` would be taken for a secret."""
    if not summary:
        return name
    return f"{name} ({summary})" if is_secret_name(name) else f"{name}: {summary}"


def _is_file(path: str) -> bool:
    return answers(path) and os.path.isfile(path)  # noqa: PTH113 -- of thousands of paths


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


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
        # names of the fields that each file had last
        self._fields: dict[str, frozenset[str]] = {}
        self._is_root_known = Path("/").stat().st_uid == 0
        # bytes that may still be hashed in this pass
        self._left = _MAX_HASHED_BYTES_IN_ALL

    def examine(self, origins: Mapping[str, Origin]) -> dict[str, dict[str, Json]]:
        """Return the properties of files by path; reads changed content, up to a total limit."""
        self._left = _MAX_HASHED_BYTES_IN_ALL
        self.origins |= origins
        folders = _Folders()
        found: dict[str, dict[str, Json]] = {}
        for path, origin in origins.items():
            of_origin: dict[str, Json] = {
                "description": origin.description,
                "package": origin.package,
                "unit": origin.unit,
                "obsolete": origin.is_obsolete,
            }
            found[path] = {
                **{k: value for k, value in of_origin.items() if value or k == "description"},
                **self._examine_one(path, origin.md5, folders),
            }
        return found

    def take_newly_read(self, path: str, properties: Mapping[str, Json]) -> frozenset[str]:
        """Return the fields by which a file differs only because they were read, or not, this time.

        Its next properties are compared with these.
        """
        names = frozenset(properties)
        other = names ^ self._fields.get(path, names)
        self._fields[path] = names
        return frozenset() if other & _OF_ACCESS else other & _OF_READING

    def forget(self, others: Collection[str]) -> None:
        """Drop all files but `others`."""
        self._fields = {path: names for path, names in self._fields.items() if path in others}
        self.origins = {path: known for path, known in self.origins.items() if path in others}
        self._known = {path: known for path, known in self._known.items() if path in others}

    def _examine_one(self, path: str, md5: str, folders: "_Folders") -> dict[str, Json]:
        if not answers(path):
            return {"readable": False}
        try:
            status = os.stat(path)  # noqa: PTH116 -- of thousands of paths, Path() takes most of the time
        except (FileNotFoundError, NotADirectoryError):
            return {"missing": True}
        except (OSError, ValueError):
            return {"readable": False}
        found: dict[str, Json] = {
            "mode": f"{stat.S_IMODE(status.st_mode):04o}",
            "modified_at": _format_time(int(status.st_mtime)),
        }
        # the sandbox shows all other users as nobody, and without root among its users root too
        if status.st_uid != 0 and self._is_root_known:
            found["owner"] = _NOT_ROOT
        if not stat.S_ISREG(status.st_mode):
            return found | {"regular": False}
        found["size"] = status.st_size
        # what shows an edit of a file whose content is not read
        written = {"written_at": _format_time(status.st_mtime_ns / 1e9)}
        try:
            if not (status.st_mode & stat.S_IROTH and folders.are_open(path)):
                return found | written | {"readable": False}
            if status.st_size > min(_MAX_HASHED_BYTES, self._left):
                return found | written | {"too_large": True}
            digests = self._digests(path, status)
        except OSError:
            return found | written | {"readable": False}
        found["sha256"] = digests.sha256
        if md5:
            found["modified"] = digests.md5 != md5
        return found

    def _digests(self, path: str, status: os.stat_result) -> _Digests:
        times = (status.st_mtime_ns, status.st_ctime_ns)
        signature = (status.st_dev, status.st_ino, status.st_size, *times)
        known = self._known.get(path)
        if not known or known.signature != signature:
            content, _ = read_at_most(Path(path), _MAX_HASHED_BYTES)
            self._left -= len(content)
            md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()  # dpkg's sum
            known = _Digests(signature, hashlib.sha256(content).hexdigest(), md5)
            self._known[path] = known
        return known


def _format_time(at: float) -> str:
    """Return a time in UTC, or nothing for a year that datetime does not support."""
    try:
        return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return ""


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


@dataclass(frozen=True, slots=True)
class Files:
    """Observer of configuration files."""

    sources: Sources = field(default_factory=Sources)

    async def observe(self, report: Report) -> None:
        """List files and follow their changes; raises Absent and LostSource."""
        lists, examiner = ConfigFileLists(self.sources), Examiner()
        listing = await _list(lists, report)
        while True:
            if not listing.origins:
                raise Absent("no package and no unit names a configuration file here")
            files = {*listing.origins, *self.sources.files}
            with await in_thread(partial(Watch, files, listing.folders), _SECONDS) as watch:
                listing = await _follow(report, lists, examiner, watch, listing)


async def _follow(
    report: Report, lists: ConfigFileLists, examiner: Examiner, watch: Watch, watched: Listing
) -> Listing:
    """Report files until others must be watched; return the new listing."""
    changed: set[str] | None = set(watched.origins)
    # list again: files may have changed before they were watched
    listing = await _list(lists, report)
    is_first = True
    allowance = Allowance()
    while (
        changed is not None
        and listing.origins.keys() == watched.origins.keys()
        and listing.folders == watched.folders
    ):
        started = time.monotonic()
        before, watched = watched.origins, listing
        new = {p: o for p, o in listing.origins.items() if p in changed or o != before[p]}
        known = examiner.origins
        gone = {p: o for p, o in known.items() if p not in new} if is_first else {}
        # the package of these has changed, which dpkg's status file shows
        others = {p for p in new if known.get(p, new[p]) != new[p]}
        others |= {p for p in gone if gone[p].package}
        shown_by = {p: lists.status if p in others else p for p in (*new, *gone)}
        times = await in_thread(partial(_changed_at, shown_by), _SECONDS)
        found = await in_thread(partial(examiner.examine, new), _SECONDS)
        if not is_first or report.has_listed("file"):
            # the cause is the package run in which a file changed
            for path, at in times.items():
                if path in found:
                    seen = examiner.take_newly_read(path, found[path])
                    why = Cause(report.causes.run(at), ignored_fields=seen)
                    report.put("file", path, found[path], why)
                else:
                    report.gone("file", path, report.causes.run(at))
        if is_first:
            for path, properties in found.items():
                examiner.take_newly_read(path, properties)
            report.replace("file", found)
            examiner.forget(found)
        is_first = False
        report.busy(listing.limited)
        report.skip("file", listing.skipped)
        await asyncio.sleep(allowance.rest(time.monotonic() - started))
        change = await _wait(watch, report)
        # during a package run a file may be new while dpkg's database is old
        await report.causes.run_over()
        changed = change and change.paths
        listing = await _list(lists, report)
    return listing


async def _list(lists: ConfigFileLists, report: Report) -> Listing:
    report.renamed.clear()
    declared = await report.named("file")
    return await in_thread(partial(lists.list, declared), _SECONDS)


async def _wait(watch: Watch, report: Report) -> Change | None:
    """Wait until files change, or the state file may name others; return the change of files."""
    change: Change | None = Change({})

    async def read() -> None:
        nonlocal change
        change = await watch.change(_SETTLE_SECONDS)

    await until_first_ends(read(), report.renamed.wait())
    return change


def _changed_at(shown_by: Mapping[str, str]) -> dict[str, float]:
    """Return when each file changed, by the modification time of the file that shows the change."""
    return {path: changed_at(other) for path, other in shown_by.items()}


OBSERVER: Final = Observer(
    "files", "files", Files().observe, volatile={"file": frozenset({"modified_at"})}
)
