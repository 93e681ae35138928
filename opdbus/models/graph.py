"""The ONNX graph of a sentence transformer, BERT's or MPNet's, written straight from its weights.

One graph goes from token ids to unit vectors: embeddings, layers, mean pooling, normalization.
It takes batches of equal length, so it needs no mask and no padding token ever enters it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from opdbus import __version__
from opdbus.models import fused, relative, rounded
from opdbus.models.dialects import FLOAT
from opdbus.models.families import FAMILIES, PADDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from opdbus.models.dialects import Dialect
    from opdbus.models.shape import Shape
    from opdbus.models.weights import Weights

INPUT: Final = "input_ids"
OUTPUT: Final = "sentence_embedding"
# What reads opset 20 reads this; what reads only older ones reads this version's files too.
IR_VERSION: Final = 10
# Since this opset the axes of a reduction are an input; before, an attribute.
_AXES_AS_INPUT: Final = 18
_GELU: Final = 20
# The layer that int8 weights leave in floats: all others multiply its errors.
_EXACT: Final = "encoder.layer.0."
_INT8_MOST: Final = 127.0


def build(shape: Shape, weights: Weights, dialect: Dialect = FLOAT) -> ModelProto:
    """Build the graph: `input_ids` int64 (batch, tokens) to `sentence_embedding` (batch, dim).

    Vectors are float32 of length 1. Sources of the architectures: Devlin et al. 2018, Song et al.
    2020, and the reference implementations' parameter names, which the keys of `weights` are.
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
        # what is copied into the model is let go at once: all weights twice are enough
        model.graph.initializer.append(writer.constants.pop())
    return model


def _model(writer: Writer, shape: Shape) -> ModelProto:
    """Wrap the nodes up, without the constants."""
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


class Writer:
    """Collects nodes and constants; every value is known by its name."""

    def __init__(self, weights: Weights, dialect: Dialect) -> None:
        self.weights = weights
        self.dialect = dialect
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def op(
        self,
        kind: str,
        *inputs: str,
        output: str = "",
        domain: str = "",
        **attributes: Any,  # noqa: ANN401 -- as onnx.helper.make_node
    ) -> str:
        """Add a node and give the name of its one output."""
        name = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(kind, list(inputs), [name], name=name, domain=domain, **attributes)
        )
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a constant and give its name; floats become those of the dialect."""
        if self.dialect.is_half and value.dtype == np.float32:
            value = value.astype(np.float16)
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def number(self, name: str, value: float) -> str:
        """Add a constant of one number."""
        return self.constant(name, np.array(value, np.float32))

    def weight(self, name: str) -> str:
        """Add a weight as it is."""
        return self.constant(name, self.weights[name])

    def ints(self, name: str, values: list[int]) -> str:
        """Add a small vector of int64."""
        return self.constant(name, np.array(values, np.int64))

    def linear(self, value: str, *names: str) -> str:
        """Apply the dense layer of a name, or the layers of several side by side as one."""
        name = names[0] if len(names) == 1 else f"{names[0]}.packed"
        kernel = np.concatenate([self.weights[f"{part}.weight"].T for part in names], axis=1)
        biases = [self.weights[f"{part}.bias"] for part in names]
        bias = self.constant(f"{name}.bias", np.concatenate(biases))
        is_exact = self.dialect.dense == "weights" and name.startswith(_EXACT)
        if self.dialect.dense == "float" or is_exact:
            product = self.op("MatMul", value, self.constant(f"{name}.kernel", kernel))
            return self.op("Add", product, bias)
        scale, quantized = self._quantized(name, kernel)
        zero = self.constant(f"{name}.zero", np.zeros(kernel.shape[1], np.int8))
        if self.dialect.dense == "dynamic":
            inputs = (value, quantized, scale, zero, bias)
            return self.op("DynamicQuantizeMatMul", *inputs, domain="com.microsoft")
        floats = self.op("DequantizeLinear", quantized, scale, zero, axis=1)
        return self.op("Add", self.op("MatMul", value, floats), bias)

    def product(self, value: str, name: str) -> str:
        """Apply the dense layer `name` without its bias."""
        kernel = self.weights[f"{name}.weight"].T
        return self.op("MatMul", value, self.constant(f"{name}.kernel", kernel))

    def _quantized(self, name: str, kernel: NDArray[np.float32]) -> tuple[str, str]:
        """Add a kernel as int8, with a scale for each of its columns."""
        scale = (np.abs(kernel).max(axis=0) / _INT8_MOST).astype(np.float32)
        scale[scale == 0] = 1.0
        values = np.rint(kernel / scale).astype(np.int8)
        return self.constant(f"{name}.scale", scale), self.constant(f"{name}.int8", values)

    def gelu(self, value: str, name: str) -> str:
        """Apply the exact Gelu."""
        if self.dialect.opset >= _GELU:
            return self.op("Gelu", value)
        scaled = self.op("Mul", value, self.number(f"{name}_root", math.sqrt(0.5)))
        share = self.op("Add", self.op("Erf", scaled), self.number(f"{name}_one", 1.0))
        half = self.op("Mul", value, self.number(f"{name}_half", 0.5))
        return self.op("Mul", half, share)

    def mean(self, value: str, axis: int) -> str:
        """Average over an axis, which goes."""
        if self.dialect.opset >= _AXES_AS_INPUT:
            return self.op("ReduceMean", value, self.ints("mean_axis", [axis]), keepdims=0)
        return self.op("ReduceMean", value, axes=[axis], keepdims=0)

    def norm(self, value: str, name: str, epsilon: float) -> str:
        """Apply a layer normalization over the last axis."""
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", value, scale, bias, axis=-1, epsilon=epsilon)

    def split(self, value: str) -> list[str]:
        """Give the three parts of what packed layers gave."""
        parts = [f"{value}_{part}" for part in ("query", "key", "value")]
        self.nodes.append(
            helper.make_node("Split", [value], parts, name=f"{value}_split", axis=2, num_outputs=3)
        )
        return parts

    def attention(self, shape: Shape, parts: Sequence[str], bias: str) -> str:
        """Mix values by queries and keys, each (batch, tokens, hidden), as one operator."""
        # the two inputs between are a packed bias and a mask, which we have not
        biased = ("", "", bias) if bias else ()
        return self.op(
            "MultiHeadAttention", *parts, *biased, domain="com.microsoft", num_heads=shape.heads
        )

    def start(self, value: str, axis: int) -> str:
        """Keep as much of an axis as there are tokens."""
        zero, axes = self.ints(f"{value}_zero", [0]), self.ints(f"{value}_axis", [axis])
        length = self.op("Shape", INPUT, start=1, end=2)
        return self.op("Slice", value, zero, length, axes)


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
    """Give BERT's positions, the same for every row: (tokens, hidden)."""
    # All tokens are of type 0, so that row is added to the positions once, here.
    table = (
        writer.weights["embeddings.position_embeddings.weight"][: shape.max_tokens]
        + writer.weights["embeddings.token_type_embeddings.weight"][0]
    )
    return writer.start(writer.constant("positions", table), axis=0)


def _numbered(writer: Writer, shape: Shape) -> str:
    """Give MPNet's positions, which count no padding token even where a text spells one."""
    end = FAMILIES[shape.family].first_position + shape.max_tokens
    table = writer.weights["embeddings.position_embeddings.weight"][:end]
    padding = writer.ints("padding", [PADDING])
    counts = writer.op("Not", writer.op("Equal", INPUT, padding))
    ones = writer.op("Cast", counts, to=TensorProto.INT64)
    numbers = writer.op("Mul", writer.op("CumSum", ones, writer.ints("row_axis", [1])), ones)
    rows = writer.op("Add", numbers, padding)
    return writer.op("Gather", writer.constant("positions", table), rows)


def _bias(writer: Writer, shape: Shape) -> str:
    """Give the bias of all layers, (1, heads, tokens, tokens): one table's upper left corner."""
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
    """Average over the tokens, in float32; the length of the result does not matter."""
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
    """Write attention with the operators of every opset."""
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
