"""Kernel settings named by sysctl.d(5) or the state file, with current and configured values."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.drift.equality import same_setting
from opdbus.observe.core.file_reading import files_in, read_at_most, text_of
from opdbus.observe.core.skipped import Skipped
from opdbus.platform.lines import join_words, split_lines
from opdbus.platform.name_lists import show_difference
from opdbus.state.object import Json
from opdbus.state.redact import redact
from opdbus.state.secret_text import REDACTED

# In order of precedence: a file hides files of the same name in later folders.
FOLDERS: Final = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
_LINKED: Final = "etc/sysctl.conf"
_BLANKS: Final = " \t\n\r"
_WILD = re.compile(r"[*?\[]")
# Settings of namespaces: a sandboxed service sees its own values, not the host's.
_OF_NAMESPACES = re.compile(
    r"(?:net|user|fs/mqueue)/.*|kernel/(?:shm\w*|msg\w*|sem|auto_msgmni|hostname|domainname)"
)
# Such as the key of TCP Fast Open.
_KEY: Final = "_key"
_HIDDEN: Final = "the service has its own value of this in its sandbox"
_MAX_BYTES: Final = 1 << 20
_MAX_VALUE: Final = 4096
_MAX_SETTINGS: Final = 2_000
_MAX_FILES: Final = 500
_MAX_MATCHES: Final = 500
_SWAPPED: Final = str.maketrans("./", "/.")


class _ConfiguredValue(NamedTuple):
    """The value that a configuration file assigns to a setting, and the path of the file."""

    value: str
    file: str


_NO_FILE: Final = _ConfiguredValue("", "")


@dataclass(frozen=True, slots=True)
class Sysctls:
    """Reader of kernel settings. `is_apart`: this process has its own namespaces."""

    root: Path = Path("/")
    is_apart: bool = False

    @property
    def folders(self) -> list[str]:
        """Return the folders with sysctl.d files."""
        return [str(self.root / folder / "sysctl.d") for folder in FOLDERS]

    @property
    def file(self) -> str:
        """Return the path of /etc/sysctl.conf, to which sysctl.d often has a symbolic link.

        The file is read at boot only through such a link.
        """
        return str(self.root / _LINKED)

    def read(
        self, others: Collection[str] = (), skipped: Skipped | None = None
    ) -> dict[str, dict[str, Json]]:
        """Return all settings that files or `others` name, by dotted name."""
        paths = (path for path in map(_path, sorted(others)) if "/" in path and _is_path(path))
        named = dict.fromkeys(paths, _NO_FILE)
        wanted = dict(
            [*{**named, **self._read_files(skipped or Skipped())}.items()][:_MAX_SETTINGS]
        )
        return {
            path.translate(_SWAPPED): self._properties(path, each) for path, each in wanted.items()
        }

    def _read_files(self, skipped: Skipped) -> Mapping[str, _ConfiguredValue]:
        """Return the configured values by path: the last line counts, and names precede patterns.

        The same holds for a line that excludes a setting from patterns.
        """
        files: dict[str, Path] = {}
        for folder in map(Path, self.folders):
            for path in files_in(folder):
                files.setdefault(path.name, path)
        last: dict[str, _ConfiguredValue | None] = {}
        # in the order in which systemd-sysctl applies them
        for name in [name for name in sorted(files) if name.endswith(".conf")][:_MAX_FILES]:
            text = text_of(files[name], _MAX_BYTES, skipped)
            for setting, value in _assignments(text, files[name], skipped):
                last.pop(setting, None)
                file = f"/{files[name].relative_to(self.root)}"
                last[setting] = None if value is None else _ConfiguredValue(value, file)
        named: dict[str, _ConfiguredValue] = {}
        matching: dict[str, _ConfiguredValue] = {}
        for setting, each in last.items():
            if each and _WILD.search(setting):
                matching |= dict.fromkeys(self._matches(setting), each)
            elif each:
                named[setting] = each
        return {path: each for path, each in matching.items() if last.get(path, each)} | named

    def _matches(self, pattern: str) -> list[str]:
        """Return the settings that match a pattern, or the pattern if the sandbox hides them."""
        if self._is_hidden(pattern):
            return [pattern]
        top = self.root / "proc/sys"
        try:
            found = [str(path.relative_to(top)) for path in top.glob(pattern)]
        except (OSError, ValueError, NotImplementedError):
            return []
        return sorted(found)[:_MAX_MATCHES]

    def _is_hidden(self, path: str) -> bool:
        return self.is_apart and _OF_NAMESPACES.fullmatch(path) is not None

    def _properties(self, path: str, wanted: _ConfiguredValue) -> dict[str, Json]:
        name = path.translate(_SWAPPED)
        should = _redact_value(name, wanted.value)
        found: dict[str, Json] = {"wanted": should, "file": wanted.file} if wanted.file else {}
        if self._is_hidden(path):
            description = f"should be {should}, as {wanted.file} says" if found else _HIDDEN
            return {"description": description, **found, "not_measured": _HIDDEN}
        file = self.root / "proc/sys" / path
        try:
            content, _ = read_at_most(file, _MAX_VALUE)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return {"description": "this kernel has no such setting", **found, "missing": True}
        except OSError:
            description = f"should be {should}, as {wanted.file} says; " if found else ""
            description += "only root may read what it is"
            return {"description": description, **found, "readable": False}
        value = join_words(content.decode(errors="replace").replace("\r", ""))
        shown = _redact_value(name, value)
        if not found:
            return {"description": f"is {shown}", "value": shown}
        description = f"is {shown}, as {wanted.file} says"
        if differs := not same_setting(wanted.value, value):
            has, other = show_difference(shown, should, _MAX_VALUE)
            description = f"is {has}, but {wanted.file} says {other}"
        return {"description": description, "value": shown, **found, "differs": differs}


def _assignments(text: str, file: Path, skipped: Skipped) -> Iterator[tuple[str, str | None]]:
    """Yield paths and values of settings; None for a setting that is excluded from patterns."""
    for number, row in enumerate(split_lines(text), 1):
        line = row.strip(_BLANKS)
        if not line or line[0] in "#;":
            continue
        name, is_assigned, value = line.partition("=")
        path = _path(name.removeprefix("-").strip(_BLANKS))
        # a name with `-` and no value is excluded from patterns
        if _is_path(path) and (is_assigned or line[0] == "-"):
            yield path, join_words(value.replace("\r", ""))[:_MAX_VALUE] if is_assigned else None
        else:
            skipped.line(file, number)


def _is_path(path: str) -> bool:
    """Return whether a path lies below /proc/sys."""
    return not {"", ".", ".."} & set(path.split("/")) and "\0" not in path


def _path(name: str) -> str:
    """Return the path of a setting; the first `.` or `/` in the name is its separator."""
    first = next((char for char in name if char in "./"), "")
    path = name if first == "/" else name.translate(_SWAPPED)
    return "/".join(part for part in path.split("/") if part not in {"", "."})


def _redact_value(name: str, value: str) -> str:
    """Return a value, redacted if the name is that of a secret."""
    if name.endswith(_KEY):
        return REDACTED
    return str(next(iter(redact({name: value}).values())))
