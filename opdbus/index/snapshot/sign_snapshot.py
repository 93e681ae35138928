"""File of the quantized rows of full blocks of vectors, so that startup need not compute them.

A block is written after its vectors are on the disk. Each block has a CRC-32, and the first invalid
block ends the file. The file may be removed at any time.
"""

import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.platform.regular_files import open_regular, set_aside
from opdbus.state.object import DIGEST_BYTES

# Rows in a block, which search compares at a time so that they stay in the CPU cache.
BLOCK: Final = 1 << 15
# Header size: a page, so that the data are aligned.
_HEAD: Final = mmap.PAGESIZE


class SignSnapshot:
    """Append-only file of blocks of digests and signs.

    `made_by` identifies the quantization; a block with another value is invalid. The constructor
    raises OSError.
    """

    def __init__(self, path: Path, words: int, made_by: bytes) -> None:
        set_aside(path)
        self.count = 0
        self._path = path
        self._made_by = made_by
        self._kind = np.dtype(
            [
                ("made_by", f"V{len(made_by)}"),
                ("sum", np.uint32),
                ("page", f"V{_HEAD - len(made_by) - 4}"),
                ("digests", f"V{DIGEST_BYTES}", (BLOCK,)),
                ("signs", np.uint64, (words, BLOCK)),
            ]
        )

    def read(self, most: int) -> Iterator[tuple[NDArray[np.void], NDArray[np.uint64]]]:
        """Yield digests (rows,) and memory-mapped signs (words, rows) of at most `most` blocks.

        Raises OSError.
        """
        try:
            file = open_regular(self._path)
        except FileNotFoundError:
            return
        try:
            most = min(most, os.fstat(file).st_size // self._kind.itemsize)
            while self.count < most:
                block = self._mapped(file, self.count)
                if block["made_by"].tobytes() != self._made_by or block["sum"] != _sum(block):
                    return
                self.count += 1
                yield block["digests"], block["signs"]
        finally:
            os.close(file)

    def append(self, digests: NDArray[np.void], signs: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Write the next block, and return its signs, memory-mapped; raises OSError."""
        made = np.zeros((), self._kind)
        made["made_by"] = np.void(self._made_by)
        made["digests"], made["signs"] = digests, signs
        made["sum"] = _sum(made)
        file = open_regular(self._path, os.O_RDWR | os.O_CREAT)
        try:
            at, data = self.count * self._kind.itemsize, memoryview(made.tobytes())
            while data:
                written = os.pwrite(file, data, at)
                data, at = data[written:], at + written
            block = self._mapped(file, self.count)
        finally:
            os.close(file)
        self.count += 1
        found: NDArray[np.uint64] = np.asarray(block["signs"])
        return found

    def remove(self) -> None:
        """Remove the file; mapped arrays remain valid. Raises OSError."""
        self._path.unlink(missing_ok=True)
        self.count = 0

    def _mapped(self, file: int, number: int) -> NDArray[Any]:
        size = self._kind.itemsize
        mapped = mmap.mmap(file, size, access=mmap.ACCESS_READ, offset=number * size)
        found: NDArray[Any] = np.frombuffer(mapped, self._kind)[0]
        return found


def _sum(block: Any) -> int:  # noqa: ANN401 -- a row of an array of any kind
    return zlib.crc32(block["signs"].tobytes(), zlib.crc32(block["digests"].tobytes()))
