"""The model in plain numpy and double precision: what every engine's vectors are held against."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import numpy as np

from opdbus.models import relative
from opdbus.models.families import FAMILIES, PADDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opdbus.models.families import Family
    from opdbus.models.folder import Shape
    from opdbus.models.weights import Weights

    Floats = NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def forward(shape: Shape, weights: Weights, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Embed token ids row by row: (rows, dim) float32 of length 1."""
    return np.stack([_embed(shape, weights, ids) for ids in rows]).astype(np.float32)


def _embed(shape: Shape, weights: Weights, ids: Sequence[int]) -> Floats:
    family = FAMILIES[shape.family]
    hidden = weights["embeddings.word_embeddings.weight"][list(ids)].astype(np.float64)
    hidden += weights["embeddings.position_embeddings.weight"][_positions(ids, family)]
    if family.token_types:
        hidden += weights["embeddings.token_type_embeddings.weight"][0]
    hidden = _norm(hidden, weights, "embeddings.LayerNorm", shape.epsilon)
    bias = _bias(weights, len(ids)) if family.relative else None
    for number in range(shape.layers):
        hidden = _layer(shape, weights, hidden, f"encoder.layer.{number}.", bias)
    mean: Floats = hidden.mean(axis=0)
    return mean / np.linalg.norm(mean)


def _bias(weights: Weights, tokens: int) -> Floats:
    return relative.bias(weights[relative.RELATIVE], tokens).astype(np.float64)


def _positions(ids: Sequence[int], family: Family) -> list[int]:
    """Give each token its position; MPNet gives its padding token 1 and counts the others only."""
    if not family.relative:
        return list(range(len(ids)))
    counts = itertools.accumulate(token != PADDING for token in ids)
    return [
        PADDING if token == PADDING else PADDING + count
        for token, count in zip(ids, counts, strict=True)
    ]


def _layer(
    shape: Shape, weights: Weights, hidden: Floats, prefix: str, bias: Floats | None
) -> Floats:
    names = FAMILIES[shape.family]
    attended = _attention(shape, weights, hidden, prefix, bias)
    projected = _linear(attended, weights, prefix + names.mixed)
    middle = _norm(projected + hidden, weights, prefix + names.mixed_norm, shape.epsilon)
    wide = _gelu(_linear(middle, weights, prefix + "intermediate.dense"))
    narrow = _linear(wide, weights, prefix + "output.dense")
    return _norm(narrow + middle, weights, prefix + "output.LayerNorm", shape.epsilon)


def _attention(
    shape: Shape, weights: Weights, hidden: Floats, prefix: str, bias: Floats | None
) -> Floats:
    size, names = shape.hidden // shape.heads, FAMILIES[shape.family]

    def heads(part: str) -> Floats:
        flat = _linear(hidden, weights, prefix + part)
        return flat.reshape(-1, shape.heads, size).transpose(1, 0, 2)

    scores = heads(names.query) @ heads(names.key).transpose(0, 2, 1) / math.sqrt(size)
    if bias is not None:
        scores += bias
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: Floats = scores @ heads(names.value)
    return mixed.transpose(1, 0, 2).reshape(-1, shape.hidden)


def _linear(value: Floats, weights: Weights, name: str) -> Floats:
    product: Floats = value @ weights[f"{name}.weight"].T.astype(np.float64)
    return product + weights[f"{name}.bias"]


def _gelu(value: Floats) -> Floats:
    result: Floats = value * 0.5 * (1.0 + _erf(value / math.sqrt(2.0)))
    return result


def _norm(value: Floats, weights: Weights, name: str, epsilon: float) -> Floats:
    centred = value - value.mean(axis=-1, keepdims=True)
    scaled: Floats = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    result: Floats = scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
    return result
