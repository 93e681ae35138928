"""The host's time zone, from the link or the content of /etc/localtime."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from opdbus.observe.core.file_reading import read_at_most, text_of
from opdbus.observe.core.skipped import Skipped
from opdbus.platform.lines import split_lines

_CLOCK: Final = "etc/localtime"
_ZONES: Final = "usr/share/zoneinfo"
_IN_ZONES: Final = "zoneinfo/"
_ZONE: Final = re.compile("[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+){0,3}")
# The beginning of a zone file, see tzfile(5); the largest of 2026 has 4 KiB.
_SIGNATURE: Final = b"TZif"
_MAX_BYTES: Final = 64 << 10
# Folders with copies of all zones, with and without leap seconds.
_COPIES: Final = frozenset({"posix", "right"})
_MAX_LINKS: Final = 10
_MAX_DEPTH: Final = 4
_UNIVERSAL: Final = ("UTC", "Etc/UTC")


def find_time_zone(root: Path, setting: str, skipped: Skipped) -> str:
    """Return the time zone; empty if it cannot be found.

    `setting` is the zone that another file names. It is used unless /etc/localtime contradicts it.
    """
    setting = setting if _ZONE.fullmatch(setting) else ""
    # the zone that /etc/localtime links to, also through other links
    path = root / _CLOCK
    with suppress(OSError):
        for _ in range(_MAX_LINKS):
            target = str(path.readlink())
            _, is_zone, zone = target.rpartition(_IN_ZONES)
            if is_zone and zone:
                return zone
            path = root / target[1:] if target.startswith("/") else path.parent / target
    try:
        content, _ = read_at_most(root / _CLOCK, _MAX_BYTES)
    except FileNotFoundError:
        return setting
    except OSError:
        content = b""
    if not content.startswith(_SIGNATURE):
        skipped.file(root / _CLOCK)
        return setting
    same = set(_find_same(root / _ZONES, content))
    if setting in same or (setting and not same and _is_older_copy(root, setting, content)):
        return setting
    # of several names of a zone, those in these tables come first
    for table in ("zone1970.tab", "zone.tab"):
        rows = (line.split("\t") for line in split_lines(text_of(root / _ZONES / table)))
        if listed := sorted(same & {row[2] for row in rows if len(row) > 2}):
            return listed[0]
    usual = (zone for zone in _UNIVERSAL if zone in same)
    return next(usual, min(same, default=""))


def _find_same(folder: Path, content: bytes, depth: int = 0, above: str = "") -> Iterator[str]:
    """Yield the zones whose files have this content."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name = f"{above}{entry.name}"
            if entry.is_dir() and entry.name not in _COPIES and depth < _MAX_DEPTH:
                yield from _find_same(Path(entry.path), content, depth + 1, f"{name}/")
            elif (
                _ZONE.fullmatch(name)
                and entry.is_file()
                and entry.stat().st_size == len(content)
                and read_at_most(Path(entry.path), _MAX_BYTES)[0] == content
            ):
                yield name


def _is_older_copy(root: Path, setting: str, content: bytes) -> bool:
    """Return whether content may be an older copy of a zone, by the rule at its end.

    True also on a host without zone files.
    """
    try:
        zone, _ = read_at_most(root / _ZONES / setting, _MAX_BYTES)
    except OSError:
        return not (root / _ZONES).is_dir()
    ends = [text.rstrip(b"\n").rpartition(b"\n")[2] for text in (zone, content)]
    return all(text.endswith(b"\n") for text in (zone, content)) and ends[0] == ends[1] != b""
