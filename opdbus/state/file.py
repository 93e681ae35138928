"""The state file: reading, validation, and the state objects in it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from opdbus.errors import StateFileError
from opdbus.platform.regular_files import open_regular
from opdbus.state import document
from opdbus.state.flatten import EXCLUSIVE, Reader, find_claims, is_table
from opdbus.state.object import Identity, Json, StateObject

VERSION: Final = 1
MAX_BYTES: Final = 64 << 20
_BOM: Final = b"\xef\xbb\xbf"
MAX_SHOWN: Final = 40
# The reader's key and hashes, the claims, and the signature; see `StateFile.known`.
Known: TypeAlias = tuple[bytes, bytes, list[tuple[str, str]], str]


class StateFile:
    """A state file that is read repeatedly; each read returns the objects that have changed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = Reader()
        # the (plugin, kind) pairs of which the file declares all objects
        self.claims: frozenset[tuple[str, str]] = frozenset()
        # of the file as last read; see `signature`
        self.signature = ""

    def read(self) -> tuple[set[Identity], list[StateObject]]:
        """Return all identities in the file, and the objects changed since the last read.

        Raises StateFileError; the next read then compares with the same earlier one.
        """
        present, changed = self.stream()
        return present, list(changed)

    def stream(self, same: str = "") -> tuple[set[Identity], Iterator[StateObject]]:
        """Return the same, but the objects one by one; see `Reader.stream`.

        If the file's signature equals `same`, all objects count as known and none is returned.
        """
        before = signature(self.path)
        plugins = parse(read_bytes(self.path), self.path)["plugins"]
        self.signature = before if before == signature(self.path) else ""
        self.claims = find_claims(plugins)
        return self._reader.stream(plugins, are_known=bool(same) and same == self.signature)

    def forget(self) -> None:
        """Treat every object as changed at the next read."""
        self._reader.forget()

    def state_for_recall(self) -> Known:
        """Return the memory of the last read as plain values, for `recall`."""
        return (*self._reader.state_for_recall(), sorted(self.claims), self.signature)

    def recall(self, known: Known) -> None:
        """Restore the memory of a read in another process."""
        key, seen, claims, self.signature = known
        self._reader.recall(key, seen)
        self.claims = frozenset(claims)


def signature(path: Path) -> str:
    """Return a string that changes when a file is written or replaced; "" if it has no status."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ""
    times = f"{found.st_mtime_ns} {found.st_ctime_ns}"
    return f"{found.st_dev} {found.st_ino} {found.st_size} {times}"


def parse(data: bytes, path: Path) -> dict[str, Json]:
    """Parse the bytes of the state file `path`; raises StateFileError with line and column."""
    text = document.decode(data.removeprefix(_BOM), path)
    content = document.parse(text, path)
    if problem := _problem(content):
        keys, sentence = problem
        raise document.locate(text, path, keys, sentence)
    return content


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a state file; raises StateFileError if unreadable or too large."""
    try:
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            data = file.read(MAX_BYTES + 1)
            size = file.seek(0, 2)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StateFileError(f"cannot read the state file {path}: {reason}") from None
    require_size(size, path)
    return data


def require_size(size: int, path: Path) -> None:
    """Raise StateFileError if a file has more than MAX_BYTES."""
    if size > MAX_BYTES:
        raise StateFileError(
            f"{path} is {size / (1 << 20):.1f} MiB, past the limit of 64 MiB at byte {MAX_BYTES}"
            " ($): split it, or leave out what need not be declared"
        )


def _problem(content: dict[str, Json]) -> tuple[tuple[str, ...], str] | None:
    """Return the keys and a description of the first rule that a state file breaks, else None."""
    if "version" not in content:
        return (), f'there is no "version": add "version": {VERSION}'
    version = content["version"]
    if isinstance(version, str | list | dict):
        # not shown: it may be a secret, and messages have more readers than the file
        return ("version",), f'"version" must be the number {VERSION}'
    if version != VERSION or isinstance(version, bool):
        shown = json.dumps(version)[:MAX_SHOWN]
        return ("version",), f"version {shown} is unknown: this op-dbus reads {VERSION}"
    if "plugins" not in content:
        return (), 'there is no "plugins": add "plugins": {}'
    plugins = content["plugins"]
    if not isinstance(plugins, dict):
        return ("plugins",), '"plugins" must be an object of plugins'
    found = (_problem_of_plugin(name, plugin) for name, plugin in plugins.items())
    return next(filter(None, found), None)


def _problem_of_plugin(name: str, plugin: Json) -> tuple[tuple[str, ...], str] | None:
    if not name:
        return ("plugins", name), "a plugin needs a name"
    if not isinstance(plugin, dict):
        return ("plugins", name), "a plugin must be an object"
    # a table under this key declares objects as any other table does
    claims = plugin.get(EXCLUSIVE, False)
    is_claim = isinstance(claims, bool) or is_table(claims)
    if isinstance(claims, list) and not is_table(claims):
        others = plugin.keys() - {EXCLUSIVE}
        is_claim = all(isinstance(key, str) and key in others for key in claims)
    if is_claim:
        return None
    must = f'"{EXCLUSIVE}" must be true, false, or a list of keys beside it'
    return ("plugins", name, EXCLUSIVE), must
