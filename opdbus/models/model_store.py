"""Model directory: models are stored checked, recorded and atomically."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from opdbus.errors import ModelError
from opdbus.models import files, folder, level_table

if TYPE_CHECKING:
    from opdbus.models.folder import Record
    from opdbus.models.level_table import Level

    # writes the files into a folder, and returns their source and revision
    Fill = Callable[[Path], tuple[str, str]]
    Notify = Callable[[str], None]

_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class Destination:
    """The folder of one level's model, locked by this process."""

    level: Level
    folder: Path

    def recorded(self) -> Record | None:
        """Return the folder's record; raises ModelError if files changed since it was written."""
        recorded = folder.read_record(self.folder)
        if recorded is None:
            return None
        found = folder.hash_files(self.folder, level_table.TRANSFORMER.files)
        self._refuse([name for name in recorded.differing(found) if name in found], str(recorded))
        return recorded

    def is_whole(self, recorded: Record) -> bool:
        """Return true if every recorded file exists."""
        return all((self.folder / name).is_file() for name in recorded.files)

    def put(self, fill: Fill, *, force: bool) -> Record:
        """Store the files that `fill` writes, if they are this level's model.

        Raises ModelError, also if the folder has other files and `force` is false.
        """
        directory = self.folder.parent
        with _advising(directory):
            part = Path(tempfile.mkdtemp(prefix=self.unfinished, dir=directory))
        try:
            fresh = part / self.folder.name
            with _advising(directory):
                fresh.mkdir()
                source, revision = fill(fresh)
                found = folder.hash_files(fresh, level_table.TRANSFORMER.files)
                made = folder.make_record(source, revision, found)
                try:
                    check(fresh, self.level)
                except ModelError as error:
                    # The message replaces `fresh`, which is removed before the user reads it.
                    raise ModelError(str(error).replace(str(fresh), str(made))) from None
                if not force and self._is_here(made):
                    files.open_to_all(self.folder, made.files)
                    folder.write_record(self.folder, made)
                else:
                    folder.write_record(fresh, made)
                    files.settle(fresh)
                    if os.path.lexists(self.folder):
                        self.folder.rename(fresh.parent / "replaced")
                    fresh.rename(self.folder)
            return made
        finally:
            shutil.rmtree(part, ignore_errors=True)

    @property
    def unfinished(self) -> str:
        """The beginning of the names of folders that are being filled."""
        return f".{self.folder.name}.part-"

    def _is_here(self, made: Record) -> bool:
        """Return true if the same files are stored already; raises ModelError if others are."""
        if not os.path.lexists(self.folder):
            return False
        recorded = folder.read_record(self.folder)
        found = folder.hash_files(self.folder, level_table.TRANSFORMER.files)
        there = folder.make_record("", "", recorded.files if recorded else found)
        self._refuse(made.differing(there.files), str(made))
        return not made.differing(found)

    def _refuse(self, names: list[str], wanted: str) -> None:
        if names:
            raise ModelError(
                f"{', '.join(names)} in {self.folder} differ from {wanted}: nothing was changed;"
                " repeat with --force to replace that folder"
            )


@contextmanager
def locked(level: Level, directory: Path, notify: Notify) -> Iterator[Destination]:
    """Lock a level's folder in the model directory against other processes; raises ModelError."""
    waiting = partial(notify, f"waiting for another op-dbus that gets {level.repository}")
    destination = Destination(level, directory / level.folder)
    with ExitStack() as stack:
        with _advising(directory):
            files.make_folder(directory)
            lock = files.locked(directory / f".{level.folder}.lock", waiting)
            stack.enter_context(lock)
        for left in directory.glob(destination.unfinished + "*"):
            # its process has ended, otherwise it would hold the lock
            shutil.rmtree(left, ignore_errors=True)
        yield destination


def import_model(
    source: Path, level: Level, directory: Path, *, notify: Notify, force: bool
) -> Record:
    """Copy a level's model from a folder into the model directory; raises ModelError.

    A record in the source folder is checked and kept.
    """
    if not source.is_dir():
        raise ModelError(f"there is no folder {source}: give the one that has the model's files")
    check(source, level)
    recorded = folder.read_record(source)
    origin = (recorded.source, recorded.revision) if recorded else (str(source), "")

    def fill(fresh: Path) -> tuple[str, str]:
        for name in level_table.TRANSFORMER.files:
            if (source / name).is_file():
                (fresh / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(source / name, fresh / name)
        return origin

    with locked(level, directory, notify) as destination:
        return destination.put(fill, force=force)


def check(path: Path, level: Level) -> None:
    """Check a folder as the daemon does, and that its files can be opened; raises ModelError."""
    from tokenizers import Tokenizer

    from opdbus.models import weights

    model = folder.check_model(path, level)
    if model.shape.hidden != level.dimension:
        raise ModelError(
            f"{path} holds vectors {model.shape.hidden} wide, but {level.repository}, the"
            f" {level.name} model, has {level.dimension}"
        )
    weights.require_readable(model.weights)
    try:
        Tokenizer.from_file(str(model.tokenizer))
    except Exception as error:  # noqa: BLE001 -- the tokenizers library raises nothing narrower
        raise ModelError(f"cannot read the tokenizer {model.tokenizer}: {error}") from None


@contextmanager
def _advising(directory: Path) -> Iterator[None]:
    """Convert system errors to ModelError with advice."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        advice = "run as root, or set OP_DBUS_MODEL_DIR to a folder of yours"
        if error.errno in _FULL:
            advice = "make room there, or set OP_DBUS_MODEL_DIR to a folder that has some"
        raise ModelError(f"cannot write {directory}: {error.strerror}; {advice}") from None
