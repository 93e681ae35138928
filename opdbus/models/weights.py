"""Weights of a safetensors file under its family's names, and MPNet's bias by distance."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize, safe_open

from opdbus.errors import ModelError
from opdbus.models.shape import BUCKETS, FAMILIES
from opdbus.platform.regular_files import read_regular

Weights = Mapping[str, NDArray[np.float32]]

# Models saved with a head on top prefix the encoder's weights with their family's name.
_PREFIX: Final = re.compile(rf"^({'|'.join(FAMILIES)})\.")
_FLOATS: Final = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
_BFLOAT16: Final = "BF16"


def read_weights(path: Path) -> Weights:
    """Read every float tensor, converted to float32; raises ModelError."""
    try:
        tensors = deserialize(read_regular(path, follow=True))  # type: ignore[no-untyped-call]  # it has no types
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the weights {path}: {error}") from None
    return {
        _PREFIX.sub("", name): _floats(tensor["dtype"], tensor["data"]).reshape(tensor["shape"])
        for name, tensor in tensors
        # some files also contain tables of positions, as integers
        if tensor["dtype"] in _FLOATS or tensor["dtype"] == _BFLOAT16
    }


def require_readable(path: Path) -> None:
    """Check a file's header without reading its tensors; raises ModelError."""
    try:
        with safe_open(path, framework="numpy"):
            pass
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the weights {path}: {error}") from None


def _floats(dtype: str, data: bytes) -> NDArray[np.float32]:
    if dtype == _BFLOAT16:
        # numpy has no such type: these bits are the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, _FLOATS[dtype]).astype(np.float32, copy=False)


RELATIVE: Final = "encoder.relative_attention_bias.weight"
# Distances at which buckets begin after bucket 0: one for each distance up to 8, then at 8 *
# 16**(k/8), so the last one holds all past 90. The upper half of the buckets repeats this for keys
# after the query.
_EDGES: Final = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)


def relative_bias(table: NDArray[np.float32], tokens: int) -> NDArray[np.float32]:
    """Return the bias that is added to the scaled scores: (heads, queries, keys).

    `table` is (buckets, heads). Source: Raffel et al. 2019 (T5), with buckets up to 128 apart.
    """
    places = np.arange(tokens)
    biases: NDArray[np.float32] = table[distance_buckets(places - places[:, np.newaxis])]
    return biases.transpose(2, 0, 1)


def distance_buckets(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """Map distances, key minus query, to buckets; keys after the query have the upper half."""
    return np.digitize(np.abs(distances), _EDGES) + np.where(distances > 0, BUCKETS // 2, 0)
