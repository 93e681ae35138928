"""Reference model in plain numpy and double precision, against which engines are proven."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from opdbus.models.shape import FAMILIES, PADDING, Family, Shape
from opdbus.models.weights import RELATIVE, Weights, relative_bias

Floats = NDArray[np.float64]

_erf = np.vectorize(math.erf, otypes=[np.float64])


def forward(shape: Shape, weights: Weights, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """Embed rows of token ids: (rows, dim) float32 of length 1.

    The tokens of all rows go through a layer as one array; only attention separates the rows.
    """
    family = FAMILIES[shape.family]
    hidden = np.concatenate([_embeddings(weights, ids, family) for ids in rows])
    hidden = _norm(hidden, weights, "embeddings.LayerNorm", shape.epsilon)
    biases = [_bias(weights, len(ids), family) for ids in rows]
    for number in range(shape.layers):
        hidden = _layer(shape, weights, hidden, f"encoder.layer.{number}.", biases)
    means = np.stack([row.mean(axis=0) for row in np.split(hidden, _ends(biases))])
    vectors: Floats = means / np.linalg.norm(means, axis=1, keepdims=True)
    return vectors.astype(np.float32)


def _embeddings(weights: Weights, ids: Sequence[int], family: Family) -> Floats:
    hidden = weights["embeddings.word_embeddings.weight"][list(ids)].astype(np.float64)
    hidden += weights["embeddings.position_embeddings.weight"][_positions(ids, family)]
    if family.token_types:
        hidden += weights["embeddings.token_type_embeddings.weight"][0]
    return hidden


def _positions(ids: Sequence[int], family: Family) -> list[int]:
    """Return each token's position; in MPNet, padding is at 1 and only other tokens count."""
    if not family.relative:
        return list(range(len(ids)))
    counts = itertools.accumulate(token != PADDING for token in ids)
    return [
        PADDING if token == PADDING else PADDING + count
        for token, count in zip(ids, counts, strict=True)
    ]


def _bias(weights: Weights, tokens: int, family: Family) -> Floats:
    """Return the bias of a row's attention scores: (heads or 1, tokens, tokens)."""
    if not family.relative:
        return np.zeros((1, tokens, tokens))
    return relative_bias(weights[RELATIVE], tokens).astype(np.float64)


def _ends(biases: Sequence[Floats]) -> NDArray[np.int64]:
    """Return the token indexes at which all rows but the last end."""
    return np.cumsum([bias.shape[-1] for bias in biases])[:-1]


def _layer(
    shape: Shape, weights: Weights, hidden: Floats, prefix: str, biases: Sequence[Floats]
) -> Floats:
    names = FAMILIES[shape.family]
    attended = _attention(shape, weights, hidden, prefix, biases)
    projected = _linear(attended, weights, prefix + names.mixed)
    middle = _norm(projected + hidden, weights, prefix + names.mixed_norm, shape.epsilon)
    wide = _gelu(_linear(middle, weights, prefix + "intermediate.dense"))
    narrow = _linear(wide, weights, prefix + "output.dense")
    return _norm(narrow + middle, weights, prefix + "output.LayerNorm", shape.epsilon)


def _attention(
    shape: Shape, weights: Weights, hidden: Floats, prefix: str, biases: Sequence[Floats]
) -> Floats:
    names = FAMILIES[shape.family]

    def heads(part: str) -> list[Floats]:
        """Return each row's (heads, tokens, size)."""
        flat = _linear(hidden, weights, prefix + part)
        split = flat.reshape(len(hidden), shape.heads, -1).transpose(1, 0, 2)
        return np.split(split, _ends(biases), axis=1)

    parts = (heads(names.query), heads(names.key), heads(names.value), biases)
    mixed = np.concatenate([_mixed(*row) for row in zip(*parts, strict=True)], axis=1)
    return mixed.transpose(1, 0, 2).reshape(hidden.shape)


def _mixed(query: Floats, key: Floats, value: Floats, bias: Floats) -> Floats:
    """Let the tokens of one row attend to each other."""
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1]) + bias
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    mixed: Floats = scores @ value
    return mixed


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
