"""ONNX graph of a sentence transformer, BERT or MPNet, built from its weights.

One graph goes from token ids to unit vectors: embeddings, layers, mean pooling, normalization. All
rows of a batch have one length, so the graph needs no mask and no padding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import numpy as np
from onnx import ModelProto, TensorProto, helper

from opdbus import __version__
from opdbus.models import fused, relative, rounded
from opdbus.models.dialects import FLOAT, Dialect
from opdbus.models.families import FAMILIES, PADDING
from opdbus.models.writer import INPUT, Writer

if TYPE_CHECKING:
    from opdbus.models.shape import Shape
    from opdbus.models.weights import Weights

OUTPUT: Final = "sentence_embedding"
# Runtimes that read opset 20 read this version, and so do those of older opsets.
IR_VERSION: Final = 10


def build(shape: Shape, weights: Weights, dialect: Dialect = FLOAT) -> ModelProto:
    """Build the graph: `input_ids` int64 (batch, tokens) to `sentence_embedding` (batch, dim).

    Vectors are float32 of length 1. `weights` has the parameter names of the reference
    implementations. Sources of the architectures: Devlin et al. 2018, Song et al. 2020.
    """
    writer = Writer(weights, dialect)
    hidden = _embeddings(writer, shape)
    bias = _bias(writer, shape) if FAMILIES[shape.family].relative else ""
    for number in range(shape.layers):
        hidden = _layer(writer, shape, hidden, f"encoder.layer.{number}.", bias)
    pooled = _pooled(writer, shape, hidden)
    writer.op("LpNormalization", pooled, axis=-1, p=2, output=OUTPUT)
    model = _model(writer, shape)
    while writer.constants:
        # each source is freed once it is copied, so that memory holds the weights at most twice
        model.graph.initializer.append(writer.constants.pop())
    return model


def _model(writer: Writer, shape: Shape) -> ModelProto:
    """Make the ONNX model of the nodes, without the constants."""
    graph = helper.make_graph(
        writer.nodes,
        "op-dbus",
        [helper.make_tensor_value_info(INPUT, TensorProto.INT64, ["batch", "tokens"])],
        [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["batch", shape.hidden])],
    )
    opsets = [helper.make_opsetid("", writer.dialect.opset)]
    if writer.dialect.is_contrib:
        opsets.append(helper.make_opsetid("com.microsoft", 1))
    return helper.make_model(
        graph,
        opset_imports=opsets,
        ir_version=IR_VERSION,
        producer_name="op-dbus",
        producer_version=__version__,
    )


def _embeddings(writer: Writer, shape: Shape) -> str:
    words = writer.op("Gather", writer.weight("embeddings.word_embeddings.weight"), INPUT)
    places = _numbered(writer, shape) if FAMILIES[shape.family].relative else _plain(writer, shape)
    name = "embeddings.LayerNorm"
    if writer.dialect.is_fused:
        return fused.embeddings(writer, words, places, name, shape.epsilon)
    total = writer.op("Add", words, places)
    if writer.dialect.is_rounded:
        total = rounded.begin(writer, shape, total)
    return writer.norm(total, name, shape.epsilon)


def _plain(writer: Writer, shape: Shape) -> str:
    """Return BERT's positions, the same for every row: (tokens, hidden)."""
    # All tokens have type 0, so that row is added to the positions once, here.
    table = (
        writer.weights["embeddings.position_embeddings.weight"][: shape.max_tokens]
        + writer.weights["embeddings.token_type_embeddings.weight"][0]
    )
    return writer.start(writer.constant("positions", table), axis=0)


def _numbered(writer: Writer, shape: Shape) -> str:
    """Return MPNet's positions, which skip padding tokens that occur in a text."""
    end = FAMILIES[shape.family].first_position + shape.max_tokens
    table = writer.weights["embeddings.position_embeddings.weight"][:end]
    padding = writer.ints("padding", [PADDING])
    counts = writer.op("Not", writer.op("Equal", INPUT, padding))
    ones = writer.op("Cast", counts, to=TensorProto.INT64)
    numbers = writer.op("Mul", writer.op("CumSum", ones, writer.ints("row_axis", [1])), ones)
    rows = writer.op("Add", numbers, padding)
    return writer.op("Gather", writer.constant("positions", table), rows)


def _bias(writer: Writer, shape: Shape) -> str:
    """Return the bias of all layers, (1, heads, tokens, tokens): one table's upper left corner."""
    table = relative.bias(writer.weights[relative.RELATIVE], shape.max_tokens)
    whole = writer.constant("relative_bias", table[np.newaxis])
    return writer.start(writer.start(whole, axis=2), axis=3)


def _layer(writer: Writer, shape: Shape, hidden: str, prefix: str, bias: str) -> str:
    names = FAMILIES[shape.family]
    mixed = _attention(writer, shape, hidden, prefix, bias)
    norm = (prefix + names.mixed_norm, shape.epsilon)
    middle = _residual(writer, mixed, prefix + names.mixed, hidden, norm)
    wide = _activated(writer, middle, prefix)
    norm = (prefix + "output.LayerNorm", shape.epsilon)
    return _residual(writer, wide, prefix + "output.dense", middle, norm)


def _residual(writer: Writer, value: str, dense: str, skip: str, norm: tuple[str, float]) -> str:
    if writer.dialect.is_fused:
        return fused.residual(writer, value, dense, skip, norm)
    return writer.norm(writer.op("Add", writer.linear(value, dense), skip), *norm)


def _activated(writer: Writer, value: str, prefix: str) -> str:
    dense = prefix + "intermediate.dense"
    if writer.dialect.is_fused:
        return fused.gelu(writer, value, dense)
    return writer.gelu(writer.linear(value, dense), f"{prefix}gelu")


def _pooled(writer: Writer, shape: Shape, hidden: str) -> str:
    """Pool the tokens in float32, by mean or sum: normalization removes the factor."""
    if writer.dialect.is_rounded:
        hidden = rounded.end(writer, hidden)
    if writer.dialect.is_fused:
        return fused.total(writer, hidden, shape.max_tokens)
    if writer.dialect.is_half:
        hidden = writer.op("Cast", hidden, to=TensorProto.FLOAT)
    return writer.mean(hidden, axis=1)


def _attention(writer: Writer, shape: Shape, hidden: str, prefix: str, bias: str) -> str:
    names = FAMILIES[shape.family]
    dense = (prefix + names.query, prefix + names.key, prefix + names.value)
    if writer.dialect.is_fused:
        return fused.attention(writer, shape, hidden, dense, bias)
    if writer.dialect.is_rounded:
        return rounded.attention(writer, shape, hidden, dense, bias)
    if writer.dialect.is_contrib:
        return writer.attention(shape, writer.split(writer.linear(hidden, *dense)), bias)
    q, k, v = (writer.linear(hidden, name) for name in dense)
    return _plain_attention(writer, shape, (q, k, v), bias)


def _plain_attention(writer: Writer, shape: Shape, parts: tuple[str, str, str], bias: str) -> str:
    """Write attention with operators that every opset has."""
    size = shape.hidden // shape.heads
    prefix = parts[0]
    apart = writer.ints(f"{prefix}_apart", [0, 0, shape.heads, size])
    q, k, v = (
        writer.op("Transpose", writer.op("Reshape", part, apart), perm=order)
        for part, order in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    root = writer.number(f"{prefix}_root", 1 / math.sqrt(size))
    scores = writer.op("MatMul", writer.op("Mul", q, root), k)
    if bias:
        scores = writer.op("Add", scores, bias)
    mixed = writer.op("MatMul", writer.op("Softmax", scores, axis=-1), v)
    together = writer.ints(f"{prefix}_together", [0, 0, shape.hidden])
    return writer.op("Reshape", writer.op("Transpose", mixed, perm=[0, 2, 1, 3]), together)
