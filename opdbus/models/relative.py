"""Bias of MPNet's attention by the distance between two tokens."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.models.families import BUCKETS

RELATIVE: Final = "encoder.relative_attention_bias.weight"
# Distances at which buckets begin after bucket 0: one for each distance up to 8, then at 8 *
# 16**(k/8), so the last one holds all past 90. The upper half of the buckets repeats this for keys
# after the query.
_EDGES: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)


def bias(table: NDArray[np.float32], tokens: int) -> NDArray[np.float32]:
    """Return the bias that is added to the scaled scores: (heads, queries, keys).

    `table` is (buckets, heads). Source: Raffel et al. 2019 (T5), with buckets up to 128 apart.
    """
    places = np.arange(tokens)
    biases: NDArray[np.float32] = table[buckets(places - places[:, np.newaxis])]
    return biases.transpose(2, 0, 1)


def buckets(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Map distances, key minus query, to buckets; keys after the query have the upper half."""
    return np.digitize(np.abs(distances), _EDGES) + np.where(distances > 0, BUCKETS // 2, 0)
