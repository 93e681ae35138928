"""Quantized rows of very many vectors: signs in memory, and float16 vectors in a file.

The signs choose likely rows, which are then compared exactly. The file may be removed at any time:
the database has the vectors, too, and a row never changes its digest. A kill leaves at most an
incomplete last row. A power cut may leave rows whose length is not 1; opening the file marks them
as damaged.
"""

import mmap
import os
import resource
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Final, Self

import numpy as np
import structlog
from numpy.typing import NDArray

from opdbus.index.catalogue.arrays import Products
from opdbus.platform.regular_files import open_regular, set_aside
from opdbus.state.object import DIGEST_BYTES

log = structlog.get_logger()

# Rows in a block, which search compares at a time so that they stay in the CPU cache.
BLOCK: Final = 1 << 15
# Rows read at a time.
_READ: Final = 1 << 13
# Rows by which `take` finds out if the file is in the page cache.
_FIRST_READ: Final = 32
# For `_widen`: the bits of a sign-extended float16 in a float32 (sign, low exponent, mantissa),
# and the factor for the difference of exponent biases, 127 - 15.
_SIGN_AND_NUMBER: Final = np.int32(-0x70002000)
_EXPONENTS: Final = np.float32(2.0**112)
# Largest deviation from 1 of the length of a valid float16 vector.
_LENGTH: Final = 0.01
# Size of the random rotations of components before signs are taken, and their seed.
_TURNED: Final = 32
_SEED: Final = 15
# Vectors rotated at a time: for more, the BLAS library starts threads, which is far slower.
_AT_ONCE: Final = 512


class SignQuantizedVectors:
    """Rows whose products are estimated by signs; `take` returns the vectors of given rows."""

    is_exact = False

    def __init__(self, path: Path, dimension: int) -> None:
        """Open the file at `path`, or create it; raises OSError."""
        self.end = 0
        # digests of the rows in the file when it was opened
        self._recovered: list[bytes] = []
        self._path = path
        self._dimension = dimension
        self._words = -(-dimension // 64)
        self._kind = np.dtype(
            [("digest", f"V{DIGEST_BYTES}"), ("vector", np.float16, (dimension,))]
        )
        # signs (words, BLOCK) of BLOCK rows each
        self._blocks: list[NDArray[np.uint64]] = []
        self._one_mover = Lock()
        self._other = ThreadPoolExecutor(1, thread_name_prefix="signs")
        self._order, self._turns = _turning(dimension)
        # estimated cosine by the number of different signs
        self._angles = np.cos(np.pi * np.arange(dimension + 1) / dimension).astype(np.float32)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        set_aside(path)
        self._file = open_regular(path, os.O_RDWR | os.O_CREAT)
        self._mapped: NDArray[Any] = np.empty(0, self._kind)
        self._read()

    def __del__(self) -> None:
        """Close the file; the last search that uses the rows may end after the index."""
        with suppress(AttributeError):  # opening failed
            os.close(self._file)

    def take_recovered_digests(self) -> list[bytes]:
        """Return and release the digests of the rows found at opening; zeros for a damaged row."""
        left, self._recovered = self._recovered, []
        return left

    def append(self, digests: Sequence[bytes], vectors: NDArray[np.float32]) -> None:
        """Append vectors (digests, dimension); on failure raises OSError and appends none."""
        rows = np.empty(len(digests), self._kind)
        rows["digest"] = np.frombuffer(b"".join(digests), f"V{DIGEST_BYTES}")
        rows["vector"] = vectors
        data = memoryview(rows.tobytes())
        at = self.end * self._kind.itemsize
        while data:
            written = os.pwrite(self._file, data, at)
            data, at = data[written:], at + written
        # the signs of the rounded vectors, as a start computes them from the file
        self._add_signs(rows["vector"].astype(np.float32))

    def take(self, rows: NDArray[np.intp]) -> NDArray[np.float32]:
        """Return the vectors (rows, dimension) of some rows, of length 1."""
        mapped = self._all()
        if len(rows) > _FIRST_READ and _waits(lambda: mapped["digest"][rows[:_FIRST_READ]]):
            self._read_soon(rows[_FIRST_READ:])
        vectors = _widen(mapped["vector"][rows])
        # much faster than numpy's `norm`
        vectors /= np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
        return vectors

    def _read_soon(self, rows: NDArray[np.intp]) -> None:
        """Have the kernel read some rows ahead together, which is faster than one by one."""
        size = self._kind.itemsize
        for row in rows.tolist():
            os.posix_fadvise(self._file, row * size, size, os.POSIX_FADV_WILLNEED)

    def products(self, at: NDArray[np.intp] | None = None) -> Products:
        """Return a function that estimates the products of a query with all rows, or those `at`.

        Rows appended later are not included.
        """
        # `end` first: rows may be appended meanwhile, and each row before `end` has its block
        end = self.end
        blocks = self._blocks[: -(-end // BLOCK)]
        if at is None:
            return partial(self._estimates, blocks, end)
        return partial(self._estimates_of, blocks, at)

    def _estimates(
        self, blocks: Sequence[NDArray[np.uint64]], end: int, query: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return estimates (end,) of the products of the first `end` rows with a query."""
        signs, found = self._signs(query[None]).T, np.empty(end, np.float32)
        # two threads share the blocks: this one, and one that may begin later or not at all
        todo = iter(range(len(blocks)))
        other = self._other.submit(self._estimate, todo, blocks, signs, found)
        self._estimate(todo, blocks, signs, found)
        if not other.cancel():
            other.result()
        return found

    def _estimate(
        self,
        todo: Iterator[int],
        blocks: Sequence[NDArray[np.uint64]],
        signs: NDArray[np.uint64],
        found: NDArray[np.float32],
    ) -> None:
        """Estimate the products of some blocks with the signs (words, 1) of a query."""
        # whole blocks: threads wait for the GIL less often than with smaller parts
        words = np.empty((self._words, BLOCK), np.uint64)
        counts = np.empty((self._words, BLOCK), np.uint8)
        # reused: memory allocated for each block would be zeroed by the kernel first
        numbers = np.empty(BLOCK, np.intp)
        for number in todo:
            part = found[number * BLOCK : (number + 1) * BLOCK]
            size = len(part)
            np.bitwise_xor(blocks[number][:, :size], signs, out=words[:, :size])
            np.bitwise_count(words[:, :size], out=counts[:, :size])
            numbers[:size] = counts[:, :size].sum(axis=0, dtype=np.uint16)
            np.take(self._angles, numbers[:size], out=part, mode="clip")

    def _estimates_of(
        self, blocks: Sequence[NDArray[np.uint64]], at: NDArray[np.intp], query: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return estimates of the products of the rows `at`, in any order, with a query."""
        signs = self._signs(query[None]).T
        found = np.empty(len(at), np.float32)
        order = np.argsort(at, kind="stable")
        starts = range(0, BLOCK * (len(blocks) + 1), BLOCK)
        parts = pairwise(np.searchsorted(at, starts, sorter=order).tolist())
        for block, start, (first, last) in zip(blocks, starts, parts, strict=False):
            part = order[first:last]
            others = np.bitwise_count(block.take(at[part] - start, axis=1) ^ signs)
            found[part] = self._angles.take(others.sum(axis=0, dtype=np.uint16))
        return found

    def copy_subset(self, rows: NDArray[np.intp]) -> Self:
        """Copy some rows to a new file beside this one; raises OSError."""
        whole = self._path.with_suffix(".new")
        whole.unlink(missing_ok=True)
        made = type(self)(whole, self._dimension)
        for start in range(0, len(rows), _READ):
            part = self._all()[rows[start : start + _READ]]
            made.append(part["digest"].tolist(), part["vector"])
        return made

    def replace_with(self, subset: Self) -> None:
        """Replace all rows with those of `subset`, whose file replaces this one; raises OSError.

        The old rows go to `subset`, and are freed with it.
        """
        with self._one_mover:
            subset._path.rename(self._path)
            self._file, subset._file = subset._file, self._file
            self._blocks, subset._blocks = subset._blocks, self._blocks
            self._mapped, subset._mapped = subset._mapped, self._mapped
            self.end = subset.end

    def _all(self) -> NDArray[Any]:
        """Return all rows of the file, mapped again if it has grown."""
        if len(self._mapped) < self.end:
            mapped = self._map(self.end)
            # no readahead: rows next to a wanted one would evict others from the page cache
            mapped.madvise(mmap.MADV_RANDOM)
            self._mapped = np.frombuffer(mapped, self._kind)
        return self._mapped

    def _map(self, end: int) -> mmap.mmap:
        # by descriptor: the path may belong to another file by now
        return mmap.mmap(self._file, end * self._kind.itemsize, access=mmap.ACCESS_READ)

    def _read(self) -> None:
        """Load the signs and digests of the complete rows of the file."""
        end = os.fstat(self._file).st_size // self._kind.itemsize
        if not end:
            return
        mapped = np.frombuffer(self._map(end), self._kind)
        for start in range(0, end, _READ):
            part = mapped[start : start + _READ]
            vectors = part["vector"].astype(np.float32)
            lengths = np.einsum("ij,ij->i", vectors, vectors)
            for row in np.flatnonzero(~(np.abs(lengths - 1) < _LENGTH)).tolist():
                # no text has the digest zero
                os.pwrite(self._file, bytes(DIGEST_BYTES), (start + row) * self._kind.itemsize)
            self._recovered += part["digest"].tolist()
            self._add_signs(vectors)

    def _add_signs(self, vectors: NDArray[np.float32]) -> None:
        signs = self._signs(vectors).T
        while signs.shape[1]:
            at = self.end % BLOCK
            if at == 0:
                self._blocks.append(np.empty((self._words, BLOCK), np.uint64))
            part, signs = signs[:, : BLOCK - at], signs[:, BLOCK - at :]
            self._blocks[-1][:, at : at + part.shape[1]] = part
            self.end += part.shape[1]

    def _signs(self, vectors: NDArray[np.float32]) -> NDArray[np.uint64]:
        """Return the signs of rotated vectors, packed into 64-bit words (vectors, words)."""
        whole = np.zeros((len(vectors), 8 * self._words), np.uint8)
        for start in range(0, len(vectors), _AT_ONCE):
            part = vectors[start : start + _AT_ONCE, self._order]
            blocks = part.reshape(len(part), *self._turns.shape[:2]).transpose(1, 0, 2)
            turned = np.matmul(blocks, self._turns).transpose(1, 0, 2).reshape(part.shape)
            packed = np.packbits(turned > 0, axis=1)
            whole[start : start + len(part), : packed.shape[1]] = packed
        return whole.view(np.uint64)


def _waits(work: Callable[[], object]) -> bool:
    """Run `work` and return whether this thread had a major page fault, that is, read a disk."""
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
    work()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt > before


def _widen(halves: NDArray[np.float16]) -> NDArray[np.float32]:
    """Convert finite float16 numbers to float32, much faster than `astype`."""
    bits = halves.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= _SIGN_AND_NUMBER
    found = bits.view(np.float32)
    found *= _EXPONENTS
    return found


def _turning(dimension: int) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Return a permutation (dimension,) of components, and rotations (blocks, size, size).

    Each block of permuted components is rotated at random, so that the signs estimate angles
    equally well in all directions; static vectors need this. Small blocks are as good as one.
    """
    chance = np.random.default_rng(_SEED)
    size = _TURNED if dimension % _TURNED == 0 else dimension
    blocks = chance.normal(size=(dimension // size, size, size))
    return chance.permutation(dimension), np.linalg.qr(blocks)[0].astype(np.float32)
