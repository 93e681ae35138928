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

from opdbus.models import numpy_files

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
