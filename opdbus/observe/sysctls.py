"""Settings of the kernel that sysctl.d(5) or the state file names: what they are, and should be."""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from opdbus.observe.reading import files_in, read_at_most, text_of
from opdbus.state.object import Json
from opdbus.state.redact import redact
from opdbus.state.secret_text import REDACTED

# A file of an earlier folder replaces one of the same name in a later one.
FOLDERS: Final = ("etc", "run", "usr/local/lib", "usr/lib", "lib")
_LAST: Final = "etc/sysctl.conf"
_ASSIGNED = re.compile(r"(-?)([^=#;\s](?:[^=]*[^=\s])?)\s*+(?:=\s*+((?:.*\S)?)\s*)?")
_NUMBER = re.compile(r"-?(?:0x[0-9a-fA-F]{1,16}|\d{1,20})", re.ASCII)
_WILD = re.compile(r"[*?\[]")
# Each namespace has its own: a service in a sandbox does not see those of the host.
_OF_NAMESPACES = re.compile(
    r"(?:net|user|fs/mqueue)/.*|kernel/(?:shm\w*|msg\w*|sem|auto_msgmni|hostname|domainname)"
)
# Such as that of TCP Fast Open.
_KEY: Final = "_key"
_HIDDEN: Final = "the service has its own value of this in its sandbox"
_MAX_BYTES: Final = 1 << 20
_MAX_VALUE: Final = 4096
_MAX_SETTINGS: Final = 2_000
_MAX_FILES: Final = 500
_MAX_MATCHES: Final = 500


class _Wanted(NamedTuple):
    """What a file wants a setting to be."""

    value: str
    file: str


_NO_FILE: Final = _Wanted("", "")


@dataclass(frozen=True, slots=True)
class Sysctls:
    """Where the settings are. `is_apart` says that we are in namespaces of our own."""

    root: Path = Path("/")
    is_apart: bool = False

    @property
    def folders(self) -> list[str]:
        """The folders whose files name settings."""
        return [str(self.root / folder / "sysctl.d") for folder in FOLDERS]

    @property
    def file(self) -> str:
        """The file that is read besides."""
        return str(self.root / _LAST)

    def read(self, others: Collection[str] = ()) -> dict[str, dict[str, Json]]:
        """Return all settings that files or `others` name, by their names with dots."""
        paths = (path for path in map(_path, sorted(others)) if "/" in path and _is_path(path))
        named = dict.fromkeys(paths, _NO_FILE)
        wanted = dict([*{**named, **self._wanted()}.items()][:_MAX_SETTINGS])
        return {_dotted(path): self._properties(path, each) for path, each in wanted.items()}

    def _wanted(self) -> Mapping[str, _Wanted]:
        """Return what is wanted, by path: the last file counts, and names count before patterns."""
        named: dict[str, _Wanted] = {}
        patterns: dict[str, _Wanted] = {}
        excluded: set[str] = set()
        for file in self._files():
            for path, value in _assignments(text_of(file, _MAX_BYTES)):
                if value is None:
                    excluded.add(path)
                else:
                    found = patterns if _WILD.search(path) else named
                    found.pop(path, None)
                    found[path] = _Wanted(value, f"/{file.relative_to(self.root)}")
        matching = {
            path: each for pattern, each in patterns.items() for path in self._matches(pattern)
        }
        return {path: each for path, each in matching.items() if path not in excluded} | named

    def _files(self) -> Iterator[Path]:
        """Yield the files in the order in which they are applied."""
        found: dict[str, Path] = {}
        for folder in map(Path, self.folders):
            for path in files_in(folder):
                found.setdefault(path.name, path)
        files = [found[name] for name in sorted(found) if name.endswith(".conf")][:_MAX_FILES]
        last = Path(self.file)
        yield from files
        # often there is a link to it
        if os.path.realpath(last) not in map(os.path.realpath, files):
            yield last

    def _matches(self, pattern: str) -> list[str]:
        """Return the settings that a pattern means; itself where they are not those of the host."""
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

    def _properties(self, path: str, wanted: _Wanted) -> dict[str, Json]:
        name = _dotted(path)
        should = _hidden(name, wanted.value)
        found: dict[str, Json] = {"wanted": should, "file": wanted.file} if wanted.file else {}
        if self._is_hidden(path):
            said = f"should be {should}, as {wanted.file} says" if found else _HIDDEN
            return {"description": said, **found, "not_measured": _HIDDEN}
        file = self.root / "proc/sys" / path
        try:
            content, _ = read_at_most(file, _MAX_VALUE)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return {"description": "this kernel has no such setting", **found, "missing": True}
        except OSError:
            said = f"should be {should}, as {wanted.file} says; " if found else ""
            said += "only root may read what it is"
            return {"description": said, **found, "readable": False}
        value = _plain(content.decode(errors="replace"))
        shown: Json = _hidden(name, value)
        if not found:
            return {"description": f"is {shown}", "value": shown}
        differs = _differs(_comparable(value), _comparable(wanted.value))
        said = f"is {shown}, "
        said += f"but {wanted.file} says {should}" if differs else f"as {wanted.file} says"
        return {"description": said, "value": shown, **found, "differs": differs}


def _assignments(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield settings by their paths and values; None for what patterns shall not mean."""
    for line in text.splitlines():
        found = _ASSIGNED.fullmatch(line.strip())
        if not found or (found[3] is None and not found[1]):
            continue
        path = _path(found[2])
        if _is_path(path):
            yield path, found[3] and _plain(found[3])[:_MAX_VALUE]


def _is_path(path: str) -> bool:
    """Return whether a path is one of a setting: nothing outside of /proc/sys is read."""
    return not {"", ".", ".."} & set(path.split("/")) and "\0" not in path


def _path(name: str) -> str:
    """Return where a setting is: the first of `.` and `/` in its name separates the parts."""
    first = re.search(r"[./]", name)
    return name if first and first[0] == "/" else name.translate(_SWAPPED)


def _dotted(path: str) -> str:
    return path.translate(_SWAPPED)


_SWAPPED: Final = str.maketrans("./", "/.")


def _plain(value: str) -> str:
    return " ".join(value.split())


def _comparable(value: str) -> list[int | str]:
    """Return the words of a value, numbers as numbers."""
    return [_number(word) if _NUMBER.fullmatch(word) else word for word in value.split()]


def _number(word: str) -> int:
    return int(word, 16 if "x" in word else 10)


def _differs(value: Sequence[int | str], wanted: Sequence[int | str]) -> bool:
    """Return whether a value is another; of several numbers the first ones may be wanted alone."""
    is_part = bool(wanted) and all(isinstance(word, int) for word in wanted)
    return (value[: len(wanted)] if is_part else value) != wanted


def _hidden(name: str, value: str) -> str:
    """Return a value, or what stands for it where its name is that of a secret."""
    if name.endswith(_KEY):
        return REDACTED
    return str(next(iter(redact({name: value}).values())))
