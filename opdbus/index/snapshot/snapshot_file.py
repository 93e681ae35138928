"""File of named numpy arrays, written atomically and memory-mapped after its CRC-32 is verified.

The contents are derived from the database, so the file may be removed at any time.
"""

import json
import mmap
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from opdbus import __version__
from opdbus.language import tables
from opdbus.platform.regular_files import open_regular, replace_file, set_aside
from opdbus.state.object import Json

# Arrays by name.
Arrays: TypeAlias = dict[str, NDArray[Any]]

# CRC-32 of all bytes after it, and length of the JSON header.
_HEAD: Final = np.dtype([("sum", "<u4"), ("length", "<u4")])
# Version of the contents: increment it when they change, so that older files are not read.
_FORM: Final = 4
# Alignment of the arrays in bytes.
_ALIGNED: Final = 64


class SnapshotFile(NamedTuple):
    """Contents of a file: metadata, and read-only memory-mapped arrays."""

    about: Json
    arrays: Arrays


def write(path: Path, token: str, about: Json, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write a file atomically; `read` accepts it only with the same token. Raises OSError."""
    shapes = [(name, part.dtype.str, part.shape) for name, part in arrays.items()]
    header = json.dumps([_made_by(), token, about, shapes]).encode()
    parts = [memoryview(header), *map(_bytes, arrays.values())]
    # offsets count from the start of the file, before the header
    filled = [*_align_parts(parts, _HEAD.itemsize)]
    length = np.array(len(header), "<u4").tobytes()
    right = np.array(_sum([memoryview(length), *filled]), "<u4").tobytes()
    set_aside(path)
    # of a daemon that was killed meanwhile
    for part in path.parent.glob(f".{path.name}.*.new"):
        part.unlink()
    replace_file(path, [right, length, *filled])


def read(path: Path, token: str) -> SnapshotFile | None:
    """Map a file; return None if it is missing, damaged, or has another token or version."""
    with (
        suppress(OSError, ValueError, TypeError, IndexError),
        os.fdopen(open_regular(path), "rb") as file,
    ):
        # raises ValueError for an empty file
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        right, length = np.frombuffer(data, _HEAD, 1)[0].tolist()
        if _sum([data[_HEAD["length"].itemsize :]]) != right:
            return None
        at = _HEAD.itemsize + length
        made_by, its_token, about, shapes = json.loads(bytes(data[_HEAD.itemsize : at]))
        if (made_by, its_token) != (_made_by(), token):
            return None
        arrays = Arrays()
        for name, kind, shape in shapes:
            at += -at % _ALIGNED
            arrays[name] = np.frombuffer(data, kind, prod(shape), at).reshape(shape)
            at += arrays[name].nbytes
        return SnapshotFile(about, arrays)
    return None


def _align_parts(parts: Sequence[memoryview], at: int) -> Iterator[memoryview]:
    """Yield parts, with zeros before each but the first to align it; `at` is the first offset."""
    for number, part in enumerate(parts):
        fill = -at % _ALIGNED if number else 0
        yield memoryview(bytes(fill))
        yield part
        at += fill + len(part)


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _made_by() -> str:
    """Return the versions of the code and tables that the arrays depend on."""
    return f"{__version__}, form {_FORM}, kinds {tables.version('kinds')}"


def _sum(parts: Sequence[memoryview]) -> int:
    found = 0
    for part in parts:
        found = zlib.crc32(part, found)
    return found
