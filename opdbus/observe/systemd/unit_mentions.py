"""Names in a unit's files and configuration, read on demand.

Nothing is stored; only names such as paths, ports and users are taken from the texts.
"""

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from opdbus.index.query import config_mentions
from opdbus.index.query.config_mentions import Mentions
from opdbus.observe.core.file_reading import in_thread, text_of
from opdbus.observe.core.report import LostSource
from opdbus.observe.systemd.unit_requirements import required_by
from opdbus.state.object import Json

# Of one file, and files and folders of one unit: far more than a service has.
_MAX_BYTES: Final = 64 << 10
_MAX_ALL: Final = 1 << 20
_MAX_FILES: Final = 100
_MAX_FOLDERS: Final = 50
_SECONDS: Final = 2.0
# Configuration is read where it lies; of other paths it is enough that they are named.
_CONFIGURATION: Final = ("/etc/", "/usr/local/etc/", "/opt/")
# A package of a dependency, without its version and architecture.
_PACKAGE: Final = re.compile(r"(?<![^,| \t\n])[a-z0-9][a-z0-9+.-]+(?=[:,| \t\n(]|$)")
_UNITS: Final = ("requires", "wants", "after")


async def mentioned(
    unit: str, fields: Mapping[str, Json], files: Collection[str], root: Path = Path("/")
) -> Mentions:
    """Return what a unit names: by its fields, its files and the configuration `files` of its own.

    Where files hang, it is what the fields say.
    """
    found = of_fields(unit, fields)
    if root == Path("/"):
        found |= Mentions(units=frozenset(await required_by(unit)))
    with suppress(LostSource):
        found |= await in_thread(partial(_read, fields, files, found, root), _SECONDS)
    return found


def of_fields(unit: str, fields: Mapping[str, Json]) -> Mentions:
    """Return the names in the fields of a unit."""
    command = str(fields.get("exec", ""))
    program = command.partition(" ")[0].rpartition("/")[2]
    named = [unit, program, *filter(None, [str(fields.get("package", ""))])]
    units = {str(name) for key in _UNITS for name in _listed(fields.get(key))}
    users = {str(fields[key]) for key in ("user", "group") if fields.get(key)} - {"root"}
    needs = frozenset(filter(None, [program]))
    told = Mentions(users=frozenset(users), units=frozenset(units), packages=needs)
    return config_mentions.of_names(*named) | config_mentions.in_text(command) | told


def _listed(value: Json) -> Collection[Json]:
    return value if isinstance(value, list) else ()


def _read(
    fields: Mapping[str, Json], files: Collection[str], known: Mentions, root: Path
) -> Mentions:
    """Read the unit's files, what these name, and what that names again."""
    own = {str(fields.get("fragment_path", "")), *map(str, _listed(fields.get("drop_ins")))}
    found = known | _in_files(own, root)
    # of its package those in folders of its own: /etc/default has one for each
    found |= config_mentions.own_folders(frozenset({*files, *_configuration(found.paths, root)}))
    begun = {*files, *_configuration(found.paths, root), *_beneath(found.folders, root)}
    found |= _in_files(sorted(begun)[:_MAX_FILES], root)
    found |= Mentions(packages=_needs(str(fields.get("package", "")), root))
    included = _configuration(found.paths - known.paths, root) - begun
    return found | _in_files(sorted(included)[:_MAX_FILES], root)


def _needs(package: str, root: Path) -> frozenset[str]:
    """Return the packages that a package depends on, as dpkg has it."""
    text = text_of(root / "var/lib/dpkg/status") if package else ""
    begin = f"\n{text}".find(f"\nPackage: {package}\n")
    paragraph = text[begin : text.find("\n\n", begin)] if begin >= 0 else ""
    lines = (line.partition(":") for line in paragraph.split("\n"))
    wanted = ",".join(value for key, _, value in lines if key in {"Depends", "Pre-Depends"})
    return frozenset(_PACKAGE.findall(wanted))


def _in_files(files: Collection[str], root: Path) -> Mentions:
    texts = (text_of(root / path.lstrip("/"), _MAX_BYTES) for path in files if path)
    return config_mentions.in_text("\n".join(texts)[:_MAX_ALL])


def _configuration(paths: Collection[str], root: Path) -> set[str]:
    """Return those paths that are configuration files."""
    return {path for path in paths if path.startswith(_CONFIGURATION) and _is_file(root, path)}


def _is_file(root: Path, path: str) -> bool:
    with suppress(OSError, ValueError):
        return stat.S_ISREG((root / path.lstrip("/")).stat().st_mode)
    return False


def _beneath(folders: Collection[str], root: Path) -> Iterator[str]:
    """Yield the files in folders and those inside of them."""
    waiting, seen = sorted(folders), 0
    while waiting and seen < _MAX_FOLDERS:
        folder = waiting.pop(0)
        seen += 1
        for entry in _entries(root / folder.lstrip("/")):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{folder}/{entry.name}")
            else:
                yield f"{folder}/{entry.name}"


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with suppress(OSError), os.scandir(folder) as entries:
        return sorted(entries, key=lambda entry: entry.name)[:_MAX_FILES]
    return []
