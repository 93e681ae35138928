"""Nearest neighbours of all vectors: candidates in few dimensions, ordered in all."""

from concurrent.futures import Executor
from typing import Final

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

# Dimensions in which 3 times the wanted neighbours are searched: on 20,000 descriptions of
# packages, 19 of 20 nearest are among them.
_DIMENSIONS: Final = 64
_MORE: Final = 3
# Rows that are compared with all others at a time, and columns in a group.
_ROWS: Final = 256
_TOGETHER: Final = 16
_NEVER: Final = np.float32(-9)


def nearest(vectors: Vectors, count: int, threads: Executor) -> tuple[NDArray[np.intp], Vectors]:
    """Return the `count` nearest of unit vectors (n, d), n > count, to each, and their cosines.

    Both arrays are (n, count), the nearest first; none is its own neighbour.
    """
    few = _principal(vectors, _DIMENSIONS)
    most = min(_MORE * count, len(vectors) - 1)
    found = np.empty((len(vectors), count), np.intp)
    cosines = np.empty((len(vectors), count), np.float32)
    padded = _padded(few.T)

    def work(first: int) -> None:
        rows = slice(first, min(first + _ROWS, len(vectors)))
        some = _candidates(few, padded, rows, most)
        exact = np.matmul(vectors[some], vectors[rows, :, None])[:, :, 0]
        order = np.argsort(-exact, axis=1, kind="stable")[:, :count]
        found[rows] = np.take_along_axis(some, order, axis=1)
        cosines[rows] = np.take_along_axis(exact, order, axis=1)

    list(threads.map(work, range(0, len(vectors), _ROWS)))
    return found, cosines


def _principal(vectors: Vectors, count: int) -> Vectors:
    """Return the coordinates that keep most of the products of vectors: (n, at most count)."""
    if vectors.shape[1] <= count:
        return vectors
    _, axes = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))
    few: Vectors = vectors @ axes[:, : -count - 1 : -1].astype(np.float32)
    return few


def _padded(columns: Vectors) -> Vectors:
    wide = np.zeros((len(columns), -(-columns.shape[1] // _TOGETHER) * _TOGETHER), np.float32)
    wide[:, : columns.shape[1]] = columns
    return wide


def _candidates(few: Vectors, padded: Vectors, rows: slice, count: int) -> NDArray[np.intp]:
    """Return the nearest `count` to some rows (rows, count), the nearest first.

    At least `count` columns reach the `count`-th largest maximum of groups of columns. Sorting only
    these is exact, and faster than a partition of all columns.
    """
    scores = few[rows] @ padded
    scores[:, len(few) :] = _NEVER
    scores[np.arange(len(scores)), np.arange(rows.start, rows.stop)] = _NEVER
    groups = scores.reshape(len(scores), _TOGETHER, -1).max(axis=1)
    if groups.shape[1] <= count:
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    least = np.partition(groups, -count, axis=1)[:, -count]
    row, column = np.nonzero(scores >= least[:, None])
    order = np.lexsort((-scores[row, column], row))
    first = np.searchsorted(row, np.arange(len(scores)))
    found: NDArray[np.intp] = column[order][first[:, None] + np.arange(count)]
    return found
