"""Descriptions from the host's own documents: packages, manual pages, names of ports."""

import re
import subprocess
import zlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.observe.core.file_reading import read_at_most
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.packages import rpm
from opdbus.observe.packages.dpkg import Owners, StatusFile
from opdbus.observe.packages.manual_page import described
from opdbus.platform.lines import C_SPACES, join_words, split_lines, strip_blanks

# The NAME section is near the beginning of a page.
_MAX_PAGE_BYTES: Final = 64 << 10
_MAX_PACKED_BYTES: Final = 1 << 20
# A page may be nothing but a reference to another one.
_MAX_REFERENCES: Final = 3
_REFERENCE = re.compile(r"(?:man:)?([^ \t\n/()\0]{1,100})\((\w{1,10})\)")
_SOURCED = re.compile(r"\.so\s++(?:.*/)?([^\s/]+)\.(\w+?)(?:\.gz)?\s*", re.ASCII)
_PORT = re.compile(r"([^ \t#]+)[ \t]+([0-9]{1,5})/(\w+)(?:[ \t][^#]*)?(?:#[ \t]*+(.*))?")
_RPM_SECONDS: Final = 10.0
_MAX_RPM_PATHS: Final = 500
_RPM_TAGS: Final = ("NAME", "SUMMARY")


class Owner(NamedTuple):
    """The package that a file belongs to, and its summary, which may be empty."""

    package: str
    summary: str


class Port(NamedTuple):
    """What /etc/services calls a port, and its comment, which may be empty."""

    name: str
    comment: str


@dataclass(frozen=True, slots=True)
class Places:
    """Where the documents are."""

    root: Path = Path("/")
    dpkg: Path = Path("/var/lib/dpkg")
    manuals: Path = Path("/usr/share/man")
    rpm: str = "rpm"
    rpm_databases: tuple[Path, ...] = (Path("/usr/lib/sysimage/rpm"), Path("/var/lib/rpm"))

    @property
    def has_dpkg(self) -> bool:
        """Whether packages are dpkg's: its status is empty where it is a mere program."""
        status = self.dpkg / "status"
        return status.is_file() and status.stat().st_size > 0

    @property
    def has_rpm(self) -> bool:
        """Whether there is a database of rpm."""
        return any(folder.is_dir() for folder in self.rpm_databases)


class Documents:
    """Answers an observer from files; to be asked in a thread, and in one at a time.

    What does not exist or is broken has no answer; nothing is raised for it.
    """

    def __init__(self, places: Places | None = None) -> None:
        self._places = places or Places()
        self._status = StatusFile(self._places.dpkg / "status")
        self._owners = Owners(self._places.dpkg / "info", self._places.root)
        self._summaries: dict[str, str] = {}
        self._as_of = 0

    def owners(self, paths: Collection[str]) -> dict[str, Owner]:
        """Return the package of each path that belongs to one."""
        try:
            if self._places.has_dpkg:
                packages = self._owners.find(paths)
                return {path: Owner(name, self.summary(name)) for path, name in packages.items()}
            if self._places.has_rpm:
                return dict(_rpm_owners(self._places.rpm, list(paths)))
        except (OSError, subprocess.SubprocessError):
            pass
        return {}

    def summary(self, package: str) -> str:
        """Return what a package of dpkg is, in one line; empty if that is not known."""
        try:
            as_of = self._status.path.stat().st_mtime_ns
            if as_of != self._as_of:
                self._summaries = {found.name: found.summary for found in self._status.read()}
                self._as_of = as_of
        except OSError:
            return ""
        return self._summaries.get(package, "")

    def manual(self, page: str) -> str:
        """Return what `sshd(8)` or `man:sshd(8)` says about itself in one line, or nothing."""
        found = _REFERENCE.fullmatch(page)
        name, section = found.groups() if found else ("", "")
        for _ in range(_MAX_REFERENCES):
            text = self._page(name, section)
            reference = _SOURCED.match(text)
            if not reference:
                return described(text)
            name, section = reference.groups()
        return ""

    def _page(self, name: str, section: str) -> str:
        """Return the beginning of a page; those of other languages are left alone."""
        path = self._places.manuals / f"man{section[:1]}" / f"{name}.{section}"
        try:
            packed, _ = read_at_most(path.with_name(f"{path.name}.gz"), _MAX_PACKED_BYTES)
            # 31: with gzip's header
            content = zlib.decompressobj(31).decompress(packed, _MAX_PAGE_BYTES)
        except (OSError, ValueError, zlib.error):
            try:
                content, _ = read_at_most(path, _MAX_PAGE_BYTES)
            except (OSError, ValueError):
                return ""
        return content.decode(errors="replace")


def ports(
    services: str, path: Path = Path("/etc/services"), skipped: Skipped | None = None
) -> dict[tuple[int, str], Port]:
    """Return what the text of /etc/services calls (port, protocol); the first name counts."""
    found: dict[tuple[int, str], Port] = {}
    for number, row in enumerate(split_lines(services), 1):
        line = row.strip(C_SPACES)
        if match := _PORT.fullmatch(line):
            name, port, protocol, comment = match.groups()
            found.setdefault((int(port), protocol), Port(name, strip_blanks(comment or "")))
        elif line and line[0] != "#" and skipped:
            skipped.line(path, number)
    return found


def _rpm_owners(program: str, paths: Sequence[str]) -> Iterator[tuple[str, Owner]]:
    """Ask rpm for many paths at once: it answers in order, one line or more for each."""
    if not paths:
        return
    rows = _rpm_rows(program, paths[:_MAX_RPM_PATHS])
    if len(rows) == len(paths) or len(paths) == 1:
        for path, row in zip(paths, rows, strict=False):
            if len(row) == len(_RPM_TAGS):  # without: a sentence that no package has it
                name, summary = row
                yield path, Owner(name, join_words(summary))
        return
    # too many, or one that several packages have
    half = len(paths) // 2
    yield from _rpm_owners(program, paths[:half])
    yield from _rpm_owners(program, paths[half:])


def _rpm_rows(program: str, paths: Sequence[str]) -> list[list[str]]:
    done = subprocess.run(  # noqa: S603 -- paths are arguments of their own, after `--`
        [program, "-qf", "--queryformat", rpm.query_format(_RPM_TAGS), "--", *paths],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_RPM_SECONDS,
        check=False,
    )
    return list(rpm.rows(done.stdout.decode(errors="replace")))
