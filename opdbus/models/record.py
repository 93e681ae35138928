"""Record of a model folder: the source of its files, and their checksums."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from opdbus.errors import ModelError
from opdbus.models import files
from opdbus.platform.regular_files import open_regular, read_regular

NAME: Final = "op-dbus.json"


@dataclass(frozen=True, slots=True)
class Record:
    """Source, revision, time and file checksums of a model.

    `source` is a repository or a folder; `revision` is a commit, or empty for files from a folder;
    `files` maps names to sha256.
    """

    source: str
    revision: str
    when: str
    files: Mapping[str, str]

    def __str__(self) -> str:
        """Return the origin for use in sentences."""
        return f"{self.source}@{self.revision[:12]}" if self.revision else self.source

    def differing(self, found: Mapping[str, str]) -> list[str]:
        """List the files whose checksums differ or that only one side has."""
        names = sorted({*self.files, *found})
        return [name for name in names if self.files.get(name) != found.get(name)]


def make(source: str, revision: str, files: Mapping[str, str]) -> Record:
    """Make a record of files with the current time."""
    return Record(source, revision, datetime.now(UTC).isoformat(timespec="seconds"), files)


def read(folder: Path) -> Record | None:
    """Read a folder's record, None if there is none; raises ModelError for a damaged one."""
    path = folder / NAME
    try:
        return _parsed(json.loads(read_regular(path, follow=True)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ModelError(
            f"cannot read {path}, the record of the model's checksums: {error}; get the model again"
            " with `op-dbus models pull --force`"
        ) from None


def _parsed(found: Any) -> Record:  # noqa: ANN401 -- any JSON
    record = Record(**found)
    texts = [record.source, record.revision, record.when, *record.files, *record.files.values()]
    if not isinstance(record.files, dict) or not all(isinstance(text, str) for text in texts):
        raise ValueError("it is not what op-dbus writes there")
    return record


def write(folder: Path, record: Record) -> None:
    """Write a folder's record atomically; raises OSError."""
    files.write_whole(folder / NAME, json.dumps(asdict(record), indent=2) + "\n")


def hashes(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Hash those of the named files that exist; raises ModelError."""
    try:
        there = [name for name in names if (folder / name).is_file()]
    except OSError as error:
        raise ModelError(f"cannot look into {folder}: {error.strerror}") from None
    return {name: sha256(folder / name) for name in there}


def sha256(path: Path) -> str:
    """Hash a file; raises ModelError if it cannot be read."""
    try:
        with os.fdopen(open_regular(path, follow=True), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
