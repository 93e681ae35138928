"""Writer of the nodes and constants of an ONNX graph in one dialect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from opdbus.models import onnx_file

if TYPE_CHECKING:
    from opdbus.models.dialects import Dialect
    from opdbus.models.shape import Shape
    from opdbus.models.weights import Weights

INPUT: Final = "input_ids"
# From this opset on, the axes of a reduction are an input; before, an attribute.
_AXES_AS_INPUT: Final = 18
# First opset that has Gelu as an operator.
_GELU: Final = 20
# The layer that stays in floats with int8 weights: all later layers multiply its errors.
_EXACT: Final = "encoder.layer.0."
# Largest int8 weight for each way of writing dense layers. Processors without VNNI add two products
# of 8 unsigned and 8 signed bits in 16 bits: 2 x 255 x 127 overflows, 2 x 255 x 63 does not.
_INT8_MOST: Final = {"weights": 127.0, "dynamic": 63.0, "blocks": 127.0}
# Number of weights of a column that share a scale: 32 would be a little more exact and slower.
_BLOCK: Final = 128
# MatMulNBits' accuracy level that rounds activations to int8 too.
_AS_INT8: Final = 4


class Writer:
    """Collection of nodes and constants; each value is referred to by its name."""

    def __init__(self, weights: Weights, dialect: Dialect) -> None:
        self.weights = weights
        self.dialect = dialect
        self.nodes: list[bytes] = []
        self.constants: dict[str, NDArray[Any]] = {}

    def op(
        self,
        kind: str,
        *inputs: str,
        output: str = "",
        domain: str = "",
        **attributes: float | list[int],
    ) -> str:
        """Add a node and return the name of its only output."""
        name = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(
            onnx_file.encode_node(kind, inputs, [name], name=name, domain=domain, **attributes)
        )
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """Add a constant and return its name; in a half dialect, floats become float16."""
        if self.dialect.is_half and value.dtype == np.float32:
            value = value.astype(np.float16)
        self.constants[name] = value
        return name

    def number(self, name: str, value: float) -> str:
        """Add a constant of one number."""
        return self.constant(name, np.array(value, np.float32))

    def weight(self, name: str) -> str:
        """Add a weight unchanged."""
        return self.constant(name, self.weights[name])

    def ints(self, name: str, values: list[int]) -> str:
        """Add a small vector of int64."""
        return self.constant(name, np.array(values, np.int64))

    def linear(self, value: str, *names: str) -> str:
        """Apply one dense layer, or several layers packed side by side as one."""
        name = names[0] if len(names) == 1 else f"{names[0]}.packed"
        kernel = np.concatenate([self.weights[f"{part}.weight"].T for part in names], axis=1)
        biases = [self.weights[f"{part}.bias"] for part in names]
        bias = self.constant(f"{name}.bias", np.concatenate(biases))
        is_exact = self.dialect.dense == "weights" and name.startswith(_EXACT)
        if self.dialect.dense == "float" or is_exact:
            product = self.op("MatMul", value, self.constant(f"{name}.kernel", kernel))
            return self.op("Add", product, bias)
        if self.dialect.dense == "blocks":
            return self._blocks(value, name, kernel, bias)
        # one scale for each column
        scales, values = rounded_weights(kernel, _INT8_MOST[self.dialect.dense])
        scale = self.constant(f"{name}.scale", scales)
        quantized = self.constant(f"{name}.int8", values)
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

    def _blocks(self, value: str, name: str, kernel: NDArray[np.float32], bias: str) -> str:
        """Apply a dense layer whose kernel has a scale for each block of a column."""
        inner, outer = kernel.shape
        count = -(-inner // _BLOCK)
        columns = np.zeros((count * _BLOCK, outer), np.float32)
        columns[:inner] = kernel
        blocks = columns.T.reshape(outer * count, _BLOCK).T
        scale, values = rounded_weights(blocks, _INT8_MOST["blocks"])
        # the operator's numbers are unsigned, with 128 as zero
        unsigned = (values.T.astype(np.int16) + 128).astype(np.uint8).reshape(outer, count, _BLOCK)
        return self.op(
            "MatMulNBits",
            value,
            self.constant(f"{name}.int8", unsigned),
            self.constant(f"{name}.scale", scale.reshape(outer, count)),
            *("", "", bias),
            domain="com.microsoft",
            K=inner,
            N=outer,
            bits=8,
            block_size=_BLOCK,
            accuracy_level=_AS_INT8,
        )

    def gelu(self, value: str, name: str) -> str:
        """Apply the exact Gelu."""
        if self.dialect.opset >= _GELU:
            return self.op("Gelu", value)
        scaled = self.op("Mul", value, self.number(f"{name}_root", math.sqrt(0.5)))
        share = self.op("Add", self.op("Erf", scaled), self.number(f"{name}_one", 1.0))
        half = self.op("Mul", value, self.number(f"{name}_half", 0.5))
        return self.op("Mul", half, share)

    def mean(self, value: str, axis: int) -> str:
        """Average over an axis, and remove it."""
        if self.dialect.opset >= _AXES_AS_INPUT:
            return self.op("ReduceMean", value, self.ints("mean_axis", [axis]), keepdims=0)
        return self.op("ReduceMean", value, axes=[axis], keepdims=0)

    def norm(self, value: str, name: str, epsilon: float) -> str:
        """Apply a layer normalization over the last axis."""
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", value, scale, bias, axis=-1, epsilon=epsilon)

    def split(self, value: str) -> list[str]:
        """Split the output of three packed dense layers into their three outputs."""
        parts = [f"{value}_{part}" for part in ("query", "key", "value")]
        self.nodes.append(
            onnx_file.encode_node(
                "Split", [value], parts, name=f"{value}_split", axis=2, num_outputs=3
            )
        )
        return parts

    def attention(self, shape: Shape, parts: Sequence[str], bias: str) -> str:
        """Apply attention as one operator; `parts` are (batch, tokens, hidden) each."""
        # the two inputs between, a packed bias and a mask, are not used
        biased = ("", "", bias) if bias else ()
        return self.op(
            "MultiHeadAttention", *parts, *biased, domain="com.microsoft", num_heads=shape.heads
        )

    def start(self, value: str, axis: int) -> str:
        """Cut an axis to the number of tokens."""
        zero, axes = self.ints(f"{value}_zero", [0]), self.ints(f"{value}_axis", [axis])
        length = self.op("Shape", INPUT, start=1, end=2)
        return self.op("Slice", value, zero, length, axes)


def rounded_weights(
    kernel: NDArray[np.float32], most: float
) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
    """Round to int8 of at most `most`; return the scale of each column, and the integers."""
    scale = (np.abs(kernel).max(axis=0) / most).astype(np.float32)
    scale[scale == 0] = 1.0
    return scale, np.rint(kernel / scale).astype(np.int8)
