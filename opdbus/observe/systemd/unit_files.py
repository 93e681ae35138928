"""Unit files on disk: detection of changes, and descriptions without loading a unit."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISLNK
from typing import Final, NamedTuple

from opdbus.observe.core.file_reading import changed_at, files_in, read_at_most
from opdbus.observe.systemd import unit_syntax
from opdbus.state.object import Json

TYPES: Final = "service socket timer mount automount swap device target path slice scope".split()
_NAME: Final = re.compile(rf"[A-Za-z0-9:_.\\@-]{{1,247}}\.({'|'.join(TYPES)})")
# Folders of links and of drop-in files, named after a unit.
_FOLDERS: Final = (".wants", ".requires", ".upholds", ".d")
# Far more than any host has; of one file, the beginning is enough.
_MAX_FILES: Final = 20_000
_MAX_BYTES: Final = 2 * unit_syntax.MAX_LINE


class Stamp(NamedTuple):
    """Metadata to detect a change of a file or link target; times are in nanoseconds."""

    modified: int
    size: int
    target: str
    changed: int


def is_unit(name: object) -> bool:
    """Return whether a value is a valid unit name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def scan(folders: Iterable[str]) -> dict[Path, Stamp]:
    """Return the stamps of all unit files, links and drop-ins, at most 20,000."""
    return dict(islice(_stamps(folders), _MAX_FILES))


def changed(before: Mapping[Path, Stamp], after: Mapping[Path, Stamp]) -> dict[str, float]:
    """Return the units whose files differ.

    The values are the times of their latest file change, in seconds since 1970.
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
    """Return the description and documentation of units from their files and drop-ins.

    A masked unit is described by the file that is hidden, and an instance by its template.
    """
    links = _links(folders)
    return {name: _described(name, folders, links) for name in names}


def _links(folders: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the links in the folders, by the unit that they lead to."""
    # the first of a name hides the others
    first = {p.name: p for each in reversed(folders) for p in files_in(Path(each))}
    found: dict[str, list[str]] = {}
    for name, path in first.items():
        with suppress(OSError):
            if (target := path.readlink().name) in first:
                found.setdefault(target, []).append(name)
    return found


def _aliases(name: str, links: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the other names of a unit: links to it or to its template, and links to those."""
    found = [name]
    for each in found:
        template, instance = _template(each), each.partition("@")[2].rpartition(".")[0]
        names = [*links.get(each, ())]
        if template != each:
            of_template = (link for link in links.get(template, ()) if "@." in link)
            names += (link.replace("@.", f"@{instance}.", 1) for link in of_template)
        found += [other for other in names if other not in found]
    return sorted(found[1:])


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


def _described(
    name: str, folders: Sequence[str], links: Mapping[str, Sequence[str]]
) -> dict[str, Json]:
    for path in _fragments(name, folders):
        with suppress(OSError):
            content, _ = read_at_most(path, _MAX_BYTES)
            # an empty file masks as a link to /dev/null does: what it hides still tells most
            if content:
                return _told(name, [path, *_drop_ins([name, *_aliases(name, links)], folders)])
    return {}


def _template(name: str) -> str:
    """Return the name of the template that a unit is an instance of; other names as they are."""
    prefix, _, rest = name.partition("@")
    return f"{prefix}@.{rest.rpartition('.')[2]}" if "." in rest else name


def _fragments(name: str, folders: Sequence[str]) -> Iterator[Path]:
    """Yield where the file of a unit may be, that which counts first."""
    for candidate in dict.fromkeys((name, _template(name))):
        yield from (Path(folder, candidate) for folder in folders)


def _drop_ins(names: Sequence[str], folders: Sequence[str]) -> list[Path]:
    """Return the drop-ins of a unit, which may have several names, in the order of reading.

    One of an earlier folder, or of a more exact name, replaces others of its file name.
    """
    found: dict[str, Path] = {}
    for each in (*map(_and_prefixes, names), [names[0].rpartition(".")[2]]):
        for folder in folders:
            for one in each:
                for path in files_in(Path(folder, f"{one}.d")):
                    found.setdefault(path.name, path)
    return [found[each] for each in sorted(found) if each.endswith(".conf")]


def _and_prefixes(name: str) -> list[str]:
    """Return a name with others whose drop-ins count, too: `a-.service` of `a-b.service`."""
    whole, _, kind = name.rpartition(".")
    names = list(dict.fromkeys((name, _template(name))))
    prefix, is_instance, _ = whole.partition("@")
    while "-" in prefix.rstrip("-"):
        prefix = prefix.rstrip("-").rpartition("-")[0] + "-"
        names.append(f"{prefix}{'@' if is_instance else ''}.{kind}")
    return names


def _told(name: str, files: Iterable[Path]) -> dict[str, Json]:
    """Return description and documentation; later files are drop-ins of earlier ones."""
    description = ""
    documentation: list[str] = []
    for path in files:
        content = b""
        with suppress(OSError):
            content, _ = read_at_most(path, _MAX_BYTES)
        for section, key, written in unit_syntax.assignments(content):
            value = unit_syntax.expand(written, name, str(path))
            if section != "Unit" or value is None:
                continue
            if key == "Description":
                description = value
            elif key == "Documentation":
                documentation = documentation + unit_syntax.references(value) if written else []
    told: dict[str, Json] = {}
    if description:
        told["description"] = description
    if documentation:
        told["documentation"] = sorted(documentation)
    return told
