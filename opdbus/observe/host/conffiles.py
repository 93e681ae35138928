"""List of configuration files: of packages, units, manual pages, and in the same folders."""

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Final

from opdbus.index.query import config_mentions
from opdbus.observe.core.file_reading import read_at_most, text_of
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.packages.documents import Documents, Places
from opdbus.observe.packages.dpkg import Package, StatusFile
from opdbus.observe.systemd.unit_files import TYPES, is_unit
from opdbus.platform.lines import split_lines, strip_blanks

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
_MAX_NAMED: Final = 2_000
_NAMED_IN: Final = "named in "
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
        return {str(self.places.dpkg / "status"), *ucf}


@dataclass(frozen=True, slots=True)
class Listing:
    """Configuration files by path, the folders to watch, and a sentence on what was left out."""

    origins: dict[str, Origin]
    folders: frozenset[str]
    limited: str = ""
    skipped: Skipped = field(default_factory=Skipped)


class Conffiles:
    """Reader of the lists of configuration files; blocking, for one thread at a time."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        # dpkg's status file, which lists the conffiles of packages
        self.status = str(sources.places.dpkg / "status")
        self._documents = Documents(sources.places)
        self._status = StatusFile(sources.places.dpkg / "status")
        self._manuals: dict[str, str] = {}
        self._skipped = Skipped()
        # the paths in each file that was searched, with the file's signature at that time
        self._naming: dict[str, tuple[tuple[int, ...], Sequence[str]]] = {}

    def list(self) -> Listing:
        """Return all listed configuration files, including those that do not exist."""
        self._skipped = Skipped()
        packages = self._packages()
        self._skipped.include(self._status.skipped)
        folders = {str(folder) for folder in (*self._sources.units, self._sources.etc)}
        found = dict(self._of_manual())
        found |= self._of_units(folders)
        found |= self._of_ucf(packages)
        for package in packages.values():
            for path, note in package.conffiles.items():
                if "remove-on-upgrade" not in note and self._is_better(package, note, found, path):
                    found[path] = self._origin(path, package, note)
        found |= self._named(found)
        found |= self._beside(found, folders)
        found |= self._named(found)
        limited = self._status.limited
        if len(found) > MAX_FILES:
            limited = f"there are more than {MAX_FILES:,} files: the rest is left out"
            found = dict(list(found.items())[:MAX_FILES])
        return Listing(found, frozenset(folders), limited, self._skipped)

    def _packages(self) -> dict[str, Package]:
        try:
            return {package.name: package for package in self._status.read()}
        except OSError:
            return {}  # a host without dpkg

    @staticmethod
    def _is_better(package: Package, note: str, found: dict[str, Origin], path: str) -> bool:
        """Return whether a package's entry replaces that of another package for the same file."""
        return path not in found or ("obsolete" not in note and package.status == "installed")

    def _origin(self, path: str, package: Package, note: str) -> Origin:
        md5, _, flags = note.partition(" ")
        is_known = package.status == "installed" and _MD5.fullmatch(md5)
        return Origin(
            self._described(path, package),
            package.name,
            md5=md5 if is_known else "",
            is_obsolete="obsolete" in flags,
        )

    def _described(self, path: str, package: Package) -> str:
        summary = f": {package.summary}" if package.summary else ""
        gone = ", which was removed" if package.status == "config-files" else ""
        what = self._manual(path) or "configuration"
        return f"{what} of {package.name}{summary}{gone}"

    def _manual(self, path: str) -> str:
        """Return a file's purpose, by its folder or by the section 5 manual page of its name."""
        folder, _, name = path.rpartition("/")
        if folder in _NOUNS:
            return _NOUNS[folder]
        if folder != "/etc" and not {".", "_"}.intersection(name):
            return ""  # a page called `login` or `common` describes another file
        return self._page(name)

    def _page(self, name: str) -> str:
        """Return the title of the section 5 manual page of this name; empty if there is none."""
        if name not in self._manuals:
            if len(self._manuals) >= _MAX_MANUALS:
                self._manuals.clear()
            self._manuals[name] = self._documents.manual(f"{name}(5)")
        return self._manuals[name]

    def _of_manual(self) -> Iterator[tuple[str, Origin]]:
        """Yield files that belong to no package but have a manual page."""
        for entry in _entries(self._sources.etc):
            if entry.is_file(follow_symlinks=False) and (what := self._page(entry.name)):
                yield entry.path, Origin(what)

    def _beside(self, found: Mapping[str, Origin], folders: set[str]) -> dict[str, Origin]:
        """Return the files of no package in packages' folders; add these folders to `folders`."""
        homes = self._homes(found)
        folders.update(map(str, homes))
        return {
            entry.path: Origin(self._beside_packages(entry))
            for entry in chain.from_iterable(map(_entries, sorted(homes)))
            if entry.path not in found
            and not _LEFT_BESIDE.fullmatch(entry.name)
            and _is_part(entry)
        }

    def _beside_packages(self, entry: os.DirEntry[str]) -> str:
        what = f"{self._manual(entry.path) or 'configuration'} of no package"
        return f"{what}, a link to {os.path.realpath(entry.path)}" if entry.is_symlink() else what

    def _named(self, found: Mapping[str, Origin]) -> dict[str, Origin]:
        """Return the files in /etc that other configuration files name, such as certificates.

        Of the text only these paths are kept.
        """
        before, self._naming = self._naming, {}
        named: dict[str, Origin] = {}
        waiting = deque(found)
        while waiting and len(named) < _MAX_NAMED:
            path = waiting.popleft()
            for other in self._names_in(path, before):
                if other not in found and other not in named and _is_regular(other):
                    named[other] = Origin(f"{_NAMED_IN}{path}")
                    waiting.append(other)
        return named

    def _names_in(
        self, path: str, before: Mapping[str, tuple[tuple[int, ...], Sequence[str]]]
    ) -> Sequence[str]:
        """Return the files in /etc that a file names; an unchanged file is not read again."""
        if path.rpartition("/")[0] in _NOUNS and not path.startswith("/etc/default/"):
            return ()
        try:
            status = os.stat(path)  # noqa: PTH116 -- of thousands of paths
        except (OSError, ValueError):
            return ()
        signature = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        known = before.get(path)
        if not known or known[0] != signature:
            top = f"{self._sources.etc}/"
            paths = config_mentions.in_text(text_of(Path(path), _MAX_NAMING_BYTES)).paths
            others = sorted(other for other in paths if other.startswith(top) and ".." not in other)
            known = signature, [o for o in others if not _LEFT_BESIDE.fullmatch(Path(o).name)]
        self._naming[path] = known
        return known[1]

    def _homes(self, found: Mapping[str, Origin]) -> set[Path]:
        """Return the folders in /etc with files of packages, and the `.d` folders beside them.

        A `.d` folder may be empty.
        """
        homes = {Path(path).parent for path, origin in found.items() if _has_home(path, origin)}
        homes |= {home.parent for home in homes if home.name.endswith(_OF_PARTS)}
        homes = {home for home in homes if home.is_relative_to(self._sources.etc)}
        beside = chain.from_iterable(map(_entries, homes))
        parts = (entry for entry in beside if entry.name.endswith(_OF_PARTS))
        return homes | {Path(e.path) for e in parts if e.is_dir(follow_symlinks=False)}

    def _of_ucf(self, packages: dict[str, Package]) -> Iterator[tuple[str, Origin]]:
        """Yield files that packages install with ucf, which dpkg does not list."""
        sums = {path: md5 for md5, path in self._registry("hashfile")}
        for name, path in self._registry("registry"):
            package = packages.get(name)
            if package and path.startswith("/"):
                yield path, self._origin(path, package, sums.get(path, ""))

    def _registry(self, name: str) -> Iterator[tuple[str, str]]:
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
        for top in self._sources.units:
            for entry in _entries(top):
                unit = entry.name.removesuffix(".d")
                if unit != entry.name and _has_drop_ins(unit) and entry.is_dir():
                    folders.add(entry.path)
                    for inner in _entries(Path(entry.path)):
                        if inner.name.endswith(".conf"):
                            found[inner.path] = (unit, "drop-in")
                elif is_unit(entry.name) and _is_own(entry):
                    found[entry.path] = (entry.name, "unit file")
        packaged = {unit: f"/usr/lib/systemd/system/{unit}" for unit, _ in found.values()}
        owners = self._documents.owners(packaged.values())
        for path, (unit, what) in found.items():
            owner = owners.get(packaged[unit])
            of = f", of {owner.package}: {owner.summary}" if owner else ", written on this host"
            yield path, Origin(f"{what} of {unit}{of}", unit=unit)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _is_part(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a file, or in an `-enabled` folder a link to one."""
    is_of_links = os.path.dirname(entry.path).endswith(_OF_LINKS)  # noqa: PTH120 -- of thousands
    return entry.is_file(follow_symlinks=is_of_links)


def _has_home(path: str, origin: Origin) -> bool:
    """Return whether a file lies in a folder of its program, whose other files are listed too."""
    is_shared = path.rpartition("/")[0] in config_mentions.SHARED
    return not origin.unit and not (origin.description.startswith(_NAMED_IN) and is_shared)


def _is_regular(path: str) -> bool:
    """Return whether there is a regular file; False also if access is denied."""
    return os.path.isfile(path)  # noqa: PTH113 -- of thousands of paths


def _has_drop_ins(unit: str) -> bool:
    """Return whether drop-ins may exist for a name: a unit, or all units of a type."""
    return is_unit(unit) or unit in TYPES


def _is_own(entry: os.DirEntry[str]) -> bool:
    """Return whether a unit file was written here; links are aliases, masks or enablement."""
    return entry.is_file(follow_symlinks=False)
