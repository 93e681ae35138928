"""Unit files on disk: detection of changes, and descriptions without loading a unit."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISLNK
from typing import Final, NamedTuple, TypeGuard

from opdbus.observe.core.file_reading import changed_at, files_in, in_thread, read_at_most
from opdbus.observe.core.report import LostSource
from opdbus.observe.systemd import unit_syntax
from opdbus.state.object import Json

TYPES: Final = "service socket timer mount automount swap device target path slice scope".split()
_NAME: Final = re.compile(rf"[A-Za-z0-9:_.\\@-]{{1,247}}\.({'|'.join(TYPES)})")
# Folders of links and of drop-in files, named after a unit.
_FOLDERS: Final = (".wants", ".requires", ".upholds", ".d")
_GENERATED: Final = re.compile(r"/generator(?:\.\w+)?/?$")
# Units in it come and go with each `systemd-run`, and none is enabled or masked.
_TRANSIENT: Final = "transient"
# Far more than any host has; of one file, the beginning is enough.
_MAX_FILES: Final = 20_000
_MAX_BYTES: Final = 2 * unit_syntax.MAX_LINE


class _Stamp(NamedTuple):
    """Metadata to detect a change of a file or link target; times are in nanoseconds."""

    modified: int
    size: int
    target: str
    changed: int


class FileChanges(NamedTuple):
    """Units whose files changed, with the times of change in seconds since 1970.

    `has_undone`: a folder changed and none of its files did, so that a change was undone.
    """

    times: dict[str, float]
    has_undone: bool


def is_unit(name: object) -> TypeGuard[str]:
    """Return whether a value is a valid unit name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


class UnitFolders:
    """Reader of the folders in order of precedence; a hanging folder yields no changes."""

    def __init__(self, folders: Iterable[str] = ()) -> None:
        # generators write theirs anew at each reload, after which all units are read anyway
        self._folders = [name for name in folders if not _GENERATED.search(name)]
        self._stamps: Mapping[Path, _Stamp] = {}

    async def take_changes(self) -> FileChanges:
        """Return the changes since the last call."""
        before = self._stamps
        with suppress(LostSource):
            self._stamps = await in_thread(lambda: dict(islice(_stamps(self._folders), _MAX_FILES)))
        times: dict[str, float] = {}
        changed = {
            path
            for path in before.keys() | self._stamps.keys()
            if before.get(path) != self._stamps.get(path)
        }
        own = {*map(Path, self._folders)}
        folders = {path for path in changed if path in own or path.name.endswith(_FOLDERS)}
        for path in changed - folders:
            stamps = [before.get(path), self._stamps.get(path)]
            at = stamps[1].changed / 1e9 if stamps[1] else changed_at(str(path))
            folder = path.parent.name
            unit = folder.removesuffix(".d") if folder.endswith(".d") else path.name
            names = [unit, *(Path(stamp.target).name for stamp in stamps if stamp)]
            times |= {name: max(at, times.get(name, at)) for name in filter(is_unit, names)}
        return FileChanges(times, not folders <= {path.parent for path in changed})

    async def describe(self, names: Iterable[str]) -> Mapping[str, dict[str, Json]]:
        """Return the description and documentation of units from their files; empty on a hang."""
        if wanted := list(names):
            with suppress(LostSource):
                return await in_thread(lambda: describe_units(wanted, self._folders))
        return {}

    def is_alias(self, file: str) -> bool:
        """Return whether a unit file is a link to a unit of another name."""
        path = Path(file)
        stamp = self._stamps.get(path)
        target = Path(stamp.target).name if stamp else ""
        return is_unit(target) and target != path.name


async def find_change_times(files: Mapping[str, Iterable[str]]) -> Mapping[str, float]:
    """Return the latest change time of each unit's files; empty if a file system hangs."""
    if files:
        with suppress(LostSource):
            return await in_thread(
                lambda: {name: max(map(changed_at, paths)) for name, paths in files.items()}
            )
    return {}


def describe_units(names: Iterable[str], folders: Sequence[str]) -> dict[str, dict[str, Json]]:
    """Return the description and documentation of units from their files and drop-ins.

    A masked unit is described by the file that is hidden, and an instance by its template.
    """
    links = _links(folders)
    found: dict[str, dict[str, Json]] = {}
    for name in names:
        candidates = dict.fromkeys((name, _template(name)))
        paths = (Path(folder, candidate) for candidate in candidates for folder in folders)
        # an empty file masks as a link to /dev/null does: it hides the next one
        path = next(filter(_content, paths), None)
        drop_ins = _drop_ins([name, *_aliases(name, links)], folders) if path else ()
        found[name] = _parse_texts(name, [path, *drop_ins]) if path else {}
    return found


def _stamps(folders: Iterable[str]) -> Iterator[tuple[Path, _Stamp]]:
    """Yield the stamps of all unit files, links, drop-ins, and of their folders."""
    for folder in dict.fromkeys(map(Path, folders)):
        if folder.name != _TRANSIENT:
            yield from _stamp(folder)
        for path in files_in(folder):
            yield from _stamp(path)
            if path.name.endswith(_FOLDERS):
                for file in files_in(path):
                    yield from _stamp(file)


def _stamp(path: Path) -> Iterator[tuple[Path, _Stamp]]:
    """Yield the stamp of a path; nothing if it is gone."""
    with suppress(OSError):
        status = path.lstat()
        target = str(path.readlink()) if S_ISLNK(status.st_mode) else ""
        yield path, _Stamp(status.st_mtime_ns, status.st_size, target, status.st_ctime_ns)


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


def _content(path: Path) -> bytes:
    with suppress(OSError):
        return read_at_most(path, _MAX_BYTES)[0]
    return b""


def _template(name: str) -> str:
    """Return the name of the template that a unit is an instance of; other names as they are."""
    prefix, _, rest = name.partition("@")
    return f"{prefix}@.{rest.rpartition('.')[2]}" if "." in rest else name


def _drop_ins(names: Sequence[str], folders: Sequence[str]) -> list[Path]:
    """Return the drop-ins of a unit, which may have several names, in the order of reading.

    One of an earlier folder, or of a more exact name, replaces others of its file name.
    """
    found: dict[str, Path] = {}
    for each in (*map(_with_prefixes, names), [names[0].rpartition(".")[2]]):
        for folder in folders:
            for one in each:
                for path in files_in(Path(folder, f"{one}.d")):
                    found.setdefault(path.name, path)
    return [found[each] for each in sorted(found) if each.endswith(".conf")]


def _with_prefixes(name: str) -> list[str]:
    """Return a name with others whose drop-ins count, too: `a-.service` of `a-b.service`."""
    whole, _, kind = name.rpartition(".")
    names = list(dict.fromkeys((name, _template(name))))
    prefix, is_instance, _ = whole.partition("@")
    while "-" in prefix.rstrip("-"):
        prefix = prefix.rstrip("-").rpartition("-")[0] + "-"
        names.append(f"{prefix}{'@' if is_instance else ''}.{kind}")
    return names


def _parse_texts(name: str, files: Iterable[Path]) -> dict[str, Json]:
    """Return description and documentation; later files are drop-ins of earlier ones."""
    description = ""
    documentation: list[str] = []
    for path in files:
        for section, key, written in unit_syntax.assignments(_content(path)):
            value = unit_syntax.expand(written, name, str(path))
            if section != "Unit" or value is None:
                continue
            if key == "Description":
                description = value
            elif key == "Documentation":
                documentation = documentation + unit_syntax.references(value) if written else []
    fields: dict[str, Json] = {"description": description, "documentation": sorted(documentation)}
    return {name: value for name, value in fields.items() if value}
