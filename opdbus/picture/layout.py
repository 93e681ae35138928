"""Layout of vectors in a plane that keeps neighbours together.

The graph of nearest neighbours is drawn by forces as in UMAP (https://arxiv.org/abs/1802.03426):
edges attract their ends, and randomly chosen points repel each other. All points move at once, by
as much as their own edges allow. The same vectors give the same positions.
"""

from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Places = NDArray[np.complex64]

# Chosen on 20,000 descriptions of packages to keep most neighbours.
NEIGHBOURS: Final = 10
_STEPS: Final = 500
_PUSHED: Final = 48
_PUSH: Final = 100.0
# Largest move of a point in a step, and the spread of the initial positions.
_FARTHEST: Final = 4.0
_BEGIN: Final = 5.0
_SEED: Final = 15
_ROUNDS: Final = 40
_EPSILON: Final = np.float32(1e-3)
# numpy releases the GIL.
_THREADS: Final = 2
# Rows that are compared with all others at a time.
_ROWS: Final = 128
_NEVER: Final = np.float32(-9)


def place(vectors: Vectors) -> NDArray[np.float32]:
    """Return a position (n, 2) from 0 to 1 for each of the vectors (n, d), of any length."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(lengths, _EPSILON)
    places = _principal_places(unit)
    if len(unit) > 2:
        with ThreadPoolExecutor(_THREADS) as threads:
            near = nearest_neighbours(unit, min(NEIGHBOURS, len(unit) - 1), threads)
            graph = _make_graph(*near)
            places = _apply_forces(places, graph, threads)
    return _fit_frame(places)


def nearest_neighbours(
    vectors: Vectors, count: int, threads: Executor
) -> tuple[NDArray[np.intp], Vectors]:
    """Return the `count` nearest of unit vectors (n, d), n > count, to each, and their cosines.

    Both arrays are (n, count), the nearest first; none is its own neighbour.
    """
    found = np.empty((len(vectors), count), np.intp)
    cosines = np.empty((len(vectors), count), np.float32)

    def work(first: int) -> None:
        rows = slice(first, min(first + _ROWS, len(vectors)))
        scores = vectors[rows] @ vectors.T
        own = np.arange(rows.start, rows.stop)
        scores[own - first, own] = _NEVER
        near = np.argpartition(scores, -count, axis=1)[:, -count:]
        exact = np.take_along_axis(scores, near, axis=1)
        order = np.argsort(-exact, axis=1, kind="stable")
        found[rows] = np.take_along_axis(near, order, axis=1)
        cosines[rows] = np.take_along_axis(exact, order, axis=1)

    list(threads.map(work, range(0, len(vectors), _ROWS)))
    return found, cosines


def _principal_places(vectors: Vectors) -> Places:
    """Return the two principal coordinates of vectors as complex numbers."""
    centred = vectors - vectors.mean(axis=0)
    _, axes = np.linalg.eigh((centred.T @ centred).astype(np.float64))
    both = axes[:, :-3:-1]
    # the sign of an axis is arbitrary; fix it
    both = both * np.sign(both[np.abs(both).argmax(axis=0), range(both.shape[1])])
    flat = centred @ both.astype(np.float32)
    places = flat[:, 0] + 1j * (flat[:, 1] if flat.shape[1] > 1 else 0)
    found: Places = (places * (_BEGIN / max(np.abs(places).std(), 1e-6))).astype(np.complex64)
    # equal vectors start apart, because no force could separate them
    noise = np.random.default_rng(_SEED).normal(size=(2, len(found))).astype(np.float32)
    apart: Places = found + (noise[0] + 1j * noise[1]) * np.float32(0.01)
    return apart


class _Graph(NamedTuple):
    """Edges in both directions, ordered by their start; `begins` has one entry more than points."""

    begins: NDArray[np.intp]
    ends: NDArray[np.intp]
    weights: Vectors


def _make_graph(neighbours: NDArray[np.intp], cosines: Vectors) -> _Graph:
    """Weight edges as UMAP does: the neighbours of each point have the same total weight."""
    count, each = neighbours.shape
    weights = _neighbour_weights(np.sqrt(np.maximum(2 - 2 * cosines, 0))).ravel()
    begin, end = np.repeat(np.arange(count), each), neighbours.ravel()
    both = np.concatenate([begin * count + end, end * count + begin])
    keys, place = np.unique(both, return_inverse=True)
    there = np.bincount(place[: len(end)], weights, len(keys))
    back = np.bincount(place[len(end) :], weights, len(keys))
    begins = np.searchsorted(keys, np.arange(count + 1) * count)
    return _Graph(begins, keys % count, (there + back - there * back).astype(np.float32))


def _neighbour_weights(distances: Vectors) -> NDArray[np.float64]:
    """Return neighbours' weights, 1 for the nearest, with the sum log2(each)."""
    beyond = (distances - distances[:, :1]).astype(np.float64)
    low, high = np.zeros(len(beyond)), np.full(len(beyond), np.inf)
    width, wanted = np.ones(len(beyond)), np.log2(max(beyond.shape[1], 2))
    for _ in range(_ROUNDS):
        is_wide = np.exp(-beyond / width[:, None]).sum(axis=1) > wanted
        high, low = np.where(is_wide, width, high), np.where(is_wide, low, width)
        width = np.where(np.isinf(high), 2 * width, (low + high) / 2)
    width = np.maximum(width, 1e-3 * max(beyond.mean(), 1e-6))
    shares: NDArray[np.float64] = np.exp(-beyond / width[:, None])
    return shares


def _apply_forces(places: Places, graph: _Graph, threads: Executor) -> Places:
    """Apply the forces in steps of decreasing size."""
    count, degrees = len(places), np.add.reduceat(graph.weights, graph.begins[:-1])
    random = np.random.default_rng(_SEED)
    borders = np.linspace(0, count, _THREADS + 1).astype(int)
    parts = [slice(*ends) for ends in pairwise(borders.tolist())]
    for step in range(_STEPS):
        mixed = np.tile(places[random.permutation(count)], 2)
        shifts = random.integers(0, count, min(_PUSHED, count))
        pace = np.float32(1 - step / _STEPS)

        forces = partial(_moves, places, graph, mixed, shifts, degrees)
        places = places + np.concatenate(list(threads.map(forces, parts))) * pace
    return places


def _moves(
    places: Places,
    graph: _Graph,
    mixed: Places,
    shifts: NDArray[np.int64],
    degrees: Vectors,
    part: slice,
) -> Places:
    """Return the moves of some points: the forces divided by the stiffness of their edges."""
    begins = graph.begins[part.start : part.stop + 1]
    edges = slice(begins[0], begins[-1])
    here = places[part]
    way = places[graph.ends[edges]] - np.repeat(here, np.diff(begins))
    hold = graph.weights[edges] / (1 + _squared(way))
    way *= hold
    pull = np.add.reduceat(way, begins[:-1] - begins[0])
    push = np.zeros_like(here)
    for shift in shifts:
        away = here - mixed[shift + part.start : shift + part.stop]
        far = _squared(away)
        push += away / ((_EPSILON + far) * (1 + far))
    force = pull + push * (degrees[part] * np.float32(_PUSH / len(shifts)))
    force /= np.add.reduceat(hold, begins[:-1] - begins[0])
    force *= np.minimum(1, np.float32(_FARTHEST) / np.maximum(np.abs(force), _EPSILON))
    moved: Places = force
    return moved


def _squared(places: Places) -> Vectors:
    found: Vectors = places.real**2 + places.imag**2
    return found


def _fit_frame(places: Places) -> NDArray[np.float32]:
    """Rotate the wider side to the horizontal; return (n, 2) from 0 to 1, both axes to scale."""
    flat = np.stack([places.real, places.imag], axis=1).astype(np.float64)
    flat -= flat.mean(axis=0)
    _, axes = np.linalg.eigh(flat.T @ flat)
    flat = flat @ axes[:, ::-1]
    low, high = flat.min(axis=0), flat.max(axis=0)
    size = max(float((high - low).max()), 1e-9)
    framed: NDArray[np.float32] = ((flat - low) / size).astype(np.float32)
    return framed
