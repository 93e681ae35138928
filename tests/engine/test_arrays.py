"""Arrays read from files: by several threads at once, and what is none."""

import gc
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pytest
from numpy.typing import NDArray

from opdbus.errors import ModelError
from opdbus.models import numpy_files
from opdbus.platform.lazy_pages import LazyRows

# Waited for in vain where only one may read at a time.
OTHER_SECONDS = 0.2


@contextmanager
def interrupted(meanwhile: threading.Event, done: threading.Event) -> Iterator[None]:
    """Let another thread go on in the middle of what this one parses, as a collection may."""
    this, usual = threading.get_ident(), gc.get_threshold()

    def wait(_phase: str, _info: object) -> None:
        is_parsing = sys._getframe(1).f_code.co_name == "parse"
        if threading.get_ident() == this and is_parsing and not meanwhile.is_set():
            meanwhile.set()
            done.wait(OTHER_SECONDS)

    gc.callbacks.append(wait)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.callbacks.remove(wait)


@pytest.mark.parametrize("name", ["one", "several"])
def test_threads_read_one_after_the_other(name: str, tmp_path: Path) -> None:
    """Read in two threads, of which Python 3.11 lets one fail where both parse a header."""
    rows = np.zeros(3, [("scale", "<f4"), ("row", "i1", (2,))])
    np.save(tmp_path / "one", rows)
    np.savez(tmp_path / "several", rows=rows)
    meanwhile, done = threading.Event(), threading.Event()

    def read_too(depth: int) -> None:
        # what is counted together is how deep each thread is
        if depth:
            read_too(depth - 1)
            return
        assert meanwhile.wait(10)
        assert numpy_files.load_array(tmp_path / "one.npy").dtype == rows.dtype
        done.set()

    with ThreadPoolExecutor(1) as other:
        ended = other.submit(read_too, 20)
        with interrupted(meanwhile, done):
            if name == "one":
                found = numpy_files.load_array(tmp_path / "one.npy")
            else:
                found = numpy_files.load_archive(tmp_path / "several.npz")["rows"]
        ended.result()
    assert found.dtype == rows.dtype


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 cut", b"\x93NUMPY cut", b"\x80\x04."])
def test_what_is_no_array_is_refused(data: bytes, tmp_path: Path) -> None:
    """Raise what readers tell of, and load no object of Python's."""
    path = tmp_path / "broken"
    path.write_bytes(data)
    for read in (numpy_files.load_array, numpy_files.load_archive):
        with pytest.raises((OSError, ValueError, EOFError, BadZipFile)):
            read(path)


def test_rows_are_read_from_the_file_that_was_opened(tmp_path: Path) -> None:
    """Read the rows that are asked for, also when another file has taken the name."""
    path, table = tmp_path / "table.npy", np.arange(60, dtype=np.float32)
    np.save(path, table)
    rows = numpy_files.open_rows(path)
    path.unlink()
    np.save(path, -table)
    assert len(rows) == len(table)
    assert rows.take(np.array([[59, 0], [7, 7]])).tolist() == [[59, 0], [7, 7]]


def test_rows_of_a_file_that_was_cut_are_an_error(tmp_path: Path) -> None:
    """Refuse a file with fewer rows than it names, before it is read and after."""
    path = tmp_path / "table.npy"
    np.save(path, np.arange(60, dtype=np.float32))
    rows = numpy_files.open_rows(path)
    with path.open("r+b") as file:
        file.truncate(200)
    with pytest.raises(ModelError, match="cannot read rows"):
        rows.take(np.array([59]))
    with pytest.raises(ValueError, match="before 60 rows"):
        numpy_files.open_rows(path)


def test_lazy_rows_read_each_row_once() -> None:
    """Read rows when they are first required, and leave the others zeros."""
    asked: list[int] = []

    def read(ids: NDArray[np.int64]) -> NDArray[np.float32]:
        asked.extend(ids.tolist())
        return np.ones((len(ids), 2), np.float32)

    rows = LazyRows((5, 2), read)
    for ids in ([3, 1, 3], [1, 4]):
        rows.require(np.array(ids))
    assert asked == [1, 3, 4]
    assert rows.values[:, 0].tolist() == [0, 1, 0, 1, 1]
