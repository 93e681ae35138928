"""The files of units: which of them have changed, and what they say without loading a unit."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISLNK
from typing import Final, NamedTuple

from opdbus.observe.reading import changed_at, files_in
from opdbus.state.object import Json

TYPES: Final = "service socket timer mount automount swap device target path slice scope".split()
_NAME: Final = re.compile(rf"[A-Za-z0-9:_.\\@-]{{1,247}}\.({'|'.join(TYPES)})")
# Folders of links and of drop-in files, named after a unit.
_FOLDERS: Final = (".wants", ".requires", ".upholds", ".d")
# Far more than any host has; of one file, the beginning is enough.
_MAX_FILES: Final = 20_000
_MAX_BYTES: Final = 1 << 16
_SECTION: Final = "[Unit]"


class Stamp(NamedTuple):
    """Differs after a file, or the target of a link, has changed; times are in nanoseconds."""

    modified: int
    size: int
    target: str
    changed: int


def is_unit(name: object) -> bool:
    """Return whether this is the name of a unit."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def scan(folders: Iterable[str]) -> dict[Path, Stamp]:
    """Return the stamps of all files of units, of the links to them, and of drop-ins."""
    return dict(islice(_stamps(folders), _MAX_FILES))


def changed(before: Mapping[Path, Stamp], after: Mapping[Path, Stamp]) -> dict[str, float]:
    """Return the names of the units that files which differ concern.

    With each comes when its files were changed last, in seconds since 1970.
    """
    found: dict[str, float] = {}
    for path in before.keys() | after.keys():
        stamps = [before.get(path), after.get(path)]
        if stamps[0] != stamps[1]:
            at = stamps[1].changed / 1e9 if stamps[1] else changed_at(str(path))
            names = [_unit_of(path), *(Path(stamp.target).name for stamp in stamps if stamp)]
            found |= {name: max(at, found.get(name, at)) for name in filter(is_unit, names)}
    return found


def described(names: Iterable[str], folders: Sequence[str]) -> dict[str, dict[str, Json]]:
    """Return description and documentation of units as their files say, those of masked ones too.

    An instance is described by its template.
    """
    return {name: _described(name, folders) for name in names}


def _stamps(folders: Iterable[str]) -> Iterator[tuple[Path, Stamp]]:
    for folder in dict.fromkeys(map(Path, folders)):
        for path in files_in(folder):
            if path.name.endswith(_FOLDERS):
                for inner in files_in(path):
                    yield from _stamp(inner)
            else:
                yield from _stamp(path)


def _stamp(path: Path) -> Iterator[tuple[Path, Stamp]]:
    with suppress(OSError):
        found = path.lstat()
        target = str(path.readlink()) if S_ISLNK(found.st_mode) else ""
        yield path, Stamp(found.st_mtime_ns, found.st_size, target, found.st_ctime_ns)


def _unit_of(path: Path) -> str:
    return path.parent.name.removesuffix(".d") if path.parent.name.endswith(".d") else path.name


def _described(name: str, folders: Sequence[str]) -> dict[str, Json]:
    template = re.sub(r"^([^@]*+)@.*\.", r"\1@.", name)
    for candidate in dict.fromkeys((name, template)):
        for folder in folders:
            if found := _read(Path(folder, candidate)):
                return found
    return {}


def _read(path: Path) -> dict[str, Json]:
    """Return what a unit's file says of it; a masked one is a link to /dev/null."""
    with suppress(OSError):
        if not path.is_file():
            return {}
        with path.open(encoding="utf-8", errors="replace") as file:
            return _parsed(file.read(_MAX_BYTES))
    return {}


def _parsed(text: str) -> dict[str, Json]:
    section = ""
    found: dict[str, str] = {}
    for line in text.replace("\\\n", " ").splitlines():
        key, separator, value = map(str.strip, line.partition("="))
        if line.startswith("["):
            section = line.strip()
        elif section == _SECTION and separator and value:
            # of this key systemd takes all lines
            before = f"{found[key]} " if key == "Documentation" and key in found else ""
            found[key] = before + value
    told: dict[str, Json] = {}
    if "Description" in found:
        told["description"] = found["Description"]
    if "Documentation" in found:
        told["documentation"] = sorted(found["Documentation"].split())
    return told
