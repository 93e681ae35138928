"""Spherical k-means of unit vectors, deterministic for the same vectors.

Random numbers come from digests of the texts, not from the order of rows: a few objects more or
less leave the other choices unchanged.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]

# Attempts with different initial centres, on at most _TRIED vectors; the best is refined.
_ATTEMPTS: Final = 3
_TRIED: Final = 4096
_ROUNDS: Final = 10
# The least size of a group.
LEAST: Final = 3
_EPSILON: Final = 1e-12


def centres(vectors: Vectors, keys: NDArray[np.uint64], count: int) -> Vectors:
    """Return about `count` centres (count, dimension) of unit vectors (rows, dimension).

    `keys` (rows,) are random numbers of the vectors; the first vectors must be a random sample.
    """
    sample, of = vectors[:_TRIED], keys[:_TRIED]
    attempts = (_refine(sample, _choose(sample, of, count, n)) for n in range(_ATTEMPTS))
    best = max(attempts, key=lambda found: float(nearest(sample, found)[1].sum()))
    found = _refine(vectors, best)
    sizes = np.bincount(nearest(vectors, found)[0], minlength=len(found))
    return found[sizes >= LEAST] if (sizes >= LEAST).any() else found


def nearest(vectors: Vectors, centres: Vectors) -> tuple[NDArray[np.intp], Vectors]:
    """Return the index of the nearest centre of each vector (rows,), and the cosines (rows,)."""
    cosines = vectors @ centres.T
    labels = cosines.argmax(axis=1)
    return labels, cosines[np.arange(len(labels)), labels]


def normalize(vectors: Vectors) -> Vectors:
    """Return vectors scaled to length 1; zero stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Vectors = vectors / np.maximum(lengths, np.float32(_EPSILON))
    return found


def _refine(vectors: Vectors, found: Vectors) -> Vectors:
    """Move centres to the mean of their nearest vectors until none changes, or for 10 rounds."""
    found, before = found.copy(), np.full(len(vectors), -1)
    for _ in range(_ROUNDS):
        labels, _ = nearest(vectors, found)
        if (labels == before).all():
            break
        before = labels
        having = np.zeros((len(vectors), len(found)), np.float32)
        having[np.arange(len(labels)), labels] = 1
        sums = having.T @ vectors
        # a centre without vectors stays in place
        moved = np.linalg.norm(sums, axis=1) > _EPSILON
        found[moved] = normalize(sums[moved])
    return found


def _choose(vectors: Vectors, keys: NDArray[np.uint64], count: int, attempt: int) -> Vectors:
    """Choose initial centres far from each other, as k-means++ does.

    The maximum of log(weight) + Gumbel noise is a random choice with these weights.
    """
    chosen: list[int] = []
    weights = np.ones(len(vectors))
    for step in range(min(count, len(vectors))):
        if weights.max() <= _EPSILON:
            break
        # numbers between 0 and 1 that depend only on keys and the step (SplitMix64)
        mixed = keys + np.uint64((0x9E3779B97F4A7C15 * (attempt * count + step + 1)) % (1 << 64))
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed = (mixed ^ (mixed >> np.uint64(31))) >> np.uint64(11)
        noise = -np.log(-np.log((mixed.astype(np.float64) + 0.5) * 2.0**-53))
        chosen.append(int(np.argmax(np.log(np.maximum(weights, _EPSILON)) + noise)))
        weights = np.minimum(weights, 1 - vectors @ vectors[chosen[-1]])
    return vectors[chosen]
