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
from opdbus.observe.systemd.pid1 import required_by
from opdbus.observe.systemd.unit_properties import names_in
from opdbus.state.object import Json

# Limits of one file, and of the files and folders of one unit: far more than a service has.
_MAX_BYTES: Final = 64 << 10
_MAX_ALL: Final = 1 << 20
_MAX_FILES: Final = 100
_MAX_FOLDERS: Final = 50
_SECONDS: Final = 2.0
# Only configuration is read; other paths are only named.
_CONFIGURATION: Final = ("/etc/", "/usr/local/etc/", "/opt/")
# A package of a dependency, without its version and architecture.
_PACKAGE: Final = re.compile(r"(?<![^,| \t\n])[a-z0-9][a-z0-9+.-]+(?=[:,| \t\n(]|$)")


async def find_mentions(
    unit: str, fields: Mapping[str, Json], files: Collection[str], root: Path = Path("/")
) -> Mentions:
    """Return the names in a unit's fields, in its files, and in the configuration `files`.

    If files hang, return those in the fields.
    """
    command = str(fields.get("exec", ""))
    program = command.partition(" ")[0].rpartition("/")[2]
    names = filter(None, [unit, program, str(fields.get("package", ""))])
    found = config_mentions.of_names(*names) | config_mentions.in_text(command)
    found |= Mentions(
        users=frozenset({str(fields.get(key) or "") for key in ("user", "group")} - {"", "root"}),
        units=frozenset(u for key in ("requires", "wants", "after") for u in names_in(fields, key)),
        packages=frozenset({program} - {""}),
    )
    if root == Path("/"):
        found |= Mentions(units=frozenset(await required_by(unit)))
    with suppress(LostSource):
        found |= await in_thread(partial(_read_files, fields, files, found, root), _SECONDS)
    return found


def _read_files(
    fields: Mapping[str, Json], files: Collection[str], known: Mentions, root: Path
) -> Mentions:
    """Read the unit's files, the files that they name, and those that these name again."""
    own = {str(fields.get("fragment_path", "")), *names_in(fields, "drop_ins")}
    found = known | _names_in_files(own, root)
    # files of its package in folders of its own: /etc/default has one for each
    found |= config_mentions.own_folders(frozenset({*files, *_configuration(found.paths, root)}))
    read = {*files, *_configuration(found.paths, root), *_files_below(found.folders, root)}
    found |= _names_in_files(sorted(read)[:_MAX_FILES], root)
    if package := str(fields.get("package", "")):
        found |= Mentions(packages=_dependencies(package, root))
    included = _configuration(found.paths - known.paths, root) - read
    return found | _names_in_files(sorted(included)[:_MAX_FILES], root)


def _dependencies(package: str, root: Path) -> frozenset[str]:
    """Return the packages that a package depends on, from dpkg's status file."""
    text = text_of(root / "var/lib/dpkg/status")
    begin = f"\n{text}".find(f"\nPackage: {package}\n")
    paragraph = text[begin : text.find("\n\n", begin)] if begin >= 0 else ""
    lines = (line.partition(":") for line in paragraph.split("\n"))
    wanted = ",".join(value for key, _, value in lines if key in {"Depends", "Pre-Depends"})
    return frozenset(_PACKAGE.findall(wanted))


def _names_in_files(files: Collection[str], root: Path) -> Mentions:
    texts = (text_of(root / path.lstrip("/"), _MAX_BYTES) for path in files if path)
    return config_mentions.in_text("\n".join(texts)[:_MAX_ALL])


def _configuration(paths: Collection[str], root: Path) -> set[str]:
    """Return those paths that are configuration files."""
    found = set()
    for path in paths:
        with suppress(OSError, ValueError):
            is_below = path.startswith(_CONFIGURATION)
            if is_below and stat.S_ISREG((root / path.lstrip("/")).stat().st_mode):
                found.add(path)
    return found


def _files_below(folders: Collection[str], root: Path) -> Iterator[str]:
    """Yield the files in folders and those inside of them."""
    waiting = sorted(folders)
    for _ in range(_MAX_FOLDERS):
        if not waiting:
            return
        folder = waiting.pop(0)
        entries: list[os.DirEntry[str]] = []
        with suppress(OSError), os.scandir(root / folder.lstrip("/")) as found:
            entries = sorted(found, key=lambda entry: entry.name)[:_MAX_FILES]
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{folder}/{entry.name}")
            else:
                yield f"{folder}/{entry.name}"
