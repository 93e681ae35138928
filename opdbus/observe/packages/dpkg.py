"""Reader of dpkg's status file and file lists: packages, and the owners of paths."""

import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from opdbus.observe.core.file_reading import read_at_most
from opdbus.observe.core.report import MAX_OBJECTS
from opdbus.observe.core.skipped import Skipped
from opdbus.platform.lines import BLANKS
from opdbus.state.object import digest

# Far more than dpkg writes: 20,000 packages take 18 MB.
MAX_STATUS_BYTES: Final = 32 << 20
# The longest paragraph of a package in Debian 12 has 12 KB.
_MAX_PARAGRAPH_BYTES: Final = 256 << 10
_MAX_LIST_BYTES: Final = 16 << 20
# dpkg merges its updates into the status file after 250.
_MAX_UPDATES: Final = 1000
# Attempts to read a consistent status while dpkg writes.
_TRIES: Final = 3
# Bytes kept of a field's first line.
_MAX_VALUE: Final = 1000
_GONE: Final = "not-installed"
_FIELDS: Final = frozenset(
    b"Package Status Version Architecture Section Priority Source Essential Installed-Size Homepage"
    b" Description Conffiles Config-Version".split()
)
# Triggers of other packages wait, or are waited for; while they run, a package is half-configured.
_CONFIGURED: Final = frozenset("installed triggers-awaited triggers-pending".split())
_FIELD = re.compile(rb"^([A-Za-z][A-Za-z0-9-]{0,30}):[ \t]*((?:.*(?:\n[ \t].*)*))", re.MULTILINE)
_CONFFILE = re.compile(
    rb"^ (/.*) ([0-9a-f]{32}(?: [a-z-]+)*|newconffile(?: [a-z-]+)*)$", re.MULTILINE
)
# A file, the offset of a paragraph in it, and the paragraph.
_Paragraph: TypeAlias = tuple[Path, int, bytes]
_OF_KEYS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-"
# Folders that are links to their namesakes below /usr on a host with merged /usr.
_MERGED: Final = "bin sbin lib lib32 lib64 libx32 libo32".split()


@dataclass(frozen=True, slots=True)
class Package:
    """A package in dpkg's status: its fields, and its configuration files by path.

    The value of a configuration file is its MD5 sum with flags, or `newconffile` with flags.
    """

    name: str
    architecture: str
    wanted: str
    status: str
    fields: Mapping[str, str]
    conffiles: Mapping[str, str] = field(default_factory=dict)
    # numbers, from 0, of the lines in its paragraph that could not be parsed
    odd: tuple[int, ...] = ()

    @property
    def summary(self) -> str:
        """The first line of the package's description."""
        return self.fields.get("Description", "")

    @property
    def is_configured(self) -> bool:
        """True if its version was configured, though its triggers may not have run yet."""
        last = self.fields.get("Config-Version")
        is_again = self.status == "half-configured" and last == self.fields.get("Version", "")
        return self.status in _CONFIGURED or is_again


class StatusFile:
    """Reader of dpkg's status file that parses only changed paragraphs again.

    Reading takes up to 0.1 s: call it on a worker thread, from one thread at a time.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        # message about packages that were left out; empty if there are none
        self.limited = ""
        self.skipped = Skipped()
        self._parsed: dict[bytes, Package | None] = {}

    def read(self) -> list[Package]:
        """Return packages that are installed or left configuration behind; raises OSError."""
        for _ in range(_TRIES):
            before, found = self.path.stat(), self._read()
            after = self.path.stat()
            # an update that dpkg merged during the reading may have been seen in neither file
            if (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns):
                break
        return found

    def _read(self) -> list[Package]:
        self.limited, self.skipped = "", Skipped()
        content, is_cut = read_at_most(self.path, MAX_STATUS_BYTES)
        if is_cut:
            self._limit(f"more than {MAX_STATUS_BYTES >> 20} MiB")
        before, self._parsed = self._parsed, {}
        found: dict[tuple[str, str], Package] = {}
        # number of lines before offset `counted`; counted only for lines that are reported
        above = counted = 0
        for path, start, paragraph in itertools.chain(self._paragraphs(content), self._updates()):
            key = digest(paragraph)
            if key not in self._parsed:
                self._parsed[key] = before[key] if key in before else parse_paragraph(paragraph)
            package = self._parsed[key]
            if package:
                found[package.name, package.architecture] = package
            odd = package.odd if package else (0,) * bool(paragraph.strip(b"\n"))
            if odd and path == self.path:
                above += content.count(b"\n", counted, start)
                counted = start
            for number in odd:
                self.skipped.line(path, (above if path == self.path else 0) + number + 1)
        return [package for package in found.values() if package.status != _GONE]

    def _updates(self) -> Iterator[_Paragraph]:
        """Yield the paragraphs that dpkg has not merged into its status yet, in order."""
        updates = sorted((self.path.parent / "updates").glob("[0-9]*"))
        for path in updates[:_MAX_UPDATES]:
            with suppress(OSError):  # dpkg has merged it into the status
                yield path, 0, read_at_most(path, _MAX_PARAGRAPH_BYTES)[0]

    def _paragraphs(self, content: bytes) -> Iterator[_Paragraph]:
        start = 0
        for _ in range(MAX_OBJECTS):
            if start >= len(content):
                return
            end = content.find(b"\n\n", start)
            end = len(content) if end < 0 else end
            if end - start <= _MAX_PARAGRAPH_BYTES:
                yield self.path, start, content[start:end]
            else:
                self._limit(f"a package with more than {_MAX_PARAGRAPH_BYTES >> 10} KiB")
            start = end + 2
        if start < len(content):
            self._limit(f"more than {MAX_OBJECTS:,} packages")

    def _limit(self, what: str) -> None:
        self.limited = f"{self.path} has {what}: the rest is left out"


def parse_paragraph(paragraph: bytes) -> Package | None:
    """Parse the paragraph of a package; return None if it lacks a name or a status."""
    found = {name: value for name, value in _FIELD.findall(paragraph) if name in _FIELDS}
    first_lines = {name: value.partition(b"\n")[0][:_MAX_VALUE] for name, value in found.items()}
    fields = {
        name.decode(): line.decode(errors="replace").strip(BLANKS)
        for name, line in first_lines.items()
    }
    wanted, _, status = fields.pop("Status", "").partition(" ")
    status = status.rpartition(" ")[2]
    name = fields.pop("Package", "")
    if not name or not status:
        return None
    conffiles = {
        os.fsdecode(path): note.decode(errors="replace")
        for path, note in _CONFFILE.findall(found.get(b"Conffiles", b""))
    }
    architecture, odd = fields.pop("Architecture", ""), tuple(_odd(paragraph))
    return Package(name, architecture, wanted, status, fields, conffiles, odd)


def read_diversions(folder: Path) -> dict[str, tuple[str, str]]:
    """Return the paths that dpkg-divert diverts: each with its target and the diverting package.

    No name of a package stands for an administrator.
    """
    with suppress(OSError):
        content, _ = read_at_most(folder / "diversions", _MAX_LIST_BYTES)
        lines = os.fsdecode(content).split("\n")
        rows = zip(lines[::3], lines[1::3], lines[2::3], strict=False)
        return {path: (target, package.strip(":")) for path, target, package in rows}
    return {}


def _odd(paragraph: bytes) -> Iterator[int]:
    """Yield the numbers, from 0, of lines that neither begin nor continue a valid field."""
    key = b""
    for number, line in enumerate(paragraph.split(b"\n")):
        if line[:1] not in {b" ", b"\t", b""}:
            key, colon, _ = line.partition(b":")
            if not colon or key.strip(_OF_KEYS):
                yield number
        elif key == b"Conffiles" and line and not _CONFFILE.fullmatch(line):
            yield number


class Owners:
    """Lookup of the package that owns a path, in dpkg's file lists.

    A lookup of new paths scans all lists, which takes 50 ms. Results are cached until dpkg changes
    its `info` folder.
    """

    def __init__(self, info: Path, root: Path) -> None:
        self._info = info
        self._is_merged = (root / "lib").is_symlink()
        self._known: dict[str, str] = {}
        self._as_of = 0

    def find(self, paths: Collection[str]) -> dict[str, str]:
        """Return the owner of each path; paths without one are left out; raises OSError."""
        as_of = self._info.stat().st_mtime_ns
        if as_of != self._as_of or len(self._known) > MAX_OBJECTS:
            self._known, self._as_of = {}, as_of
        if new := set(paths) - self._known.keys():
            self._known |= dict.fromkeys(new, "") | self._scan(new)
        return {path: self._known[path] for path in paths if self._known.get(path)}

    def _scan(self, paths: Collection[str]) -> dict[str, str]:
        # the spellings of a path in dpkg's lists: /lib is /usr/lib where /usr is merged
        ways = {path: [path] for path in paths if path.startswith("/")}
        for path in ways if self._is_merged else ():
            top, _, rest = path.removeprefix("/usr").lstrip("/").partition("/")
            if rest and top in _MERGED:
                ways[path] = [f"/{top}/{rest}", f"/usr/{top}/{rest}"]
        wanted = {os.fsencode(way) for path in ways for way in ways[path]}
        owners: dict[str, str] = {}
        for entry in sorted(self._info.glob("*.list")):
            content, _ = read_at_most(entry, _MAX_LIST_BYTES)
            for line in wanted.intersection(content.split(b"\n")):
                owners.setdefault(os.fsdecode(line), entry.stem.partition(":")[0])
        found = {path: filter(None, map(owners.get, ways[path])) for path in ways}
        return {path: next(names, "") for path, names in found.items()}
