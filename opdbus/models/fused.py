"""ONNX Runtime's fused operators, used by the dialects for CUDA.

Each of them has a kernel for CUDA and one for the CPU, so these graphs can be tested on a CPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from onnx import TensorProto

if TYPE_CHECKING:
    from opdbus.models.shape import Shape
    from opdbus.models.writer import Writer

_MICROSOFT: Final = "com.microsoft"
# Weight of each token in the sum over a text: so small that no sum comes near float16's largest
# number, and a power of 2, so that nothing is rounded.
_PART: Final = 2.0**-6


def embeddings(writer: Writer, words: str, places: str, name: str, epsilon: float) -> str:
    """Add positions to words and normalize."""
    return _normalized(writer, (words, places), (name, epsilon))


def residual(writer: Writer, value: str, dense: str, skip: str, norm: tuple[str, float]) -> str:
    """Apply the dense layer `dense`, add `skip`, and normalize; `norm` is (name, epsilon)."""
    product, bias = writer.product(value, dense), writer.weight(f"{dense}.bias")
    return _normalized(writer, (product, skip), norm, bias)


def gelu(writer: Writer, value: str, dense: str) -> str:
    """Apply a dense layer and the exact Gelu."""
    product, bias = writer.product(value, dense), writer.weight(f"{dense}.bias")
    return writer.op("BiasGelu", product, bias, domain=_MICROSOFT)


def attention(
    writer: Writer, shape: Shape, hidden: str, dense: tuple[str, str, str], bias: str
) -> str:
    """Apply attention with the dense layers of queries, keys and values in one product."""
    kernels = np.concatenate([writer.weights[f"{name}.weight"].T for name in dense], axis=1)
    biases = np.concatenate([writer.weights[f"{name}.bias"] for name in dense])
    inputs = (
        hidden,
        writer.constant(f"{dense[0]}.kernels", kernels),
        writer.constant(f"{dense[0]}.biases", biases),
    )
    # the two inputs between, a mask and past keys, are not used
    biased = ("", "", bias) if bias else ()
    return writer.op("Attention", *inputs, *biased, domain=_MICROSOFT, num_heads=shape.heads)


def total(writer: Writer, hidden: str, most: int) -> str:
    """Sum the tokens of each text as a matrix product, which GPUs compute fast.

    The sum differs from the mean by a factor, which normalization removes. A reduction over a
    middle axis goes through cuDNN, which is slow at it.
    """
    parts = writer.start(writer.constant("parts", np.full((most, 1), _PART, np.float32)), axis=0)
    # batch axis first, so that this is one strided product without a list of addresses
    summed = writer.op("FusedMatMul", hidden, parts, domain=_MICROSOFT, transA=1)
    flat = writer.op("Squeeze", summed, writer.ints("last_axis", [2]))
    return writer.op("Cast", flat, to=TensorProto.FLOAT) if writer.dialect.is_half else flat


def _normalized(writer: Writer, added: tuple[str, str], norm: tuple[str, float], *bias: str) -> str:
    name, epsilon = norm
    inputs = (*added, writer.weight(f"{name}.weight"), writer.weight(f"{name}.bias"), *bias)
    return writer.op("SkipLayerNormalization", *inputs, domain=_MICROSOFT, epsilon=epsilon)
