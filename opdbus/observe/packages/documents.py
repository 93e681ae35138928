"""Descriptions from the host's files: package owners and summaries, manual pages, port names."""

import re
import subprocess
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.observe.core.file_reading import read_at_most, text_of
from opdbus.observe.core.lookup_cache import LookupCache
from opdbus.observe.core.skipped import Skipped
from opdbus.observe.packages import rpm
from opdbus.observe.packages.dpkg import Owners, StatusFile
from opdbus.platform.lines import C_SPACES, join_words, split_lines, split_words, strip_blanks
from opdbus.state.redact import redact_text

# Enough to reach the NAME section, which is near the beginning of a page.
_MAX_PAGE_BYTES: Final = 64 << 10
_MAX_PACKED_BYTES: Final = 1 << 20
# A page may consist of one `.so` reference to another page.
_MAX_REFERENCES: Final = 3
_REFERENCE = re.compile(r"(?:man:)?([^ \t\n/()\0]{1,100})\((\w{1,10})\)")
_SOURCED = re.compile(r"\.so\s++(?:.*/)?([^\s/]+)\.(\w+?)(?:\.gz)?\s*", re.ASCII)
_PORT = re.compile(r"([^ \t#]+)[ \t]+([0-9]{1,5})/(\w+)(?:[ \t][^#]*)?(?:#[ \t]*+(.*))?")
_RPM_SECONDS: Final = 10.0
_MAX_RPM_PATHS: Final = 500
_RPM_TAGS: Final = ("NAME", "SUMMARY")
_MAX_SERVICES_BYTES: Final = 4 << 20

MAX_DESCRIPTION: Final = 200
# Lines that are read of a NAME section; its description is in the first few.
_MAX_NAME_LINES: Final = 60

_NAME_SECTION = re.compile(r"\.\s*S[Hh]\s+\"?name\"?\s*", re.IGNORECASE)
_SECTION = re.compile(r"\.\s*S[HhSs]\b")
# Macros whose arguments are text. Arguments of other macros are dropped.
_TEXT_MACROS: Final = frozenset("B I BI BR IB IR RB RI SM SB Nm Xr Em Sy Dq Sq Pa Cm Ar Fl".split())
_ESCAPED: Final = {
    r"\-": "-", r"\(hy": "-", r"\(em": " - ", r"\(en": "-", r"\(aq": "'", r"\(cq": "'",
    r"\(oq": "'", r"\(dq": '"', r"\(lq": '"', r"\(rq": '"', r"\(co": "©", r"\(rg": "®",
    r"\(bu": "*", r"\(ha": "^", r"\(ti": "~", r"\e": "\\", r"\ ": " ", r"\~": " ", r"\0": " ",
    r"\'": "'", r"\`": "`", r"\t": " ",
}  # fmt: skip
_ESCAPE = re.compile(
    r"\\(?:f(?:\[[^]]{0,80}\]|\(..|.)|s(?:\[[^]]{0,80}\]|\([+-]?..|[+-]?\d)"
    r"|[*nFgkmMVY](?:\[[^]]{0,80}\]|\(..|.)"
    r"|[hvwNXZbloDLSHAC]'[^']{0,80}'|\[[^]]{0,80}\]|\(..|\S| )"
)
# The dash, with blanks on both sides, between names and description.
_DASH = re.compile(r"\s(?:-{1,2}|[‐-―−])\s+")  # noqa: RUF001 -- matches all kinds of dashes
_CODE_POINT = re.compile(r"\\\[u([0-9A-F]{4,6})\]")


class Owner(NamedTuple):
    """The package that a file belongs to, and its summary, which may be empty."""

    package: str
    summary: str


class Port(NamedTuple):
    """The name of a port in /etc/services, and its comment, which may be empty."""

    name: str
    comment: str


@dataclass(frozen=True, slots=True)
class Places:
    """Locations of package databases, manual pages and the rpm program."""

    root: Path = Path("/")
    dpkg: Path = Path("/var/lib/dpkg")
    manuals: Path = Path("/usr/share/man")
    rpm: str = "rpm"
    rpm_databases: tuple[Path, ...] = (Path("/usr/lib/sysimage/rpm"), Path("/var/lib/rpm"))

    @property
    def has_dpkg(self) -> bool:
        """True if dpkg manages packages: with the program alone, its status is empty."""
        status = self.dpkg / "status"
        return status.is_file() and status.stat().st_size > 0

    @property
    def has_rpm(self) -> bool:
        """True if a database folder of rpm exists."""
        return any(folder.is_dir() for folder in self.rpm_databases)


class Documents:
    """Lookup of package owners, summaries and manual pages in the host's files.

    Call it on a worker thread, from one thread at a time. Missing or damaged files give empty
    results; no error is raised.
    """

    def __init__(self, places: Places | None = None) -> None:
        self._places = places or Places()
        self._status = StatusFile(self._places.dpkg / "status")
        self._owners = Owners(self._places.dpkg / "info", self._places.root)
        self._summaries: dict[str, str] = {}
        self._as_of = 0

    def owners(self, paths: Collection[str]) -> dict[str, Owner]:
        """Return the package that owns each path; paths without an owner are left out."""
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
        """Return the one-line description of a dpkg package; empty if it is unknown."""
        try:
            as_of = self._status.path.stat().st_mtime_ns
            if as_of != self._as_of:
                self._summaries = {found.name: found.summary for found in self._status.read()}
                self._as_of = as_of
        except OSError:
            return ""
        return self._summaries.get(package, "")

    def manual(self, page: str) -> str:
        """Return the description of a page such as `sshd(8)` or `man:sshd(8)`; empty if unknown."""
        found = _REFERENCE.fullmatch(page)
        name, section = found.groups() if found else ("", "")
        for _ in range(_MAX_REFERENCES):
            text = self._page(name, section)
            reference = _SOURCED.match(text)
            if not reference:
                return describe_page(text)
            name, section = reference.groups()
        return ""

    def _page(self, name: str, section: str) -> str:
        """Return the beginning of an untranslated page, packed or plain; empty if unreadable."""
        path = self._places.manuals / f"man{section[:1]}" / f"{name}.{section}"
        try:
            packed, _ = read_at_most(path.with_name(f"{path.name}.gz"), _MAX_PACKED_BYTES)
            # 31: expect the header of gzip
            content = zlib.decompressobj(31).decompress(packed, _MAX_PAGE_BYTES)
        except (OSError, ValueError, zlib.error):
            try:
                content, _ = read_at_most(path, _MAX_PAGE_BYTES)
            except (OSError, ValueError):
                return ""
        return content.decode(errors="replace")


def describe_page(page: str) -> str:
    """Return the one-line description in a man or mdoc page; empty if it has none."""
    lines = iter(split_lines(page))
    if not any(_NAME_SECTION.fullmatch(line) for line in lines):
        return ""
    texts: list[str] = []
    for _, line in zip(range(_MAX_NAME_LINES), lines, strict=False):
        if _SECTION.match(line):
            break
        if line.startswith(".Nd"):
            texts = [f" - {line[3:]}"]
            break
        text = line.partition('\\"')[0]
        if text.startswith((".", "'")):
            macro, *arguments = split_words(text[1:], 1) or [""]
            text = " ".join(arguments).replace('"', "") if macro in _TEXT_MACROS else ""
        texts.append(text)
    plain = " " + _ESCAPE.sub(_unescape, " ".join(texts))
    dash = _DASH.search(plain)
    description = plain[dash.end() :] if dash else ""
    # redact first: a secret may not be recognized once its quotes are removed or it is cut
    return join_words(redact_text(description).replace('"', ""))[:MAX_DESCRIPTION]


def _unescape(found: re.Match[str]) -> str:
    if point := _CODE_POINT.fullmatch(found[0]):
        return chr(min(int(point[1], 16), 0x10FFFF))
    return _ESCAPED.get(re.sub(r"\\\[(..)\]", r"\\(\1", found[0]), "")


class ServiceNames:
    """Names and comments of ports in /etc/services; the file is read again only for a new port."""

    def __init__(self, file: Path = Path("/etc/services")) -> None:
        self._file = file
        self._ports = LookupCache[tuple[int, str], Port](Port("", ""))
        # of the last reading
        self.skipped = Skipped()

    def find(self, wanted: Collection[tuple[int, str]]) -> Mapping[tuple[int, str], Port]:
        """Return the service of each (port, protocol); ports without one have empty names."""
        if self._ports.lacks(wanted):
            self.skipped = Skipped()
            text = text_of(self._file, _MAX_SERVICES_BYTES, self.skipped)
            self._ports.learn(wanted, parse_services(text, self._file, self.skipped))
        return self._ports


def parse_services(
    services: str, path: Path = Path("/etc/services"), skipped: Skipped | None = None
) -> dict[tuple[int, str], Port]:
    """Parse the text of /etc/services into a dict by (port, protocol); the first name counts."""
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
    """Yield the owner of each path from one call of rpm, which prints a line or more for each.

    If the number of lines does not match, the halves of the paths are queried separately.
    """
    if not paths:
        return
    query = rpm.query_format(_RPM_TAGS)
    done = subprocess.run(  # noqa: S603 -- paths are separate arguments, after `--`
        [program, "-qf", "--queryformat", query, "--", *paths[:_MAX_RPM_PATHS]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_RPM_SECONDS,
        check=False,
    )
    rows = list(rpm.parse_rows(done.stdout.decode(errors="replace")))
    if len(rows) == len(paths) or len(paths) == 1:
        for path, row in zip(paths, rows, strict=False):
            if len(row) == len(_RPM_TAGS):  # otherwise the message that no package owns the file
                name, summary = row
                yield path, Owner(name, join_words(summary))
        return
    # too many paths, or a path that several packages own
    half = len(paths) // 2
    yield from _rpm_owners(program, paths[:half])
    yield from _rpm_owners(program, paths[half:])
