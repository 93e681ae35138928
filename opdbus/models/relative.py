"""How MPNet's attention depends on the distance between two tokens."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from opdbus.models.families import BUCKETS

RELATIVE: Final = "encoder.relative_attention_bias.weight"
# Where buckets begin after distance 0: one for each distance up to 8, then at 8 * 16**(k/8), so
# that the last one holds all past 90. The same again serves the tokens that come later.
_EDGES: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)


def bias(table: NDArray[np.float32], tokens: int) -> NDArray[np.float32]:
    """Give what is added to the scaled scores: (heads, tokens, tokens), rows are the queries.

    `table` is (buckets, heads). Source: Raffel et al. 2019 (T5), with buckets up to 128 apart.
    """
    places = np.arange(tokens)
    biases: NDArray[np.float32] = table[buckets(places - places[:, np.newaxis])]
    return biases.transpose(2, 0, 1)


def buckets(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sort distances, key minus query, into buckets; those after the query have the upper half."""
    return np.digitize(np.abs(distances), _EDGES) + np.where(distances > 0, BUCKETS // 2, 0)
