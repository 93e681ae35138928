"""What lies in the daemon's folders instead of its files keeps it from nothing."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from harness.running import PATIENCE_SECONDS, Make, Running, state_file

from opdbus.errors import ModelError
from opdbus.index.vectors.quantized_rows import SignQuantizedVectors
from opdbus.models import folder
from opdbus.models.level_table import LEVELS
from opdbus.platform.regular_files import open_regular, read_regular, set_aside


def _link(path: Path) -> None:
    # of a link to it, nothing would ever be read to the end
    path.symlink_to("/dev/zero")


REPLACEMENTS: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "link": _link,
    "folder": Path.mkdir,
}
WITH = pytest.mark.parametrize("kind", REPLACEMENTS)


def put(path: Path, kind: str) -> None:
    """Put a FIFO, a link or a folder where a file may be."""
    path.unlink(missing_ok=True)
    REPLACEMENTS[kind](path)


@WITH
def test_only_regular_files_are_opened(tmp_path: Path, kind: str) -> None:
    """Refuse at once to open what is no regular file, and move it away when told to."""
    path = tmp_path / "file"
    put(path, kind)
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_APPEND):
        with pytest.raises(OSError, match="file"):
            open_regular(path, flags)
    set_aside(path)
    path.write_bytes(b"mail")
    set_aside(path)
    assert read_regular(path) == b"mail"


@WITH
@pytest.mark.parametrize("other", REPLACEMENTS)
def test_what_is_moved_away_replaces_nothing(tmp_path: Path, kind: str, other: str) -> None:
    """Move away one after the other what is no regular file, under names of their own."""
    path = tmp_path / "file"
    for each in (kind, other, kind):
        put(path, each)
        set_aside(path)
        assert not os.path.lexists(path)
    left = {each.name: stat.S_IFMT(each.lstat().st_mode) for each in tmp_path.iterdir()}
    names = [f"file.not-a-file{number}" for number in ("", ".2", ".3")]
    assert sorted(left) == names
    assert left[names[0]] == left[names[2]]


@WITH
def test_vectors_are_written_again(tmp_path: Path, kind: str) -> None:
    """Begin new files of vectors where something else lies in their place."""
    path = tmp_path / "vectors" / "engine.rows"
    path.parent.mkdir()
    put(path, kind)
    assert SignQuantizedVectors(path, 8).end == 0
    assert path.is_file()


def _until_graded(daemon: Running) -> None:
    """Wait until the grades of precisions are kept, which are written last."""
    end = time.monotonic() + PATIENCE_SECONDS
    files = (daemon.state_dir / "gates").glob
    while not any(path.is_file() and not path.is_symlink() for path in files("*.json")):
        assert time.monotonic() < end
        if "speeds not kept" in daemon.log:
            # something else disturbed the measurement: the next start measures again
            assert daemon.stop() == 0
            daemon.start().vectorized()
        time.sleep(0.05)


def test_the_daemon_starts_whatever_lies_in_place_of_its_files(
    daemons: Make, tmp_path: Path, tiny_model: Path
) -> None:
    """Serve the same objects and vectors, and end when told to, whichever file is something else.

    The database itself is not replaced: without it there would be nothing to serve.
    """
    state = state_file(tmp_path / "state.json", {"a": "mail", "b": "web"})
    daemon = daemons(STATE_FILE=state, MODEL=str(tiny_model), PRECISION="auto")
    with daemon.start():
        daemon.vectorized()
        _until_graded(daemon)
        assert daemon.stop() == 0
    beside = [daemon.state_dir / f"memory.db{end}" for end in ("-wal", "-shm", "-journal")]
    for kind in REPLACEMENTS:
        used = [path for path in daemon.state_dir.rglob("*") if path.is_file()]
        assert {path.name for path in used} >= {"memory.lock", "proof.npz"}
        for path in [*used, *beside]:
            if path.name != "memory.db":
                put(path, kind)
        with daemon.start():
            daemon.vectorized()
            _until_graded(daemon)
            assert daemon.stop() == 0
        # another precision may have been the fastest, whose graph has a folder of its own
        left = [path for path in used if os.path.lexists(path)]
        assert daemon.state_dir / "memory.lock" in left
        assert all(path.is_file() and not path.is_symlink() for path in left)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_model_that_is_no_file_is_an_error(tiny: Path, name: str) -> None:
    """Say which file of the model is none, and wait for nobody to write it."""
    put(tiny / name, "fifo")
    with pytest.raises(ModelError, match=name):
        folder.read_model(tiny, LEVELS["medium"])
